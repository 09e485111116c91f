//! Control operations of programs, orders to the server, and its reports.
//!
//! Orders and queries are extended attributes with reserved names, on any inode of the mount: they
//! need no special call and work with every tool that can get or set an attribute.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

use extant::{FileKind, FsError, GrowTo, Inode, InodeFlags, SetAttributes, Shutdown, Tune};
use extant_base::sabotage;
use extant_format::features::RoCompat;
use serde_json::{Map, Value, json};

use super::Ext4;
use super::complaints::Kind;
use crate::abi::ID_NOT_TOLD;
use crate::argument::Argument;
use crate::events::Level;
use crate::operations::{Caller, Errno, Ioctl, NodeId, Reply};
use crate::orders::{DEFRAG, INFO, ORDER, PIECES, STATS};
use crate::settings::Durable;

/// Prefix of the name of a socket, as an order: the result of the end of the mount is sent there.
const TELL: &str = "tell=";

/// Bytes of a file that one request moves, about: others wait for the thread that answers it.
const DEFRAG_STEP: u64 = 64 << 20;

/// Numbers of control operations, as Linux has them for 64-bit programs.
mod number {
    pub(super) const GETFLAGS: u32 = 0x8008_6601;
    pub(super) const SETFLAGS: u32 = 0x4008_6602;
    pub(super) const GETFLAGS_32: u32 = 0x8004_6601;
    pub(super) const SETFLAGS_32: u32 = 0x4004_6602;
    pub(super) const GETVERSION: u32 = 0x8008_7601;
    pub(super) const GETVERSION_32: u32 = 0x8004_7601;
    pub(super) const EXT4_GETVERSION: u32 = 0x8008_6603;
    pub(super) const FSGETXATTR: u32 = 0x801c_581f;
    pub(super) const FSSETXATTR: u32 = 0x401c_5820;
    pub(super) const FITRIM: u32 = 0xc018_5879;
    pub(super) use crate::argument::{
        ADD_KEY, EXT4_SETFSUUID, GET_POLICY, GET_POLICY_EX, PWSALT, SET_POLICY, SHUTDOWN,
    };
    pub(super) const GETFSLABEL: u32 = 0x8100_9431;
    pub(super) const SETFSLABEL: u32 = 0x4100_9432;
    pub(super) const REMOVE_KEY: u32 = 0xc040_6618;
    pub(super) const REMOVE_KEY_ALL_USERS: u32 = 0xc040_6619;
    pub(super) const KEY_STATUS: u32 = 0xc080_661a;
    pub(super) const NONCE: u32 = 0x8010_661b;
    pub(super) const ENABLE_VERITY: u32 = 0x4080_6685;
    pub(super) const MEASURE_VERITY: u32 = 0xc004_6686;
    pub(super) const EXT4_ALLOC_DA_BLKS: u32 = 0x660c;
    pub(super) const EXT4_RESIZE_FS: u32 = 0x4008_6610;
    pub(super) const EXT4_PRECACHE_EXTENTS: u32 = 0x6612;
}

/// Flags of inodes that programs are shown, and that they may set.
const VISIBLE: u32 = 0x725b_dfff;
const SETTABLE: u32 = 0x6203_c0ff;

