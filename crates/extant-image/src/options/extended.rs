//! The `-E` list: mke2fs's extended options, by its names.

use extant_base::sabotage;
use std::fmt;

use super::{Encoding, MkfsOptions, QuotaTypes, SizeOption};

/// An element of an `-E` list that cannot be taken.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ExtendedOptionError {
    /// No such option.
    Unknown {
        /// As given.
        name: String,
    },
    /// An option without the value it needs.
    MissingValue {
        /// Which.
        name: &'static str,
        /// Kind of its value.
        value: &'static str,
    },
    /// A value that the option does not take.
    BadValue {
        /// Which.
        name: &'static str,
        /// As given.
        value: String,
        /// Values that it takes.
        takes: &'static str,
    },
    /// `offset=`, which has its own option.
    Offset,
}

impl fmt::Display for ExtendedOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "no extended option is called {name:?}; known:")?;
                for (i, (name, value)) in KNOWN.iter().enumerate() {
                    write!(f, "{} {name}", if i == 0 { "" } else { "," })?;
                    if !value.is_empty() {
                        write!(f, "=<{value}>")?;
                    }
                }
                Ok(())
            }
            Self::MissingValue { name, value } => {
                write!(f, "extended option {name} needs a value: {name}=<{value}>")
            }
            Self::BadValue { name, value, takes } => {
                write!(f, "extended option {name} does not take {value:?}: give {takes}")
            }
            Self::Offset => f.write_str("extended option offset is not taken here: use --offset"),
        }
    }
}

impl std::error::Error for ExtendedOptionError {}

const SWITCH: &str = "0 or 1";
const BLOCKS: &str = "blocks";

/// Name and value of every option, in the order mke2fs lists them.
const KNOWN: &[(&str, &str)] = &[
    ("mmp_update_interval", "seconds"),
    ("num_backup_sb", "0, 1 or 2"),
    ("stride", BLOCKS),
    ("stripe_width", BLOCKS),
    ("resize", BLOCKS),
    ("packed_meta_blocks", SWITCH),
    ("lazy_itable_init", SWITCH),
    ("lazy_journal_init", SWITCH),
    ("assume_storage_prezeroed", SWITCH),
    ("root_owner", "uid:gid"),
    ("root_perms", "octal permissions"),
    ("desc_size", "bytes"),
    ("hash_seed", "uuid"),
    ("quotatype", "usrquota, grpquota and prjquota, joined by ':'"),
    ("encoding", "utf8 or utf8-12.1"),
    ("encoding_flags", "strict or no-strict"),
    ("orphan_file_size", "bytes, or with K, M, G; blocks with b"),
    ("no_copy_xattrs", ""),
    ("test_fs", ""),
    ("discard", ""),
    ("nodiscard", ""),
];

/// One option being read.
#[derive(Clone, Copy)]
struct Item<'a> {
    name: &'static str,
    takes: &'static str,
    value: Option<&'a str>,
}

impl<'a> Item<'a> {
    fn bad(&self, value: &str) -> ExtendedOptionError {
        let (name, takes) = (self.name, self.takes);
        ExtendedOptionError::BadValue { name, value: value.to_owned(), takes }
    }

    fn value(&self) -> Result<&'a str, ExtendedOptionError> {
        let missing = ExtendedOptionError::MissingValue { name: self.name, value: self.takes };
        self.value.filter(|value| !value.is_empty()).ok_or(missing)
    }

    /// A decimal number of the field's width.
    fn number<T: std::str::FromStr>(&self) -> Result<T, ExtendedOptionError> {
        let value = self.value()?;
        value.parse().map_err(|_| self.bad(value))
    }

    /// `=0` or `=1`; the bare name means 1, as in mke2fs.
    fn switch(&self) -> Result<bool, ExtendedOptionError> {
        match self.value {
            None | Some("1") => Ok(true),
            Some("0") => Ok(false),
            Some(other) => Err(self.bad(other)),
        }
    }

    /// A name that takes no value.
    fn bare(&self) -> Result<(), ExtendedOptionError> {
        match self.value {
            None => Ok(()),
            Some(value) => Err(self.bad(value)),
        }
    }
}

