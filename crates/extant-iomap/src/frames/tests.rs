use super::*;
use extant_base::Prng;
use extant_sync::threads;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[test]
fn a_frame_is_small_and_in_one_line_of_the_processors_cache() {
    // Locks of debug builds know their rank and order.
    let most = if cfg!(debug_assertions) { 64 } else { 32 };
    assert!(size_of::<Frame>() <= most, "{}", size_of::<Frame>());
    assert!(size_of::<Frame>() <= align_of::<Frame>() || cfg!(debug_assertions));
}

/// A mount with a large cache and little in it must not pay for the cache.
#[test]
fn frames_are_made_where_folios_begin_and_nowhere_else() {
    let frames = Frames::new(65_536 + 3);
    let made = || frames.parts.iter().filter(|part| part.get().is_some()).count();
    assert!(frames.pin_any(5).is_none() && frames.pin(5, 7, 0).is_none() && !frames.kill(5));
    frames.let_go(5);
    assert_eq!(made(), 0, "who looks makes nothing");
    let pins = [(700, 0), (1023, 1), (65_538, 2)].map(|(id, page)| frames.publish(id, 7, page, 0));
    assert_eq!(made(), 2);
    assert!(frames.pin(700, 7, 0).is_some() && frames.pin(65_538, 7, 2).is_some());
    assert!(frames.pin_any(701).is_none(), "made, and dead");
    drop(frames.lock(2048));
    assert_eq!(made(), 3);
    drop(pins);
    let behind = AssertUnwindSafe(|| drop(frames.publish(65_539, 7, 9, 0)));
    assert!(catch_unwind(behind).is_err());
}

#[test]
fn a_folio_is_found_by_each_of_its_pages_and_no_other() {
    let frames = Frames::new(64);
    assert_eq!(frames.len(), 64);
    let pin = frames.publish(16, 7, 32, 4);
    assert_eq!((pin.id(), pin.file(), pin.start(), pin.order()), (16, 7, 32, 4));
    assert_eq!((pin.pages(), pin.at(), pin.len()), (16, 16 * 4096, 65536));
    for page in 0..100 {
        let found = frames.pin(16, 7, page);
        assert_eq!(found.is_some(), (32..48).contains(&page), "page {page}");
    }
    for (id, file, page) in [(16, 8, 32), (17, 7, 33), (15, 7, 32), (64, 7, 32), (u32::MAX, 7, 32)]
    {
        assert!(frames.pin(id, file, page).is_none(), "{id} {file} {page}");
    }
    assert_eq!(pin.pins(), 1, "failed lookers leave no count");
    assert!(frames.pin_any(17).is_none());
    assert_eq!(frames.pin_any(16).unwrap().pins(), 2);

    // A file as long as files can be.
    let last = frames.publish(0, 7, u64::MAX - 1, 0);
    assert!(frames.pin(0, 7, u64::MAX - 1).is_some());
    assert!(frames.pin(0, 7, u64::MAX).is_none());
    drop((pin, last));
}

#[test]
fn only_an_unpinned_frame_dies_and_it_dies_once() {
    let frames = Frames::new(4);
    assert!(!frames.kill(1), "dead already");
    let pin = frames.publish(1, 1, 0, 0);
    assert!(!frames.kill(1));
    let second = pin.clone();
    let pin = pin.kill().unwrap_err();
    assert_eq!(pin.pins(), 2, "a failed kill keeps the pin");
    drop(second);
    assert_eq!(pin.pins(), 1);
    pin.kill().unwrap();
    assert!(frames.pin(1, 1, 0).is_none());
    assert!(frames.pin_any(1).is_none());
    assert!(!frames.kill(1));

    drop(frames.publish(1, 2, 5, 1));
    assert!(frames.pin(1, 1, 0).is_none());
    assert!(frames.pin(1, 2, 6).is_some());
    assert!(frames.kill(1), "nobody has it");
    assert!(!frames.kill(9));
}

#[test]
fn a_live_frame_is_not_published_again() {
    let frames = Frames::new(2);
    let pin = frames.publish(1, 1, 8, 3);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(frames.publish(1, 2, 0, 0)))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| drop(frames.publish(2, 2, 0, 0)))).is_err());
    assert_eq!((pin.file(), pin.start(), pin.order(), pin.pins()), (1, 8, 3, 1));
}

#[test]
fn marks_are_taken_once_and_do_not_outlive_the_folio() {
    let frames = Frames::new(2);
    let pin = frames.publish(0, 1, 0, 0);
    assert!(!pin.take_used() && !pin.set_listed(false) && !pin.is_detached());
    pin.mark_used();
    pin.mark_used();
    pin.set_listed(true);
    assert!(pin.take_used() && !pin.take_used());
    assert!(pin.set_listed(false) && !pin.set_listed(false));
    pin.mark_used();
    pin.set_listed(true);
    assert!(pin.detach() && !pin.detach() && pin.is_detached());
    assert!(frames.pin(0, 1, 0).is_none(), "detached");
    assert!(frames.pin_any(0).unwrap().is_detached());
    pin.kill().unwrap();
    let pin = frames.publish(0, 1, 0, 0);
    assert!(!pin.take_used() && !pin.set_listed(false) && !pin.is_detached());
}

