//! Many threads change one mount. Each owns names that nobody else touches, so what is there in the
//! end is known; for contended names exactly one racer may win. Another thread commits all the
//! time, another lists directories.
//!
//! In debug builds every lock checks its rank. A thread that makes no step for two minutes ends the
//! process with a line on what each of them was doing.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use extant::{
    Fs, FsError, Ino, Inode, MountOptions, NewInode, RenameFlags, SetAttributes, XattrMode,
};
use extant_base::Prng;
use extant_block::MemoryDevice;
use extant_check::CheckOptions;
use extant_sync::threads::{Receiver, channel, scope};
use extant_sync::{Condvar, Mutex, Rank};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require};

const CLIENTS: usize = 4;
/// Seconds without a step after which a thread hangs.
const PATIENCE: u32 = 120;
/// Stands for the root where directories are counted.
const ROOT: usize = usize::MAX;
const NEW: NewInode = NewInode { permissions: 0o640, uid: 1000, gid: 100 };

/// How much is done.
struct Load {
    image: &'static str,
    options: &'static [&'static str],
    /// Directories that everything happens in.
    dirs: usize,
    /// Whether clients move some of these directories.
    moves: bool,
    /// Names that stay, per directory.
    stable: usize,
    /// Names that each client makes before it starts to change them.
    fill: usize,
    /// Changes of each client.
    steps: usize,
    /// Contended names, a round for each.
    races: usize,
}

/// What a thread is doing, for the watchdog.
struct Slot {
    name: String,
    steps: AtomicU64,
    doing: Mutex<String>,
}

impl Slot {
    fn new(name: String) -> Slot {
        Slot { name, steps: AtomicU64::new(0), doing: Mutex::new(Rank::Leaf, String::new()) }
    }

    fn begin(&self, what: impl Debug) {
        *self.doing.lock() = format!("{what:?}");
        self.steps.fetch_add(1, SeqCst);
    }
}

/// Returns when all senders of `ended` are gone; ends the process when a thread hangs.
fn watch(ended: &Receiver<()>, slots: &[Slot]) {
    let mut seen: Vec<(u64, u32)> = vec![(0, 0); slots.len()];
    while let Err(error) = ended.recv_timeout(Duration::from_secs(1)) {
        if error.is_disconnected() {
            return;
        }
        for (slot, (steps, still)) in slots.iter().zip(&mut seen) {
            let now = slot.steps.load(SeqCst);
            *still = if now == *steps { *still + 1 } else { 0 };
            *steps = now;
        }
        // Those that ended stand still for good; they say so.
        let hangs = |(slot, seen): (&Slot, &(u64, u32))| {
            seen.1 > PATIENCE && !matches!(slot.doing.lock().as_str(), "\"ended\"" | "")
        };
        if slots.iter().zip(&seen).any(hangs) {
            for (slot, (steps, still)) in slots.iter().zip(&seen) {
                let doing = slot.doing.lock().clone();
                eprintln!("{}: step {steps}, for {still} s: {doing}", slot.name);
            }
            std::process::abort();
        }
    }
}

/// What is expected of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    permissions: u16,
    links: u32,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// A name of a client.
#[derive(Clone, Debug)]
struct Name {
    dir: usize,
    name: String,
    ino: Ino,
}

/// Names that all clients want. One for each round.
struct Race {
    dir: usize,
    /// For rounds about directories: the one that loses its name, or both that want to move.
    inodes: Vec<Inode>,
    won: AtomicU32,
    /// Whether the one that removes succeeded.
    removed: AtomicBool,
}

/// What a round is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prize {
    Create,
    Mkdir,
    Unlink,
    RenameFrom,
    Link,
    RenameTo,
    Replace,
    RmdirOrCreate,
    Rmdir,
    Cycle,
}

const PRIZES: [Prize; 10] = [
    Prize::Create,
    Prize::Mkdir,
    Prize::Unlink,
    Prize::RenameFrom,
    Prize::Link,
    Prize::RenameTo,
    Prize::Replace,
    Prize::RmdirOrCreate,
    Prize::Rmdir,
    Prize::Cycle,
];

