//! The client against servers of others and against our own, and ours against clients of others.

mod support;

use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_block::{
    AlignedBuffer, BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind,
    Pending, QueueOptions, SharedDevice, run_in_place,
};
use extant_nbd::{Address, Listening, NbdDevice, NbdError, Settings, UNFLUSHED_MAX, serve};
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};
use support::{SIZE, Server, exercise};

fn nbdkit(dir: &Path, arguments: &[&str]) -> Option<(Server, Address)> {
    let socket = dir.join("s");
    let name = socket.display().to_string();
    let server = Server::start("nbdkit", &[&["-f", "-U", &name], arguments].concat(), &socket)?;
    Some((server, address(&socket, "")))
}

fn address(socket: &Path, export: &str) -> Address {
    Address::parse(&format!("nbd+unix:///{export}?socket={}", socket.display())).unwrap()
}

fn hasty() -> Settings {
    Settings { limit: Duration::from_millis(800), tries: 2 }
}

fn open(address: &Address) -> NbdDevice {
    NbdDevice::open(address, false, Settings::default()).unwrap()
}

#[test]
fn servers_of_others_are_understood() {
    let dir = tempfile::tempdir().unwrap();
    if let Some((_server, address)) = nbdkit(dir.path(), &["memory", "8M"]) {
        exercise(&open(&address));
    }
    let dir = tempfile::tempdir().unwrap();
    let (socket, disk) = (dir.path().join("q"), dir.path().join("d"));
    std::fs::write(&disk, vec![0; SIZE as usize]).unwrap();
    let (name, file) = (socket.display().to_string(), disk.display().to_string());
    let arguments = ["-t", "-f", "raw", "-k", &name, "-x", "some export", "--discard=unmap", &file];
    if let Some(_server) = Server::start("qemu-nbd", &arguments, &socket) {
        exercise(&open(&address(&socket, "some%20export")));
        let error = NbdDevice::open(&address(&socket, "other"), true, hasty()).unwrap_err();
        assert!(matches!(error, NbdError::Refused { .. }), "{error}");
        assert!(error.to_string().contains("there is none of that name"), "{error}");
    }
}

#[test]
fn errors_of_a_server_are_told_once_each_and_pass() {
    let dir = tempfile::tempdir().unwrap();
    let switch = dir.path().join("fail");
    let file = format!("error-file={}", switch.display());
    let arguments = ["--filter=error", "memory", "8M", "error=EIO", "error-rate=100%", &file];
    let Some((_server, address)) = nbdkit(dir.path(), &arguments) else { return };
    let device = open(&address);
    device.write_at(0, &[1; 4096]).unwrap();
    std::fs::write(&switch, "").unwrap();
    assert!(device.write_at(0, &[2; 4096]).is_err());
    assert!(device.read_at(0, &mut [0; 4096]).is_err());
    std::fs::remove_file(&switch).unwrap();
    device.read_at(0, &mut [0; 4096]).unwrap();
    device.flush().unwrap();
    assert_eq!(device.reconnections(), 0);
}

#[test]
fn a_queue_that_ends_with_reads_under_way_waits_for_them_and_the_server_lives() {
    let dir = tempfile::tempdir().unwrap();
    let Some((_server, address)) = nbdkit(dir.path(), &["memory", "8M"]) else { return };
    let device = open(&address);
    device.write_at(0, &[5; 1 << 20]).unwrap();
    for _ in 0..50 {
        let mut queue = device.queue(&QueueOptions::default().depth(64));
        for tag in 0..64u64 {
            let buffer = AlignedBuffer::zeroed(16_384);
            assert!(queue.push(tag, Operation::Read { offset: tag * 16_384, buffer }).is_ok());
        }
        queue.submit();
        drop(queue);
    }
    let mut now = [0; 4096];
    device.read_at(4096, &mut now).unwrap();
    assert_eq!((now, device.reconnections()), ([5; 4096], 0));
}

#[test]
fn a_server_that_stalls_or_dies_is_an_error_in_bounded_time() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--filter=delay", "memory", "8M", "delay-read=60"];
    if let Some((server, address)) = nbdkit(dir.path(), &arguments) {
        let device = NbdDevice::open(&address, false, hasty()).unwrap();
        let start = SystemClock.monotonic();
        assert!(device.read_at(0, &mut [0; 512]).is_err());
        assert!(SystemClock.monotonic().saturating_sub(start) < Duration::from_secs(20));
        drop(server);
        assert!(device.write_at(0, &[0; 512]).is_err());
        assert!(device.flush().is_err());
    }
    let error =
        NbdDevice::open(&address(&dir.path().join("nothing"), ""), true, hasty()).unwrap_err();
    assert!(matches!(error, NbdError::Connect { .. }), "{error}");
}