/// `fsx_xflags` for flags of inodes.
const XFLAGS: [(u32, InodeFlags); 7] = [
    (0x8, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x200, InodeFlags::PROJINHERIT),
    (0x8000, InodeFlags::DAX),
];
/// Bytes of `struct fsxattr`.
const FSXATTR: usize = 28;
/// Bytes that a label takes in the call, and in the superblock.
const LABEL_CALL: usize = 256;
const LABEL_MAX: usize = 16;

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Reply<u32> {
    let part = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
    part.map(u32::from_ne_bytes).ok_or(Errno::EINVAL)
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Reply<u64> {
    let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    part.map(u64::from_ne_bytes).ok_or(Errno::EINVAL)
}

/// Fails if an inode is immutable and stays so while another flag changes.
fn check_frozen(old: InodeFlags, new: InodeFlags) -> Reply<()> {
    let stays = (old & new).contains(InodeFlags::IMMUTABLE);
    match stays && old != new && !sabotage("fuse.control.immutable-takes-flags") {
        true => Err(Errno::EPERM),
        false => Ok(()),
    }
}

impl Ext4<'_> {
    /// Returns whether `caller` may do what needs `CAP_SYS_ADMIN` elsewhere: root, and the user of
    /// the server may.
    fn is_operator(&self, caller: Caller) -> bool {
        !self.is_far && self.is_privileged(caller)
    }

    /// As [`is_operator`](Self::is_operator), for what stays inside the file system: root of another machine may do
    /// it as well.
    fn is_privileged(&self, caller: Caller) -> bool {
        if self.is_far {
            return caller.uid == 0;
        }
        self.user_of(caller).is_some_and(|user| user == 0 || user == self.settings.operator)
    }

    /// Returns the user of the request, if it can be determined.
    pub(super) fn user_of(&self, caller: Caller) -> Option<u32> {
        match caller.uid {
            ID_NOT_TOLD if self.settings.idmapped => self.events.user_of(caller.pid),
            user => Some(user),
        }
    }

    pub(super) fn check_operator(&self, caller: Caller) -> Reply<()> {
        if self.is_operator(caller) { Ok(()) } else { Err(Errno::EPERM) }
    }

    fn check_privileged(&self, caller: Caller) -> Reply<()> {
        if self.is_privileged(caller) { Ok(()) } else { Err(Errno::EPERM) }
    }

    pub(super) fn ioctl_of(
        &self,
        caller: Caller,
        node: NodeId,
        asked: &Ioctl<'_>,
    ) -> Reply<Vec<u8>> {
        use number as n;
        let inode = self.inode(node)?;
        match asked.command {
            n::GETFLAGS | n::GETFLAGS_32 => {
                let flags = inode.metadata().flags.bits() & VISIBLE;
                Ok(flags.to_ne_bytes().to_vec())
            }
            n::SETFLAGS | n::SETFLAGS_32 => {
                self.check_change()?;
                let set = self.set_flags(caller, &inode, u32_at(asked.input, 0)?);
                self.has_new_times(node);
                set?;
                self.changed(node)?;
                Ok(Vec::new())
            }
            n::GETVERSION | n::GETVERSION_32 | n::EXT4_GETVERSION => {
                let generation = inode.metadata().generation;
                let mut out = generation.to_ne_bytes().to_vec();
                out.resize((asked.output_max as usize).clamp(4, 8), 0);
                Ok(out)
            }
            n::FSGETXATTR => Ok(fsxattr(&inode)),
            n::FSSETXATTR => {
                self.check_change()?;
                self.set_fsxattr(&inode, asked.input)?;
                self.has_new_times(node);
                self.changed(node)?;
                Ok(Vec::new())
            }
            n::FITRIM => {
                self.check_privileged(caller)?;
                self.check_change()?;
                self.trim(asked.input)
            }
            n::GETFSLABEL => {
                let mut label = self.label.lock().clone();
                label.resize(LABEL_CALL, 0);
                Ok(label)
            }
            n::SETFSLABEL => {
                self.check_privileged(caller)?;
                self.check_change()?;
                let label = asked.input.split(|byte| *byte == 0).next().unwrap_or(&[]);
                if label.len() > LABEL_MAX {
                    return Err(Errno::EINVAL);
                }
                self.reply(self.set_names(&Tune::new().label(label), Some(label.to_vec())))?;
                Ok(Vec::new())
            }
            n::EXT4_SETFSUUID => {
                self.check_operator(caller)?;
                self.check_change()?;
                let (len, flags) = (u32_at(asked.input, 0)?, u32_at(asked.input, 4)?);
                if (len, flags) != (16, 0) {
                    return Err(Errno::EINVAL);
                }
                // Behind what the kernel hands on.
                let uuid = self.argument(caller, asked, 8..24)?;
                let uuid = uuid.try_into().map_err(|_| Errno::EINVAL)?;
                self.reply(self.set_names(&Tune::new().uuid(uuid), None))?;
                Ok(Vec::new())
            }
            n::SHUTDOWN => {
                self.check_operator(caller)?;
                let argument = self.argument(caller, asked, 0..4)?;
                let how = match u32_at(&argument, 0)? {
                    0 => Shutdown::Sync,
                    1 => Shutdown::LogFlush,
                    2 => Shutdown::Now,
                    _ => return Err(Errno::EINVAL),
                };
                self.shut_down(how)?;
                Ok(Vec::new())
            }
            n::ENABLE_VERITY => self.enable_verity(caller, node, &inode, asked),
            n::MEASURE_VERITY => self.measure_verity(&inode, asked),
            n::SET_POLICY => self.set_policy(caller, node, &inode, asked),
            n::GET_POLICY => self.get_policy(caller, &inode, asked),
            n::GET_POLICY_EX => self.get_policy_ex(caller, &inode, asked),
            n::NONCE => self.encryption_nonce(&inode),
            n::PWSALT => self.password_salt(caller, asked),
            n::ADD_KEY => self.add_key(caller, asked),
            n::REMOVE_KEY => self.remove_key(caller, asked, false),
            n::REMOVE_KEY_ALL_USERS => self.remove_key(caller, asked, true),
            n::KEY_STATUS => self.key_status(caller, asked),
            n::EXT4_RESIZE_FS => {
                self.check_operator(caller)?;
                self.check_change()?;
                let grown = self.grow(GrowTo::Blocks(u64_at(asked.input, 0)?));
                self.reply(grown)?;
                Ok(Vec::new())
            }
            n::EXT4_ALLOC_DA_BLKS => {
                self.check_change()?;
                self.reply(inode.sync_data())?;
                Ok(Vec::new())
            }
            // The map is cached as it is used; there is nothing to hurry.
            n::EXT4_PRECACHE_EXTENTS => Ok(Vec::new()),
            _ => Err(Errno::ENOTTY),
        }
    }

    /// Reads bytes of an argument that the kernel does not pass.
    ///
    /// # Errors
    ///
    /// `EACCES` where neither this process nor its keeper may look.
    pub(super) fn argument(
        &self,
        caller: Caller,
        asked: &Ioctl<'_>,
        bytes: Range<u32>,
    ) -> Reply<Vec<u8>> {
        let argument = Argument { thread: caller.pid, command: asked.command };
        let read = argument.read(bytes.clone());
        read.or_else(|| self.events.read_argument(argument, bytes)).ok_or(Errno::EACCES)
    }

    /// Writes bytes of an argument that the kernel does not take back.
    ///
    /// # Errors
    ///
    /// As [`argument`](Self::argument).
    pub(super) fn answer_argument(
        &self,
        caller: Caller,
        asked: &Ioctl<'_>,
        bytes: &[u8],
    ) -> Reply<()> {
        let argument = Argument { thread: caller.pid, command: asked.command };
        match argument.write(bytes) || self.events.write_argument(argument, bytes) {
            true => Ok(()),
            false => Err(Errno::EACCES),
        }
    }

    /// A control operation changed a node, which the kernel does not know to change anything.
    pub(super) fn has_new_times(&self, node: NodeId) {
        // At worst it shows the old ones.
        let _ = self.kernel.drop_attributes(node);
    }

    fn set_flags(&self, caller: Caller, inode: &Inode, asked: u32) -> Reply<()> {
        if asked & !VISIBLE != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let old = inode.metadata().flags;
        let others = InodeFlags::DIRSYNC
            | InodeFlags::TOPDIR
            | InodeFlags::CASEFOLD
            | InodeFlags::PROJINHERIT;
        if inode.kind() != FileKind::Directory && asked & others.bits() != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        check_frozen(old, InodeFlags::from_bits_retain(asked))?;
        if (asked ^ old.bits()) & InodeFlags::JOURNAL_DATA.bits() != 0 {
            // It makes every write of the file two; Linux asks for CAP_SYS_RESOURCE.
            self.check_privileged(caller)?;
        }
        let bits = (asked & SETTABLE) | (old.bits() & !SETTABLE);
        let flags = InodeFlags::from_bits_retain(bits);
        if flags != old {
            self.reply(inode.set_attributes(&SetAttributes::new().flags(flags)))?;
        }
        // Moving a file between its two kinds of map is not offered; where Linux cannot do it either,
        // the other flags are set all the same.
        if (asked ^ old.bits()) & InodeFlags::EXTENTS.bits() != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(())
    }

    fn set_fsxattr(&self, inode: &Inode, input: &[u8]) -> Reply<()> {
        if input.len() < FSXATTR {
            return Err(Errno::EINVAL);
        }
        let (xflags, project) = (u32_at(input, 0)?, u32_at(input, 12)?);
        let known = XFLAGS.iter().fold(0, |all, (bit, _)| all | bit);
        if xflags & !known != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let now = inode.metadata();
        let mut flags = now.flags;
        for (bit, flag) in XFLAGS {
            flags.set(flag, xflags & bit != 0);
        }
        // Only what is in a directory inherits from it.
        if inode.kind() != FileKind::Directory && flags.contains(InodeFlags::PROJINHERIT) {
            return Err(Errno::EOPNOTSUPP);
        }
        if project != now.project && !self.fs().features().has_ro_compat(RoCompat::PROJECT) {
            return Err(Errno::EOPNOTSUPP);
        }
        check_frozen(now.flags, flags)?;
        let mut changes = SetAttributes::new();
        if flags != now.flags {
            changes = changes.flags(flags);
        }
        if project != now.project {
            changes = changes.project(project);
        }
        if changes == SetAttributes::new() {
            return Ok(());
        }
        self.reply(inode.set_attributes(&changes))
    }

    fn trim(&self, input: &[u8]) -> Reply<Vec<u8>> {
        let (start, len, least) = (u64_at(input, 0)?, u64_at(input, 8)?, u64_at(input, 16)?);
        let range = start..start.saturating_add(len);
        let trimmed = match self.fs().trim(range, least) {
            Ok(trimmed) => trimmed,
            // As the kernel says it of a device that cannot.
            Err(FsError::Device(error)) if error.is_unsupported() => {
                return Err(Errno::EOPNOTSUPP);
            }
            Err(error) => return Err(self.errno(&error)),
        };
        Ok([start, trimmed, least].iter().flat_map(|word| word.to_ne_bytes()).collect())
    }

    fn shut_down(&self, how: Shutdown) -> Reply<()> {
        self.events.log(Level::Warning, &format!("shut down on request ({how:?})"));
        if !self.current.is_writable() {
            return Err(Errno::EROFS);
        }
        if how != Shutdown::Sync {
            // The requested kind of shutdown decides which changes are lost.
            let _ = self.fs().shutdown(how);
            return Ok(());
        }
        // The shutdown proceeds all the same.
        let handed_over = self.hand_over();
        self.reply(self.fs().shutdown(how))?;
        handed_over
    }

    /// An order to the server.
    pub(super) fn control_command(&self, caller: Caller, order: &[u8]) -> Reply<()> {
        self.check_operator(caller)?;
        let order = std::str::from_utf8(order).map_err(|_| Errno::EINVAL)?;
        match order {
            "sync" => {
                self.check()?;
                // All the rest is stored, whatever was refused.
                let handed_over = self.hand_over();
                self.reply(self.fs().sync())?;
                handed_over
            }
            "rest" => {
                self.check()?;
                let handed_over = self.hand_over();
                let rests = self.reply(self.fs().rest())?;
                handed_over?;
                // Whoever changes it all the time.
                if rests { Ok(()) } else { Err(Errno(16)) } // EBUSY
            }
            "freeze" => {
                self.check()?;
                self.hand_over()?;
                if !self.gate.freeze() {
                    return Err(Errno(16)); // EBUSY: frozen already.
                }
                match self.fs().freeze() {
                    Ok(frozen) => self.gate.keep(Box::new(frozen)),
                    Err(error) => {
                        self.gate.thaw();
                        return Err(self.errno(&error));
                    }
                }
                self.events.log(Level::Info, "frozen");
                Ok(())
            }
            "thaw" => {
                if !self.gate.thaw() {
                    return Err(Errno::EINVAL);
                }
                self.events.log(Level::Info, "thawed");
                Ok(())
            }
            "remount,ro" => {
                self.check()?;
                self.hand_over()?;
                self.read_only.store(true, Ordering::Release);
                self.reply(self.fs().sync())
            }
            "remount,rw" => {
                self.check()?;
                self.become_writable()?;
                if self.fs().stopped_because().is_some() {
                    return Err(Errno::EROFS);
                }
                self.read_only.store(false, Ordering::Release);
                Ok(())
            }
            "mb_optimize_scan=0" => self.reply(self.fs().set_optimize_scan(false)),
            "mb_optimize_scan=1" => self.reply(self.fs().set_optimize_scan(true)),
            _ if order.starts_with(TELL) => {
                self.events.tell_at_end(&order[TELL.len()..]);
                Ok(())
            }
            "shutdown=default" => self.shut_down(Shutdown::Sync),
            "shutdown=logflush" => self.shut_down(Shutdown::LogFlush),
            "shutdown=nologflush" => self.shut_down(Shutdown::Now),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Opens a file system that is mounted for reading for writing, and serves it instead.
    fn become_writable(&self) -> Reply<()> {
        if self.current.is_writable() {
            return Ok(());
        }
        let refuse = |why: &str| {
            self.events.log(Level::Warning, &format!("cannot become writable: {why}"));
            *self.not_writable.lock() = Some(why.to_owned());
            Err(Errno::EROFS)
        };
        if !self.current.may_change() {
            return refuse(
                "it was write-protected when it was mounted, or was mounted with noload, sb= or \
                 without checksums: mount it again",
            );
        }
        let _turn = self.current.take_turn();
        if self.current.is_writable() {
            return Ok(()); // Somebody else asked too.
        }
        if !self.current.has_room() {
            return refuse("it was tried too often");
        }
        let (fs, why) = match self.events.open_for_writing() {
            Ok(fs) => (fs, None),
            Err(error) => match error.instead {
                Some(fs) => (fs, Some(error.why)),
                None => return refuse(&error.why),
            },
        };
        // Nodes that the kernel knows must still exist, unchanged by other programs.
        self.nodes.renew(|old| {
            let new = fs.inode(old.ino()).ok()?;
            let same = new.metadata().generation == old.metadata().generation;
            (same && new.kind() == old.kind()).then_some(new)
        });
        self.current.replace(fs);
        match why {
            Some(why) => refuse(&why),
            None => {
                *self.not_writable.lock() = None;
                self.events.log(Level::Info, "writable from now on");
                Ok(())
            }
        }
    }

    /// The answer to a question to the server; `None` when it is none.
    pub(super) fn control_query(&self, caller: Caller, name: &[u8]) -> Option<Reply<Vec<u8>>> {
        let answer = match name {
            STATS => self.stats(),
            INFO => self.info(),
            _ => {
                let order = name.strip_prefix(ORDER)?;
                return Some(self.control_command(caller, order).map(|()| b"done".to_vec()));
            }
        };
        Some(self.check_operator(caller).map(|()| answer.to_string().into_bytes()))
    }

    /// The answer to a question about where a file lies, or to the order to bring it together; `None` when it is
    /// neither. Linux's `EXT4_IOC_MOVE_EXT` cannot be offered: it names a second file by a descriptor of its caller,
    /// which means nothing here.
    pub(super) fn place_query(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
    ) -> Option<Reply<Vec<u8>>> {
        match name {
            PIECES => Some(self.check_operator(caller).and_then(|()| self.pieces(node))),
            DEFRAG => Some(self.check_operator(caller).and_then(|()| self.defragment(node))),
            _ => None,
        }
    }

    fn pieces(&self, node: NodeId) -> Reply<Vec<u8>> {
        let pieces = self.reply(self.inode(node)?.pieces())?;
        let answer = json!({
            "pieces_before": pieces.count,
            "pieces_after": pieces.count,
            "blocks": pieces.blocks,
            "block_bytes": self.fs().block_size().bytes(),
        });
        Ok(answer.to_string().into_bytes())
    }

    fn defragment(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.check_change()?;
        let inode = self.inode(node)?;
        let done = inode.defragment(&mut |moved| match moved >= DEFRAG_STEP {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        });
        let done = self.reply(done)?;
        let answer = json!({
            "pieces_before": done.pieces_before,
            "pieces_after": done.pieces_after,
            "blocks": done.blocks,
            "block_bytes": self.fs().block_size().bytes(),
            "bytes_moved": done.bytes_moved,
            "nodes_freed": done.nodes_freed,
            "lacks_room": done.lacks_room,
            "is_stopped": done.is_stopped,
        });
        Ok(answer.to_string().into_bytes())
    }

    /// Returns whether the file that the image is in has no name any more: with the mount, everything in it ends.
    fn is_image_removed(&self) -> bool {
        let file = self.fs().device().as_file();
        let stat = file.and_then(|(file, _)| rustix::fs::fstat(file).ok());
        stat.is_some_and(|stat| stat.st_nlink == 0)
    }

    fn info(&self) -> Value {
        let engine = self.fs().device().engine();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "pid": std::process::id(),
            "device": &*self.fs().device().describe(),
            "label": String::from_utf8_lossy(&self.label.lock()),
            "read_only": self.read_only.load(Ordering::Relaxed),
            "not_writable_because": self.not_writable.lock().clone(),
            "frozen": self.gate.is_frozen(),
            "shut_down": self.fs().is_shut_down(),
            "image_removed": self.is_image_removed(),
            "stopped_because": self.fs().stopped_because(),
            "refused_writes": self.nodes.all_refused().count,
            "device_engine": engine.engine.to_string(),
            "device_engine_refused": engine.refused.as_deref(),
            "transport": if self.over_rings { "io_uring" } else { "/dev/fuse" },
            "threads": self.requests.threads(),
            "options": self.settings.options,
            "mb_optimize_scan": self.fs().optimize_scan().map(u8::from),
            "writeback_cache": self.settings.writeback_cache,
            "durable": match self.settings.durable {
                Durable::AsAsked => "as asked",
                Durable::Names => "names",
                Durable::Everything => "everything",
            },
            "access_times": format!("{:?}", self.settings.access_times).to_lowercase(),
            "identity_ids": self.settings.ids.is_identity(),
        })
    }

    fn stats(&self) -> Value {
        let mut all = Map::new();
        all.insert("requests".into(), self.requests.to_json());
        let (nodes, inodes) = (self.nodes.count(), self.fs().node_stats());
        all.insert("nodes".into(), json!(nodes.known));
        let memory = inodes.count.saturating_mul(inodes.bytes_each);
        let inodes = json!({
            "known": nodes.known,
            "known_bytes": nodes.bytes,
            "held": nodes.held,
            "in_memory": inodes.count,
            "in_memory_max": inodes.max,
            "in_memory_bytes": memory,
        });
        all.insert("inodes".into(), inodes);
        all.insert("open_for_writing".into(), json!(self.opens.writers()));
        all.insert("damage_reports".into(), json!(self.complaints.count(Kind::Damage)));
        if let Some(cache) = self.fs().io_stats() {
            all.insert("cache".into(), named(&cache.named()));
        }
        if let Some(writer) = self.fs().writer_stats() {
            all.insert("writer".into(), named(&writer.named()));
        }
        if let Ok(totals) = self.fs().statfs() {
            let space = json!({
                "block_bytes": totals.block_bytes,
                "blocks": totals.blocks,
                "blocks_free": totals.blocks_free,
                "inodes": totals.files,
                "inodes_free": totals.files_free,
            });
            all.insert("space".into(), space);
        }
        let waits: Map<String, Value> = extant_sync::lock_waits()
            .into_iter()
            .map(|one| {
                let nanos = u64::try_from(one.time.as_nanos()).unwrap_or(u64::MAX);
                (format!("{:?}", one.rank), json!({ "waits": one.waits, "total_ns": nanos }))
            })
            .collect();
        all.insert("lock_waits".into(), Value::Object(waits));
        Value::Object(all)
    }
}