/// Where clients wait for each other, before a round and after it.
struct Meeting {
    state: Mutex<Arrived>,
    changed: Condvar,
}

#[derive(Default)]
struct Arrived {
    count: usize,
    /// A client failed and will not come.
    broken: bool,
}

impl Meeting {
    fn new() -> Meeting {
        let state = Mutex::new(Rank::Leaf, Arrived::default());
        Meeting { state, changed: Condvar::new() }
    }

    /// Until all clients are here.
    fn wait(&self) {
        let mut state = self.state.lock();
        state.count += 1;
        let all = state.count.next_multiple_of(CLIENTS);
        self.changed.notify_all();
        while state.count < all {
            assert!(!state.broken, "another client failed");
            self.changed.wait(&mut state);
        }
    }
}

/// What all threads share.
struct Shared {
    fs: Fs,
    root: Inode,
    dirs: Vec<Inode>,
    races: Vec<Race>,
    meeting: Meeting,
}

/// What one client did, as far as it knows.
#[derive(Default)]
struct Known {
    names: Vec<Name>,
    /// Files by number.
    nodes: BTreeMap<u64, Node>,
    /// Directories of its own: parent, name, number.
    subs: Vec<Name>,
    /// Directories of all that it moved: index, and where it is now.
    moved: BTreeMap<usize, (usize, String)>,
    /// Names that several gave to a file of theirs: the last one stays.
    replaced: Vec<Name>,
    /// Directories that were moved into another of a pair: where, name, which.
    cycled: Vec<(Ino, String, Ino)>,
}

struct Client<'a> {
    number: usize,
    shared: &'a Shared,
    slot: &'a Slot,
    random: Prng,
    next: u64,
    /// Directories that it may move.
    movable: Vec<usize>,
    known: Known,
}

fn key(ino: Ino) -> u64 {
    u64::from(ino.0)
}

