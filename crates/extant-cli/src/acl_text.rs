//! Access control lists as `setfacl` reads and `getfacl` writes them, and what the one does to
//! them.

use extant::Acl;
use extant_base::sabotage;
use extant_format::acl::{AclEntry, AclFault, Who};

use crate::accounts::{Account, Names};
use crate::exit::{Exit, Failure, Result};
use crate::text;

/// Whom an entry of the command line is about.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Subject {
    Owner,
    User(Account),
    OwningGroup,
    Group(Account),
    Mask,
    Others,
}

/// Permissions of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Perm {
    bits: u8,
    /// `X`: execution too, of directories and where an entry before it allows it.
    executable: bool,
}

/// One entry of the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct EntrySpec {
    /// Of the default ACL.
    pub(crate) default: bool,
    subject: Subject,
    /// Missing where entries are to be removed.
    perm: Option<Perm>,
}

/// An entry with its names looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) default: bool,
    who: Who,
    perm: Option<Perm>,
}

/// Reads entries with permissions, separated by commas or line ends; `#` begins a comment.
pub(crate) fn parse_entries(text: &str) -> Result<Vec<EntrySpec>, String> {
    parse_list(text, true)
}

/// Reads entries to be removed: without permissions.
pub(crate) fn parse_removals(text: &str) -> Result<Vec<EntrySpec>, String> {
    parse_list(text, false)
}

fn parse_list(text: &str, with_perm: bool) -> Result<Vec<EntrySpec>, String> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or(""));
    let words = lines.flat_map(|line| line.split(',')).map(str::trim);
    words.filter(|word| !word.is_empty()).map(|word| parse_entry(word, with_perm)).collect()
}

/// Returns whether `word` is `long` or a beginning of it, of one letter at least.
fn means(word: &str, long: &str) -> bool {
    !word.is_empty() && long.starts_with(word)
}

fn parse_entry(text: &str, with_perm: bool) -> Result<EntrySpec, String> {
    let form = if with_perm { "user:NAME:rwx" } else { "user:NAME" };
    let wrong = |what: &str| format!("{text:?}: {what} (an entry is like {form})");
    let mut fields: Vec<&str> = text.split(':').map(str::trim).collect();
    let default = fields.len() > 1 && means(fields.first().copied().unwrap_or(""), "default");
    if default {
        fields.remove(0);
    }
    let kind = fields.first().copied().unwrap_or("");
    let nameless = means(kind, "mask") || means(kind, "other");
    // `mask:rwx` and `other:rwx` may leave out the empty name.
    if nameless && with_perm && fields.len() == 2 {
        fields.insert(1, "");
    }
    // A lone name is a user's.
    if !with_perm && fields.len() == 1 && !nameless && !["u", "user", "g", "group"].contains(&kind)
    {
        fields.insert(0, "user");
    }
    let kind = fields.first().copied().unwrap_or("");
    let name = fields.get(1).copied().unwrap_or("");
    let account = || Account::parse(name).map_err(|why| wrong(&why));
    let subject = match name {
        "" if means(kind, "user") => Subject::Owner,
        "" if means(kind, "group") => Subject::OwningGroup,
        "" if means(kind, "mask") => Subject::Mask,
        "" if means(kind, "other") => Subject::Others,
        _ if means(kind, "user") => Subject::User(account()?),
        _ if means(kind, "group") => Subject::Group(account()?),
        _ if nameless => return Err(wrong("mask and other take no name")),
        _ => return Err(wrong("it begins with user, group, mask or other")),
    };
    let perm = match (with_perm, fields.get(2)) {
        (true, Some(perm)) => Some(parse_perm(perm).ok_or_else(|| wrong("rwxX- or 0 to 7"))?),
        (true, None) => return Err(wrong("permissions are missing")),
        (false, None | Some(&"")) => None,
        (false, Some(_)) => return Err(wrong("permissions have no place here")),
    };
    match fields.len() {
        0..=3 => Ok(EntrySpec { default, subject, perm }),
        _ => Err(wrong("too many colons")),
    }
}