impl MkfsOptions {
    /// Applies a list as `-E` takes it: `name` or `name=value`, commas between.
    ///
    /// ```
    /// use extant_image::options::MkfsOptions;
    /// let mut options = MkfsOptions::default();
    /// options.apply_extended("stride=16,stripe-width=64,root_owner=1000:100").unwrap();
    /// assert_eq!((options.stride, options.stripe_width), (16, 64));
    /// assert_eq!(options.root_owner, Some((1000, 100)));
    /// ```
    pub fn apply_extended(&mut self, list: &str) -> Result<(), ExtendedOptionError> {
        for element in list.split(',').map(str::trim).filter(|element| !element.is_empty()) {
            let (name, value) = match element.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim())),
                None => (element, None),
            };
            if name == "offset" {
                return Err(ExtendedOptionError::Offset);
            }
            let spelling = name.replace('-', "_");
            let Some(&(name, takes)) = KNOWN.iter().find(|(known, _)| *known == spelling) else {
                return Err(ExtendedOptionError::Unknown { name: name.to_owned() });
            };
            let takes = if takes.is_empty() { "no value" } else { takes };
            self.apply_item(Item { name, takes, value })?;
        }
        Ok(())
    }

    fn apply_item(&mut self, item: Item<'_>) -> Result<(), ExtendedOptionError> {
        match item.name {
            "mmp_update_interval" => self.mmp_update_interval = item.number()?,
            "num_backup_sb" => {
                let count: u8 = item.number()?;
                if count > 2 {
                    return Err(item.bad(&count.to_string()));
                }
                self.backup_superblocks = count;
            }
            "stride" => self.stride = item.number()?,
            "stripe_width" => self.stripe_width = item.number()?,
            "resize" => match item.number()? {
                0 => return Err(item.bad("0")),
                blocks => self.resize_limit_blocks = Some(blocks),
            },
            "packed_meta_blocks" => self.packed_meta_blocks = Some(item.switch()?),
            "lazy_itable_init" => self.lazy_itable_init = item.switch()?,
            "lazy_journal_init" if sabotage("image.options.wrong-field") => {
                self.lazy_itable_init = item.switch()?;
            }
            "lazy_journal_init" => self.lazy_journal_init = item.switch()?,
            "assume_storage_prezeroed" => self.assume_zeroed = item.switch()?,
            "root_owner" => {
                let value = item.value()?;
                let ids = value
                    .split_once(':')
                    .and_then(|(user, group)| Some((user.parse().ok()?, group.parse().ok()?)));
                self.root_owner = Some(ids.ok_or_else(|| item.bad(value))?);
            }
            "root_perms" => {
                let value = item.value()?;
                let perms = u16::from_str_radix(value, 8).ok().filter(|perms| *perms <= 0o7777);
                self.root_perms = Some(perms.ok_or_else(|| item.bad(value))?);
            }
            "desc_size" => self.desc_size = Some(item.number()?),
            "hash_seed" => {
                let value = item.value()?;
                self.hash_seed = Some(parse_uuid(value).ok_or_else(|| item.bad(value))?);
            }
            "quotatype" => self.quota = Some(parse_quota(item)?),
            "encoding" => match item.value()? {
                "utf8" | "utf8-12.1" => self.encoding = Some(Encoding::Utf8V12_1),
                other => return Err(item.bad(other)),
            },
            "encoding_flags" => match item.value()? {
                "strict" => self.encoding_strict = true,
                "no-strict" | "nostrict" => self.encoding_strict = false,
                other => return Err(item.bad(other)),
            },
            "orphan_file_size" => {
                let value = item.value()?;
                self.orphan_file_size = Some(parse_size(value).ok_or_else(|| item.bad(value))?);
            }
            "no_copy_xattrs" => item.bare().map(|()| self.copy_xattrs = false)?,
            "test_fs" => item.bare().map(|()| self.test_fs = true)?,
            "discard" => item.bare().map(|()| self.discard = true)?,
            "nodiscard" => item.bare().map(|()| self.discard = false)?,
            other => unreachable!("{other} is in KNOWN and not handled"),
        }
        Ok(())
    }
}

fn parse_quota(item: Item<'_>) -> Result<QuotaTypes, ExtendedOptionError> {
    let mut types = QuotaTypes::default();
    for word in item.value()?.split(':') {
        match word {
            "usrquota" | "usr" => types.user = true,
            "grpquota" | "grp" => types.group = true,
            "prjquota" | "prj" => types.project = true,
            other => return Err(item.bad(other)),
        }
    }
    Ok(types)
}

/// 32 hexadecimal digits, with dashes anywhere or nowhere.
pub(crate) fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let mut bytes = [0u8; 16];
    let mut digits = text.chars().filter(|c| *c != '-');
    for byte in &mut bytes {
        let (high, low) = (digits.next()?.to_digit(16)?, digits.next()?.to_digit(16)?);
        *byte = (high << 4 | low) as u8;
    }
    digits.next().is_none().then_some(bytes)
}