/// A device that forgets what was not flushed when its server dies.
struct Forgetful {
    inner: MemoryDevice,
    cache: Mutex<Vec<(u64, Vec<u8>)>>,
}

impl Forgetful {
    fn new() -> Forgetful {
        Forgetful { inner: MemoryDevice::new(SIZE), cache: Mutex::new(Rank::Leaf, Vec::new()) }
    }

    fn forget(&self) {
        self.cache.lock().clear();
    }
}

impl BlockDevice for Forgetful {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }
    fn size_bytes(&self) -> u64 {
        SIZE
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn describe(&self) -> Arc<str> {
        "forgetful".into()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, out)?;
        for (at, bytes) in &*self.cache.lock() {
            for (index, byte) in bytes.iter().enumerate() {
                let position = at + index as u64;
                if (offset..offset + out.len() as u64).contains(&position) {
                    out[(position - offset) as usize] = *byte;
                }
            }
        }
        Ok(())
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.cache.lock().push((offset, bytes.to_vec()));
        Ok(())
    }
    fn flush(&self) -> Result<(), DeviceError> {
        let cache: Vec<_> = std::mem::take(&mut *self.cache.lock());
        cache.iter().try_for_each(|(at, bytes)| self.inner.write_at(*at, bytes))
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.write_at(offset, &vec![0; len as usize])
    }
    fn discard(&self, _: u64, _: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// Serves a device while `work` runs.
fn serving<T: Send>(device: &SharedDevice, socket: &PathBuf, work: impl FnOnce() -> T + Send) -> T {
    let _ = std::fs::remove_file(socket);
    let listening = Listening::Unix(UnixListener::bind(socket).unwrap());
    let end = AtomicBool::new(false);
    threads::scope(|scope| {
        let serving = scope.spawn("serve", || serve(device, "root", &listening, &end)).unwrap();
        let done = work();
        end.store(true, Ordering::Release);
        serving.join().unwrap().unwrap();
        done
    })
    .unwrap()
}

#[test]
fn our_server_serves_our_client() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let device: SharedDevice = Arc::new(MemoryDevice::new(SIZE));
    serving(&device, &socket, || {
        let client = open(&address(&socket, "root"));
        exercise(&client);
        let error = NbdDevice::open(&address(&socket, "else"), true, hasty()).unwrap_err();
        assert!(matches!(error, NbdError::Refused { .. }), "{error}");
        // Four threads use four connections.
        threads::workers("client", 4, |thread| {
            for number in 0..50u64 {
                let at = (number * 4 + thread as u64) * 4096;
                client.write_at(at, &[thread as u8; 4096]).unwrap();
                let mut now = [9; 4096];
                client.read_at(at, &mut now).unwrap();
                assert_eq!(now, [thread as u8; 4096]);
            }
        })
        .unwrap();
    });
}

#[test]
fn our_server_serves_clients_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let device: SharedDevice = Arc::new(MemoryDevice::new(SIZE));
    serving(&device, &socket, || {
        let url = format!("nbd+unix:///root?socket={}", socket.display());
        let run = |program: &str, arguments: &[&str]| {
            let Ok(output) = Command::new(program).args(arguments).output() else {
                println!("skipped: no {program}");
                return;
            };
            assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
        };
        run("nbdinfo", &[&url]);
        run("nbdinfo", &["--list", &url]);
        let write = "write -P 0x5a 65536 131072";
        let zero = "write -z 131072 4096";
        let read = "read -P 0x5a 65536 65536";
        let zeros = "read -P 0 131072 4096";
        run(
            "qemu-io",
            &[
                "-f",
                "raw",
                "-c",
                write,
                "-c",
                zero,
                "-c",
                "flush",
                "-c",
                read,
                "-c",
                zeros,
                "-c",
                "discard 0 4096",
                &url,
            ],
        );
        let out = dir.path().join("copy").display().to_string();
        run("qemu-img", &["convert", "-f", "raw", "-O", "raw", &url, &out]);
        if let Ok(copy) = std::fs::read(&out) {
            assert_eq!(copy.len() as u64, SIZE);
            assert!(copy[65_536..131_072].iter().all(|byte| *byte == 0x5a));
        }
    });
}

