//! The file system behind a network block device whose server loses connections, forgets what was not
//! flushed, and goes away for good.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant_block::{BlockDevice, FaultPlan, Operation, Pending, Queue, QueueOptions, SharedDevice};
use extant_nbd::{Address, NbdDevice, Settings};
use extant_testkit::crash::Sampling;
use extant_testkit::model::{Generator, Profile};
use extant_testkit::nbd::{Faults, Server};
use extant_testkit::proof::{Counts, Proof, Target as _, env, record};
use extant_testkit::require;
use extant_testkit::sim::{Plan, simulate};

use crate::finish;
use crate::layouts::{self, Layout, SMALL, WRITTEN};
use crate::target::Extant;

/// A device behind a server, and the server.
struct Remote {
    client: NbdDevice,
    server: Server,
    seen: Arc<Seen>,
}

/// What happened to the connections of all mounts.
#[derive(Default)]
struct Seen {
    reconnections: AtomicU64,
    cuts: AtomicU64,
    forgotten: AtomicU64,
    requests: AtomicU64,
}

impl Drop for Remote {
    fn drop(&mut self) {
        let (cuts, forgotten) = self.server.cuts();
        let add = |to: &AtomicU64, count| to.fetch_add(count, Ordering::SeqCst);
        add(&self.seen.reconnections, self.client.reconnections());
        add(&self.seen.cuts, cuts);
        add(&self.seen.forgotten, forgotten);
        add(&self.seen.requests, self.server.requests());
    }
}

impl BlockDevice for Remote {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.client.submit(batch)
    }
    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        self.client.queue(options)
    }
    fn size_bytes(&self) -> u64 {
        self.client.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        self.client.is_read_only()
    }
    fn describe(&self) -> Arc<str> {
        self.client.describe()
    }
}

/// A target whose mounts are behind a server until the switch is thrown: what a cut leaves is looked at
/// where it is.
fn behind(faults: &Faults, errors: bool) -> (Extant, Arc<Seen>, Arc<AtomicBool>) {
    let (seen, is_remote) = (Arc::new(Seen::default()), Arc::new(AtomicBool::new(true)));
    let (own, remote, faults) = (Arc::clone(&seen), Arc::clone(&is_remote), faults.clone());
    let over = move |below: SharedDevice| -> SharedDevice {
        if !remote.load(Ordering::SeqCst) {
            return below;
        }
        let server = Server::start(below, faults.clone(), None);
        let address = Address::parse(server.address()).expect("an address");
        let settings = Settings { limit: Duration::from_secs(20), tries: 8 };
        // Nothing is asked for yet, so nothing is cut yet.
        let client = NbdDevice::open(&address, false, settings)
            .unwrap_or_else(|error| panic!("{error}: {:?}", std::error::Error::source(&error)));
        Arc::new(Remote { client, server, seen: Arc::clone(&own) })
    };
    (Extant { over: Some(Arc::new(over)), errors, ..Extant::default() }, seen, is_remote)
}

/// Generated operations over connections that are lost, every answer as if nothing was, and every chosen
/// power cut of the server's host.
fn prove(
    name: &str,
    layout: &Layout,
    (seed, steps): (u64, usize),
    faults: &Faults,
    profile: &Profile,
    sampling: &Sampling,
    all: &mut [u64; 3],
) {
    let base = require!(layouts::base(layout));
    let faults = Faults { seed, ..faults.clone() };
    let (target, seen, is_remote) = behind(&faults, false);
    let target = Extant {
        data_cache_bytes: if seed % 2 == 1 && profile.contents > 0 { 2 << 20 } else { 0 },
        discard: seed.is_multiple_of(3),
        ..target
    };
    let unit = if profile.unit > 0 && layout.moves_contents() { base.unit } else { 0 };
    let (project, value_max) = (layout.project, layout.value_max);
    let mut generator =
        Generator::new(seed, Profile { project, value_max, unit, ..profile.clone() });
    let mut left = steps;
    let recorded = record(&target, &base, |model| {
        left = left.checked_sub(1)?;
        Some(generator.next_op(model))
    });
    let recorded = recorded.unwrap_or_else(|text| panic!("{name}, seed {seed}: {text}"));
    is_remote.store(false, Ordering::SeqCst);
    let [cuts, again, forgotten, requests] =
        [&seen.cuts, &seen.reconnections, &seen.forgotten, &seen.requests]
            .map(|count| count.load(Ordering::SeqCst));
    println!(
        "{name}, {}, seed {seed}: {requests} requests, {cuts} of them cut, {again} connections made again, {forgotten} times forgotten",
        layout.name
    );
    *all = [all[0] + cuts, all[1] + again, all[2] + forgotten];
    let sampling = Sampling { seed, ..sampling.clone() };
    let (report, counts) = Proof::new(&target, sampling).prove(&recorded);
    finish(name, seed, &report, &counts);
}

