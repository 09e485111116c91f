//! Layers that are unpacked at the same time.
//!
//! # Shape
//!
//! ```text
//! lane 0   layers 0, 2, ...   unpack ──> compare ──> parse, data to the lane's spool ──┐
//! lane 1   layers 1, 3, ...   unpack ──> compare ──> parse, data to the lane's spool ──┴─> one assembler, in order
//! ```
//!
//! The order of layers counts when they are put together, and not before: a lane that is ahead waits when its queue of members
//! is full. So memory is that of [`LANES_MAX`] layers in work, whatever their number and size.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};

use extant_oci::Digest;
use extant_sync::threads::{self, Receiver, Sender, ThreadError, channel};

use super::input::{Check, Checked, Input, Packing, Peek, Spool, checked_pipe, decompress_whole};
use super::{Assembler, End, Member, SharedSpool, parse_into};
use crate::source::SourceError;

/// Most layers in work at once.
pub(in crate::source) const LANES_MAX: usize = 4;

/// Members that travel together, and groups of them that wait for the assembler.
const BATCH: usize = 256;
const BATCHES: usize = 32;

/// Why a layer cannot be added.
#[derive(Debug)]
pub(in crate::source) enum LayerFault {
    /// The stream is not what it should be, or cannot be read.
    Stream(io::Error),
    /// The members of the layer form no tree, or it cannot be opened.
    Source(SourceError),
}

/// A layer to be unpacked.
pub(in crate::source) struct LayerSource<'s> {
    /// How messages call it.
    pub(in crate::source) name: String,
    /// Digest of the archive when it is unpacked.
    pub(in crate::source) diff_id: Digest,
    /// Most bytes that it may have then.
    pub(in crate::source) limit: u64,
    /// Opens it.
    pub(in crate::source) open:
        Box<dyn Fn() -> Result<Box<dyn Read + Send + 's>, SourceError> + Send + Sync + 's>,
}

/// An item from a lane.
enum Parcel {
    Members(Vec<Member>),
    /// The layer ends, whole or not.
    End(Result<(), LayerFault>),
}