fn parse_perm(text: &str) -> Option<Perm> {
    if let [digit @ b'0'..=b'7'] = text.as_bytes() {
        return Some(Perm { bits: digit - b'0', executable: false });
    }
    let mut perm = Perm { bits: 0, executable: false };
    for letter in text.chars() {
        match letter {
            'r' => perm.bits |= 4,
            'w' => perm.bits |= 2,
            'x' => perm.bits |= 1,
            'X' => perm.executable = true,
            '-' => {}
            _ => return None,
        }
    }
    (!text.is_empty()).then_some(perm)
}

impl EntrySpec {
    /// Returns whether names must be looked up.
    pub(crate) fn needs_names(&self) -> bool {
        matches!(self.subject, Subject::User(Account::Name(_)) | Subject::Group(Account::Name(_)))
    }

    /// Returns this entry with the number of whom it names.
    pub(crate) fn resolve(&self, names: &Names) -> Result<Entry> {
        let who = match &self.subject {
            Subject::Owner => Who::Owner,
            Subject::User(user) => Who::User(user.uid(names)?),
            Subject::OwningGroup => Who::OwningGroup,
            Subject::Group(group) => Who::Group(group.gid(names)?),
            Subject::Mask => Who::Mask,
            Subject::Others => Who::Others,
        };
        Ok(Entry { default: self.default, who, perm: self.perm })
    }
}

/// A change of the ACLs of a file.
#[derive(Clone, Debug, Default)]
pub(crate) struct AclChange {
    /// Drop all entries but those of owner, group and others.
    pub(crate) strip: bool,
    /// Drop the default ACL.
    pub(crate) drop_default: bool,
    /// In place of what there is.
    pub(crate) set: Option<Vec<Entry>>,
    pub(crate) remove: Vec<Entry>,
    pub(crate) modify: Vec<Entry>,
    /// Leave masks as they are.
    pub(crate) keep_mask: bool,
}

/// Both lists of a file. No default list is an empty one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Lists {
    pub(crate) access: Acl,
    pub(crate) default: Option<Acl>,
}

impl AclChange {
    /// The lists after the change. A file that is no directory keeps having no default list: with
    /// `lenient`, entries of one are passed over, else they are an error.
    pub(crate) fn apply(&self, lists: &Lists, is_dir: bool, lenient: bool) -> Result<Lists> {
        let mut access = lists.access.entries().to_vec();
        let mut default = lists.default.as_ref().map(|acl| acl.entries().to_vec());
        let set = self.set.as_deref().unwrap_or(&[]);
        let wants_default = |entries: &[Entry]| entries.iter().any(|entry| entry.default);
        if !is_dir && !lenient && (wants_default(set) || wants_default(&self.modify)) {
            return Err(Failure::new(Exit::NotFound, "only directories have default ACLs"));
        }
        if self.strip {
            strip(&mut access);
        }
        if self.strip || self.drop_default {
            default = None;
        }
        if set.iter().any(|entry| !entry.default) {
            access.clear();
        }
        if wants_default(set) {
            default = None;
        }
        let mut touched = [false; 2];
        let mut masked = [false; 2];
        for entry in &self.remove {
            let list = if entry.default { default.as_mut() } else { Some(&mut access) };
            if let Some(list) = list {
                list.retain(|known| known.who != entry.who);
                // Also when there was no such entry: so setfacl has it.
                touched[usize::from(entry.default)] = true;
                masked[usize::from(entry.default)] |= entry.who == Who::Mask;
            }
        }
        for entry in set.iter().chain(&self.modify) {
            let list = match entry.default {
                true if !is_dir => continue,
                true => default.get_or_insert_default(),
                false => &mut access,
            };
            let Some(perm) = entry.perm else { continue };
            let may_execute = is_dir || list.iter().any(|known| known.perm & 1 != 0);
            let execute = u8::from(perm.executable && may_execute);
            let new = AclEntry { who: entry.who, perm: perm.bits | execute };
            match list.iter_mut().find(|known| known.who == entry.who) {
                Some(known) => *known = new,
                None => list.push(new),
            }
            touched[usize::from(entry.default)] = true;
            masked[usize::from(entry.default)] |= entry.who == Who::Mask;
        }
        if let Some(default) = &mut default {
            complete(default, &access);
        }
        let finish = |entries: &mut Vec<AclEntry>, touched: bool, masked: bool| {
            if touched {
                fit_mask(entries, self.keep_mask || sabotage("cli.acl.mask-not-fitted"), masked);
            }
            entries.sort_by_key(|entry| (entry.who.tag(), entry.who.id()));
            Acl::new(std::mem::take(entries)).map_err(|fault| {
                Failure::new(Exit::Usage, fault.to_string()).hint(match fault {
                    AclFault::NoMask => "named users and groups need the mask: remove them too",
                    _ => "give entries for owner, group and others: u::rwx,g::r-x,o::r-x",
                })
            })
        };
        let access = finish(&mut access, touched[0], masked[0])?;
        let default =
            default.map(|mut default| finish(&mut default, touched[1], masked[1])).transpose()?;
        Ok(Lists { access, default })
    }
}

