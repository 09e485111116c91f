//! The client against a server that loses connections at any point, forgets what was not flushed, stalls, is
//! gone, and comes back as another one.

use std::io::IoSlice;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_base::Prng;
use extant_block::{
    AlignedBuffer, BlockDevice, FaultDevice, FaultPlan, MemoryDevice, Operation, OperationKind,
    QueueOptions, ReadRun, RecordingDevice, SharedDevice, Survival, Wait, WriteRun,
};
use extant_nbd::{Address, Listening, NbdDevice, NbdError, Settings, UNFLUSHED_MAX, serve};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::nbd::{Cut, Faults, Says, Server, flags};

const SIZE: u64 = 1 << 20;
const SECTOR: u64 = 512;

fn start(faults: Faults) -> (Arc<MemoryDevice>, Server) {
    let below = Arc::new(MemoryDevice::new(SIZE));
    let server = Server::start(Arc::clone(&below) as Arc<dyn BlockDevice>, faults, None);
    (below, server)
}

fn connect(server: &Server, settings: Settings) -> NbdDevice {
    let address = Address::parse(server.address()).unwrap();
    NbdDevice::open(&address, false, settings).unwrap()
}

fn patient() -> Settings {
    Settings { limit: Duration::from_secs(20), tries: 8 }
}

fn hasty() -> Settings {
    Settings { limit: Duration::from_millis(300), tries: 2 }
}

