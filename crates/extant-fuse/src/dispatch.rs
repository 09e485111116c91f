//! From a request's bytes to a call, and from its result to the reply.

use extant_base::sabotage;
use zerocopy::IntoBytes;

use crate::abi::{self, SetattrValid, op};
use crate::connection::Request;
use crate::operations::{
    Attributes, Bytes, Caller, DirAnswer, DurableWrite, Entry, Errno, Handle, Ioctl, New, NodeId,
    Opened, Operations, Position, ReadAnswer, Reply, SetAttr, SetTime, Sought, Time, WriteHow,
};
use crate::orders::ORDER;
use crate::stats::Lane;

/// Time in seconds for which the kernel may keep answers: this server is the only way to the file
/// system.
const FOR_EVER: u64 = 1 << 30;
/// Seconds that the kernel may keep what there is none of.
const NOT_AT_ALL: u64 = 0;
/// The largest listing that is answered at once, whatever is asked for.
const LISTING_MAX: u32 = 1 << 20;
/// The largest copy that is made at once.
const COPY_MAX: u64 = 1 << 30;
/// The largest read that is answered at once: the kernel asks for no more.
const READ_MAX: u32 = 1 << 20;
/// The longest target of a symbolic link that the kernel takes. Of a longer one it takes nothing, where its own
/// ext4 shows the beginning.
const TARGET_MAX: usize = 4095;
/// The largest value or list of extended attributes: the kernel's own bound.
const XATTR_MAX: usize = 64 << 10;

/// The tools of a thread that answers requests.
pub(crate) struct Desk<'a> {
    pub(crate) operations: &'a dyn Operations,
    pub(crate) lane: &'a Lane,
    /// The kernel keeps mappings and times of files right that are open past its cache.
    pub(crate) direct_in_parallel: bool,
}

/// Most bytes of an answer that is kept where it is made: those to all requests but listings, values,
/// link targets and `statx`.
const SMALL_MAX: usize = 144;

/// The body of an answer.
pub(crate) enum Body {
    /// Bytes of which the first `len` count: no allocation for each request.
    Small {
        bytes: [u8; SMALL_MAX],
        len: u8,
    },
    Large(Vec<u8>),
}

impl Body {
    pub(crate) fn of(parts: &[&[u8]]) -> Body {
        let mut bytes = [0; SMALL_MAX];
        let mut len = 0;
        for part in parts {
            let Some(room) = bytes.get_mut(len..len + part.len()) else {
                return Body::Large(parts.concat());
            };
            room.copy_from_slice(part);
            len += part.len();
        }
        Body::Small { bytes, len: len as u8 } // At most SMALL_MAX.
    }
}

impl std::ops::Deref for Body {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Body::Small { bytes, len } => &bytes[..usize::from(*len)],
            Body::Large(bytes) => bytes,
        }
    }
}

/// The outcome of a request.
pub(crate) enum Outcome {
    /// The request has no answer.
    Silent,
    /// An answer without a body.
    Nothing,
    Bytes(Body),
    /// The answer is on its way, or lies where it goes from: the contents that were asked for.
    Sent,
    Failed(Errno),
}

/// The taker of the answer to a read.
pub(crate) trait Contents: ReadAnswer {
    /// The bytes that were sent, if any were.
    fn sent(&self) -> Option<u64>;
}