fn perm_of(entries: &[AclEntry], who: Who) -> Option<u8> {
    entries.iter().find(|entry| entry.who == who).map(|entry| entry.perm)
}

/// Leaves owner, group and others. What the mask took from the group it does not get back.
fn strip(entries: &mut Vec<AclEntry>) {
    let mask = perm_of(entries, Who::Mask).unwrap_or(7);
    entries.retain(|entry| matches!(entry.who, Who::Owner | Who::OwningGroup | Who::Others));
    for entry in entries.iter_mut().filter(|entry| entry.who == Who::OwningGroup) {
        entry.perm &= mask;
    }
}

/// Gives a default list that lacks the entries of owner, group or others those of the access list.
fn complete(default: &mut Vec<AclEntry>, access: &[AclEntry]) {
    for who in [Who::Owner, Who::OwningGroup, Who::Others] {
        if let (None, Some(perm)) = (perm_of(default, who), perm_of(access, who)) {
            default.push(AclEntry { who, perm });
        }
    }
}

/// Makes the mask what it is to be: as given (also if that is not at all), else as it was with
/// `keep`, else all that the entries under it allow.
fn fit_mask(entries: &mut Vec<AclEntry>, keep: bool, given: bool) {
    let under =
        |entry: &&AclEntry| matches!(entry.who, Who::User(_) | Who::OwningGroup | Who::Group(_));
    let named = entries.iter().any(|entry| entry.who.id().is_some());
    let mask = entries.iter_mut().position(|entry| entry.who == Who::Mask);
    let union = entries.iter().filter(under).fold(0, |all, entry| all | entry.perm);
    match mask {
        Some(_) if keep || given => {}
        Some(at) => {
            if let Some(mask) = entries.get_mut(at) {
                mask.perm = union;
            }
        }
        None if named && !given => {
            let group = perm_of(entries, Who::OwningGroup).unwrap_or(0);
            let perm = if keep { group } else { union };
            entries.push(AclEntry { who: Who::Mask, perm });
        }
        None => {}
    }
}

/// `rwx` with `-` for what is missing.
fn perm_text(perm: u8) -> String {
    let bit = |mask: u8, letter| if perm & mask != 0 { letter } else { '-' };
    [bit(4, 'r'), bit(2, 'w'), bit(1, 'x')].iter().collect()
}