fn contents(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; SIZE as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// Writes of all kinds to the same bytes, then a flush.
fn overwrite(device: &NbdDevice) {
    device.write_at(0, &[1; 2048]).unwrap();
    device.write_at(512, &[2; 1024]).unwrap();
    device.write_fua_at(1024, &[3; 512]).unwrap();
    device.write_zeroes(1536, 512).unwrap();
    device.write_at(0, &[4; 512]).unwrap();
    device.flush().unwrap();
}

#[test]
fn whatever_a_cut_leaves_undone_is_done_in_its_order() {
    let (plain, server) = start(Faults::default());
    overwrite(&connect(&server, patient()));
    let wanted = contents(&plain);
    assert_eq!([wanted[0], wanted[512], wanted[1024], wanted[1536]], [4, 2, 3, 0]);
    for cut in [Cut::Unread, Cut::HalfRead, Cut::Unapplied, Cut::Unanswered, Cut::HalfAnswered] {
        for number in 0..6 {
            for forget_one_in in [0, 1] {
                for seed in 0..4 {
                    let exactly = vec![(number, cut)];
                    let faults = Faults { seed, exactly, forget_one_in, ..Faults::default() };
                    let (below, server) = start(faults);
                    let device = connect(&server, patient());
                    overwrite(&device);
                    // Nothing that the server has in memory only counts.
                    server.restart();
                    let what = format!("{cut:?} of request {number}, seed {seed}, {forget_one_in}");
                    assert!(contents(&*below) == wanted, "{what}");
                    assert_eq!(device.unflushed_bytes(), 0, "{what}");
                    assert_eq!(server.cuts(), (1, forget_one_in + 1), "{what}");
                }
            }
        }
    }
}

/// Operations from a seed on a part of the device: what is read is what was written, and what is flushed is
/// below.
fn histories(seeds: std::ops::Range<u64>) {
    let mut seen = (0, 0);
    for seed in seeds {
        let faults = Faults { seed, cut_one_in: 25, forget_one_in: 2, ..Faults::default() };
        let (below, server) = start(faults);
        let device = connect(&server, patient());
        let mut random = Prng::new(seed);
        let mut model = vec![0; SIZE as usize];
        let mut queue = device.queue(&QueueOptions::default().depth(4));
        for step in 0..150u64 {
            let at = random.below(64) * SECTOR;
            let len = ((1 + random.below(8)) * SECTOR) as usize;
            let range = at as usize..at as usize + len;
            let bytes = vec![step as u8 | 1; len];
            match random.below(14) {
                0 => {
                    device.write_zeroes(at, len as u64).unwrap();
                    model[range].fill(0);
                }
                1 => {
                    device.write_fua_at(at, &bytes).unwrap();
                    model[range.clone()].copy_from_slice(&bytes);
                    // Some of the rest of the sector's life may still be in memory; this is not.
                    let mut there = vec![0; len];
                    below.read_at(at, &mut there).unwrap();
                    assert!(there == bytes, "seed {seed}, step {step}: not durable");
                }
                // Each of them is repeated over a new connection, which may be cut again.
                2 | 12 | 13 => {
                    device.flush().unwrap();
                    assert!(contents(&*below) == model, "seed {seed}, step {step}: a flush lies");
                }
                3 => {
                    let mut found = vec![0; len];
                    device.read_at(at, &mut found).unwrap();
                    assert!(found == model[range], "seed {seed}, step {step}: read");
                }
                4 => {
                    let read = Operation::Read { offset: at, buffer: AlignedBuffer::zeroed(len) };
                    queue.push(step, read).unwrap();
                    queue.submit();
                    let done = queue.reap(Wait::Block).unwrap().completion;
                    done.result.unwrap();
                    let Operation::Read { buffer, .. } = done.operation else { unreachable!() };
                    assert!(*buffer == model[range], "seed {seed}, step {step}: read by a queue");
                }
                // Runs that are under way together, of parts that lie apart in memory.
                5 => {
                    let pieces: Vec<u8> = (0..len).map(|i| step as u8 ^ (i / 512) as u8).collect();
                    let parts: Vec<_> =
                        pieces.chunks(1536).map(|sector| [IoSlice::new(sector)]).collect();
                    let run =
                        |(number, parts)| WriteRun { offset: at + 1536 * number as u64, parts };
                    let mut runs: Vec<_> =
                        parts.iter().map(|part| &part[..]).enumerate().map(run).collect();
                    runs.reverse();
                    for result in device.write_runs(&runs) {
                        result.unwrap();
                    }
                    model[range].copy_from_slice(&pieces);
                }
                6 => {
                    let mut found = vec![0; len];
                    let parts = (at..).step_by(1536).zip(found.chunks_mut(1536));
                    let mut runs: Vec<_> =
                        parts.map(|(offset, out)| ReadRun { offset, out }).collect();
                    for result in device.read_runs(&mut runs) {
                        result.unwrap();
                    }
                    assert!(found == model[range], "seed {seed}, step {step}: read in runs");
                }
                _ => {
                    device.write_at(at, &bytes).unwrap();
                    model[range].copy_from_slice(&bytes);
                }
            }
        }
        device.flush().unwrap();
        assert!(contents(&*below) == model, "seed {seed}: a flush lies");
        let (cuts, forgotten) = server.cuts();
        seen = (seen.0 + cuts, seen.1 + forgotten);
    }
    println!("{} connections cut, {} times forgotten", seen.0, seen.1);
    assert!(seen.0 > 20 && seen.1 > 5);
}

#[test]
fn histories_over_lost_connections_are_as_if_none_was_lost() {
    histories(0..12);
}

#[test]
#[ignore = "takes a minute"]
fn many_histories_over_lost_connections_are_as_if_none_was_lost() {
    histories(100..500);
}

#[test]
fn threads_on_several_connections_find_their_own_after_every_restart() {
    let faults = Faults { seed: 3, cut_one_in: 60, forget_one_in: 1, ..Faults::default() };
    let (below, server) = start(faults);
    let device = connect(&server, patient());
    device.connect_all();
    threads::workers("client", 4, |thread| {
        let mut random = Prng::new(thread as u64);
        let first = thread as u64 * (SIZE / 4);
        let mut own = vec![0; (SIZE / 4) as usize];
        for step in 0..120u64 {
            let at = random.below(60) * SECTOR;
            let part = at as usize..(at + 2 * SECTOR) as usize;
            match random.below(8) {
                0 => {
                    device.flush().unwrap();
                    let mut there = vec![0; own.len()];
                    below.read_at(first, &mut there).unwrap();
                    assert!(there == own, "thread {thread}, step {step}: a flush lies");
                }
                1 | 2 => {
                    let mut found = vec![0; own.len()];
                    device.read_at(first, &mut found).unwrap();
                    assert!(found == own, "thread {thread}, step {step}: read");
                }
                _ => {
                    own[part.clone()].fill(step as u8 | 1);
                    device.write_at(first + at, &own[part]).unwrap();
                }
            }
        }
    })
    .unwrap();
    let (cuts, forgotten) = server.cuts();
    println!("{cuts} connections cut, {forgotten} times forgotten");
    assert!(forgotten > 2);
}

#[test]
fn a_new_connection_beside_others_is_told_again_what_a_restart_lost() {
    let (below, old) = start(Faults::default());
    let new = Server::start(Arc::clone(&below) as Arc<dyn BlockDevice>, Faults::default(), None);
    let path = |server: &Server| server.address().split_once("socket=").unwrap().1.to_owned();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("s");
    std::os::unix::fs::symlink(path(&old), &at).unwrap();
    let address = format!("nbd+unix:///?socket={}", at.display());
    let device = NbdDevice::open(&Address::parse(&address).unwrap(), false, patient()).unwrap();
    device.write_at(0, &[7; 4096]).unwrap();
    // The one connection is in use, and whoever answers at the address is another server by now: one that has
    // started while the old one still lives.
    old.set_faults(Faults { seed: 9, exactly: vec![(0, Cut::Late)], ..Faults::default() });
    threads::scope(|scope| {
        let held = scope.spawn("held", || device.read_at(8192, &mut [0; 512])).unwrap();
        while old.requests() == 0 {
            SystemClock.sleep(Duration::from_millis(1));
        }
        std::fs::remove_file(&at).unwrap();
        std::os::unix::fs::symlink(path(&new), &at).unwrap();
        let ended = scope.spawn("let go", || {
            SystemClock.sleep(Duration::from_millis(50));
            old.let_go();
        });
        device.flush().unwrap();
        held.join().unwrap().unwrap();
        ended.unwrap().join().unwrap();
        // Nothing that either has in memory only counts.
        old.restart();
        new.restart();
    })
    .unwrap();
    assert!(contents(&*below)[..4096] == [7; 4096], "a flush lies");
}

#[test]
fn a_change_that_may_still_be_made_is_not_sent_again_and_nothing_overtakes_it() {
    let (below, server) = start(Faults { exactly: vec![(1, Cut::Late)], ..Faults::default() });
    let device = connect(&server, hasty());
    device.write_at(0, &[1; 512]).unwrap();
    let error = device.write_at(0, &[2; 512]).unwrap_err();
    assert!(in_full(&error).contains("neither answers"), "{}", in_full(&error));
    // Reading goes on, and changing does not.
    device.read_at(0, &mut [0; 512]).unwrap();
    device.flush().unwrap();
    let start = SystemClock.monotonic();
    for _ in 0..50 {
        let error = device.write_at(0, &[3; 512]).unwrap_err();
        assert!(in_full(&error).contains("neither answers"), "{}", in_full(&error));
    }
    assert!(SystemClock.monotonic().saturating_sub(start) < Duration::from_secs(2));
    server.let_go();
    let mut tries = 0;
    while device.write_at(0, &[4; 512]).is_err() {
        tries += 1;
        assert!(tries < 500, "the server has ended the connection");
        SystemClock.sleep(Duration::from_millis(10));
    }
    device.flush().unwrap();
    assert!(contents(&*below)[..512] == [4; 512], "an older write came later");
}

#[test]
fn a_change_that_is_late_and_then_known_to_be_over_is_sent_again() {
    let (below, server) = start(Faults { exactly: vec![(1, Cut::Late)], ..Faults::default() });
    let device = connect(&server, Settings { limit: Duration::from_millis(600), tries: 3 });
    threads::scope(|scope| {
        let late = scope.spawn("let go", || {
            SystemClock.sleep(Duration::from_millis(800));
            server.let_go();
        });
        device.write_at(0, &[1; 512]).unwrap();
        device.write_at(0, &[2; 512]).unwrap();
        device.write_at(0, &[3; 512]).unwrap();
        device.flush().unwrap();
        late.unwrap().join().unwrap();
    })
    .unwrap();
    assert!(contents(&*below)[..512] == [3; 512]);
}

#[test]
fn a_flush_that_succeeds_after_one_that_failed_has_everything() {
    for seed in 0..4 {
        let (below, server) = start(Faults { seed, failing_flushes: 2, ..Faults::default() });
        let device = connect(&server, patient());
        device.write_at(0, &[1; 65_536]).unwrap();
        device.write_fua_at(4096, &[2; 4096]).unwrap();
        device.write_zeroes(8192, 4096).unwrap();
        assert!(device.flush().is_err());
        device.write_at(65_536, &[3; 4096]).unwrap();
        assert!(device.flush().is_err());
        device.flush().unwrap();
        // Nothing that the server has in memory only counts.
        server.restart();
        let mut wanted = vec![1; 65_536 + 4096];
        wanted[4096..8192].fill(2);
        wanted[8192..12_288].fill(0);
        wanted[65_536..].fill(3);
        assert!(contents(&*below)[..wanted.len()] == wanted, "seed {seed}: a flush lies");
        assert_eq!((device.unflushed_bytes(), device.reconnections()), (0, 0));
    }
}

#[test]
fn a_flush_that_fails_for_want_of_memory_loses_nothing_of_others() {
    let (below, server) = start(Faults::default());
    let device = connect(&server, patient());
    let mut whole = vec![7; SIZE as usize];
    device.write_at(0, &whole).unwrap();
    while device.unflushed_bytes() < UNFLUSHED_MAX - SIZE {
        device.write_at(SIZE / 2, &whole[..SIZE as usize / 2]).unwrap();
    }
    // The next writes need the memory of those that are not flushed. Whoever writes hears that, and tries again.
    server.set_faults(Faults { seed: 1, failing_flushes: 1, ..Faults::default() });
    let last = vec![8; SIZE as usize / 2];
    let failed = (0..5).filter(|_| device.write_at(SIZE / 2, &last).is_err()).count();
    assert_eq!(failed, 1);
    device.flush().unwrap();
    server.restart();
    whole[SIZE as usize / 2..].fill(8);
    assert!(contents(&*below) == whole, "a flush lies");
}

#[test]
fn a_server_whose_flush_failed_says_so_to_everybody_until_it_is_started_again() {
    let exactly = vec![(OperationKind::Flush, 0, 1)];
    let plan = FaultPlan { exactly, ..FaultPlan::default() };
    let device: SharedDevice = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(SIZE)), plan));
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listening = Listening::Unix(UnixListener::bind(&socket).unwrap());
    let end = AtomicBool::new(false);
    let served = threads::scope(|scope| {
        let server = scope.spawn("server", || serve(&device, "disk", &listening, &end)).unwrap();
        let address = format!("nbd+unix:///disk?socket={}", socket.display());
        let address = Address::parse(&address).unwrap();
        let open = || NbdDevice::open(&address, false, patient()).unwrap();
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let (one, other) = (open(), open());
            one.write_at(0, &[1; 512]).unwrap();
            other.write_at(512, &[2; 512]).unwrap();
            assert!(one.flush().is_err());
            // The device succeeds from here on, and what it had before may be gone.
            for device in [&other, &one, &open()] {
                device.read_at(0, &mut [0; 512]).unwrap();
                assert!(device.flush().is_err(), "what was acknowledged counts as durable");
                assert!(device.write_fua_at(1024, &[3; 512]).is_err());
            }
        }));
        end.store(true, Ordering::Release);
        let served = server.join().unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        served
    });
    let error = in_full(&served.unwrap().unwrap_err());
    assert!(error.contains("a flush failed"), "{error}");
}

