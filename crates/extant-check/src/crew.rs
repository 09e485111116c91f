//! The pieces of a step on several threads, their results in order.

use std::ops::{ControlFlow, Range};
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_sync::threads;

use crate::CheckError;

/// Pieces for each thread before their results are taken.
pub(crate) const PIECES_AHEAD: usize = 64;
/// Pieces for each thread of a small image.
const PIECES_EACH: u64 = 24;

/// Does `work` for every piece on `count` threads and hands each result to `take`, in the order of
/// the pieces, until that says to break. At most `ahead` results for each thread wait.
///
/// # Errors
///
/// [`CheckError::Thread`] when a thread ended before its time.
pub(crate) fn in_order<T: Send>(
    (count, ahead): (usize, usize),
    pieces: usize,
    work: impl Fn(usize) -> T + Sync,
    mut take: impl FnMut(T) -> ControlFlow<()>,
) -> Result<(), CheckError> {
    if count <= 1 {
        for piece in 0..pieces {
            if take(work(piece)).is_break() {
                break;
            }
        }
        return Ok(());
    }
    let mut from = 0;
    while from < pieces {
        let to = pieces.min(from.saturating_add(count.saturating_mul(ahead.max(1))));
        let next = AtomicUsize::new(from);
        let some = || {
            let mut done = Vec::new();
            loop {
                let piece = next.fetch_add(1, Ordering::Relaxed);
                if piece >= to {
                    return done;
                }
                done.push((piece, work(piece)));
            }
        };
        // The calling thread is one of them. Where fewer can be started than there should be, those do it.
        let helpers = count.min(to - from).saturating_sub(1);
        let done = threads::scope(|scope| {
            let start =
                |number| scope.spawn_apart(&format!("check-{number}"), number + 1, some).ok();
            let started: Vec<_> = (0..helpers).filter_map(start).collect();
            let mut done = vec![some()];
            for handle in started {
                done.push(handle.join()?);
            }
            Ok(done)
        });
        let done = done.flatten().map_err(|error| CheckError::Thread(error.to_string()))?;
        let mut done: Vec<(usize, T)> = done.into_iter().flatten().collect();
        done.sort_unstable_by_key(|(piece, _)| *piece);
        for (_, result) in done {
            if take(result).is_break() {
                return Ok(());
            }
        }
        from = to;
    }
    Ok(())
}

/// Divides `0..len` into some ranges for each of `threads`, of which each is as heavy as `most` at
/// most, or has one element.
pub(crate) fn share(
    threads: usize,
    len: usize,
    most: u64,
    weight: impl Fn(usize) -> u64,
) -> Vec<Range<usize>> {
    let all = (0..len).fold(0u64, |sum, at| sum.saturating_add(weight(at)));
    divide(len, weight_of_piece(threads, all, most), weight)
}

/// Returns how heavy a piece shall be: some for each of `threads`, of `most` at most.
pub(crate) fn weight_of_piece(threads: usize, all: u64, most: u64) -> u64 {
    let each = all / (threads.max(1) as u64 * PIECES_EACH);
    each.min(most).max(1)
}

/// Divides `0..len` into ranges of which each is just as heavy as `wanted`, or has one element.
fn divide(len: usize, wanted: u64, weight: impl Fn(usize) -> u64) -> Vec<Range<usize>> {
    let (mut list, mut from, mut sum) = (Vec::new(), 0, 0u64);
    for at in 0..len {
        sum = sum.saturating_add(weight(at));
        if sum >= wanted {
            list.push(from..at + 1);
            (from, sum) = (at + 1, 0);
        }
    }
    if from < len {
        list.push(from..len);
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_until_one_breaks() {
        for count in [1, 2, 8] {
            let mut seen = Vec::new();
            let take = |piece| {
                seen.push(piece);
                if piece == 150 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            in_order((count, 3), 1000, |piece| piece, take).unwrap();
            assert_eq!(seen, (0..=150).collect::<Vec<_>>());
        }
    }

    #[test]
    fn every_element_is_in_one_range() {
        let ranges = divide(10, 5, |at| at as u64);
        assert_eq!(ranges, [0..4, 4..6, 6..7, 7..8, 8..9, 9..10]);
        assert_eq!(divide(3, 100, |_| 1), vec![0..3]);
        assert_eq!(divide(0, 1, |_| 1), []);
    }
}