impl Client<'_> {
    fn dir(&self, at: usize) -> &Inode {
        if at == ROOT { &self.shared.root } else { &self.shared.dirs[at] }
    }

    fn any_dir(&mut self) -> usize {
        self.random.below(self.shared.dirs.len() as u64) as usize
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("client{}-{:06}", self.number, self.next)
    }

    fn any_name(&mut self) -> Option<usize> {
        let count = self.known.names.len() as u64;
        (count > 0).then(|| self.random.below(count) as usize)
    }

    fn add(&mut self, dir: usize, name: String, inode: &Inode) {
        let node = Node { permissions: 0o640, links: 1, xattrs: BTreeMap::new() };
        self.known.nodes.insert(key(inode.ino()), node);
        self.known.names.push(Name { dir, name, ino: inode.ino() });
    }

    /// One name less for a file.
    fn forget(&mut self, ino: Ino) {
        let node = self.known.nodes.get_mut(&key(ino)).expect("a file of this client");
        node.links -= 1;
        if node.links == 0 {
            self.known.nodes.remove(&key(ino));
        }
    }

    fn create(&mut self) {
        let (dir, name) = (self.any_dir(), self.fresh());
        self.slot.begin(("create", dir, &name));
        let inode = self.dir(dir).create(&name, &NEW).expect("creates");
        self.add(dir, name, &inode);
    }

    fn unlink(&mut self) {
        let Some(at) = self.any_name() else { return };
        let Name { dir, name, ino } = self.known.names.swap_remove(at);
        self.slot.begin(("unlink", dir, &name));
        self.dir(dir).unlink(&name).expect("unlinks");
        self.forget(ino);
    }

    fn link(&mut self) {
        let Some(at) = self.any_name() else { return };
        let ino = self.known.names[at].ino;
        let (dir, name) = (self.any_dir(), self.fresh());
        self.slot.begin(("link", dir, &name, ino));
        let inode = self.shared.fs.inode(ino).expect("its own file");
        self.dir(dir).link(&name, &inode).expect("links");
        self.known.nodes.get_mut(&key(ino)).expect("known").links += 1;
        self.known.names.push(Name { dir, name, ino });
    }

    fn rename(&mut self) {
        let Some(at) = self.any_name() else { return };
        let old = self.known.names[at].clone();
        let dir = if self.random.one_in(2) { old.dir } else { self.any_dir() };
        let name = self.fresh();
        self.slot.begin(("rename", &old, dir, &name));
        let flags =
            if self.random.one_in(2) { RenameFlags::NOREPLACE } else { RenameFlags::empty() };
        self.dir(old.dir).rename(&old.name, self.dir(dir), &name, flags).expect("renames");
        self.known.names[at] = Name { dir, name, ino: old.ino };
    }

    /// Gives a file the name of another, or makes the two change names.
    fn rename_over(&mut self) {
        let (Some(from), Some(to)) = (self.any_name(), self.any_name()) else { return };
        let (old, new) = (self.known.names[from].clone(), self.known.names[to].clone());
        let exchange = self.random.one_in(2);
        self.slot.begin(("rename over", exchange, &old, &new));
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        self.dir(old.dir).rename(&old.name, self.dir(new.dir), &new.name, flags).expect("renames");
        if exchange {
            self.known.names[from].ino = new.ino;
            self.known.names[to].ino = old.ino;
        } else if old.ino != new.ino {
            self.known.names[to].ino = old.ino;
            self.known.names.swap_remove(from);
            self.forget(new.ino);
        }
    }

    fn attributes(&mut self) {
        let Some(at) = self.any_name() else { return };
        let Name { dir, name, ino } = self.known.names[at].clone();
        self.slot.begin(("attributes", dir, &name));
        let inode = self.dir(dir).lookup(&name).expect("finds its name");
        assert_eq!(inode.ino(), ino, "{name}");
        let permissions = self.random.below(0o1000) as u16;
        let node = self.known.nodes.get_mut(&key(ino)).expect("known");
        match self.random.below(4) {
            0 => {
                let name = format!("user.{}", self.random.below(3));
                let long = if self.random.one_in(4) { 250 } else { 30 };
                let value = vec![b'v'; self.random.below(long) as usize];
                inode.set_xattr(&name, &value, XattrMode::Any).expect("sets");
                node.xattrs.insert(name.into_bytes(), value);
            }
            1 => {
                let name = node.xattrs.keys().next().cloned();
                if let Some(name) = name {
                    inode.remove_xattr(&name).expect("removes");
                    node.xattrs.remove(&name);
                }
            }
            _ => {
                let changes = SetAttributes::new().permissions(permissions);
                inode.set_attributes(&changes).expect("changes");
                node.permissions = permissions;
            }
        }
    }

    fn directories(&mut self) {
        if self.known.subs.len() < 10 || self.random.one_in(2) {
            let (dir, name) = (self.any_dir(), self.fresh());
            self.slot.begin(("mkdir", dir, &name));
            let ino = self.dir(dir).mkdir(&name, &NEW).expect("makes").ino();
            self.known.subs.push(Name { dir, name, ino });
        } else {
            let at = self.random.below(self.known.subs.len() as u64) as usize;
            let Name { dir, name, .. } = self.known.subs.swap_remove(at);
            self.slot.begin(("rmdir", dir, &name));
            self.dir(dir).rmdir(&name).expect("removes");
        }
    }

    /// Moves a directory to another parent, which may be below it.
    fn move_directory(&mut self) {
        if self.movable.is_empty() {
            return;
        }
        let which = self.movable[self.random.below(self.movable.len() as u64) as usize];
        // Often among the directories that others move, so that cycles are tried.
        let mut to = self.any_dir();
        if self.random.one_in(2) {
            to |= 1;
        }
        if to >= self.shared.dirs.len() {
            return;
        }
        let (from, old) = self.known.moved[&which].clone();
        let name = self.fresh();
        self.slot.begin(("move", which, from, to, &name));
        match self.dir(from).rename(&old, self.dir(to), &name, RenameFlags::empty()) {
            Ok(()) => _ = self.known.moved.insert(which, (to, name)),
            Err(FsError::IntoItself { .. }) => {}
            Err(error) => panic!("moving {which} from {from} to {to}: {error}"),
        }
    }

    fn step(&mut self, fill: usize, moves: bool) {
        match self.random.below(20) {
            0..=2 => self.rename(),
            3 | 4 => self.rename_over(),
            5 | 6 => self.link(),
            7..=9 => self.attributes(),
            10 | 11 => self.directories(),
            12 | 13 if moves => self.move_directory(),
            _ if self.known.names.len() < fill => self.create(),
            _ => self.unlink(),
        }
    }

    /// A round: all clients want the same, at the same moment.
    fn race(&mut self, number: usize) {
        let race = &self.shared.races[number];
        let prize = PRIZES[number % PRIZES.len()];
        let wanted = format!("race-{number}");
        let dir = &self.shared.dirs[race.dir];
        let (own_dir, own) = (self.any_dir(), self.fresh());
        self.slot.begin(("race", number, prize));
        let file = matches!(prize, Prize::Link | Prize::RenameTo | Prize::Replace)
            .then(|| self.dir(own_dir).create(&own, &NEW).expect("creates"));
        self.shared.meeting.wait();
        let nothing = RenameFlags::empty();
        let exists = |error: &FsError| matches!(error, FsError::Exists { .. });
        let missing = |error: &FsError| matches!(error, FsError::NotFound { .. });
        let won = match prize {
            Prize::Create => dir.create(&wanted, &NEW).map_err(|e| (exists(&e), e)).map(|inode| {
                self.add(race.dir, wanted, &inode);
            }),
            Prize::Mkdir => dir.mkdir(&wanted, &NEW).map_err(|e| (exists(&e), e)).map(|inode| {
                self.known.subs.push(Name { dir: race.dir, name: wanted, ino: inode.ino() });
            }),
            Prize::Unlink => dir.unlink(&wanted).map_err(|e| (missing(&e), e)),
            Prize::RenameFrom => {
                let moved = dir.rename(&wanted, self.dir(own_dir), &own, nothing);
                moved.map_err(|e| (missing(&e), e)).map(|()| {
                    let inode = self.dir(own_dir).lookup(&own).expect("the prize");
                    self.add(own_dir, own, &inode);
                })
            }
            Prize::Link | Prize::RenameTo => {
                let inode = file.expect("made above");
                self.add(own_dir, own.clone(), &inode);
                if prize == Prize::Link {
                    dir.link(&wanted, &inode).map_err(|e| (exists(&e), e)).map(|()| {
                        self.known.nodes.get_mut(&key(inode.ino())).expect("known").links = 2;
                        let name = Name { dir: race.dir, name: wanted, ino: inode.ino() };
                        self.known.names.push(name);
                    })
                } else {
                    let flags = RenameFlags::NOREPLACE;
                    let moved = self.dir(own_dir).rename(&own, dir, &wanted, flags);
                    moved.map_err(|e| (exists(&e), e)).map(|()| {
                        let last = self.known.names.last_mut().expect("added above");
                        (last.dir, last.name) = (race.dir, wanted);
                    })
                }
            }
            Prize::Replace => {
                let ino = file.expect("made above").ino();
                let moved = self.dir(own_dir).rename(&own, dir, &wanted, nothing);
                moved.map_err(|e| (false, e)).map(|()| {
                    self.known.replaced.push(Name { dir: race.dir, name: wanted, ino });
                })
            }
            Prize::RmdirOrCreate if number % CLIENTS == self.number => {
                let full = |e: &FsError| matches!(e, FsError::NotEmpty { .. });
                dir.rmdir(&wanted).map_err(|e| (full(&e), e)).map(|()| {
                    race.removed.store(true, SeqCst);
                })
            }
            Prize::RmdirOrCreate => {
                let made = race.inodes[0].create(&own, &NEW);
                made.map(drop).map_err(|e| (missing(&e), e))
            }
            Prize::Rmdir => dir.rmdir(&wanted).map_err(|e| (missing(&e), e)),
            Prize::Cycle => {
                let [a, b] = race.inodes.as_slice() else { unreachable!("a pair") };
                let (moving, into, name) =
                    if self.number.is_multiple_of(2) { (a, b, "a") } else { (b, a, "b") };
                let old = format!("{wanted}{name}");
                let refused = |e: &FsError| matches!(e, FsError::IntoItself { .. }) || missing(e);
                dir.rename(&old, into, name, nothing).map_err(|e| (refused(&e), e)).map(|()| {
                    self.known.cycled.push((into.ino(), name.to_owned(), moving.ino()));
                })
            }
        };
        match won {
            Ok(()) => _ = race.won.fetch_add(1, SeqCst),
            Err((true, _)) => {}
            Err((false, error)) => panic!("round {number}, {prize:?}: {error}"),
        }
        // Until all had their turn, nobody gives up what was won.
        self.shared.meeting.wait();
    }

    fn run(&mut self, load: &Load) {
        while self.known.names.len() < load.fill {
            self.create();
        }
        let every = (load.steps / load.races.max(1)).max(1);
        let mut race = 0;
        for step in 0..load.steps {
            if step % every == 0 && race < load.races {
                self.race(race);
                race += 1;
            }
            self.step(load.fill, load.moves);
        }
    }
}