/// A number of bytes, with K, M or G for binary multiples; with b, a number of blocks.
fn parse_size(text: &str) -> Option<SizeOption> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok()?;
    let shift = match &text[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "m" | "M" => 20,
        "g" | "G" => 30,
        "b" => return u32::try_from(number).ok().map(SizeOption::Blocks),
        _ => return None,
    };
    number.checked_mul(1 << shift).map(SizeOption::Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(list: &str) -> Result<MkfsOptions, ExtendedOptionError> {
        let mut options = MkfsOptions::default();
        options.apply_extended(list).map(|()| options)
    }

    /// What an option changes.
    type Change = fn(&mut MkfsOptions);

    /// Every name in the table changes what it is about, as its value says, and nothing else.
    #[test]
    fn every_known_option_has_its_effect_and_no_other() {
        let samples: &[(&str, &str, Change)] = &[
            ("mmp_update_interval", "=7", |o| o.mmp_update_interval = 7),
            ("num_backup_sb", "=1", |o| o.backup_superblocks = 1),
            ("stride", "=16", |o| o.stride = 16),
            ("stripe_width", "=32", |o| o.stripe_width = 32),
            ("resize", "=1000000", |o| o.resize_limit_blocks = Some(1_000_000)),
            ("packed_meta_blocks", "=1", |o| o.packed_meta_blocks = Some(true)),
            ("packed_meta_blocks", "=0", |o| o.packed_meta_blocks = Some(false)),
            ("lazy_itable_init", "", |o| o.lazy_itable_init = true),
            ("lazy_journal_init", "=1", |o| o.lazy_journal_init = true),
            ("assume_storage_prezeroed", "=1", |o| o.assume_zeroed = true),
            ("root_owner", "=5:6", |o| o.root_owner = Some((5, 6))),
            ("root_perms", "=1777", |o| o.root_perms = Some(0o1777)),
            ("desc_size", "=128", |o| o.desc_size = Some(128)),
            ("hash_seed", "=00112233-4455-6677-8899-aabbccddeeff", |o| {
                o.hash_seed = Some(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes());
            }),
            ("quotatype", "=usrquota:prjquota", |o| {
                o.quota = Some(QuotaTypes { user: true, group: false, project: true });
            }),
            ("encoding", "=utf8", |o| o.encoding = Some(Encoding::Utf8V12_1)),
            ("encoding_flags", "=strict", |o| o.encoding_strict = true),
            ("orphan_file_size", "=64K", |o| {
                o.orphan_file_size = Some(SizeOption::Bytes(64 << 10));
            }),
            ("no_copy_xattrs", "", |o| o.copy_xattrs = false),
            ("test_fs", "", |o| o.test_fs = true),
            ("discard", "", |o| o.discard = true),
            ("nodiscard", "", |o| o.discard = false),
        ];
        for (name, value, change) in samples {
            let mut wanted = MkfsOptions::default();
            change(&mut wanted);
            assert_eq!(apply(&format!("{name}{value}")).unwrap(), wanted, "{name}{value}");
            let is_default = wanted == MkfsOptions::default();
            assert_eq!(is_default, *name == "nodiscard", "{name}{value} tells nothing");
        }
        for (name, _) in KNOWN {
            assert!(samples.iter().any(|(sample, ..)| sample == name), "{name} is not tried");
        }
        assert_eq!(apply("discard,nodiscard").unwrap(), MkfsOptions::default());
    }

    #[test]
    fn values_land_in_their_fields() {
        let options = apply("stripe-width=9, root_perms=0700,orphan_file_size=40b").unwrap();
        assert_eq!(options.stripe_width, 9);
        assert_eq!(options.root_perms, Some(0o700));
        assert_eq!(options.orphan_file_size, Some(SizeOption::Blocks(40)));
        let options = apply("hash_seed=00112233-4455-6677-8899-aabbccddeeff").unwrap();
        assert_eq!(options.hash_seed.unwrap()[..3], [0x00, 0x11, 0x22]);
        assert_eq!(
            apply("orphan_file_size=2M").unwrap().orphan_file_size,
            Some(SizeOption::Bytes(2 << 20))
        );
    }

    #[test]
    fn bad_lists_name_the_element() {
        for (list, part) in [
            ("strid=4", "\"strid\""),
            ("stride", "stride=<blocks>"),
            ("stride=", "stride=<blocks>"),
            ("stride=-1", "\"-1\""),
            ("stride=4294967296", "\"4294967296\""),
            ("resize=0", "\"0\""),
            ("lazy_itable_init=2", "0 or 1"),
            ("num_backup_sb=3", "\"3\""),
            ("root_owner=5", "uid:gid"),
            ("root_perms=8", "octal"),
            ("root_perms=10000", "octal"),
            ("hash_seed=123", "\"123\""),
            ("quotatype=all", "\"all\""),
            ("encoding=ascii", "\"ascii\""),
            ("encoding_flags=loose", "\"loose\""),
            ("orphan_file_size=2X", "\"2X\""),
            ("test_fs=1", "no value"),
            ("offset=512", "--offset"),
        ] {
            let text = apply(list).expect_err(list).to_string();
            assert!(text.contains(part), "{list}: {text:?} lacks {part:?}");
        }
        let text = apply("speed=9").unwrap_err().to_string();
        assert!(KNOWN.iter().all(|(name, _)| text.contains(name)), "{text}");
    }
}