#[test]
fn what_clients_of_our_server_wrote_is_durable_when_it_ends() {
    let recording = Arc::new(RecordingDevice::new(SIZE));
    let kept = || {
        let image = recording.image_at(recording.len(), |_, _| Survival::Lost);
        let bytes = contents(&image);
        [bytes[0], bytes[512]]
    };
    let device = Arc::clone(&recording) as SharedDevice;
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listening = Listening::Unix(UnixListener::bind(&socket).unwrap());
    let end = AtomicBool::new(false);
    let before = threads::scope(|scope| {
        let server = scope.spawn("server", || serve(&device, "disk", &listening, &end)).unwrap();
        let address = format!("nbd+unix:///disk?socket={}", socket.display());
        let client = NbdDevice::open(&Address::parse(&address).unwrap(), false, patient()).unwrap();
        client.write_at(0, &[1; 512]).unwrap();
        client.write_fua_at(512, &[2; 512]).unwrap();
        let before = kept();
        drop(client);
        end.store(true, Ordering::Release);
        server.join().unwrap().unwrap();
        before
    });
    assert_eq!((before.unwrap(), kept()), ([0, 2], [1, 2]));
}

#[test]
fn when_the_server_is_gone_errors_are_quick_and_when_it_is_back_nothing_is_lost() {
    let (below, server) = start(Faults::default());
    let device = connect(&server, Settings { limit: Duration::from_secs(5), tries: 3 });
    device.write_at(0, &[1; 4096]).unwrap();
    device.flush().unwrap();
    device.write_at(0, &[2; 4096]).unwrap();
    server.restart();
    server.set_gone(true);
    let start = SystemClock.monotonic();
    for number in 0..200 {
        assert!(device.write_at(8192 + number * 512, &[9; 512]).is_err());
        assert!(device.read_at(0, &mut [0; 512]).is_err());
        assert!(device.flush().is_err(), "nobody flushed");
    }
    let took = SystemClock.monotonic().saturating_sub(start);
    assert!(took < Duration::from_secs(10), "{took:?} for 600 errors");
    server.set_gone(false);
    // Nobody asks more often than once in a second.
    SystemClock.sleep(Duration::from_millis(1100));
    device.flush().unwrap();
    server.restart();
    assert!(contents(&*below)[..4096] == [2; 4096], "what was acknowledged is lost");
}