/// Lists directories until told to stop: names that stay are seen once.
fn list(shared: &Shared, slot: &Slot, load: &Load, stop: &AtomicBool) -> u64 {
    let mut random = Prng::new(77);
    let mut rounds = 0;
    while !stop.load(SeqCst) || rounds == 0 {
        let at = random.below(shared.dirs.len() as u64) as usize;
        // In one go, or in pieces that begin after a cookie.
        let piece = if rounds % 2 == 0 { usize::MAX } else { 64 };
        let mut seen: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
        let mut cookie = None;
        loop {
            slot.begin(("list", at, cookie));
            let mut listing = shared.dirs[at].read_dir().expect("a directory");
            if let Some(cookie) = cookie {
                listing = listing.seek(cookie);
            }
            let mut count = 0;
            for entry in listing.take(piece) {
                let entry = entry.expect("an entry");
                cookie = Some(entry.cookie());
                count += 1;
                if entry.name().starts_with(b"stable-") {
                    *seen.entry(entry.name().to_vec()).or_default() += 1;
                }
            }
            if count < piece {
                break;
            }
        }
        assert_eq!(seen.len(), load.stable, "directory {at}: names that stay are missing");
        assert!(seen.values().all(|times| *times == 1), "directory {at}: twice: {seen:?}");
        rounds += 1;
    }
    slot.begin("ended");
    rounds
}