impl Desk<'_> {
    /// Does what a request asks for; contents go to `contents`.
    pub(crate) fn answer(&self, mut request: Request<'_>, contents: &mut dyn Contents) -> Outcome {
        let header = request.header;
        match header.opcode {
            op::FORGET => {
                if let Ok(forget) = request.take::<abi::ForgetIn>() {
                    self.operations.forget(NodeId(header.nodeid), forget.nlookup);
                }
                return Outcome::Silent;
            }
            op::BATCH_FORGET => {
                self.forget_many(&mut request);
                return Outcome::Silent;
            }
            // Operations under way finish: they wait only for devices.
            op::INTERRUPT | op::NOTIFY_REPLY => return Outcome::Silent,
            _ => {}
        }
        self.run(&mut request, contents).unwrap_or_else(Outcome::Failed)
    }

    /// Returns the flags of the answer for a file opened with `flags`. With `O_DIRECT` alone the
    /// kernel would hold the inode exclusively during each write.
    fn how_open(&self, flags: u32) -> u32 {
        let is_direct = flags & rustix::fs::OFlags::DIRECT.bits() != 0;
        let mut how = abi::FOPEN_KEEP_CACHE | abi::FOPEN_NOFLUSH;
        if is_direct && self.direct_in_parallel {
            how |= abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES;
        }
        how
    }

    fn forget_many(&self, request: &mut Request<'_>) {
        let Ok(head) = request.take::<abi::BatchForgetIn>() else { return };
        for _ in 0..head.count {
            let Ok(one) = request.take::<abi::ForgetOne>() else { return };
            self.operations.forget(NodeId(one.nodeid), one.nlookup);
        }
    }

    fn run(&self, request: &mut Request<'_>, contents: &mut dyn Contents) -> Reply<Outcome> {
        let header = request.header;
        let node = NodeId(header.nodeid);
        let caller = Caller { uid: header.uid, gid: header.gid, pid: header.pid };
        let ops = self.operations;
        let _space = ops.takes_space_for(caller);
        match header.opcode {
            op::LOOKUP => entry(&ops.lookup(caller, node, request.name()?)?),
            op::GETATTR => {
                let asked: abi::GetattrIn = request.take()?;
                let through =
                    (asked.getattr_flags & abi::GETATTR_FH != 0).then_some(Handle(asked.fh));
                attributes(&ops.attributes(node, through)?)
            }
            op::SETATTR => {
                let changes = set_attr(&request.take()?);
                attributes(&ops.set_attributes(caller, node, &changes)?)
            }
            op::STATX => statx(&ops.attributes(node, None)?),
            op::READLINK => {
                let mut target = ops.read_link(node)?;
                target.truncate(TARGET_MAX);
                Ok(Outcome::Bytes(Body::Large(target)))
            }
            op::SYMLINK => {
                let name = request.name()?;
                entry(&ops.symlink(caller, node, name, request.name()?)?)
            }
            op::MKNOD => {
                let wanted: abi::MknodIn = request.take()?;
                let rdev = device(wanted.rdev);
                let new = New { mode: wanted.mode, umask: wanted.umask, rdev };
                entry(&ops.mknod(caller, node, request.name()?, &new)?)
            }
            op::MKDIR => {
                let wanted: abi::MkdirIn = request.take()?;
                let new = New { mode: wanted.mode, umask: wanted.umask, rdev: (0, 0) };
                entry(&ops.mkdir(caller, node, request.name()?, &new)?)
            }
            op::UNLINK => nothing(ops.unlink(caller, node, request.name()?)),
            op::RMDIR => nothing(ops.rmdir(caller, node, request.name()?)),
            op::RENAME => {
                let to: abi::RenameIn = request.take()?;
                let name = request.name()?;
                nothing(ops.rename(caller, node, name, NodeId(to.newdir), request.name()?, 0))
            }
            op::RENAME2 => {
                let to: abi::Rename2In = request.take()?;
                let name = request.name()?;
                nothing(ops.rename(
                    caller,
                    node,
                    name,
                    NodeId(to.newdir),
                    request.name()?,
                    to.flags,
                ))
            }
            op::LINK => {
                let from: abi::LinkIn = request.take()?;
                entry(&ops.link(caller, NodeId(from.oldnodeid), node, request.name()?)?)
            }
            op::OPEN => {
                let wanted: abi::OpenIn = request.take()?;
                let opened = ops.open(caller, node, wanted.flags)?;
                bytes(&open_out(opened, self.how_open(wanted.flags)))
            }
            op::CREATE | op::TMPFILE => {
                let wanted: abi::CreateIn = request.take()?;
                let name = request.name()?;
                let new = New { mode: wanted.mode, umask: wanted.umask, rdev: (0, 0) };
                let (made, opened) = match header.opcode {
                    op::CREATE => ops.create(caller, node, name, &new, wanted.flags)?,
                    _ => ops.tmpfile(caller, node, &new, wanted.flags)?,
                };
                let opened = open_out(opened, self.how_open(wanted.flags));
                Ok(Outcome::Bytes(Body::of(&[entry_out(&made).as_bytes(), opened.as_bytes()])))
            }
            op::READ => self.read(node, request, contents),
            op::WRITE => {
                let wanted: abi::WriteIn = request.take()?;
                let contents = request.bytes(wanted.size)?;
                let how = WriteHow {
                    from_cache: wanted.write_flags & abi::WRITE_CACHE != 0,
                    take_set_id: wanted.write_flags & abi::WRITE_KILL_SUIDGID != 0,
                    direct: wanted.flags & rustix::fs::OFlags::DIRECT.bits() != 0,
                    durable: DurableWrite::asked_by(wanted.flags),
                };
                let to = Position { node, offset: wanted.offset };
                let size = ops.write(caller, to, Handle(wanted.fh), contents, how)?;
                self.lane.count_written(u64::from(size));
                bytes(&abi::WriteOut { size, padding: 0 })
            }
            op::STATFS => statfs(ops),
            op::RELEASE => {
                let open: u64 = request.take()?;
                ops.release(node, Handle(open));
                Ok(Outcome::Nothing)
            }
            op::RELEASEDIR => Ok(Outcome::Nothing),
            op::FSYNC | op::FSYNCDIR => {
                let wanted: abi::FsyncIn = request.take()?;
                let data_only = wanted.fsync_flags & abi::FSYNC_DATA != 0;
                nothing(ops.sync(node, Handle(wanted.fh), data_only))
            }
            op::SYNCFS => nothing(ops.sync_all()),
            op::SETXATTR => {
                let wanted: abi::SetxattrIn = request.take()?;
                let name = request.name()?;
                let value = request.bytes(wanted.size)?;
                let take = wanted.setxattr_flags & abi::SETXATTR_ACL_KILL_SGID != 0;
                nothing(ops.set_xattr(caller, node, name, value, wanted.flags, take))
            }
            op::GETXATTR => {
                let wanted: abi::GetxattrIn = request.take()?;
                let name = request.name()?;
                // getfattr asks twice, for the length first: an order is done once, by who takes its answer.
                if wanted.size == 0 && name.starts_with(ORDER) {
                    return bytes(&abi::GetxattrOut { size: XATTR_MAX as u32, padding: 0 });
                }
                sized(ops.xattr(caller, node, name)?, wanted.size)
            }
            op::LISTXATTR => {
                let wanted: abi::GetxattrIn = request.take()?;
                sized(ops.xattr_names(caller, node)?, wanted.size)
            }
            op::REMOVEXATTR => nothing(ops.remove_xattr(caller, node, request.name()?)),
            op::OPENDIR => {
                let opened = ops.open_dir(caller, node)?;
                bytes(&open_out(opened, abi::FOPEN_KEEP_CACHE | abi::FOPEN_CACHE_DIR))
            }
            op::READDIR | op::READDIRPLUS => {
                let wanted: abi::ReadIn = request.take()?;
                let mut listing = Listing {
                    out: Vec::new(),
                    limit: wanted.size.min(LISTING_MAX) as usize,
                    plus: header.opcode == op::READDIRPLUS,
                };
                ops.read_dir(node, wanted.offset, &mut listing)?;
                Ok(Outcome::Bytes(Body::Large(listing.out)))
            }
            op::IOCTL => ioctl(ops, caller, node, request),
            op::FALLOCATE => {
                let wanted: abi::FallocateIn = request.take()?;
                let end = wanted.offset.checked_add(wanted.length).ok_or(Errno::EFBIG)?;
                nothing(ops.fallocate(
                    caller,
                    Bytes { node, range: wanted.offset..end },
                    wanted.mode,
                ))
            }
            op::LSEEK => {
                let wanted: abi::LseekIn = request.take()?;
                let sought = match wanted.whence {
                    abi::SEEK_DATA => Sought::Data,
                    abi::SEEK_HOLE => Sought::Hole,
                    _ => return Err(Errno::EINVAL),
                };
                let offset = ops.seek(Position { node, offset: wanted.offset }, sought)?;
                bytes(&abi::LseekOut { offset })
            }
            op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => {
                let wanted: abi::CopyFileRangeIn = request.take()?;
                // Of the older reply with 32 bits the caller takes all for a length; and none is to keep a thread
                // for long. Less than was asked for is a good answer.
                let most = wanted.len.min(COPY_MAX);
                let end = wanted.off_in.saturating_add(most);
                let from = Bytes { node, range: wanted.off_in..end };
                let to = Position { node: NodeId(wanted.nodeid_out), offset: wanted.off_out };
                let copied = ops.copy_range(caller, from, to)?;
                match header.opcode {
                    op::COPY_FILE_RANGE => {
                        let size = u32::try_from(copied).unwrap_or(u32::MAX);
                        bytes(&abi::WriteOut { size, padding: 0 })
                    }
                    _ => bytes(&abi::CopyFileRangeOut { bytes_copied: copied }),
                }
            }
            op::DESTROY => {
                ops.end();
                Ok(Outcome::Nothing)
            }
            // FLUSH: a close has nothing to do here, writes have reported their errors. ACCESS: the kernel
            // checks. Locks: the kernel keeps them, it is the only client.
            _ => Err(Errno::ENOSYS),
        }
    }

    fn read(
        &self,
        node: NodeId,
        request: &mut Request<'_>,
        contents: &mut dyn Contents,
    ) -> Reply<Outcome> {
        let mut wanted: abi::ReadIn = request.take()?;
        wanted.size = wanted.size.min(READ_MAX);
        let end = wanted.offset.saturating_add(u64::from(wanted.size));
        let range = wanted.offset..end;
        self.operations.read(Bytes { node, range }, Handle(wanted.fh), contents)?;
        match contents.sent() {
            Some(bytes) => {
                debug_assert!(bytes <= u64::from(wanted.size), "what was asked for");
                self.lane.count_read(bytes);
                Ok(Outcome::Sent)
            }
            None => Ok(Outcome::Nothing), // The end of the file.
        }
    }
}

