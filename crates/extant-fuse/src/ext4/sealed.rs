//! The control operations of fs-verity: `fsverity enable` and `fsverity measure`.
//!
//! The kernel (Linux 6.10 and later) copies what the arguments point to: the salt and the signature
//! behind the first structure, and as many bytes as the digest may have. An older one copies the
//! structures alone: then files are sealed without salt and signature, and not measured.
//! `FS_IOC_READ_VERITY_METADATA` has a pointer that no kernel follows for FUSE, so it is unknown here.

use extant::{Access, Credentials, FileKind, Inode, VerityAlgorithm, VerityOptions};
use extant_format::features::RoCompat;

use super::Ext4;
use super::control::{u32_at, u64_at};
use crate::operations::{Caller, Errno, Ioctl, NodeId, Reply};

/// Bytes of `struct fsverity_enable_arg`, whose last 88 are reserved.
const ENABLE: usize = 128;
const ENABLE_USED: usize = 40;
/// Bytes of `struct fsverity_digest` before the digest.
const DIGEST: usize = 4;
const SALT_MAX: usize = 32;
const SIGNATURE_MAX: usize = 16128;

impl Ext4<'_> {
    pub(super) fn enable_verity(
        &self,
        caller: Caller,
        node: NodeId,
        inode: &Inode,
        asked: &Ioctl<'_>,
    ) -> Reply<Vec<u8>> {
        let options = parse(asked.input)?;
        self.check_change()?;
        if inode.kind() == FileKind::Regular {
            let user = self.user_of(caller).ok_or(Errno::EACCES)?;
            let who = Credentials::new(user, caller.gid);
            self.reply(inode.check_access(&who, Access::WRITE))?;
        }
        if self.nodes.has_writers(node) {
            return Err(Errno::ETXTBSY);
        }
        self.reply(inode.enable_verity(&options))?;
        self.has_new_times(node);
        self.changed(node)?;
        Ok(Vec::new())
    }

    pub(super) fn measure_verity(&self, inode: &Inode, asked: &Ioctl<'_>) -> Reply<Vec<u8>> {
        if !self.fs().features().has_ro_compat(RoCompat::VERITY) {
            return Err(Errno::EOPNOTSUPP);
        }
        let room = asked.input.get(2..DIGEST).and_then(|bytes| bytes.try_into().ok());
        let room = usize::from(u16::from_ne_bytes(room.ok_or(Errno::EINVAL)?));
        let digest = self.reply(inode.verity_digest())?.ok_or(Errno::ENODATA)?;
        let bytes = digest.as_bytes();
        if bytes.len() > room || DIGEST + bytes.len() > asked.output_max as usize {
            return Err(Errno::EOVERFLOW);
        }
        let mut answer = u16::from(digest.algorithm().number()).to_ne_bytes().to_vec();
        answer.extend((bytes.len() as u16).to_ne_bytes());
        answer.extend(bytes);
        Ok(answer)
    }
}

/// Returns what `FS_IOC_ENABLE_VERITY` asks for.
fn parse(input: &[u8]) -> Reply<VerityOptions> {
    let (head, behind) = input.split_at_checked(ENABLE).ok_or(Errno::EINVAL)?;
    let reserved = u32_at(head, 28)? != 0 || head[ENABLE_USED..].iter().any(|byte| *byte != 0);
    if u32_at(head, 0)? != 1 || reserved {
        return Err(Errno::EINVAL);
    }
    let (salt_bytes, signature_bytes) = (u32_at(head, 12)? as usize, u32_at(head, 24)? as usize);
    if salt_bytes > SALT_MAX || signature_bytes > SIGNATURE_MAX {
        return Err(Errno::EMSGSIZE);
    }
    // Pointers are the kernel's to follow.
    let (_salt, _signature) = (u64_at(head, 16)?, u64_at(head, 32)?);
    let number = u8::try_from(u32_at(head, 4)?).ok();
    let algorithm = number.and_then(VerityAlgorithm::from_number).ok_or(Errno::EINVAL)?;
    let (salt, signature) = behind.split_at_checked(salt_bytes).ok_or(Errno::EINVAL)?;
    if signature.len() != signature_bytes {
        return Err(Errno::EINVAL);
    }
    let options = VerityOptions::new().algorithm(algorithm).block_bytes(u32_at(head, 8)?);
    Ok(options.salt(salt).signature(signature))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(edit: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = vec![0; ENABLE];
        bytes[0] = 1;
        bytes[4] = 1;
        bytes[9] = 0x10;
        edit(&mut bytes);
        bytes
    }

    #[test]
    fn arguments_are_taken_apart_or_refused() {
        let usual = VerityOptions::new().block_bytes(4096);
        assert_eq!(parse(&input(|_| {})), Ok(usual.clone()));
        let with = input(|bytes| {
            bytes[12] = 3;
            bytes[24] = 2;
            bytes.extend([7, 8, 9, 1, 2]);
        });
        assert_eq!(parse(&with), Ok(usual.salt([7, 8, 9]).signature([1, 2])));
        type Edit = fn(&mut Vec<u8>);
        let refused: [(Edit, Errno); 10] = [
            (|bytes| bytes[0] = 2, Errno::EINVAL),
            (|bytes| bytes[4] = 3, Errno::EINVAL),
            (|bytes| bytes[5] = 1, Errno::EINVAL),
            (|bytes| bytes[28] = 1, Errno::EINVAL),
            (|bytes| bytes[127] = 1, Errno::EINVAL),
            (|bytes| bytes[12] = 33, Errno::EMSGSIZE),
            (|bytes| bytes[27] = 0xff, Errno::EMSGSIZE),
            (|bytes| bytes[12] = 1, Errno::EINVAL),
            (|bytes| bytes.push(1), Errno::EINVAL),
            (|bytes| bytes.truncate(127), Errno::EINVAL),
        ];
        for (index, (edit, errno)) in refused.into_iter().enumerate() {
            assert_eq!(parse(&input(edit)), Err(errno), "{index}");
        }
    }
}