fn commit(shared: &Shared, slot: &Slot, stop: &AtomicBool) -> u64 {
    let (_sender, never) = channel::<()>(1);
    let mut rounds = 0;
    while !stop.load(SeqCst) {
        slot.begin(("sync", rounds));
        shared.fs.sync().expect("commits");
        slot.begin(("tick", rounds));
        shared.fs.tick().expect("ticks");
        let _ = never.recv_timeout(Duration::from_millis(10));
        rounds += 1;
    }
    slot.begin("ended");
    rounds
}

fn prepare(fs: Fs, load: &Load) -> (Shared, Vec<Vec<usize>>, BTreeMap<usize, String>) {
    let root = fs.root().unwrap();
    let mut movable = vec![Vec::new(); CLIENTS];
    let mut names = BTreeMap::new();
    let dirs: Vec<Inode> = (0..load.dirs)
        .map(|at| {
            let name = format!("dir-{at}");
            let dir = root.mkdir(&name, &NEW).unwrap();
            for stable in 0..load.stable {
                dir.create(format!("stable-{stable}"), &NEW).unwrap();
            }
            if load.moves && at % 2 == 1 {
                movable[at / 2 % CLIENTS].push(at);
            }
            names.insert(at, name);
            dir
        })
        .collect();
    let races = (0..load.races)
        .map(|number| {
            let dir = number % dirs.len();
            let at = &dirs[dir];
            let wanted = format!("race-{number}");
            let inodes = match PRIZES[number % PRIZES.len()] {
                Prize::Unlink | Prize::RenameFrom => {
                    at.create(&wanted, &NEW).unwrap();
                    Vec::new()
                }
                Prize::Rmdir | Prize::RmdirOrCreate => vec![at.mkdir(&wanted, &NEW).unwrap()],
                Prize::Cycle => {
                    ["a", "b"].map(|n| at.mkdir(format!("{wanted}{n}"), &NEW).unwrap()).into()
                }
                _ => Vec::new(),
            };
            Race { dir, inodes, won: AtomicU32::new(0), removed: AtomicBool::new(false) }
        })
        .collect();
    (Shared { fs, root, dirs, races, meeting: Meeting::new() }, movable, names)
}