#[test]
fn a_server_that_comes_back_as_another_one_is_refused_by_name() {
    let (_below, server) = start(Faults::default());
    let says = server.says();
    let sized = Says { sizes: Some((1, 1 << 20)), ..says };
    let cases: [(&str, Says, Says); 7] = [
        ("with 524288 bytes; it had 1048576", says, Says { size: SIZE / 2, ..says }),
        ("with 2097152 bytes", says, Says { size: SIZE * 2, ..says }),
        ("read-only", says, Says { flags: flags::ALL | flags::READ_ONLY, ..says }),
        ("without flushes", says, Says { flags: flags::ALL & !flags::FLUSH, ..says }),
        (
            "without writes that are durable at once",
            says,
            Says { flags: flags::ALL & !flags::FUA, ..says },
        ),
        (
            "without writes of zeros",
            says,
            Says { flags: flags::ALL & !flags::WRITE_ZEROES, ..says },
        ),
        (
            "for requests of 1 to 65536 bytes; they were 1 to 1048576",
            sized,
            Says { sizes: Some((1, 1 << 16)), ..sized },
        ),
    ];
    for (wanted, before, after) in cases {
        server.say(before);
        let device = connect(&server, hasty());
        device.write_at(0, &[1; 512]).unwrap();
        server.say(after);
        server.hang_up();
        let error = in_full(&device.flush().unwrap_err());
        assert!(error.contains("the export came back") && error.contains(wanted), "{error}");
        // And it may be itself again.
        server.say(before);
        SystemClock.sleep(Duration::from_millis(1100));
        device.flush().unwrap();
    }
}

