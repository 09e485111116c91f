//! Operations as futures, over the smallest executors there are.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use extant::FsError;
use extant::ring::{Completion, Op, Request, Running};
use extant_block::SharedDevice;
use extant_sync::{Condvar, Mutex, Rank, threads};
use extant_testkit::require;

use crate::support::{BLOCK, cold, file, finish, made, mount, read, stall, stalling, until, write};

/// Which of some futures were woken.
struct Woken {
    which: Mutex<BTreeSet<usize>>,
    changed: Condvar,
}

/// Wakes one of them.
struct Alarm(Arc<Woken>, usize, AtomicU64);

impl Wake for Alarm {
    fn wake(self: Arc<Self>) {
        self.2.fetch_add(1, Ordering::AcqRel);
        self.0.which.lock().insert(self.1);
        self.0.changed.notify_all();
    }
}

/// Polls each when it is woken, until all are ready.
fn join<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let which = Mutex::new(Rank::Leaf, (0..futures.len()).collect());
    let woken = Arc::new(Woken { which, changed: Condvar::new() });
    let mut running: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut outputs: Vec<Option<F::Output>> = running.iter().map(|_| None).collect();
    while running.iter().any(Option::is_some) {
        let next = {
            let mut which = woken.which.lock();
            loop {
                match which.pop_first() {
                    Some(next) => break next,
                    None => woken.changed.wait(&mut which),
                }
            }
        };
        let waker = Waker::from(Arc::new(Alarm(Arc::clone(&woken), next, AtomicU64::new(0))));
        let Some(future) = &mut running[next] else { continue };
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            (outputs[next], running[next]) = (Some(output), None);
        }
    }
    outputs.into_iter().flatten().collect()
}

fn block_on<F: Future>(future: F) -> F::Output {
    join(vec![future]).into_iter().next().unwrap()
}

/// Polls once, and counts how often it is woken.
fn poll_once(future: &mut Running) -> (Option<Completion>, Arc<Alarm>) {
    let woken = Woken { which: Mutex::new(Rank::Leaf, BTreeSet::new()), changed: Condvar::new() };
    let alarm = Arc::new(Alarm(Arc::new(woken), 0, AtomicU64::new(0)));
    let waker = Waker::from(Arc::clone(&alarm));
    let polled = Pin::new(future).poll(&mut Context::from_waker(&waker));
    let done = match polled {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    };
    (done, alarm)
}

#[test]
fn many_more_futures_than_the_ring_is_deep_are_all_done() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 200 * BLOCK]);
    let log = file(&fs, "log");
    let ring = fs.ring(3).unwrap();
    // From several threads, one ring.
    threads::workers("executor", 3, |thread| {
        let futures = (0..100).map(|n| {
            let (ring, stored, log) = (&ring, &stored, &log);
            async move {
                let offset = (n * 2 + thread % 2) as u64 * BLOCK as u64;
                let request = Request::new(n as u64, stored, read(offset, BLOCK)).on_worker();
                let done = ring.run_request(request).await;
                assert_eq!(*done.result.as_ref().unwrap(), BLOCK as u64);
                let line = Op::Append { bytes: vec![thread as u8; 8] };
                let at = ring.run(log, line).await.result.unwrap();
                assert_eq!(at % 8, 0);
                let synced = if n % 25 == 0 { ring.run(log, Op::SyncData).await } else { done };
                synced.result.unwrap()
            }
        });
        assert_eq!(join(futures.collect()).len(), 100);
    })
    .unwrap();
    // Nothing is left for those who take.
    assert!(ring.wait().is_none());
    let text = fs.read("/log").unwrap();
    assert_eq!(text.len(), 3 * 100 * 8);
    assert!((0..3).all(|thread| text.iter().filter(|byte| **byte == thread).count() == 800));
    drop((ring, stored, log));
    finish(fs, &device);
}