/// What is there, by directory and name.
type Expected = BTreeMap<u64, BTreeMap<Vec<u8>, u64>>;

fn listed(fs: &Fs, dir: Ino) -> BTreeMap<Vec<u8>, u64> {
    let mut found = BTreeMap::new();
    for entry in fs.inode(dir).expect("the directory").read_dir().expect("a directory") {
        let entry = entry.expect("an entry");
        let before = found.insert(entry.name().to_vec(), key(entry.ino()));
        assert_eq!(before, None, "{entry:?} is listed twice");
    }
    found
}

fn compare(when: &str, fs: &Fs, expected: &Expected, nodes: &BTreeMap<u64, Node>) {
    for (dir, names) in expected {
        let dir = Ino(u32::try_from(*dir).unwrap());
        let found = listed(fs, dir);
        if found != *names {
            let missing: Vec<_> = names.iter().filter(|(n, i)| found.get(*n) != Some(i)).collect();
            let extra: Vec<_> = found.iter().filter(|(n, i)| names.get(*n) != Some(i)).collect();
            panic!("{when}: directory {dir:?}: missing {missing:?}, more than expected {extra:?}");
        }
        let inode = fs.inode(dir).unwrap();
        let below = names.values().filter(|ino| expected.contains_key(ino)).count();
        assert_eq!(inode.metadata().links as usize, below + 2, "{when}: links of {dir:?}");
        for (name, child) in names.iter().filter(|(_, ino)| expected.contains_key(ino)) {
            let child = fs.inode(Ino(u32::try_from(*child).unwrap())).unwrap();
            assert_eq!(child.lookup("..").unwrap().ino(), dir, "{when}: .. of {name:?}");
        }
    }
    for (ino, node) in nodes {
        let inode = fs.inode(Ino(u32::try_from(*ino).unwrap())).expect("a file that has names");
        let xattrs = inode.xattrs().expect("attributes");
        let found = Node {
            permissions: inode.metadata().mode() & 0o7777,
            links: inode.metadata().links,
            xattrs: xattrs
                .into_iter()
                .map(|xattr| (xattr.name.clone(), xattr.value.clone()))
                .collect(),
        };
        assert_eq!(found, *node, "{when}: inode {ino}");
    }
}