/// The reply to a listing.
struct Listing {
    out: Vec<u8>,
    limit: usize,
    plus: bool,
}

impl Listing {
    fn record_len(&self, name: &[u8]) -> usize {
        let entry = if self.plus { size_of::<abi::EntryOut>() } else { 0 };
        let len = entry + size_of::<abi::Dirent>() + name.len();
        if sabotage("fuse.dispatch.listing-not-padded") { len } else { len.next_multiple_of(8) }
    }
}

impl DirAnswer for Listing {
    fn wants_attributes(&self) -> bool {
        self.plus
    }

    fn has_room_for(&self, name: &[u8]) -> bool {
        self.out.len() + self.record_len(name) <= self.limit
    }

    fn add(&mut self, name: &[u8], ino: u64, kind: u8, cookie: u64, known: Option<&Entry>) -> bool {
        if !self.has_room_for(name) {
            return false;
        }
        let end = self.out.len() + self.record_len(name);
        if self.plus {
            // A node of 0 means that the entry has no attributes.
            let out = known.map_or_else(abi::EntryOut::default, entry_out);
            self.out.extend_from_slice(out.as_bytes());
        }
        let head =
            abi::Dirent { ino, off: cookie, namelen: name.len() as u32, kind: u32::from(kind) };
        self.out.extend_from_slice(head.as_bytes());
        self.out.extend_from_slice(name);
        self.out.resize(end, 0);
        true
    }
}

