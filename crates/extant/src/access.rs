//! Permission checks: mode bits, access control lists, sticky directories.
//!
//! # Place
//!
//! Beside the operations, which check no permissions: callers decide on whose behalf they act. For
//! a mount the kernel checks permissions; a program that embeds the file system and acts for users
//! checks here.
//!
//! # Source
//!
//! POSIX.1-2024 for the mode bits, POSIX.1e draft 17 for the order of a list's entries, Linux for
//! the rights of user 0.

use bitflags::bitflags;
use extant_format::acl::{Acl, Who};

use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::node::Metadata;
use crate::xattr::AclKind;

bitflags! {
    /// Requested access to an inode: the bits of one class of a mode.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u8 {
        /// Reading contents; listing a directory.
        const READ = 4;
        /// Changing contents; changing the entries of a directory.
        const WRITE = 2;
        /// Running a program; looking names up in a directory.
        const EXECUTE = 1;
    }
}

/// User and groups on whose behalf an operation is done. User 0 has all rights that Linux gives to
/// root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credentials {
    /// User id.
    pub uid: u32,
    /// Primary group, which new inodes get.
    pub gid: u32,
    /// Further groups.
    pub groups: Vec<u32>,
}

impl Credentials {
    /// Returns a user with one group.
    pub fn new(uid: u32, gid: u32) -> Credentials {
        Credentials { uid, gid, groups: Vec::new() }
    }

    /// Adds further groups.
    #[must_use]
    pub fn with_groups(mut self, groups: impl Into<Vec<u32>>) -> Credentials {
        self.groups = groups.into();
        self
    }

    /// Returns whether the user may override permissions.
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }

    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }
}

/// Returns whether an inode with these attributes and this list grants all of `wanted` to `who`.
fn grants(who: &Credentials, of: &Metadata, acl: Option<&Acl>, wanted: Access) -> bool {
    let class = |shift: u16| Access::from_bits_truncate((of.permissions >> shift) as u8);
    if who.is_root() {
        // Root may execute anything that has an execute bit or is a directory.
        return !wanted.contains(Access::EXECUTE) || of.is_dir() || of.permissions & 0o111 != 0;
    }
    if who.uid == of.uid {
        return class(6).contains(wanted);
    }
    let Some(acl) = acl else {
        let of_class = if who.is_in(of.gid) { class(3) } else { class(0) };
        return of_class.contains(wanted);
    };
    let entry_of = |wanted: Who| acl.entries().iter().find(|entry| entry.who == wanted);
    let mask = entry_of(Who::Mask).map_or(Access::all(), |entry| rights(entry.perm));
    if let Some(user) = entry_of(Who::User(who.uid)) {
        return (rights(user.perm) & mask).contains(wanted);
    }
    // One of the groups must grant all of the access; users in no matching group belong to
    // "others".
    let mut groups = acl
        .entries()
        .iter()
        .filter(|entry| match entry.who {
            Who::OwningGroup => who.is_in(of.gid),
            Who::Group(group) => who.is_in(group),
            _ => false,
        })
        .map(|entry| rights(entry.perm) & mask)
        .peekable();
    match groups.peek() {
        Some(_) => groups.any(|granted| granted.contains(wanted)),
        None => class(0).contains(wanted),
    }
}

fn rights(perm: u8) -> Access {
    Access::from_bits_truncate(perm)
}

