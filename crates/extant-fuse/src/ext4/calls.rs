//! What operations answer, told apart from how a kernel asks: none takes part.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant::{Fs, MasterKey, MountOptions};
use extant_format::acl::{Acl, AclEntry, Who};
use extant_sync::{Clock, Mutex, Rank};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{image, require, tempdir};

use super::{Ext4, Served, Terms};
use crate::argument::{ADD_KEY, Argument, SET_POLICY};
use crate::events::{Events, Level};
use crate::ids::IdMap;
use crate::kernel::Kernel;
use crate::operations::{
    Caller, Entry, Errno, Ioctl, New, NodeId, Operations, Position, Reply, WriteHow,
};
use crate::orders::CONTROL;
use crate::settings::Settings;
use crate::stats::RequestStats;

const ROOT: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const GETFLAGS: u32 = 0x8008_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETFSLABEL: u32 = 0x8100_9431;
const SETFSLABEL: u32 = 0x4100_9432;
const REMOVE_KEY: u32 = 0xc040_6618;
const KEY_STATUS: u32 = 0xc080_661a;
const ENOKEY: Errno = Errno(126);
const ENOTDIR: Errno = Errno(20);
const O_RDONLY: u32 = 0;
const O_RDWR: u32 = 2;

/// A kernel that does nothing and notes what it is told to forget.
struct Silent(Mutex<Vec<(NodeId, i64)>>);

impl Kernel for Silent {
    fn drop_cached(&self, node: NodeId, offset: i64) -> io::Result<()> {
        self.0.lock().push((node, offset));
        Ok(())
    }

    fn drop_attributes(&self, _: NodeId) -> io::Result<()> {
        Ok(())
    }

    fn may_wait_here(&self) -> bool {
        true
    }
}

/// A clock on which only what sleeps takes time, without a lock: some ask it under theirs.
struct Asleep(AtomicU64);

impl Clock for Asleep {
    fn now(&self) -> (i64, u32) {
        (1_800_000_000, 0)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }
}

/// The program that asks: the argument of its control operation.
struct Program(Mutex<Vec<u8>>);

impl Events for Program {
    fn ready(&self) {}

    fn log(&self, _: Level, text: &str) {
        println!("{text}");
    }

    fn read_argument(&self, _: Argument, bytes: Range<u32>) -> Option<Vec<u8>> {
        self.0.lock().get(bytes.start as usize..bytes.end as usize).map(<[u8]>::to_vec)
    }
}

/// A file system that is served to nobody but the test.
struct Server<'a> {
    operations: Ext4<'a>,
    fs: Fs,
    kernel: Arc<Silent>,
    program: &'a Program,
}

impl Server<'_> {
    fn ioctl(&self, caller: Caller, node: NodeId, command: u32, input: &[u8]) -> Reply<Vec<u8>> {
        let asked = Ioctl { command, argument: 0, input, output_max: 256, is_compat: false };
        self.operations.ioctl(caller, node, &asked)
    }

    /// Makes a call like [`ioctl`](Self::ioctl), of which the kernel does not pass everything.
    fn ioctl_at(
        &self,
        node: NodeId,
        command: u32,
        input: usize,
        argument: &[u8],
    ) -> Reply<Vec<u8>> {
        *self.program.0.lock() = argument.to_vec();
        self.ioctl(ROOT, node, command, &argument[..input])
    }

    fn mkdir(&self, name: &str) -> NodeId {
        let made = self.operations.mkdir(ROOT, NodeId::ROOT, name.as_bytes(), &new(0o40755));
        made.unwrap().node
    }

    /// A new file that nobody has open.
    fn create(&self, parent: NodeId, name: &str) -> Entry {
        let new = new(0o100_644);
        let made = self.operations.create(ROOT, parent, name.as_bytes(), &new, O_RDWR);
        let (entry, opened) = made.unwrap();
        self.operations.release(entry.node, opened.handle);
        entry
    }
}

fn new(mode: u32) -> New {
    New { mode, umask: 0, rdev: (0, 0) }
}