#[test]
fn a_server_that_cannot_do_what_it_must_is_refused_by_name_or_done_without() {
    let (below, server) = start(Faults::default());
    let address = Address::parse(server.address()).unwrap();
    let says = server.says();
    server.say(Says { flags: flags::HAS_FLAGS | flags::FUA, ..says });
    let error = NbdDevice::open(&address, false, hasty()).unwrap_err();
    assert!(matches!(error, NbdError::NoFlush { .. }), "{error}");
    assert!(error.to_string().contains("cannot flush"), "{error}");
    NbdDevice::open(&address, true, hasty()).unwrap().read_at(0, &mut [0; 512]).unwrap();
    server.say(Says { flags: flags::ALL | flags::READ_ONLY, ..says });
    let error = NbdDevice::open(&address, false, hasty()).unwrap_err();
    assert!(matches!(error, NbdError::ReadOnly { .. }), "{error}");
    // It says more than there is.
    server.say(Says { size: SIZE * 4, ..says });
    let device = connect(&server, hasty());
    assert_eq!(device.size_bytes(), SIZE * 4);
    let error = in_full(&device.read_at(SIZE * 2, &mut [0; 512]).unwrap_err());
    assert!(error.contains("read of 512 bytes at byte 2097152"), "{error}");
    assert!(device.write_at(SIZE * 2, &[0; 512]).is_err());
    device.flush().unwrap();
    // With flushes and nothing else, everything that is needed is there.
    server.say(Says { flags: flags::HAS_FLAGS | flags::FLUSH, ..says });
    let device = connect(&server, hasty());
    device.write_fua_at(0, &[5; 1024]).unwrap();
    server.restart();
    assert!(contents(&*below)[..1024] == [5; 1024], "not durable");
    device.write_zeroes(512, 512).unwrap();
    assert!(device.discard(0, 512).unwrap_err().is_unsupported());
    device.flush().unwrap();
    assert!(contents(&*below)[512..1024] == [0; 512]);
}