fn nothing(result: Reply<()>) -> Reply<Outcome> {
    result.map(|()| Outcome::Nothing)
}

fn bytes(out: &(impl IntoBytes + zerocopy::Immutable)) -> Reply<Outcome> {
    Ok(Outcome::Bytes(Body::of(&[out.as_bytes()])))
}

/// The value of an attribute, or its size when 0 bytes are asked for.
fn sized(value: Vec<u8>, wanted: u32) -> Reply<Outcome> {
    let size = value.len();
    if size > XATTR_MAX {
        return Err(Errno(7)); // E2BIG: more than any caller can take.
    }
    match wanted {
        0 => bytes(&abi::GetxattrOut { size: size as u32, padding: 0 }),
        wanted
            if size > wanted as usize + usize::from(sabotage("fuse.dispatch.value-too-long")) =>
        {
            Err(Errno::ERANGE)
        }
        _ => Ok(Outcome::Bytes(Body::Large(value))),
    }
}

fn device(rdev: u32) -> (u32, u32) {
    // 12 bits of major between 8 and 12 low bits of minor.
    ((rdev >> 8) & 0xfff, (rdev & 0xff) | ((rdev >> 12) & 0xfff00))
}

fn encode_device((major, minor): (u32, u32)) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

fn attr(of: &Attributes) -> abi::Attr {
    abi::Attr {
        ino: of.ino,
        size: of.size,
        blocks: of.blocks,
        // Seconds before 1970 go as they are.
        atime: of.atime.seconds as u64,
        mtime: of.mtime.seconds as u64,
        ctime: of.ctime.seconds as u64,
        atimensec: of.atime.nanos,
        mtimensec: of.mtime.nanos,
        ctimensec: of.ctime.nanos,
        mode: of.mode,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        rdev: encode_device(of.rdev),
        blksize: of.blksize,
        flags: 0,
    }
}