#[test]
fn after_a_lost_connection_what_was_acknowledged_is_written_again_before_the_flush() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let forgetful = Arc::new(Forgetful::new());
    let device: SharedDevice = forgetful.clone();
    let settings = Settings { tries: 8, ..Settings::default() };
    let client = serving(&device, &socket, || {
        let client = NbdDevice::open(&address(&socket, "root"), false, settings).unwrap();
        client.write_at(0, &[1; 4096]).unwrap();
        client.flush().unwrap();
        client.write_at(0, &[2; 4096]).unwrap();
        client.write_at(2048, &[3; 4096]).unwrap();
        client.write_zeroes(100, 50).unwrap();
        client
    });
    // The end of a server of ours flushes; this one loses its memory before.
    let clean = Arc::new(Forgetful::new());
    clean.write_at(0, &[1; 4096]).unwrap();
    clean.flush().unwrap();
    let device: SharedDevice = clean.clone();
    serving(&device, &socket, || {
        client.flush().unwrap();
        assert!(client.reconnections() > 0);
    });
    clean.forget();
    let mut now = vec![0; 8192];
    clean.read_at(0, &mut now).unwrap();
    let mut wanted = vec![2; 2048];
    wanted.extend([3; 4096]);
    wanted[100..150].fill(0);
    assert!(now[..6144] == wanted, "a flush that returned lies");
}

/// A device whose flushes fail.
struct Unflushable(MemoryDevice);

impl BlockDevice for Unflushable {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn describe(&self) -> Arc<str> {
        "unflushable".into()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
        Err(DeviceError::new(self.describe(), OperationKind::Flush, 0, 0, fault))
    }
}

#[test]
fn what_is_kept_stays_bounded_when_flushes_fail_and_without_flushes_nothing_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let piece = vec![3; 4 << 20];
    let listening = Listening::Unix(UnixListener::bind(&socket).unwrap());
    let (end, device) = (AtomicBool::new(false), Unflushable(MemoryDevice::new(4 << 20)));
    let device: SharedDevice = Arc::new(device);
    threads::scope(|scope| {
        scope.spawn("serve", || serve(&device, "", &listening, &end)).unwrap();
        let client = open(&address(&socket, ""));
        let failed = (0..40).map(|_| client.write_at(0, &piece)).filter(Result::is_err).count();
        end.store(true, Ordering::Release);
        assert!(failed > 15, "{failed} of 40 writes failed");
        assert!(client.unflushed_bytes() <= UNFLUSHED_MAX + (5 << 20));
    })
    .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let arguments =
        ["eval", "get_size=echo 8M", "pread=head -c $3 /dev/zero", "pwrite=cat > /dev/null"];
    let Some((_server, address)) = nbdkit(dir.path(), &arguments) else { return };
    let error = NbdDevice::open(&address, false, hasty()).unwrap_err();
    assert!(matches!(error, NbdError::NoFlush { .. }), "{error}");
}

#[test]
fn an_export_that_comes_back_with_another_size_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let device: SharedDevice = Arc::new(MemoryDevice::new(SIZE));
    let client = serving(&device, &socket, || {
        NbdDevice::open(&address(&socket, "root"), false, hasty()).unwrap()
    });
    let device: SharedDevice = Arc::new(MemoryDevice::new(SIZE / 2));
    serving(&device, &socket, || {
        let error = client.read_at(0, &mut [0; 512]).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("came back with"), "{cause}");
    });
}

/// A server that says the given bytes and no more.
fn liar(socket: &Path, says: Vec<u8>) -> Result<NbdDevice, NbdError> {
    let listener = UnixListener::bind(socket).unwrap();
    threads::scope(|scope| {
        scope
            .spawn("liar", move || {
                use std::io::{Read, Write};
                let (mut stream, _) = listener.accept().unwrap();
                let _ = stream.write_all(&says);
                stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
                let _ = stream.read_to_end(&mut Vec::new());
            })
            .unwrap();
        NbdDevice::open(&address(socket, ""), true, hasty())
    })
    .unwrap()
}

#[test]
fn nonsense_from_a_server_is_an_error_and_takes_no_memory() {
    let hello = [&b"NBDMAGICIHAVEOPT\x00\x03"[..]].concat();
    let option_reply = |option: u32, kind: u32, len: u32| {
        let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
        for word in [option, kind, len] {
            bytes.extend(word.to_be_bytes());
        }
        bytes
    };
    let unsupported = option_reply(8, (1 << 31) | 1, 0);
    let cases: [Vec<u8>; 6] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        b"NBDMAGIC".to_vec(),
        hello.clone(),
        [&hello[..], &option_reply(8, 1, u32::MAX)].concat(),
        [&hello[..], &unsupported, &option_reply(7, 1, 0)].concat(),
        [&hello[..], &unsupported, &option_reply(7, 3, 12), &[0; 12], &option_reply(9, 1, 0)]
            .concat(),
    ];
    for says in cases {
        let dir = tempfile::tempdir().unwrap();
        let error = liar(&dir.path().join("s"), says.clone()).unwrap_err();
        assert!(matches!(error, NbdError::Protocol { .. }), "{says:?}: {error}");
    }
}