fn lossy(cut_one_in: u64) -> Faults {
    Faults { cut_one_in, forget_one_in: 2, whole: crate::states().whole, ..Faults::default() }
}

/// Requests were cut, connections made again, and servers forgot; or nothing was proved.
#[track_caller]
fn went_wrong(all: &[u64; 3]) {
    let is_skipped = *all == [0; 3];
    assert!(is_skipped || (all[0] > 5 && all[1] > 5 && all[2] > 2), "nothing went wrong: {all:?}");
}

#[test]
fn names_behind_lost_connections_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 3, samples: 8, one_cut_in: 6, ..crate::states() };
    let name = "names_behind_lost_connections";
    let first = env::seed(8500);
    let mut all = [0; 3];
    for seed in first..first + 3 {
        prove(name, &SMALL, (seed, 100), &lossy(25), &Profile::default(), &sampling, &mut all);
    }
    went_wrong(&all);
}

#[test]
fn contents_behind_lost_connections_survive_every_cut() {
    let sampling = Sampling { exhaustive_max: 3, samples: 6, one_cut_in: 12, ..crate::states() };
    let name = "contents_behind_lost_connections";
    let seed = env::seed(8601);
    let (faults, profile, mut all) = (lossy(25), Profile::contents(), [0; 3]);
    prove(name, &WRITTEN[1], (seed, 90), &faults, &profile, &sampling, &mut all);
    prove(name, &WRITTEN[8], (seed + 1, 90), &faults, &profile, &sampling, &mut all);
    went_wrong(&all);
}

#[test]
#[ignore = "takes minutes"]
fn many_histories_behind_lost_connections_survive_every_cut() {
    let sampling =
        Sampling { exhaustive_max: 4, samples: 12, tears: 6, one_cut_in: 6, ..crate::states() };
    let name = "many_histories_behind_lost_connections";
    let first = env::seed(8700);
    let mut all = [0; 3];
    for seed in first..first + 4 {
        for layout in [&SMALL, &WRITTEN[0], &WRITTEN[1], &WRITTEN[4], &WRITTEN[5], &WRITTEN[8]] {
            for cut_one_in in [25, 100] {
                let faults = lossy(cut_one_in);
                for profile in [Profile::default(), Profile::contents()] {
                    prove(name, layout, (seed, 150), &faults, &profile, &sampling, &mut all);
                }
            }
        }
    }
    went_wrong(&all);
}

