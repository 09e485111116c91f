//! Extended attributes and access control lists.

use extant::{Acl, FsError, Inode, XattrMode};
use extant_format::acl::{AclEntry, Who};

use super::Ext4;
use crate::operations::{Caller, Errno, NodeId, Reply};

const CREATE: u32 = 1;
const REPLACE: u32 = 2;
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Ext4<'_> {
    pub(super) fn xattr_of(&self, node: NodeId, name: &[u8]) -> Reply<Vec<u8>> {
        let inode = self.inode(node)?;
        check_namespace(name)?;
        let value = self.reply(inode.xattr(name))?;
        if is_acl(name) && !self.settings.ids.is_identity() {
            let ids = &self.settings.ids;
            let user = |id| Some(ids.user_outside(id));
            return translate(&value, &user, &|id| Some(ids.group_outside(id)));
        }
        Ok(value)
    }

    pub(super) fn set_xattr_of(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        take_set_gid: bool,
    ) -> Reply<()> {
        let inode = self.inode(node)?;
        check_namespace(name)?;
        let mode = match flags & (CREATE | REPLACE) {
            0 => XattrMode::Any,
            CREATE => XattrMode::Create,
            REPLACE => XattrMode::Replace,
            // Nothing can be both; which of the two refuses is Linux's answer too.
            _ if inode.xattr(name).is_ok() => XattrMode::Create,
            _ => XattrMode::Replace,
        };
        let ids = &self.settings.ids;
        let translated;
        let value = match is_acl(name) && !ids.is_identity() && !value.is_empty() {
            true => {
                translated =
                    translate(value, &|id| ids.user_inside(id), &|id| ids.group_inside(id))?;
                &translated
            }
            false => value,
        };
        let blocks = inode.metadata().blocks;
        self.reply(self.with_room_of_removed(|| inode.set_xattr(name, value, mode)))?;
        self.tell_blocks(&inode, node, blocks);
        if take_set_gid && name == ACCESS_ACL {
            let permissions = inode.metadata().permissions;
            if permissions & 0o2000 != 0 {
                let changes = extant::SetAttributes::new().permissions(permissions & !0o2000);
                self.reply(inode.set_attributes(&changes))?;
            }
        }
        Ok(())
    }

    pub(super) fn remove_xattr_of(&self, node: NodeId, name: &[u8]) -> Reply<()> {
        let inode = self.inode(node)?;
        check_namespace(name)?;
        let blocks = inode.metadata().blocks;
        let removed = inode.remove_xattr(name);
        self.tell_blocks(&inode, node, blocks);
        match removed {
            // Without a list the permissions are all there is, and that is what was asked for.
            Err(FsError::NoAttribute { .. }) if is_acl(name) => Ok(()),
            result => self.reply(result),
        }
    }

    /// Makes the kernel ask again for attributes of a file whose attribute block was added or
    /// removed, which the kernel does not expect.
    fn tell_blocks(&self, inode: &Inode, node: NodeId, before: u64) {
        if inode.metadata().blocks != before {
            // Nobody waits for it; at worst the old number is shown for longer.
            let _ = self.kernel.drop_cached(node, -1);
        }
    }

    pub(super) fn xattr_names_of(&self, caller: Caller, node: NodeId) -> Reply<Vec<u8>> {
        let inode = self.inode(node)?;
        let mut list = Vec::new();
        let mut user = None;
        let is_root =
            |user: &mut Option<_>| *user.get_or_insert_with(|| self.user_of(caller)) == Some(0);
        for name in self.reply(inode.xattr_names())? {
            // Only users who could read them see these names.
            if name.starts_with(b"trusted.") && !is_root(&mut user) {
                continue;
            }
            list.extend_from_slice(&name);
            list.push(0);
        }
        Ok(list)
    }
}

/// Linux knows these namespaces, and of `system.` the two lists.
fn check_namespace(name: &[u8]) -> Reply<()> {
    let spaces: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"gnu."];
    if spaces.contains(&name) {
        return Err(Errno::EINVAL); // A namespace and no name.
    }
    match is_acl(name) || spaces.iter().any(|space| name.starts_with(space)) {
        true => Ok(()),
        false => Err(Errno::EOPNOTSUPP),
    }
}

fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// An ACL with other ids.
fn translate(
    value: &[u8],
    user: &dyn Fn(u32) -> Option<u32>,
    group: &dyn Fn(u32) -> Option<u32>,
) -> Reply<Vec<u8>> {
    let acl = Acl::decode_xattr(value).map_err(|_| Errno::EINVAL)?;
    let entries: Option<Vec<AclEntry>> = acl
        .entries()
        .iter()
        .map(|entry| {
            let who = match entry.who {
                Who::User(id) => Who::User(user(id)?),
                Who::Group(id) => Who::Group(group(id)?),
                other => other,
            };
            Some(AclEntry { who, perm: entry.perm })
        })
        .collect();
    let acl = Acl::new(entries.ok_or(Errno::EINVAL)?).map_err(|_| Errno::EINVAL)?;
    Ok(acl.encode_xattr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_namespaces_of_linux_are_known() {
        for name in ["user.a", "trusted.a", "security.a", "system.posix_acl_access"] {
            assert_eq!(check_namespace(name.as_bytes()), Ok(()), "{name}");
        }
        for name in ["user", "bad.a", "USER.a", "system.data", "system.", ""] {
            assert_eq!(check_namespace(name.as_bytes()), Err(Errno::EOPNOTSUPP), "{name}");
        }
        for name in ["user.", "trusted.", "security.", "gnu."] {
            assert_eq!(check_namespace(name.as_bytes()), Err(Errno::EINVAL), "{name}");
        }
    }
}