fn attributes(of: &Attributes) -> Reply<Outcome> {
    let (attr_valid, attr_valid_nsec) = valid(of);
    bytes(&abi::AttrOut { attr_valid, attr_valid_nsec, attr: attr(of), ..Default::default() })
}

/// Returns how long the kernel may trust attributes, in seconds and nanoseconds.
fn valid(of: &Attributes) -> (u64, u32) {
    of.valid_for.map_or((FOR_EVER, 0), |time| (time.as_secs(), time.subsec_nanos()))
}

fn entry_out(of: &Entry) -> abi::EntryOut {
    let (attr_valid, attr_valid_nsec) = valid(&of.attributes);
    abi::EntryOut {
        nodeid: of.node.0,
        generation: of.generation,
        entry_valid: if of.keep_name { FOR_EVER } else { NOT_AT_ALL },
        attr_valid: if of.node == NodeId::NONE { NOT_AT_ALL } else { attr_valid },
        attr_valid_nsec,
        attr: attr(&of.attributes),
        ..Default::default()
    }
}

fn entry(of: &Entry) -> Reply<Outcome> {
    bytes(&entry_out(of))
}

fn open_out(opened: Opened, keep: u32) -> abi::OpenOut {
    let mut open_flags = keep;
    if !opened.keep_cache {
        open_flags &= !abi::FOPEN_KEEP_CACHE;
    }
    if opened.direct {
        open_flags |= abi::FOPEN_DIRECT_IO;
    }
    abi::OpenOut { fh: opened.handle.0, open_flags, backing_id: 0 }
}