/// # Permissions
impl Inode {
    /// Checks that `who` has the access `wanted` to this inode. Operations do not check by
    /// themselves.
    ///
    /// # Errors
    ///
    /// [`FsError::AccessDenied`]; damage of the attributes, if there may be an access control list.
    ///
    /// # Cost
    ///
    /// None for user 0 and the owner; otherwise a lookup of the access control list.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use extant::{Access, Credentials};
    /// let device = extant_block::FileDevice::open_read_only("disk.img")?;
    /// let fs = extant::MountOptions::new().open(device)?;
    /// let who = Credentials::new(1000, 1000).with_groups([27]);
    /// let file = fs.resolve_for(&who, "/etc/shadow")?;
    /// assert!(file.check_access(&who, Access::READ).is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn check_access(&self, who: &Credentials, wanted: Access) -> Result<()> {
        let of = self.metadata();
        let acl = match who.is_root() || who.uid == of.uid || self.is_symlink() {
            true => None,
            false => self.acl(AclKind::Access)?,
        };
        if self.is_symlink() || grants(who, &of, acl.as_ref(), wanted) {
            return Ok(()); // Links have no permissions: what they lead to does.
        }
        Err(FsError::AccessDenied { ino: self.ino(), uid: who.uid })
    }

    /// Checks that `who` is root or the owner, who may set permissions, times and attributes.
    ///
    /// # Errors
    ///
    /// [`FsError::NotPermitted`].
    pub fn check_owner(&self, who: &Credentials) -> Result<()> {
        if who.is_root() || self.metadata().uid == who.uid {
            return Ok(());
        }
        Err(FsError::NotPermitted { ino: self.ino(), what: "it belongs to somebody else" })
    }

    /// Checks that `who` may remove, replace or rename `victim` in this directory: that needs write
    /// access to the directory, and in a sticky one ownership of the directory or the victim.
    ///
    /// # Errors
    ///
    /// [`FsError::AccessDenied`], [`FsError::NotPermitted`]; as
    /// [`check_access`](Self::check_access).
    pub fn check_removal(&self, who: &Credentials, victim: &Inode) -> Result<()> {
        self.check_access(who, Access::WRITE | Access::EXECUTE)?;
        let dir = self.metadata();
        let is_sticky = dir.permissions & 0o1000 != 0;
        if is_sticky && !who.is_root() && dir.uid != who.uid && victim.metadata().uid != who.uid {
            let what = "the directory is sticky, and neither belongs to the user";
            return Err(FsError::NotPermitted { ino: victim.ino(), what });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use extant_format::acl::AclEntry;
    use extant_testkit::require;

    use super::*;
    use crate::namei::{NewInode, SetAttributes};
    use crate::test_images::Image;

    fn list(entries: &[(Who, u8)]) -> Acl {
        let entry = |&(who, perm): &(Who, u8)| AclEntry { who, perm };
        Acl::new(entries.iter().map(entry).collect()).unwrap()
    }

    #[test]
    fn one_class_decides_and_a_list_goes_in_order() {
        let image = require!(Image::make("8M", &[], ""));
        let fs = image.open();
        let root = fs.root().unwrap();
        let new = NewInode { permissions: 0o604, uid: 10, gid: 20 };
        let file = root.create("file", &new).unwrap();
        let may = |uid, groups: &[u32], wanted| {
            let who = Credentials::new(uid, 1).with_groups(groups);
            file.check_access(&who, wanted).is_ok()
        };
        let (r, w, x) = (Access::READ, Access::WRITE, Access::EXECUTE);
        assert!(may(10, &[], r | w) && !may(10, &[], x));
        assert!(!may(11, &[20], r), "a member of the group is not one of the others");
        assert!(may(11, &[], r) && !may(11, &[], w));
        assert!(may(0, &[], r | w) && !may(0, &[], x), "what is no program cannot be run");
        let error = file.check_access(&Credentials::new(11, 20), r).unwrap_err();
        assert_eq!(error.errno(), 13);

        let acl = list(&[
            (Who::Owner, 6),
            (Who::User(11), 7),
            (Who::OwningGroup, 4),
            (Who::Group(30), 2),
            (Who::Mask, 6),
            (Who::Others, 1),
        ]);
        file.set_acl(AclKind::Access, Some(&acl)).unwrap();
        assert!(may(11, &[], r | w) && !may(11, &[], x), "the mask limits named users");
        assert!(may(12, &[20], r) && may(12, &[30], w));
        assert!(!may(12, &[20, 30], r | w), "one group must grant all of it");
        assert!(!may(12, &[30], x) && may(12, &[], x), "others are in no group of the list");
        assert!(may(10, &[30], r | w), "the owner's bits are not masked");
    }

    #[test]
    fn ways_and_sticky_directories() {
        let image = require!(Image::make("8M", &[], ""));
        let fs = image.open();
        let root = fs.root().unwrap();
        root.set_attributes(&SetAttributes::new().permissions(0o755)).unwrap();
        let dir = root.mkdir("dir", &NewInode { permissions: 0o711, uid: 10, gid: 10 }).unwrap();
        let shut = dir.mkdir("shut", &NewInode { permissions: 0o700, uid: 10, gid: 10 }).unwrap();
        shut.create("file", &NewInode { permissions: 0o666, uid: 10, gid: 10 }).unwrap();
        dir.symlink("link", "shut/file", &NewInode::root(0o777)).unwrap();
        let (owner, other) = (Credentials::new(10, 10), Credentials::new(11, 11));
        assert!(fs.resolve_for(&owner, "/dir/shut/file").is_ok());
        assert!(fs.resolve_for(&other, "/dir/shut").is_ok(), "search is enough");
        for path in ["/dir/shut/file", "/dir/link", "/dir/shut/.", "/dir/shut/.."] {
            let error = fs.resolve_for(&other, path).unwrap_err();
            assert!(matches!(error, FsError::AccessDenied { uid: 11, .. }), "{path}: {error}");
        }

        let shared = root.mkdir("tmp", &NewInode::root(0o1777)).unwrap();
        let file = shared.create("a", &NewInode { permissions: 0o666, uid: 10, gid: 10 }).unwrap();
        assert!(shared.check_removal(&owner, &file).is_ok());
        assert_eq!(shared.check_removal(&other, &file).unwrap_err().errno(), 1);
        assert_eq!(dir.check_removal(&other, &shut).unwrap_err().errno(), 13);
        assert!(shared.check_removal(&Credentials::new(0, 0), &file).is_ok());
        assert!(file.check_owner(&owner).is_ok() && file.check_owner(&other).is_err());
    }
}