/// Adds `layers` to `tree` in their order, as many at once as there are `spools`; the data of a
/// lane's files is contents `first_part` and so on.
///
/// # Errors
///
/// The layer and the error. Errors of its stream take precedence over errors of its reader.
pub(in crate::source) fn add_layers(
    tree: &mut Assembler,
    layers: &[LayerSource<'_>],
    spools: &mut [SharedSpool],
    first_part: u16,
) -> Result<(), (usize, LayerFault)> {
    let lanes = spools.len().max(1);
    let given_up: Vec<AtomicBool> = spools.iter().map(|_| AtomicBool::new(false)).collect();
    let thread_fault = |error: ThreadError| (0, LayerFault::Source(error.into()));
    let outcome = threads::scope(|scope| {
        let (mut queues, mut workers) = (Vec::new(), Vec::new());
        for (lane, (spool, given_up)) in spools.iter_mut().zip(&given_up).enumerate() {
            let (send, receive) = channel(BATCHES);
            let work = move || run_lane(layers, (lane, lanes), spool, &send, given_up);
            workers.push(scope.spawn("layers", work)?);
            queues.push(receive);
        }
        let result = assemble(tree, layers, &queues, first_part);
        if let Err((at, _)) = &result {
            // The result of this layer's stream is awaited; those of the others are not.
            let others = given_up.iter().enumerate().filter(|(lane, _)| *lane != at % lanes);
            others.for_each(|(_, given_up)| given_up.store(true, Ordering::Relaxed));
        }
        drop(queues);
        let mut faults = Vec::new();
        for worker in workers {
            faults.extend(worker.join()?);
        }
        Ok::<_, ThreadError>(result.map_err(|(at, fault)| {
            let said = faults.into_iter().find(|(layer, _)| *layer == at);
            match (&fault, said) {
                (LayerFault::Source(_), Some((_, LayerFault::Stream(error)))) => {
                    (at, LayerFault::Stream(error))
                }
                _ => (at, fault),
            }
        }))
    });
    outcome
        .map_err(|panic| thread_fault(panic.into()))
        .and_then(|result| result.map_err(thread_fault))?
}

/// Puts together what comes from the lanes, in the order of the layers.
fn assemble(
    tree: &mut Assembler,
    layers: &[LayerSource<'_>],
    queues: &[Receiver<Parcel>],
    first_part: u16,
) -> Result<(), (usize, LayerFault)> {
    for (at, layer) in layers.iter().enumerate() {
        let lane = at % queues.len().max(1);
        let source = |error| (at, LayerFault::Source(error));
        tree.begin_layer(&layer.name, first_part + lane as u16, true).map_err(source)?;
        loop {
            // A lane ends without a result only if it panicked, which its join reports.
            let parcel = queues.get(lane).and_then(|queue| queue.recv().ok());
            match parcel {
                Some(Parcel::Members(members)) => {
                    for member in members {
                        tree.add(member).map_err(source)?;
                    }
                }
                Some(Parcel::End(result)) => {
                    result.map_err(|fault| (at, fault))?;
                    break;
                }
                None => return Ok(()),
            }
        }
    }
    Ok(())
}

/// Unpacks the layers of one lane; returns the error of a layer whose reader has gone.
fn run_lane(
    layers: &[LayerSource<'_>],
    (lane, lanes): (usize, usize),
    spool: &mut SharedSpool,
    send: &Sender<Parcel>,
    given_up: &AtomicBool,
) -> Option<(usize, LayerFault)> {
    for (at, layer) in layers.iter().enumerate().skip(lane).step_by(lanes) {
        let result = unpack_layer(layer, spool, send, given_up);
        let failed = result.is_err();
        if let Err(unsent) = send.send(Parcel::End(result)) {
            let Parcel::End(Err(fault)) = unsent.into_inner() else { return None };
            return Some((at, fault));
        }
        if failed {
            return None;
        }
    }
    None
}

/// Unpacks one layer: its members go to `send`, the data of its files to `spool`.
fn unpack_layer(
    layer: &LayerSource<'_>,
    spool: &mut SharedSpool,
    send: &Sender<Parcel>,
    given_up: &AtomicBool,
) -> Result<(), LayerFault> {
    let inner = (layer.open)().map_err(LayerFault::Source)?;
    let mut input = Peek::new(UntilGivenUp { inner, given_up });
    let packing = Packing::of(input.peek(Packing::START).map_err(LayerFault::Stream)?);
    let check = Check::new(layer.diff_id.clone(), layer.limit);
    let SharedSpool { file, len } = spool;
    let outcome = threads::scope(|scope| {
        let (writer, checker, reader) = checked_pipe(check);
        let unpacking =
            scope.spawn("decompress", move || decompress_whole(input, packing, writer))?;
        let checking = scope.spawn("compare", move || checker.run())?;
        let stream = Input::Stream { stream: Box::new(reader), spool: Spool::new(file, *len) };
        let mut batch = Vec::with_capacity(BATCH);
        let mut take = |member| {
            batch.push(member);
            let is_full = batch.len() == BATCH;
            Ok(!is_full || send.send(Parcel::Members(std::mem::take(&mut batch))).is_ok())
        };
        let parsed = parse_into(&mut take, stream, &layer.name, packing.name(), End::Digest);
        if !batch.is_empty() {
            // Whoever does not listen knows why.
            let _ = send.send(Parcel::Members(batch));
        }
        let unpacked = unpacking.join().map_err(ThreadError::from)?;
        let checked = checking.join().map_err(ThreadError::from)?;
        Ok::<_, ThreadError>((parsed, unpacked, checked))
    });
    let failed = |error: ThreadError| LayerFault::Source(error.into());
    let (parsed, unpacked, checked) =
        outcome.map_err(|e| failed(e.into())).and_then(|r| r.map_err(failed))?;
    // Errors of the stream take precedence over those of the parser: first of the packed one, then
    // of the unpacked one, of which a cut stream was only a part.
    let unpacked = unpacked.map_err(LayerFault::Stream)?;
    let checked = checked.map_err(LayerFault::Stream)?;
    *len = parsed.map_err(LayerFault::Source)?;
    if unpacked == Checked::Whole && checked == Checked::Whole {
        return Ok(());
    }
    let what = "hundreds of megabytes follow the end mark of its archive";
    Err(LayerFault::Stream(io::Error::new(io::ErrorKind::InvalidData, what)))
}

/// A stream that ends when its data is not wanted any more.
struct UntilGivenUp<'a, R> {
    inner: R,
    given_up: &'a AtomicBool,
}

impl<R: Read> Read for UntilGivenUp<'_, R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.given_up.load(Ordering::Relaxed) {
            return Ok(0);
        }
        self.inner.read(buf)
    }
}
