//! Inode flags by letter, as `chattr` and `lsattr` have them.

use extant::InodeFlags;

/// Every flag that lsattr shows, in its order: letter, name, and whether chattr may change it.
pub(crate) const LETTERS: [(char, InodeFlags, &str, bool); 22] = [
    ('s', InodeFlags::SECRM, "Secure_Deletion", true),
    ('u', InodeFlags::UNRM, "Undelete", true),
    ('S', InodeFlags::SYNC, "Synchronous_Updates", true),
    ('D', InodeFlags::DIRSYNC, "Synchronous_Directory_Updates", true),
    ('i', InodeFlags::IMMUTABLE, "Immutable", true),
    ('a', InodeFlags::APPEND, "Append_Only", true),
    ('d', InodeFlags::NODUMP, "No_Dump", true),
    ('A', InodeFlags::NOATIME, "No_Atime", true),
    ('c', InodeFlags::COMPR, "Compression_Requested", true),
    ('E', InodeFlags::ENCRYPT, "Encrypted", false),
    ('j', InodeFlags::JOURNAL_DATA, "Journaled_Data", true),
    ('I', InodeFlags::INDEX, "Indexed_directory", false),
    ('t', InodeFlags::NOTAIL, "No_Tailmerging", true),
    ('T', InodeFlags::TOPDIR, "Top_of_Directory_Hierarchies", true),
    ('e', InodeFlags::EXTENTS, "Extents", false),
    ('C', NOCOW, "No_COW", false),
    ('x', InodeFlags::DAX, "DAX", true),
    ('F', InodeFlags::CASEFOLD, "Casefold", true),
    ('N', InodeFlags::INLINE_DATA, "Inline_Data", false),
    ('P', InodeFlags::PROJINHERIT, "Project_Hierarchy", true),
    ('V', InodeFlags::VERITY, "Verity", false),
    ('m', InodeFlags::NOCOMPR, "Dont_Compress", true),
];

/// All that chattr may change.
pub(crate) fn changeable() -> InodeFlags {
    let flags = LETTERS.iter().filter(|(.., changes)| *changes);
    flags.fold(InodeFlags::empty(), |all, (_, flag, ..)| all | *flag)
}

/// Returns whether lsattr has such a letter.
pub(crate) fn is_letter(letter: char) -> bool {
    LETTERS.iter().any(|(known, ..)| *known == letter)
}

/// A flag of other file systems, which ext4 never sets.
const NOCOW: InodeFlags = InodeFlags::SNAPFILE.difference(InodeFlags::SNAPFILE);

/// A change of flags: `+i`, `-a`, `=d`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct FlagChange {
    add: InodeFlags,
    remove: InodeFlags,
    set: Option<InodeFlags>,
}

impl FlagChange {
    /// Adds one word of the command line to the change.
    pub(crate) fn parse_word(&mut self, word: &str) -> Result<(), String> {
        let mut chars = word.chars();
        let sign = chars.next();
        let mut flags = InodeFlags::empty();
        for letter in chars {
            let known = LETTERS.iter().find(|(known, ..)| *known == letter);
            let Some((_, flag, name, _)) = known.filter(|(_, flag, ..)| !flag.is_empty()) else {
                return Err(format!("no flag of ext4 has the letter {letter:?}"));
            };
            if matches!(letter, 'E' | 'I' | 'N' | 'V') {
                return Err(format!("{letter:?} ({name}) is only shown, and cannot be changed"));
            }
            flags |= *flag;
        }
        match sign {
            Some('+') => self.add |= flags,
            Some('-') if !flags.is_empty() => self.remove |= flags,
            Some('=') => self.set = Some(self.set.unwrap_or(InodeFlags::empty()) | flags),
            _ => return Err(format!("{word:?} does not begin with +, - or = and letters")),
        }
        Ok(())
    }

    /// That the words together make sense.
    pub(crate) fn check(self) -> Result<(), String> {
        let signed = !(self.add | self.remove).is_empty();
        if self.set.is_some() && signed {
            return Err("= sets all flags: + and - have no place beside it".into());
        }
        if self.add.intersects(self.remove) {
            return Err("the same flag cannot be both set and cleared".into());
        }
        Ok(())
    }

    /// Returns what becomes of `flags`; an error if that needs more than flags.
    pub(crate) fn apply(self, flags: InodeFlags) -> Result<InodeFlags, &'static str> {
        let changeable = LETTERS.iter().filter(|(.., can)| *can);
        let changeable = changeable.fold(InodeFlags::empty(), |all, (_, flag, ..)| all | *flag);
        let wanted = match self.set {
            Some(set) => (flags - changeable) | set,
            None => (flags | self.add) - self.remove,
        };
        if (wanted ^ flags).contains(InodeFlags::EXTENTS) {
            return Err("files are not converted from or to extents");
        }
        Ok(wanted)
    }
}

/// The letters as lsattr shows them, `-` for what is not set.
pub(crate) fn letters(flags: InodeFlags) -> String {
    let letter = |(letter, flag, ..): &(char, InodeFlags, &str, bool)| match () {
        () if !flag.is_empty() && flags.contains(*flag) => *letter,
        () => '-',
    };
    LETTERS.iter().map(letter).collect()
}

/// Long names, as `lsattr -l` shows them.
pub(crate) fn names(flags: InodeFlags) -> Vec<&'static str> {
    let set = LETTERS.iter().filter(|(_, flag, ..)| !flag.is_empty() && flags.contains(*flag));
    set.map(|(_, _, name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<FlagChange, String> {
        let mut change = FlagChange::default();
        for word in words {
            change.parse_word(word)?;
        }
        change.check()?;
        Ok(change)
    }

    #[test]
    fn letters_in_the_order_of_lsattr() {
        assert_eq!(letters(InodeFlags::EXTENTS), "--------------e-------");
        let some = InodeFlags::EXTENTS | InodeFlags::INDEX | InodeFlags::IMMUTABLE;
        assert_eq!(letters(some), "----i------I--e-------");
        assert_eq!(names(some), ["Immutable", "Indexed_directory", "Extents"]);
    }

    #[test]
    fn changes() {
        let base = InodeFlags::EXTENTS | InodeFlags::NODUMP;
        let apply = |words: &[&str]| parse(words).unwrap().apply(base);
        assert_eq!(apply(&["+ia"]), Ok(base | InodeFlags::IMMUTABLE | InodeFlags::APPEND));
        assert_eq!(apply(&["-d", "+A"]), Ok(InodeFlags::EXTENTS | InodeFlags::NOATIME));
        assert_eq!(apply(&["=A"]), Ok(InodeFlags::EXTENTS | InodeFlags::NOATIME));
        assert_eq!(apply(&["="]), Ok(InodeFlags::EXTENTS));
        assert_eq!(apply(&["+e"]), Ok(base));
        assert!(apply(&["-e"]).is_err());
        for wrong in [&["+i", "-i"][..], &["=i", "+a"], &["+Z"], &["+C"], &["+E"], &["i"], &["-"]] {
            assert!(parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