fn statx(of: &Attributes) -> Reply<Outcome> {
    /// Basic fields and the time of creation.
    const BASIC: u32 = 0x7ff;
    const BTIME: u32 = 0x800;
    /// Compressed, immutable, append, nodump, encrypted, verity.
    const KNOWN: u64 = 0x4 | 0x10 | 0x20 | 0x40 | 0x800 | 0x10_0000;
    let time = |time: Time| abi::SxTime { tv_sec: time.seconds, tv_nsec: time.nanos, reserved: 0 };
    let stat = abi::Statx {
        mask: if of.btime.is_some() { BASIC | BTIME } else { BASIC },
        blksize: of.blksize,
        attributes: of.statx_attributes,
        nlink: of.nlink,
        uid: of.uid,
        gid: of.gid,
        mode: of.mode as u16,
        ino: of.ino,
        size: of.size,
        blocks: of.blocks,
        attributes_mask: KNOWN,
        atime: time(of.atime),
        btime: of.btime.map(time).unwrap_or_default(),
        ctime: time(of.ctime),
        mtime: time(of.mtime),
        rdev_major: of.rdev.0,
        rdev_minor: of.rdev.1,
        ..Default::default()
    };
    let (attr_valid, attr_valid_nsec) = valid(of);
    bytes(&abi::StatxOut { attr_valid, attr_valid_nsec, stat, ..Default::default() })
}

fn set_attr(wanted: &abi::SetattrIn) -> SetAttr {
    let valid = SetattrValid::from_bits_truncate(wanted.valid);
    let given = |flag: SetattrValid| valid.contains(flag);
    let time = |seconds: u64, nanos: u32| Time { seconds: seconds as i64, nanos };
    let changed = |set: SetattrValid, now: SetattrValid, to: Time| match () {
        () if given(now) => Some(SetTime::Now),
        () if given(set) => Some(SetTime::To(to)),
        () => None,
    };
    SetAttr {
        mode: given(SetattrValid::MODE).then_some(wanted.mode),
        uid: given(SetattrValid::UID).then_some(wanted.uid),
        gid: given(SetattrValid::GID).then_some(wanted.gid),
        size: given(SetattrValid::SIZE).then_some(wanted.size),
        atime: changed(
            SetattrValid::ATIME,
            SetattrValid::ATIME_NOW,
            time(wanted.atime, wanted.atimensec),
        ),
        mtime: changed(
            SetattrValid::MTIME,
            SetattrValid::MTIME_NOW,
            time(wanted.mtime, wanted.mtimensec),
        ),
        ctime: given(SetattrValid::CTIME).then(|| time(wanted.ctime, wanted.ctimensec)),
        take_set_id: given(SetattrValid::KILL_SUIDGID),
    }
}

fn statfs(ops: &dyn Operations) -> Reply<Outcome> {
    let totals = ops.totals()?;
    bytes(&abi::StatfsOut {
        blocks: totals.blocks,
        bfree: totals.blocks_free,
        bavail: totals.blocks_available,
        files: totals.files,
        ffree: totals.files_free,
        bsize: totals.block_bytes,
        namelen: totals.name_max,
        frsize: totals.block_bytes,
        ..Default::default()
    })
}

fn ioctl(
    ops: &dyn Operations,
    caller: Caller,
    node: NodeId,
    request: &mut Request<'_>,
) -> Reply<Outcome> {
    const COMPAT: u32 = 1 << 0;
    let wanted: abi::IoctlIn = request.take()?;
    let input = request.bytes(wanted.in_size)?;
    let asked = Ioctl {
        command: wanted.cmd,
        argument: wanted.arg,
        input,
        output_max: wanted.out_size,
        is_compat: wanted.flags & COMPAT != 0,
    };
    let answer = ops.ioctl(caller, node, &asked)?;
    if answer.len() > wanted.out_size as usize {
        return Err(Errno::EINVAL);
    }
    let head = abi::IoctlOut::default();
    Ok(Outcome::Bytes(Body::of(&[head.as_bytes(), &answer])))
}

