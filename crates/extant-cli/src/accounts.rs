//! Users and groups by name, as the image itself knows them.
//!
//! The host's are never asked: its users have nothing to do with the image.

use extant::Fs;
use rustc_hash::FxHashMap;

use crate::exit::{Exit, Failure, Result};

/// Longest `/etc/passwd` or `/etc/group` that is looked into, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 32;

/// One file of accounts, looked up both ways. Of several lines the first one counts.
#[derive(Default, Debug)]
struct Table {
    names: FxHashMap<u32, Vec<u8>>,
    /// Id, and the number after it: the login group in `/etc/passwd`.
    ids: FxHashMap<Vec<u8>, (u32, Option<u32>)>,
}

/// Names of users and groups as the image's own `/etc/passwd` and `/etc/group` have them.
#[derive(Default, Debug)]
pub(crate) struct Names {
    users: Table,
    groups: Table,
}

impl Names {
    /// Reads both files; without them, or with `numeric`, all owners are numbers.
    pub(crate) fn load(fs: &Fs, numeric: bool) -> Names {
        if numeric {
            return Names::default();
        }
        Names { users: Table::load(fs, "/etc/passwd"), groups: Table::load(fs, "/etc/group") }
    }

    /// The name of a user: plain ASCII.
    pub(crate) fn user(&self, uid: u32) -> Option<&[u8]> {
        self.users.names.get(&uid).map(Vec::as_slice)
    }

    /// The name of a group: plain ASCII.
    pub(crate) fn group(&self, gid: u32) -> Option<&[u8]> {
        self.groups.names.get(&gid).map(Vec::as_slice)
    }

    #[cfg(test)]
    pub(crate) fn of(passwd: &str, group: &str) -> Names {
        Names { users: Table::parse(passwd.as_bytes()), groups: Table::parse(group.as_bytes()) }
    }
}

impl Table {
    /// A file that cannot be read or makes no sense has no names.
    fn load(fs: &Fs, path: &str) -> Table {
        let contents = fs.resolve(path).ok().filter(|inode| inode.size() <= FILE_BYTES_MAX);
        Table::parse(&contents.and_then(|inode| inode.read_all().ok()).unwrap_or_default())
    }

    /// `name:x:id:…` on each line.
    fn parse(contents: &[u8]) -> Table {
        let mut table = Table::default();
        let number = |field: Option<&[u8]>| -> Option<u32> {
            std::str::from_utf8(field?).ok()?.parse().ok()
        };
        for line in contents.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b':');
            let name = fields.next().filter(|name| {
                !name.is_empty()
                    && name.len() <= NAME_BYTES_MAX
                    && name.iter().all(u8::is_ascii_graphic)
            });
            let (id, next) = (number(fields.nth(1)), number(fields.next()));
            if let (Some(name), Some(id)) = (name, id) {
                table.names.entry(id).or_insert_with(|| name.to_vec());
                table.ids.entry(name.to_vec()).or_insert((id, next));
            }
        }
        table
    }
}

/// A user or a group, by name or number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Account {
    Id(u32),
    Name(String),
}

impl Account {
    /// A number, also with `+` in front, else a name.
    pub(crate) fn parse(text: &str) -> Result<Account, String> {
        let digits = text.strip_prefix('+').unwrap_or(text);
        if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) {
            // The highest number stands for "nobody in particular" in the kernel's calls.
            let id = digits.parse().ok().filter(|id| *id != u32::MAX);
            return id.map(Account::Id).ok_or_else(|| format!("{text}: ids go to 4294967294"));
        }
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > NAME_BYTES_MAX || !plain {
            return Err(format!("{text:?} is neither a name nor a number"));
        }
        Ok(Account::Name(text.to_owned()))
    }

    /// The number of a user.
    pub(crate) fn uid(&self, names: &Names) -> Result<u32> {
        self.look_up(&names.users, "user", "/etc/passwd").map(|(id, _)| id)
    }

    /// The number of a group.
    pub(crate) fn gid(&self, names: &Names) -> Result<u32> {
        self.look_up(&names.groups, "group", "/etc/group").map(|(id, _)| id)
    }

    fn look_up(&self, table: &Table, what: &str, file: &str) -> Result<(u32, Option<u32>)> {
        let name = match self {
            Account::Id(id) => return Ok((*id, None)),
            Account::Name(name) => name,
        };
        table.ids.get(name.as_bytes()).copied().ok_or_else(|| {
            let message = format!("the image's {file} has no {what} {name}");
            Failure::new(Exit::NotFound, message)
                .hint("names are looked up in the image; a number works always")
        })
    }
}