#[test]
fn a_future_that_is_dropped_is_cancelled_if_it_has_not_begun_and_gives_its_turn_on() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 8 * BLOCK]);
    let ring = fs.ring(2).unwrap();
    let stall = stall(&device);
    let run = |at: u64, text: &str| ring.run(&stored, write(at, text.as_bytes()));
    let (mut first, mut second) = (run(0, "1"), run(1, "2"));
    assert!(poll_once(&mut first).0.is_none() && poll_once(&mut second).0.is_none());
    until("the first has begun", || device.state.stalled.load(Ordering::Acquire) > 0);
    // The ring is full: they wait for room, in this order.
    let (mut third, mut fourth, mut fifth) = (run(2, "3"), run(3, "4"), run(4, "5"));
    let (_, third_alarm) = poll_once(&mut third);
    let (_, fourth_alarm) = poll_once(&mut fourth);
    let (_, fifth_alarm) = poll_once(&mut fifth);
    let woken = |alarm: &Alarm| alarm.2.load(Ordering::Acquire);
    assert_eq!([&third_alarm, &fourth_alarm, &fifth_alarm].map(|alarm| woken(alarm)), [0; 3]);
    // Never begun: its room is the third's, which does not want it; so it is the fourth's.
    drop(second);
    assert_eq!([&third_alarm, &fourth_alarm, &fifth_alarm].map(|alarm| woken(alarm)), [1, 0, 0]);
    drop(third);
    assert_eq!([&third_alarm, &fourth_alarm, &fifth_alarm].map(|alarm| woken(alarm)), [1, 1, 0]);
    let (done, fourth_alarm) = poll_once(&mut fourth);
    assert!(done.is_none() && ring.stats().cancelled == 1);
    // Has begun: ends, though nobody hears of it.
    drop(first);
    drop(stall);
    until("both are done", || woken(&fourth_alarm) == 1 && woken(&fifth_alarm) == 1);
    assert_eq!(poll_once(&mut fourth).0.unwrap().result.unwrap(), 1);
    assert_eq!(block_on(fifth).result.unwrap(), 1);
    assert_eq!(&fs.read("/stored").unwrap()[..6], b"1\x01\x0145\x01");
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn a_future_outlives_its_ring() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 8 * BLOCK]);
    let ring = fs.ring(1).unwrap();
    let (mut accepted, mut waits) =
        (ring.run(&stored, write(0, "1")), ring.run(&stored, write(1, "2")));
    let never_polled = ring.run(&stored, write(2, "3"));
    let stall = stall(&device);
    assert!(poll_once(&mut accepted).0.is_none());
    let (done, alarm) = poll_once(&mut waits);
    assert!(done.is_none());
    drop(stall);
    drop(ring);
    assert_eq!(block_on(accepted).result.unwrap(), 1);
    until("it is woken", || alarm.2.load(Ordering::Acquire) > 0);
    for (future, byte) in [(waits, b"2"), (never_polled, b"3")] {
        // In memory by now, and done at once; or refused for want of a ring.
        let done = block_on(future);
        match done.result {
            Ok(1) => assert!(done.is_inline),
            Err(FsError::OperationCancelled { why }) => assert_eq!(why, "the ring has ended"),
            other => panic!("{other:?}"),
        }
        assert_eq!(done.buffer, byte);
    }
    drop(stored);
    finish(fs, &memory);
}

/// Serves files by path to many at once on one thread: what an executor is for.
#[test]
fn one_thread_serves_many_who_read_different_files() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let root = fs.root().unwrap();
    for n in 0..40u8 {
        fs.write(format!("/file{n}"), vec![n; 1000 * usize::from(n)]).unwrap();
    }
    fs.sync().unwrap();
    fs.drop_cached();
    let ring = fs.ring(8).unwrap();
    let serve = async |path: String| -> Result<Vec<u8>, FsError> {
        let done = ring.run(&root, Op::Open { path: path.into_bytes() }).await;
        done.result?;
        let extant::ring::Value::Inode(inode) = done.value else { panic!("no handle") };
        let mut contents: Vec<u8> = Vec::new();
        loop {
            let done = ring.run(&inode, read(contents.len() as u64, 4000)).await;
            match done.result? {
                0 => break Ok(contents),
                len => contents.extend(&done.buffer[..len as usize]),
            }
        }
    };
    let served = join((0..41).map(|n| serve(format!("/file{n}"))).collect());
    for (n, served) in served.into_iter().enumerate() {
        match served {
            Ok(contents) => assert!(contents == vec![n as u8; 1000 * n], "file {n}"),
            Err(error) => assert!(n == 40 && matches!(error, FsError::NotFound { .. })),
        }
    }
    drop(root);
    let inline = ring.stats().inline;
    assert!(inline > 0, "what was read ahead is there at once");
    drop(ring);
    finish(fs, &device);
}