/// An entry as setfacl takes it, with the names of `names`, numbers where there is none.
pub(crate) fn entry_text(entry: &AclEntry, names: &Names) -> String {
    let named = |name: Option<&[u8]>, id: u32| match name {
        Some(name) => text::escape(name),
        None => id.to_string(),
    };
    let who = match entry.who {
        Who::Owner => "user:".into(),
        Who::User(uid) => format!("user:{}", named(names.user(uid), uid)),
        Who::OwningGroup => "group:".into(),
        Who::Group(gid) => format!("group:{}", named(names.group(gid), gid)),
        Who::Mask => "mask:".into(),
        Who::Others => "other:".to_owned(),
    };
    format!("{who}:{}", perm_text(entry.perm))
}

/// Entries as setfacl takes them, owners as numbers.
pub(crate) fn entries_text(acl: &Acl) -> Vec<String> {
    let names = Names::default();
    acl.entries().iter().map(|entry| entry_text(entry, &names)).collect()
}

/// What getfacl says of entries that the mask limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effective {
    /// Where it takes something away.
    Limited,
    /// Of every entry under the mask.
    All,
    Never,
}

/// The lines of a list, each with `prefix` in front.
pub(crate) fn lines(acl: &Acl, prefix: &str, names: &Names, effective: Effective) -> Vec<String> {
    let mask = perm_of(acl.entries(), Who::Mask);
    let line = |entry: &AclEntry| {
        let mut line = format!("{prefix}{}", entry_text(entry, names));
        let under = matches!(entry.who, Who::User(_) | Who::OwningGroup | Who::Group(_));
        let limit = mask.filter(|_| under).map(|mask| entry.perm & mask);
        let says = match (effective, limit) {
            (Effective::All, _) => under,
            (Effective::Limited, Some(limit)) => limit != entry.perm,
            _ => false,
        };
        if says {
            line.push_str(&format!("\t#effective:{}", perm_text(limit.unwrap_or(entry.perm))));
        }
        line
    };
    acl.entries().iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        Names::of("root:x:0:0\nweb:x:33:33\n", "adm:x:4:\n")
    }

    fn resolve(specs: Vec<EntrySpec>) -> Vec<Entry> {
        specs.iter().map(|spec| spec.resolve(&names()).unwrap()).collect()
    }

    fn acl(text: &str) -> Acl {
        let list = resolve(parse_entries(text).unwrap());
        let entry = |entry: &Entry| AclEntry { who: entry.who, perm: entry.perm.unwrap().bits };
        Acl::new(list.iter().map(entry).collect()).unwrap()
    }

    #[track_caller]
    fn check(before: &str, change: &AclChange, after: &str) {
        let (access, default) = before.split_once('|').unwrap_or((before, ""));
        let default = (!default.is_empty()).then(|| acl(default));
        let lists = Lists { access: acl(access), default };
        let lists = change.apply(&lists, true, false).unwrap();
        let mut text = entries_text(&lists.access).join(",");
        if let Some(default) = &lists.default {
            text = format!("{text}|{}", entries_text(default).join(","));
        }
        assert_eq!(text, after);
    }

    fn modify(text: &str) -> AclChange {
        AclChange { modify: resolve(parse_entries(text).unwrap()), ..AclChange::default() }
    }

    fn remove(text: &str) -> AclChange {
        AclChange { remove: resolve(parse_removals(text).unwrap()), ..AclChange::default() }
    }

    const PLAIN: &str = "u::rw-,g::r--,o::r--";

    #[test]
    fn entries_in_all_their_forms() {
        for (text, shown) in [
            ("u:web:rw", "user:33:rw-"),
            ("user:33:6", "user:33:rw-"),
            ("g:adm:-", "group:4:---"),
            ("m::rx", "mask::r-x"),
            ("m:rx", "mask::r-x"),
            ("o:0", "other::---"),
            ("other::r", "other::r--"),
            (" d : u :: rwx ", "user::rwx"),
        ] {
            let entries = resolve(parse_entries(text).unwrap());
            let [Entry { who, perm: Some(perm), default }] = entries[..] else { panic!("{text}") };
            let entry = AclEntry { who, perm: perm.bits };
            assert_eq!(entry_text(&entry, &Names::default()), shown, "{text}");
            assert_eq!(default, text.contains('d') && !text.contains("adm"), "{text}");
        }
        assert_eq!(parse_entries("u::rwx,g::r\n# nothing\n\nd:o::-").unwrap().len(), 3);
        assert_eq!(resolve(parse_removals("web,g:adm,d:u:33,m").unwrap()).len(), 4);
        for wrong in ["u:web", "u:web:rq", "x:web:r", "m:web:r", "u:web:r:w", "u:a b:r", "web:r"] {
            assert!(parse_entries(wrong).is_err(), "{wrong}");
        }
        assert!(parse_removals("u:web:r").is_err());
        let unknown = parse_entries("u:nobody:r").unwrap();
        assert!(unknown[0].resolve(&names()).unwrap_err().message.contains("nobody"));
    }

    #[test]
    fn the_mask_follows_unless_it_is_given_or_kept() {
        check(PLAIN, &modify("u:web:rwx"), "user::rw-,user:33:rwx,group::r--,mask::rwx,other::r--");
        check(
            PLAIN,
            &modify("u:web:rwx,m::r"),
            "user::rw-,user:33:rwx,group::r--,mask::r--,other::r--",
        );
        let keep = AclChange { keep_mask: true, ..modify("u:web:rwx") };
        check(PLAIN, &keep, "user::rw-,user:33:rwx,group::r--,mask::r--,other::r--");
        check(PLAIN, &modify("g::rw"), "user::rw-,group::rw-,other::r--");
        let wide = "u::rw-,u:33:rwx,g::r--,m::rwx,o::r--";
        check(wide, &remove("u:web"), "user::rw-,group::r--,mask::r--,other::r--");
    }

    #[test]
    fn default_lists_are_completed_and_dropped() {
        check(
            PLAIN,
            &modify("d:u:web:rx"),
            "user::rw-,group::r--,other::r--|user::rw-,user:33:r-x,group::r--,mask::r-x,other::r--",
        );
        let with_default = "u::rwx,g::r-x,o::---|u::rwx,g::rwx,o::---";
        let drop_default = AclChange { drop_default: true, ..AclChange::default() };
        check(with_default, &drop_default, "user::rwx,group::r-x,other::---");
        let strip = AclChange { strip: true, ..AclChange::default() };
        check("u::rwx,u:33:rwx,g::rwx,m::r-x,o::-", &strip, "user::rwx,group::r-x,other::---");
        check(with_default, &strip, "user::rwx,group::r-x,other::---");
        let lists = Lists { access: acl(PLAIN), default: None };
        assert!(modify("d:u:web:rx").apply(&lists, false, false).is_err());
        assert_eq!(modify("d:u:web:rx").apply(&lists, false, true).unwrap(), lists);
    }

    #[test]
    fn setting_takes_the_place_of_what_was() {
        let entries = resolve(parse_entries("u::rwx,u:web:r,g::-,o::-").unwrap());
        let set = AclChange { set: Some(entries), ..AclChange::default() };
        check(PLAIN, &set, "user::rwx,user:33:r--,group::---,mask::r--,other::---");
        let lacking = resolve(parse_entries("u:web:r").unwrap());
        let set = AclChange { set: Some(lacking), ..AclChange::default() };
        let lists = Lists { access: acl(PLAIN), default: None };
        assert!(set.apply(&lists, true, false).is_err());
    }

    #[test]
    fn limited_entries_are_marked() {
        let acl = acl("u::rw-,u:33:rwx,g::r-x,m::r--,o::r--");
        let shown = lines(&acl, "default:", &names(), Effective::Limited);
        assert_eq!(shown[0], "default:user::rw-");
        assert_eq!(shown[1], "default:user:web:rwx\t#effective:r--");
        assert_eq!(shown[2], "default:group::r-x\t#effective:r--");
        assert_eq!(shown[3], "default:mask::r--");
        assert_eq!(lines(&acl, "", &names(), Effective::Never)[1], "user:web:rwx");
    }
}