fn named(counters: &[(&str, u64)]) -> Value {
    counters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect::<Map<_, _>>()
        .into()
}

fn fsxattr(inode: &Inode) -> Vec<u8> {
    let of = inode.metadata();
    let xflags = XFLAGS
        .iter()
        .filter(|(_, flag)| of.flags.contains(*flag))
        .fold(0, |all, (bit, _)| all | bit);
    let verity = if of.flags.contains(InodeFlags::VERITY) { 0x2_0000u32 } else { 0 };
    let mut out = Vec::with_capacity(FSXATTR);
    for word in [xflags | verity, 0, 0, of.project, 0, 0, 0] {
        out.extend_from_slice(&word.to_ne_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_immutable_takes_no_other_flag() {
        let (frozen, other) = (InodeFlags::IMMUTABLE, InodeFlags::NODUMP);
        assert_eq!(check_frozen(frozen, frozen | other), Err(Errno::EPERM));
        assert_eq!(check_frozen(frozen | other, frozen), Err(Errno::EPERM));
        assert_eq!(check_frozen(frozen, frozen), Ok(()));
        assert_eq!(check_frozen(frozen, other), Ok(()));
        assert_eq!(check_frozen(other, frozen), Ok(()));
    }

    #[test]
    fn what_can_be_set_can_be_seen() {
        assert_eq!(SETTABLE & !VISIBLE, SETTABLE & InodeFlags::DAX.bits() & !VISIBLE);
        let known = XFLAGS.iter().fold(InodeFlags::empty(), |all, (_, flag)| all | *flag);
        assert_eq!(known.bits() & !SETTABLE, 0);
    }
}