/// The server loses connections, and then nobody is there any more: what was synced is there.
fn gone(name: &str, seeds: std::ops::Range<u64>, one_cut_in: u64) {
    let mut counts = Counts::default();
    let (mut failed, mut gave_up) = (0, 0);
    for seed in seeds {
        let base = require!(layouts::base(&SMALL));
        let faults = Faults { seed, gone_from: Some(60 + seed * 37 % 400), ..lossy(20) };
        let (target, seen, is_remote) = behind(&faults, true);
        let plan = Plan {
            seed,
            clients: 4,
            steps: 120,
            profile: Profile { sync_one_in: 8, ..Profile::default() },
            faults: FaultPlan::default(),
        };
        let done = simulate(&target, &base, &plan).unwrap_or_else(|text| {
            panic!("{text}\n\nagain: EXTANT_SEED={seed} cargo test -p extant --test crash {name}")
        });
        is_remote.store(false, Ordering::SeqCst);
        failed += done.failed_ops;
        gave_up += usize::from(done.gave_up);
        assert!(seen.requests.load(Ordering::SeqCst) > 0, "{name}: nobody asked for anything");
        let sampling =
            Sampling { seed, exhaustive_max: 3, samples: 6, one_cut_in, ..crate::states() };
        let mut proof = Proof::new(&target, sampling);
        // After errors nobody deletes orphans, which shows in a check of others.
        (proof.kernel_one_in, proof.replay_one_in) = (0, 0);
        let (report, counted) = proof.prove(&done.recorded);
        counts.add(&counted);
        finish(name, seed, &report, &counts);
    }
    println!("{name}: {failed} failed operations, {gave_up} gave up");
    assert!(failed > 0 && gave_up > 0, "{name}: nobody was gone");
}

#[test]
fn what_was_synced_is_there_when_the_server_is_gone_for_good() {
    let first = env::seed(1);
    gone("what_was_synced_is_there_when_the_server_is_gone", first..first + 8, 12);
}

#[test]
#[ignore = "takes minutes: 60 seeds"]
fn what_was_synced_is_there_whenever_the_server_is_gone_for_good() {
    let first = env::seed(100);
    gone("what_was_synced_is_there_whenever_the_server_is_gone", first..first + 60, 3);
}

/// Whoever syncs while the server is gone hears of it, each time, and what was synced before is there.
#[test]
fn no_sync_succeeds_that_the_server_did_not_see() {
    use extant::{MountOptions, NewInode};

    let base = require!(layouts::base(&WRITTEN[1]));
    let below = Arc::new(base.devices[0].snapshot());
    let server = Server::start(Arc::clone(&below) as SharedDevice, Faults::default(), None);
    let address = Address::parse(server.address()).unwrap();
    let settings = Settings { limit: Duration::from_secs(5), tries: 2 };
    let client = Arc::new(NbdDevice::open(&address, false, settings).unwrap());
    let options = || MountOptions::new().read_only(false).background(false).seed(3);
    let fs = options().open_shared(client as SharedDevice).unwrap();
    let names = ["/one", "/two", "/three"];
    let files = names.map(|name| fs.create(name, &NewInode::root(0o644)).unwrap());
    for file in &files {
        file.write_at(&[1; 10_000], 0).unwrap();
        file.sync().unwrap();
    }
    for file in &files {
        file.write_at(&[2; 10_000], 0).unwrap();
    }
    server.set_gone(true);
    for round in 0..3 {
        for file in &files {
            assert!(file.sync().is_err(), "round {round}: nobody has the new contents");
        }
        assert!(fs.sync().is_err());
        assert!(
            fs.create(format!("/new{round}"), &NewInode::root(0o644)).is_err()
                || fs.sync().is_err()
        );
    }
    server.set_gone(false);
    server.restart();
    extant_sync::Clock::sleep(&extant_sync::SystemClock, Duration::from_millis(1100));
    // The journal has stopped, and what could not be committed is not promised by a server that is back.
    let promised: Vec<bool> = files.iter().map(|file| file.sync().is_ok()).collect();
    drop(files);
    drop(fs);
    server.restart();
    drop(server);
    let fs = options().open_shared(Arc::clone(&below) as SharedDevice).unwrap();
    for (name, promised) in names.iter().zip(promised) {
        let found = fs.read(name).unwrap();
        assert_eq!(found.len(), 10_000, "{name}");
        assert!(found.iter().all(|byte| *byte == 2 || (*byte == 1 && !promised)), "{name}");
    }
    fs.unmount().unwrap();
    Extant { errors: true, ..Extant::default() }.check(&[below.snapshot()]).unwrap();
}