/// The rules of the rounds, and from all that the clients know what must be there.
fn expect(
    shared: &Shared,
    load: &Load,
    names: BTreeMap<usize, String>,
    clients: Vec<Known>,
) -> (Expected, BTreeMap<u64, Node>) {
    let fs = &shared.fs;
    let root = &shared.root;
    let mut expected: Expected = BTreeMap::new();
    let number = |dir: usize| key(shared.dirs[dir].ino());
    let mut places: BTreeMap<usize, (u64, String)> =
        names.into_iter().map(|(at, name)| (at, (key(root.ino()), name))).collect();
    let mut nodes = BTreeMap::new();
    expected.entry(key(root.ino())).or_default();
    let lost = root.lookup("lost+found").unwrap().ino();
    expected.entry(key(root.ino())).or_default().insert(b"lost+found".to_vec(), key(lost));
    expected.insert(key(lost), BTreeMap::new());
    for (at, dir) in shared.dirs.iter().enumerate() {
        let names = expected.entry(number(at)).or_default();
        for stable in 0..load.stable {
            let name = format!("stable-{stable}").into_bytes();
            let ino = dir.lookup_ino(&name).expect("a name that stays");
            names.insert(name, key(ino));
        }
    }
    let mut replaced: BTreeMap<(usize, String), BTreeSet<u64>> = BTreeMap::new();
    let mut cycled: Vec<u64> = Vec::new();
    for client in clients {
        for (at, (parent, name)) in client.moved {
            if name != format!("dir-{at}") {
                places.insert(at, (number(parent), name));
            }
        }
        for Name { dir, name, ino } in client.names {
            let before = expected.entry(number(dir)).or_default().insert(name.into(), key(ino));
            assert_eq!(before, None, "two winners");
        }
        for Name { dir, name, ino } in client.subs {
            expected.entry(number(dir)).or_default().insert(name.into(), key(ino));
            expected.entry(key(ino)).or_default();
        }
        for Name { dir, name, ino } in client.replaced {
            replaced.entry((dir, name)).or_default().insert(key(ino));
        }
        for (into, name, ino) in client.cycled {
            expected.entry(key(into)).or_default().insert(name.into(), key(ino));
            cycled.push(key(ino));
        }
        nodes.extend(client.nodes);
    }
    for (at, (parent, name)) in places {
        expected.entry(parent).or_default().insert(name.into(), number(at));
    }
    for ((dir, name), inodes) in replaced {
        assert_eq!(inodes.len(), CLIENTS);
        let ino = key(shared.dirs[dir].lookup_ino(&name).expect("the last one"));
        assert!(inodes.contains(&ino), "{name}");
        expected.entry(number(dir)).or_default().insert(name.into(), ino);
    }
    for (at, race) in shared.races.iter().enumerate() {
        let won = race.won.load(SeqCst);
        let prize = PRIZES[at % PRIZES.len()];
        match prize {
            Prize::Replace => assert_eq!(won, CLIENTS as u32, "round {at}"),
            Prize::RmdirOrCreate => {
                let removed = race.removed.load(SeqCst);
                assert_eq!(won, if removed { 1 } else { CLIENTS as u32 - 1 }, "round {at}");
                if !removed {
                    // Names of the files in it do not matter, their number does.
                    let dir = race.inodes[0].ino();
                    let found = listed(fs, dir);
                    assert_eq!(found.len(), CLIENTS - 1);
                    expected.insert(key(dir), found);
                    let name = format!("race-{at}").into_bytes();
                    expected.entry(number(race.dir)).or_default().insert(name, key(dir));
                }
            }
            _ => assert_eq!(won, 1, "round {at}, {prize:?}: one wins"),
        }
        if prize == Prize::Cycle {
            for (inode, name) in race.inodes.iter().zip(["a", "b"]) {
                expected.entry(key(inode.ino())).or_default();
                if !cycled.contains(&key(inode.ino())) {
                    let name = format!("race-{at}{name}").into_bytes();
                    let names = expected.entry(number(race.dir)).or_default();
                    names.insert(name, key(inode.ino()));
                }
            }
        }
    }
    (expected, nodes)
}

/// Lets nobody wait for a client that panics.
struct Alarm<'a>(&'a Meeting);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.state.lock().broken = true;
            self.0.changed.notify_all();
        }
    }
}

