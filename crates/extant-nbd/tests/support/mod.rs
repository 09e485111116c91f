//! What tests of the client share.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use extant_block::{AlignedBuffer, BlockDevice, Operation, QueueOptions, Wait};
use extant_nbd::NbdDevice;
use extant_sync::{Clock, SystemClock};

pub(crate) const SIZE: u64 = 8 << 20;

/// A server of somebody else, ended with the test.
pub(crate) struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Server {
    /// Waits until `socket` is there. `None`, with a line about it, where the program is missing.
    pub(crate) fn start(program: &str, arguments: &[&str], socket: &Path) -> Option<Server> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            println!("skipped: no {program}");
            return None;
        };
        let server = Server(child);
        for _ in 0..500 {
            if socket.exists() {
                return Some(server);
            }
            SystemClock.sleep(Duration::from_millis(10));
        }
        panic!("{program} {arguments:?} does not come up");
    }
}

/// Reads, writes, zeroes and discards, alone and many at once.
pub(crate) fn exercise(device: &NbdDevice) {
    assert_eq!(device.size_bytes(), SIZE);
    for number in 0..64u64 {
        device.write_at(number * 65_536, &[number as u8 + 1; 65_536]).unwrap();
    }
    device.write_fua_at(4096, &[0xfa; 1000]).unwrap();
    device.flush().unwrap();
    let batch = (0..64u64).map(|number| Operation::Read {
        offset: number * 65_536 + 32_768,
        buffer: AlignedBuffer::zeroed(32_768),
    });
    let buffers = device.submit(batch.collect()).wait_all().unwrap();
    for (number, buffer) in buffers.iter().enumerate() {
        assert!(buffer.iter().all(|byte| *byte == number as u8 + 1), "{number}");
    }
    let mut now = [0; 1000];
    device.read_at(4096, &mut now).unwrap();
    assert_eq!(now, [0xfa; 1000]);
    device.write_zeroes(65_536, 65_536).unwrap();
    device.read_at(65_536, &mut now).unwrap();
    assert_eq!(now, [0; 1000]);
    if let Err(error) = device.discard(131_072, 65_536) {
        assert!(error.is_unsupported(), "{error}");
    }
    // Longer than what goes into one request of the smallest servers.
    let mut whole = vec![1; SIZE as usize];
    device.read_at(0, &mut whole).unwrap();
    assert_eq!(whole[200_000], 200_000u32.div_euclid(65_536) as u8 + 1);
    let mut queue = device.queue(&QueueOptions::default().depth(16));
    let mut seen = 0;
    for tag in 0..200u64 {
        let read = || Operation::Read {
            offset: tag % 64 * 65_536 + 60_000,
            buffer: AlignedBuffer::zeroed(100),
        };
        while queue.push(tag, read()).is_err() {
            queue.submit();
            queue.reap(Wait::Block).unwrap().completion.result.unwrap();
            seen += 1;
        }
    }
    queue.submit();
    while let Some(done) = queue.reap(Wait::Block) {
        done.completion.result.unwrap();
        seen += 1;
    }
    assert_eq!(seen, 200);
    assert!(device.read_at(SIZE - 1, &mut [0; 2]).is_err());
}