/// Serves a new file system of `size` and calls `use_it`; then e2fsck finds nothing wrong with it.
fn serve(
    (size, words): (&str, &[&str]),
    settings: &Settings,
    use_it: impl FnOnce(&Server<'_>),
) -> Result<(), String> {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    mke2fs(&path, size, words)?;
    let device = Arc::new(image::load(&path));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open_shared(Arc::clone(&device) as _).unwrap();
    let served = Served::new(fs.clone(), settings);
    let terms = Terms { holds_writes_back: true, may_wait: 1, over_rings: false, is_far: false };
    let kernel = Arc::new(Silent(Mutex::new(Rank::Leaf, Vec::new())));
    let program = Program(Mutex::new(Rank::Leaf, Vec::new()));
    let clock = Arc::new(Asleep(AtomicU64::new(0)));
    let requests = Arc::new(RequestStats::new(1, 0));
    let told = Arc::clone(&kernel) as _;
    let operations = served.operations(told, &terms, requests, clock, settings, &program);
    use_it(&Server { operations, fs, kernel, program: &program });
    served.end().unwrap();
    assert_eq!(image::e2fsck(&device, dir.path())?, "");
    Ok(())
}

const ENCRYPT: (&str, &[&str]) = ("8M", &["-t", "ext4", "-O", "encrypt"]);
const KEY: [u8; 64] = [7; 64];

/// A `struct fscrypt_key_specifier` of the key, in an argument of `len` bytes.
fn key_named(first: u8, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    (bytes[0], bytes[8]) = (2, first);
    bytes
}

/// Adds the key, and returns its name as the answer has it.
fn add_key(server: &Server<'_>) -> [u8; 16] {
    let mut argument = key_named(0, 80);
    argument[40] = KEY.len() as u8;
    argument.extend(KEY);
    let answer = server.ioctl_at(NodeId::ROOT, ADD_KEY, 80, &argument).unwrap();
    answer[8..24].try_into().unwrap()
}

fn argument_of(name: &[u8; 16], len: usize) -> Vec<u8> {
    let mut argument = key_named(0, len);
    argument[8..24].copy_from_slice(name);
    argument
}

/// A `struct fscrypt_policy_v2`: AES-256-XTS, AES-256-CTS, names in steps of 32 bytes.
fn policy_of(name: &[u8; 16]) -> Vec<u8> {
    let mut policy = vec![2, 1, 4, 3, 0, 0, 0, 0];
    policy.extend(name);
    policy
}

#[test]
fn the_status_of_a_key_says_who_added_it_and_whether_it_is_in_use() {
    let settings = Settings { operator: 0, ..Settings::default() };
    require!(serve(ENCRYPT, &settings, |server| {
        let status = |name: &[u8; 16], uid| {
            let asked = argument_of(name, 128);
            let caller = Caller { uid, ..ROOT };
            let answer = server.ioctl(caller, NodeId::ROOT, KEY_STATUS, &asked).unwrap();
            assert_eq!((answer.len(), &answer[..64]), (128, &asked[..64]), "what was asked");
            assert!(answer[76..].iter().all(|byte| *byte == 0));
            [64, 68, 72].map(|at| u32::from_ne_bytes(answer[at..at + 4].try_into().unwrap()))
        };
        let name = add_key(server);
        assert_eq!(MasterKey::new(&KEY).unwrap().identifier(), extant::KeySpec::Identifier(name));
        assert_eq!(status(&name, 0), [2, 1, 1], "present, added by who asks, by nobody else");
        assert_eq!(status(&name, 1000), [2, 0, 1]);
        assert_eq!(status(&[5; 16], 0), [1, 0, 0], "absent");
        let dir = server.mkdir("dir");
        server.ioctl_at(dir, SET_POLICY, 0, &policy_of(&name)).unwrap();
        let file = server.create(dir, "file").node;
        let opened = server.operations.open(ROOT, file, O_RDONLY).unwrap();
        let removed = server.ioctl(ROOT, NodeId::ROOT, REMOVE_KEY, &argument_of(&name, 64));
        assert_eq!(removed.unwrap()[40..44], 1u32.to_ne_bytes(), "files are busy");
        assert_eq!(status(&name, 0), [3, 0, 0], "removed but for what is open");
        server.operations.release(file, opened.handle);
        assert_eq!(status(&name, 0), [1, 0, 0]);
        let again = server.ioctl(ROOT, NodeId::ROOT, REMOVE_KEY, &argument_of(&name, 64));
        assert_eq!(again, Err(ENOKEY));
    }));
}

#[test]
fn with_its_key_the_kernel_forgets_what_is_not_open_and_it_opens_no_more() {
    let settings = Settings { operator: 0, ..Settings::default() };
    require!(serve(ENCRYPT, &settings, |server| {
        let name = add_key(server);
        let (dir, plain) = (server.mkdir("dir"), server.create(NodeId::ROOT, "plain").node);
        let set = |node| server.ioctl_at(node, SET_POLICY, 0, &policy_of(&name));
        assert_eq!(set(plain), Err(ENOTDIR));
        set(dir).unwrap();
        let (shut, open) = (server.create(dir, "shut").node, server.create(dir, "open").node);
        let open_file = |node| server.operations.open(ROOT, node, O_RDONLY);
        let opened = open_file(open).unwrap();
        server.kernel.0.lock().clear();
        server.ioctl(ROOT, NodeId::ROOT, REMOVE_KEY, &argument_of(&name, 64)).unwrap();
        let mut told = std::mem::take(&mut *server.kernel.0.lock());
        told.sort_unstable();
        let mut expected = [(dir, 0), (shut, 0)];
        expected.sort_unstable();
        assert_eq!(told, expected, "neither what is open nor what is not encrypted");
        assert_eq!(open_file(shut).unwrap_err(), ENOKEY);
        open_file(plain).unwrap();
        server.operations.release(open, opened.handle);
        assert_eq!(open_file(open).unwrap_err(), ENOKEY);
        assert_eq!(add_key(server), name);
        let opened = open_file(open).unwrap();
        server.operations.release(open, opened.handle);
    }));
}

#[test]
fn a_file_that_is_written_stays_known_when_its_last_reader_by_key_goes() {
    require!(serve(ENCRYPT, &Settings::default(), |server| {
        let nodes = &server.operations.nodes;
        let (written, nameless) = (NodeId(40), NodeId(41));
        let root = server.fs.root().unwrap();
        let inode = server.fs.root().unwrap().tmpfile(&extant::NewInode::root(0o600)).unwrap();
        nodes.learn(written, &root);
        assert_eq!(nodes.add_writer(written, &root), 1);
        nodes.add_key_user(written);
        nodes.remove_key_user(written);
        assert_eq!(nodes.written(), [written]);
        nodes.learn(nameless, &inode);
        nodes.add_key_user(nameless);
        nodes.remove_key_user(nameless);
        assert_eq!(nodes.count().held, 2, "it has no name, so nothing else keeps its inode");
        nodes.remove_writer(written);
        assert_eq!(nodes.count().held, 1);
        nodes.add_key_user(written);
        assert_eq!(nodes.count().held, 2);
        nodes.remove_key_user(written);
        assert_eq!(nodes.count().held, 1, "nothing is kept of what is not used");
    }));
}

#[test]
fn flags_that_mean_nothing_are_refused_and_a_label_where_nothing_may_change() {
    require!(serve(("8M", &["-t", "ext4"]), &Settings::default(), |server| {
        let file = server.create(NodeId::ROOT, "file").node;
        let flags = || {
            let flags = server.ioctl(ROOT, file, GETFLAGS, &[]).unwrap();
            u32::from_ne_bytes(flags.try_into().unwrap())
        };
        let set = |flags: u32| server.ioctl(ROOT, file, SETFLAGS, &flags.to_ne_bytes());
        const NODUMP: u32 = 0x40;
        const IMAGIC: u32 = 0x2000;
        const DIRSYNC: u32 = 0x1_0000;
        const EXTENTS: u32 = 0x8_0000;
        let before = flags();
        set(before | NODUMP).unwrap();
        assert_eq!(flags(), before | NODUMP);
        assert_eq!(set(before | IMAGIC), Err(Errno::EOPNOTSUPP), "not a flag that is shown");
        assert_eq!(set(before | DIRSYNC), Err(Errno::EOPNOTSUPP), "a flag of directories");
        assert_eq!(flags(), before | NODUMP, "neither changed anything");
        assert_eq!(set(before ^ EXTENTS), Err(Errno::EOPNOTSUPP), "another kind of map");
        assert_eq!(flags(), before, "the other flags are set all the same");

        let label = || server.ioctl(ROOT, NodeId::ROOT, GETFSLABEL, &[]).unwrap()[..6].to_vec();
        let name = |label: &[u8]| server.ioctl(ROOT, NodeId::ROOT, SETFSLABEL, label);
        let order = |order: &[u8]| {
            server.operations.set_xattr(ROOT, NodeId::ROOT, CONTROL, order, 0, false).unwrap();
        };
        name(b"first\0").unwrap();
        order(b"remount,ro");
        assert_eq!(name(b"second\0"), Err(Errno::EROFS));
        assert_eq!(label(), b"first\0");
        order(b"remount,rw");
        assert_eq!(name(&[b'x'; 17]), Err(Errno::EINVAL));
        name(b"second\0").unwrap();
        assert_eq!(label(), b"second");
    }));
}

#[test]
fn users_and_groups_of_access_lists_are_mapped_as_owners_are() {
    const ACCESS: &[u8] = b"system.posix_acl_access";
    let ids = IdMap::new().map_users(0, 1000, 10).map_groups(0, 2000, 10);
    let settings = Settings { ids, ..Settings::default() };
    require!(serve(("8M", &["-t", "ext4"]), &settings, |server| {
        let list = |user, group| {
            let who = [Who::Owner, Who::User(user), Who::OwningGroup, Who::Group(group), Who::Mask];
            let mut entries = who.map(|who| AclEntry { who, perm: 5 }).to_vec();
            entries.push(AclEntry { who: Who::Others, perm: 0 });
            Acl::new(entries).unwrap().encode_xattr()
        };
        let caller = Caller { uid: 1000, gid: 2000, pid: 0 };
        let new = new(0o100_644);
        let made = server.operations.create(caller, NodeId::ROOT, b"file", &new, O_RDWR).unwrap();
        let file = made.0.node;
        server.operations.release(file, made.1.handle);
        let set = |value: &[u8]| server.operations.set_xattr(caller, file, ACCESS, value, 0, false);
        set(&list(1003, 2004)).unwrap();
        let inode = server.fs.resolve("/file").unwrap();
        assert_eq!(inode.xattr(ACCESS).unwrap(), list(3, 4), "as it is stored");
        assert_eq!(server.operations.xattr(caller, file, ACCESS).unwrap(), list(1003, 2004));
        assert_eq!(set(&list(3, 2004)), Err(Errno::EINVAL), "nobody in the image");
        assert_eq!(set(&list(1003, 4)), Err(Errno::EINVAL));
        assert_eq!(inode.xattr(ACCESS).unwrap(), list(3, 4));
    }));
}

#[test]
fn who_was_refused_for_want_of_room_is_heard_again_when_a_directory_was_removed() {
    require!(serve(("8M", &["-t", "ext4", "-m", "0"]), &Settings::default(), |server| {
        let operations = &server.operations;
        let dir = server.mkdir("dir");
        operations.forget(dir, 1);
        let new = new(0o100_644);
        let (file, opened) = operations.create(ROOT, NodeId::ROOT, b"file", &new, O_RDWR).unwrap();
        let (node, how) = (file.node, WriteHow { from_cache: true, ..WriteHow::default() });
        let piece = vec![1; 64 << 10];
        let refused = (0..1000).find_map(|n| {
            let to = Position { node, offset: n * piece.len() as u64 };
            operations.write(ROOT, to, opened.handle, &piece, how).err()
        });
        assert_eq!(refused, Some(Errno::ENOSPC));
        let ask = || operations.attributes(node, Some(opened.handle)).map(drop);
        assert_eq!(ask(), Err(Errno::ENOSPC), "it was not heard of yet");
        assert_eq!(ask(), Err(Errno::ENOSPC), "and there is still no room");
        operations.rmdir(ROOT, NodeId::ROOT, b"dir").unwrap();
        assert_eq!(ask(), Ok(()), "something was freed");
        operations.release(node, opened.handle);
    }));
}