#[test]
fn the_lock_is_the_folio_s_whoever_has_a_pin() {
    let frames = Frames::new(2);
    let (one, other) = (frames.publish(0, 1, 0, 0), frames.publish(1, 1, 1, 0));
    let again = frames.pin(0, 1, 0).unwrap();
    let guard = one.lock();
    let seen =
        threads::workers("look", 1, |_| (again.try_lock().is_some(), other.try_lock().is_some()));
    assert_eq!(seen.unwrap(), [(false, true)]);
    drop(guard);
    assert!(again.try_lock().is_some());
}

/// Each folio's number, file, place and size follow from one number, so a mix shows.
fn identity(serial: u64) -> (u64, u64, u8) {
    let order = (serial % 10) as u8;
    (serial.wrapping_mul(0x9E37_79B9) % 61, (serial % 97) << order, order)
}

#[test]
fn a_pinned_folio_never_becomes_another() {
    const FRAMES: u32 = 6;
    let rounds = if cfg!(miri) { 150 } else { 60_000 };
    let frames = Frames::new(FRAMES);
    // The serial number that each frame has or had last; a hint, and as old as hints are.
    let serials: Vec<AtomicU64> = (0..FRAMES).map(|_| AtomicU64::new(0)).collect();
    // Who killed a frame has it alone until it publishes it.
    let owned: Vec<AtomicBool> = (0..FRAMES).map(|_| AtomicBool::new(false)).collect();
    let next = AtomicU64::new(1);
    let publish = |id: FrameId| {
        let serial = next.fetch_add(1, Ordering::Relaxed);
        let (file, start, order) = identity(serial);
        serials[id as usize].store(serial, Ordering::Relaxed);
        let pin = frames.publish(id, file, start, order);
        assert_eq!((pin.file(), pin.start(), pin.order()), (file, start, order));
        assert!(!pin.is_detached());
        pin
    };
    (0..FRAMES).for_each(|id| drop(publish(id)));
    let counts = threads::workers("pins", 4, |thread| {
        let mut prng = Prng::new(thread as u64);
        let mut held: Vec<(Pin<'_>, u64, u64, u8)> = Vec::new();
        let (mut pinned, mut reused) = (0, 0);
        for _ in 0..rounds {
            let id = prng.below(u64::from(FRAMES)) as FrameId;
            match prng.below(8) {
                0..4 => {
                    let (file, start, order) =
                        identity(serials[id as usize].load(Ordering::Relaxed));
                    let page = start + prng.below(1 << order);
                    if let Some(pin) = frames.pin(id, file, page) {
                        // Not always the serial's own folio: another of the file may hold the page.
                        assert_eq!(pin.file(), file);
                        assert!(
                            (pin.start()..pin.start() + u64::from(pin.pages())).contains(&page)
                        );
                        let (start, order) = (pin.start(), pin.order());
                        held.push((pin, file, start, order));
                        pinned += 1;
                    }
                }
                4 => {
                    if let Some((pin, ..)) = held.first() {
                        let pin = pin.clone();
                        let seen = (pin.file(), pin.start(), pin.order());
                        held.push((pin, seen.0, seen.1, seen.2));
                    }
                }
                5 => {
                    if let Some(pin) = frames.pin_any(id) {
                        pin.mark_used();
                        match pin.kill() {
                            Ok(()) => {
                                assert!(!owned[id as usize].swap(true, Ordering::Relaxed));
                                assert!(owned[id as usize].swap(false, Ordering::Relaxed));
                                drop(publish(id));
                                reused += 1;
                            }
                            Err(pin) => assert!(pin.pins() >= 1),
                        }
                    }
                }
                6 => {
                    if frames.kill(id) {
                        assert!(!owned[id as usize].swap(true, Ordering::Relaxed));
                        assert!(frames.pin_any(id).is_none(), "dead");
                        assert!(owned[id as usize].swap(false, Ordering::Relaxed));
                        publish(id).detach();
                        reused += 1;
                    }
                }
                _ => held.truncate(prng.below(4) as usize),
            }
            for (pin, file, start, order) in &held {
                assert_eq!((pin.file(), pin.start(), pin.order()), (*file, *start, *order));
            }
        }
        (pinned, reused)
    })
    .unwrap();
    for id in 0..FRAMES {
        assert_eq!(frames.pin_any(id).unwrap().pins(), 1, "every pin was given back");
    }
    // Of all threads: one that waits for the processor with pins in hand stops the others' kills.
    let (pinned, reused) = counts.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
    assert!(cfg!(miri) || (pinned > 400 && reused > 400), "{counts:?}");
}