/// `USER`, `USER:GROUP`, `:GROUP`, or `USER:` for the user's login group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct OwnerSpec {
    user: Option<Account>,
    group: Option<Account>,
    login_group: bool,
}

impl OwnerSpec {
    /// Reads what `chown` takes.
    pub(crate) fn parse(text: &str) -> Result<OwnerSpec, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let account = |text: &str| match text {
            "" => Ok(None),
            _ => Account::parse(text).map(Some),
        };
        let login_group = group == Some("") && !user.is_empty();
        let spec =
            OwnerSpec { user: account(user)?, group: account(group.unwrap_or(""))?, login_group };
        if spec.user.is_none() && spec.group.is_none() {
            return Err("give USER, USER:GROUP or :GROUP, as names or numbers".into());
        }
        Ok(spec)
    }

    /// Either may be missing.
    pub(crate) fn of(user: Option<Account>, group: Option<Account>) -> OwnerSpec {
        OwnerSpec { user, group, login_group: false }
    }

    /// User and group as numbers, by the names of this image.
    pub(crate) fn resolve(&self, fs: &Fs) -> Result<(Option<u32>, Option<u32>)> {
        let by_name = |account: &Option<Account>| matches!(account, Some(Account::Name(_)));
        let names = Names::load(fs, !(by_name(&self.user) || by_name(&self.group)));
        self.resolve_with(&names)
    }

    fn resolve_with(&self, names: &Names) -> Result<(Option<u32>, Option<u32>)> {
        let group = self.group.as_ref().map(|group| group.gid(names)).transpose()?;
        let Some(user) = &self.user else { return Ok((None, group)) };
        let (uid, login) = user.look_up(&names.users, "user", "/etc/passwd")?;
        if self.login_group {
            let Some(login) = login else {
                return Err(Failure::usage("a number has no login group")
                    .hint("give the group after the colon, or leave the colon out"));
            };
            return Ok((Some(uid), Some(login)));
        }
        Ok((Some(uid), group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_both_ways_and_the_first_line_counts() {
        let names = Names::of(
            "root:x:0:0::/:\nweb:x:33:34\nwww:x:33:35\nweb:x:7:7\nbad\x01:x:9:9\n",
            "adm:x:4:\nx\n",
        );
        assert_eq!(names.user(33), Some(&b"web"[..]));
        assert_eq!(names.user(9), None);
        assert_eq!(names.group(4), Some(&b"adm"[..]));
        let resolve = |text: &str| OwnerSpec::parse(text).unwrap().resolve_with(&names);
        assert_eq!(resolve("web:adm").unwrap(), (Some(33), Some(4)));
        assert_eq!(resolve("web:").unwrap(), (Some(33), Some(34)));
        assert_eq!(resolve("web").unwrap(), (Some(33), None));
        assert_eq!(resolve(":4").unwrap(), (None, Some(4)));
        assert_eq!(resolve("+12:+13").unwrap(), (Some(12), Some(13)));
        assert!(resolve("none").unwrap_err().message.contains("no user none"));
        assert!(resolve("12:").unwrap_err().message.contains("login group"));
        for wrong in ["", ":", "a b", "4294967295", "99999999999:1"] {
            assert!(OwnerSpec::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
