//! The users that cases are run as.
//!
//! Their numbers need no entry in any database. A digit at the end of a name means another
//! process of the same user: `alice2` is alice.

use std::sync::OnceLock;

use rustix::process::{Gid, Uid};

/// A user with its groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct User {
    /// Name in cases and in results.
    pub name: &'static str,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: &'static [u32],
}

/// Groups that cases name: (name, number). Each user's own group has the user's name.
pub const GROUPS: [(&str, u32); 2] = [("staff", 20_100), ("guests", 20_101)];

/// alice and carol share `staff`; bob is in neither; nobody is who the kernel means by it.
pub const USERS: [User; 5] = [
    User { name: "root", uid: 0, gid: 0, groups: &[] },
    User { name: "alice", uid: 20_001, gid: 20_001, groups: &[20_100] },
    User { name: "bob", uid: 20_002, gid: 20_002, groups: &[] },
    User { name: "carol", uid: 20_003, gid: 20_003, groups: &[20_100, 20_101] },
    User { name: "nobody", uid: 65_534, gid: 65_534, groups: &[] },
];

/// User and group that are called alice, where this process is not root and so is she.
static OWN: OnceLock<(u32, u32)> = OnceLock::new();

/// Calls whoever this process is alice, for a run without root.
pub fn be_alice() {
    let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    OWN.get_or_init(|| own);
}

/// Returns whether a word of a step names somebody but alice, or a group beside her own.
pub(crate) fn names_others(word: &str) -> bool {
    let names = USERS.iter().map(|user| user.name).chain(GROUPS.iter().map(|group| group.0));
    let mut parts = word.split(|c: char| !c.is_ascii_alphanumeric());
    let others: Vec<&str> = names.filter(|name| *name != "alice").collect();
    parts.any(|part| others.contains(&part))
}

/// The user that a process of a case runs as: `bob2` is bob.
pub fn user(process: &str) -> Option<User> {
    let name = process.trim_end_matches(|c: char| c.is_ascii_digit());
    USERS.into_iter().find(|user| user.name == name)
}

/// Number of a user or group: a name, or digits; `-` keeps it as it is.
pub(crate) fn id(text: &str) -> Option<u32> {
    if text == "alice"
        && let Some((uid, _)) = OWN.get()
    {
        return Some(*uid);
    }
    user(text)
        .map(|user| user.uid)
        .or_else(|| GROUPS.iter().find(|(name, _)| *name == text).map(|(_, number)| *number))
        .or_else(|| text.parse().ok())
}

/// A number as results show it.
pub(crate) fn name_of(id: u32) -> String {
    if OWN.get().is_some_and(|(uid, gid)| id == *uid || id == *gid) {
        return "alice".to_owned();
    }
    let user = USERS.iter().find(|user| user.uid == id).map(|user| user.name);
    let group = GROUPS.iter().find(|(_, number)| *number == id).map(|(name, _)| *name);
    user.or(group).map_or_else(|| id.to_string(), str::to_owned)
}

/// Makes this process, which has one thread, an ordinary process of `user`.
///
/// Changing all user ids from 0 takes all capabilities. What is undone is that the kernel then gives
/// the process's own entry in `/proc` to root.
///
/// # Errors
///
/// The system call's, without the right to do it.
pub fn become_user(user: User) -> Result<(), rustix::io::Errno> {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let groups: Vec<Gid> = user.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    set_thread_groups(&groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_dumpable_behavior(DumpableBehavior::Dumpable)
}