/// Returns what the kernel offers at the start, or why it cannot be spoken to.
pub(crate) fn init_in(request: &mut Request<'_>) -> Result<(abi::InitIn, abi::InitFlags), Errno> {
    let init: abi::InitIn = request.take()?;
    let mut flags = u64::from(init.flags);
    if flags & abi::InitFlags::INIT_EXT.bits() != 0
        && let Ok(more) = request.take::<abi::InitInExt>()
    {
        flags |= u64::from(more.flags2) << 32;
    }
    Ok((init, abi::InitFlags::from_bits_retain(flags)))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    #[test]
    fn small_answers_stay_where_they_are_made() {
        let whole: Vec<u8> = (0..=SMALL_MAX as u8).collect();
        for len in [0, 1, SMALL_MAX] {
            let (head, tail) = whole[..len].split_at(len / 2);
            let body = Body::of(&[head, tail]);
            assert!(matches!(body, Body::Small { .. }), "{len} bytes were allocated");
            assert_eq!(*body, whole[..len]);
        }
        let body = Body::of(&[&whole[..9], &whole[9..]]);
        assert!(matches!(body, Body::Large(_)));
        assert_eq!(*body, whole[..]);
        let made = size_of::<abi::EntryOut>() + size_of::<abi::OpenOut>();
        assert!(made <= SMALL_MAX, "the answer to a new file has {made} bytes");
    }

    #[test]
    fn device_numbers_come_back() {
        for pair in [(0, 0), (8, 1), (259, 0xfffff), (0xfff, 0x12345)] {
            assert_eq!(device(encode_device(pair)), pair);
        }
    }

    #[test]
    fn a_listing_stops_before_what_does_not_fit() {
        let mut listing = Listing { out: Vec::new(), limit: 64, plus: false };
        assert!(listing.add(b"12345678", 5, 8, 1, None));
        assert_eq!(listing.out.len(), 32);
        assert!(listing.add(b"1", 5, 8, 2, None));
        assert_eq!(listing.out.len(), 64);
        assert!(!listing.add(b"1", 5, 8, 3, None));
        assert_eq!(listing.out.len(), 64);
    }

    #[test]
    fn times_and_their_now_are_told_apart() {
        let valid = SetattrValid::ATIME | SetattrValid::ATIME_NOW | SetattrValid::MTIME;
        let wanted = abi::SetattrIn {
            valid: valid.bits(),
            mtime: (-1i64) as u64,
            mtimensec: 7,
            ..Default::default()
        };
        let changes = set_attr(&wanted);
        assert_eq!(changes.atime, Some(SetTime::Now));
        assert_eq!(changes.mtime, Some(SetTime::To(Time { seconds: -1, nanos: 7 })));
        assert_eq!((changes.ctime, changes.mode, changes.size), (None, None, None));
    }

    #[test]
    fn a_value_is_asked_for_by_size_first() {
        assert!(matches!(sized(vec![1; 9], 0), Ok(Outcome::Bytes(out)) if out[0] == 9));
        assert!(matches!(sized(vec![1; 9], 8), Err(Errno::ERANGE)));
        assert!(matches!(sized(vec![1; 9], 9), Ok(Outcome::Bytes(out)) if out.len() == 9));
    }

    #[test]
    fn old_kernels_say_less_at_the_start() {
        let header = abi::InHeader { len: 56, opcode: op::INIT, ..Default::default() };
        let init = abi::InitIn { major: 7, minor: 31, max_readahead: 4096, flags: 1 };
        let bytes = [header.as_bytes(), init.as_bytes()].concat();
        let (init, flags) = init_in(&mut Request::parse(&bytes).unwrap()).unwrap();
        assert_eq!((init.minor, flags), (31, abi::InitFlags::ASYNC_READ));
        let _ = abi::InHeader::read_from_bytes(header.as_bytes()).unwrap();
    }
}