fn run(load: &Load) -> Result<(), String> {
    let dir = extant_testkit::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    mke2fs(&path, load.image, load.options)?;
    let device: Arc<MemoryDevice> = Arc::new(image::load(&path));
    let shared_device: Arc<MemoryDevice> = Arc::clone(&device);
    let fs = MountOptions::new()
        .read_only(false)
        .seed(1)
        .cache_bytes(256 << 20)
        .open_shared(shared_device)
        .expect("mounts");
    let (shared, movable, names) = prepare(fs, load);
    let slots: Vec<Slot> = (0..CLIENTS)
        .map(|at| Slot::new(format!("client {at}")))
        .chain(["commits", "lists"].map(|name| Slot::new(name.into())))
        .collect();
    let stop = AtomicBool::new(false);
    let (ended, clients_end) = channel::<()>(1);
    let (ended_too, others_end) = channel::<()>(1);
    let seed = std::env::var("EXTANT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let (clients, rounds) = scope(|threads| {
        let (shared, stop, names, slots) = (&shared, &stop, &names, &slots);
        let clients: Vec<_> = movable
            .into_iter()
            .enumerate()
            .map(|(number, movable)| {
                let ended = ended.clone();
                let work = move || {
                    let _ended = ended;
                    let _alarm = Alarm(&shared.meeting);
                    let places = |at: &usize| (*at, (ROOT, names[at].clone()));
                    let moved = movable.iter().map(places).collect();
                    let mut client = Client {
                        number,
                        shared,
                        slot: &slots[number],
                        random: Prng::new(seed * 100 + number as u64),
                        next: 0,
                        movable,
                        known: Known { moved, ..Known::default() },
                    };
                    client.run(load);
                    client.slot.begin("ended");
                    client.known
                };
                threads.spawn(&format!("client-{number}"), work).expect("starts")
            })
            .collect();
        drop(ended);
        let also = ended_too.clone();
        let commits = threads.spawn("commits", move || {
            let _also = also;
            commit(shared, &slots[CLIENTS], stop)
        });
        let lists = threads.spawn("lists", move || {
            let _also = ended_too;
            list(shared, &slots[CLIENTS + 1], load, stop)
        });
        watch(&clients_end, slots);
        stop.store(true, SeqCst);
        watch(&others_end, slots);
        let rounds = [commits, lists].map(|one| one.expect("starts").join().expect("works"));
        let known = clients.into_iter().map(|one| one.join().expect("works")).collect::<Vec<_>>();
        (known, rounds)
    })
    .expect("every thread works");
    println!("{} commits, {} listings", rounds[0], rounds[1]);
    let (expected, nodes) = expect(&shared, load, names, clients);
    compare("mounted", &shared.fs, &expected, &nodes);
    let Shared { fs, root, dirs, races, .. } = shared;
    drop((root, dirs, races));
    fs.unmount().expect("unmounts");
    let report = extant_check::check(&*device, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.problems);
    let _ = std::fs::remove_file(&path);
    image::save(&device, &path);
    e2fsck(&path)?.assert_clean();
    let again = MountOptions::new().open_shared(device).expect("mounts");
    compare("mounted again", &again, &expected, &nodes);
    Ok(())
}

#[test]
fn threads_in_one_directory() {
    require!(run(&Load {
        image: "128M",
        options: &["-t", "ext4", "-N", "40000"],
        dirs: 1,
        moves: false,
        stable: 500,
        fill: 20_000 / CLIENTS,
        steps: 5_000,
        races: 200,
    }));
}

#[test]
fn threads_in_one_directory_of_an_old_layout() {
    require!(run(&Load {
        image: "64M",
        options: &["-t", "ext3", "-b", "1024", "-N", "20000"],
        dirs: 1,
        moves: false,
        stable: 100,
        fill: 1000,
        steps: 2_000,
        races: 100,
    }));
}

#[test]
fn threads_in_a_thousand_directories() {
    require!(run(&Load {
        image: "128M",
        options: &["-t", "ext4", "-N", "30000"],
        dirs: 1000,
        moves: true,
        stable: 3,
        fill: 1000,
        steps: 8_000,
        races: 200,
    }));
}

/// Few directories, so that moves meet.
#[test]
fn threads_move_a_few_directories_into_each_other() {
    require!(run(&Load {
        image: "64M",
        options: &["-t", "ext4", "-b", "1024"],
        dirs: 17,
        moves: true,
        stable: 3,
        fill: 20,
        steps: 8_000,
        races: 100,
    }));
}

#[test]
#[ignore = "takes minutes in a release build"]
fn threads_in_one_directory_with_a_million_names() {
    require!(run(&Load {
        image: "1G",
        options: &["-t", "ext4", "-N", "1200000"],
        dirs: 1,
        moves: false,
        stable: 10_000,
        fill: 1_000_000 / CLIENTS,
        steps: 200_000,
        races: 2_000,
    }));
}

#[test]
#[ignore = "takes minutes"]
fn threads_in_a_thousand_directories_for_long() {
    require!(run(&Load {
        image: "1G",
        options: &["-t", "ext4", "-N", "200000"],
        dirs: 1000,
        moves: true,
        stable: 10,
        fill: 20_000,
        steps: 200_000,
        races: 2_000,
    }));
}
