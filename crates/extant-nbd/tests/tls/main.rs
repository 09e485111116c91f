//! NBD over TLS: with servers and clients of others, with ourselves, and with those who want to get around it.

mod pki;
#[path = "../support/mod.rs"]
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_nbd::{Address, Listening, NbdDevice, NbdError, ServerTls, Settings, serve_tls};
use extant_sync::{Clock, SystemClock, threads};
use pki::{For, Pki, Signer};
use support::{SIZE, Server, exercise};

fn hasty() -> Settings {
    Settings { limit: Duration::from_millis(1500), tries: 2 }
}

/// An address of a socket, with what it says of TLS.
fn address(socket: &Path, export: &str, certificates: &Path, more: &str) -> Address {
    let (socket, dir) = (socket.display(), certificates.display());
    let text = format!("nbds+unix:///{export}?socket={socket}&tls-certificates={dir}{more}");
    Address::parse(&text).unwrap()
}

fn plain(socket: &Path, export: &str) -> Address {
    Address::parse(&format!("nbd+unix:///{export}?socket={}", socket.display())).unwrap()
}

fn try_open(address: &Address) -> Result<NbdDevice, NbdError> {
    NbdDevice::open(address, false, hasty())
}

/// Opens in vain, and says why for the reason of TLS.
fn no_tls(address: &Address) -> String {
    match try_open(address).unwrap_err() {
        NbdError::Tls { what, .. } => what,
        other => panic!("{other:?}"),
    }
}

/// Serves a device over TLS while `work` runs.
fn serving<T: Send>(
    device: &SharedDevice,
    socket: &Path,
    tls: &ServerTls,
    work: impl FnOnce() -> T + Send,
) -> T {
    let _ = std::fs::remove_file(socket);
    let listening = Listening::Unix(UnixListener::bind(socket).unwrap());
    serving_at(device, &listening, tls, work)
}

fn serving_at<T: Send>(
    device: &SharedDevice,
    listening: &Listening,
    tls: &ServerTls,
    work: impl FnOnce() -> T + Send,
) -> T {
    let end = AtomicBool::new(false);
    threads::scope(|scope| {
        let serve = || serve_tls(device, "root", listening, tls, &end);
        let serving = scope.spawn("serve", serve).unwrap();
        // The server ends also when the work fails: else whoever waits for it hangs.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        end.store(true, Ordering::Release);
        serving.join().unwrap().unwrap();
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
    .unwrap()
}

fn memory() -> SharedDevice {
    Arc::new(MemoryDevice::new(SIZE))
}

#[test]
fn nbdkit_is_spoken_with_and_says_whom_it_wants_to_see() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    let (name, certificates) = (socket.display().to_string(), pki.dir().display().to_string());
    let certificates = format!("--tls-certificates={certificates}");
    let first = ["-f", "-U", &name, "--tls=require", &certificates];
    let Some(server) = Server::start("nbdkit", &[&first[..], &["memory", "8M"]].concat(), &socket)
    else {
        return;
    };
    exercise(&try_open(&address(&socket, "", pki.dir(), "")).unwrap());
    let error = try_open(&plain(&socket, "")).unwrap_err();
    assert!(matches!(error, NbdError::NeedsTls { .. }), "{error:?}");
    assert!(error.to_string().contains("nbds+unix://"), "{error}");
    drop(server);
    std::fs::remove_file(&socket).unwrap();
    let arguments = [&first[..], &["--tls-verify-peer", "memory", "8M"]].concat();
    let Some(_server) = Server::start("nbdkit", &arguments, &socket) else { return };
    exercise(&try_open(&address(&socket, "", pki.dir(), "")).unwrap());
    let what = no_tls(&address(&socket, "", &pki.stranger("nobody"), ""));
    assert!(what.contains("certificate of this side"), "{what}");
}

#[test]
fn qemu_nbd_is_spoken_with() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let (socket, disk) = (dir.path().join("q"), dir.path().join("d"));
    std::fs::write(&disk, vec![0; SIZE as usize]).unwrap();
    let (name, file) = (socket.display().to_string(), disk.display().to_string());
    let object =
        format!("tls-creds-x509,id=t,dir={},endpoint=server,verify-peer=yes", pki.dir().display());
    let first = ["-t", "-f", "raw", "-k", &name, "-x", "disk", "--discard=unmap"];
    let arguments = [&first[..], &["--object", &object, "--tls-creds", "t", &file]].concat();
    let Some(_server) = Server::start("qemu-nbd", &arguments, &socket) else { return };
    exercise(&try_open(&address(&socket, "disk", pki.dir(), "")).unwrap());
    let error = try_open(&address(&socket, "other", pki.dir(), "")).unwrap_err();
    assert!(matches!(error, NbdError::Refused { .. }), "{error:?}");
    let error = try_open(&plain(&socket, "disk")).unwrap_err();
    assert!(matches!(error, NbdError::NeedsTls { .. }), "{error:?}");
    let what = no_tls(&address(&socket, "disk", &pki.stranger("nobody"), ""));
    assert!(what.contains("certificate of this side"), "{what}");
}

#[test]
fn our_server_and_our_client_know_each_other() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    for verify in [false, true] {
        let tls = ServerTls::open(pki.dir(), verify).unwrap();
        serving(&memory(), &socket, &tls, || {
            let client = try_open(&address(&socket, "root", pki.dir(), "")).unwrap();
            exercise(&client);
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
            assert_eq!(client.reconnections(), 0);
            let stranger = address(&socket, "root", &pki.stranger("nobody"), "");
            match verify {
                false => exercise(&try_open(&stranger).unwrap()),
                true => {
                    let what = no_tls(&stranger);
                    assert!(what.contains("wants a certificate of this side"), "{what}");
                }
            }
        });
    }
    // By the name and the number of a host, too.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let tls = ServerTls::open(pki.dir(), true).unwrap();
    let numbered = Pki::new("127.0.0.1");
    let of = |host: &str, more: &str| {
        let dir = pki.dir().display();
        let text = format!("nbds://{host}:{port}/root?tls-certificates={dir}{more}");
        Address::parse(&text).unwrap()
    };
    serving_at(&memory(), &Listening::Tcp(listener), &tls, || {
        exercise(&try_open(&of("localhost", "")).unwrap());
        assert!(no_tls(&of("127.0.0.1", "")).contains("for another host"));
        exercise(&try_open(&of("127.0.0.1", "&tls-hostname=localhost")).unwrap());
    });
    let tls = ServerTls::open(numbered.dir(), false).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    serving_at(&memory(), &Listening::Tcp(listener), &tls, || {
        let dir = numbered.dir().display();
        let text = format!("nbds://127.0.0.1:{port}/root?tls-certificates={dir}");
        exercise(&try_open(&Address::parse(&text).unwrap()).unwrap());
    });
}

#[test]
fn our_server_serves_clients_of_others_over_tls() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let certificates = pki.dir().display();
    let run = |program: &str, arguments: &[&str]| {
        let Ok(output) = Command::new(program).args(arguments).output() else {
            println!("skipped: no {program}");
            return;
        };
        assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
    };
    let tls = ServerTls::open(pki.dir(), true).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    serving_at(&memory(), &Listening::Tcp(listener), &tls, || {
        let url = format!("nbds://localhost:{port}/root?tls-certificates={certificates}");
        run("nbdinfo", &[&url]);
        run("nbdinfo", &["--list", &url]);
        let object = format!("tls-creds-x509,id=t,dir={certificates},endpoint=client");
        let image = format!(
            "driver=raw,file.driver=nbd,file.server.type=inet,file.server.host=localhost,file.server.port={port},file.export=root,file.tls-creds=t"
        );
        let (write, read) = ("write -P 0x5a 65536 131072", "read -P 0x5a 65536 131072");
        let work = ["-c", write, "-c", "flush", "-c", read, "-c", "discard 0 4096", &image];
        run("qemu-io", &[&["--object", &object, "--image-opts"], &work[..]].concat());
        let out = dir.path().join("copy").display().to_string();
        let copy = ["--object", &object, "--image-opts", "-O", "raw", &image, &out];
        run("qemu-img", &[&["convert"], &copy[..]].concat());
        if let Ok(copy) = std::fs::read(&out) {
            assert_eq!(copy.len() as u64, SIZE);
            assert!(copy[65_536..196_608].iter().all(|byte| *byte == 0x5a));
        }
    });
}

#[test]
fn who_cannot_be_believed_is_not_and_the_reason_is_told() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    let refuses = |server: &Path, of: &Address, why: &str| {
        let tls = ServerTls::open(server, false).unwrap();
        let what = serving(&memory(), &socket, &tls, || no_tls(of));
        assert!(what.contains(why), "{what:?} does not say {why:?}");
    };
    let ours = address(&socket, "root", pki.dir(), "");
    // Signed by somebody else.
    let other = Pki::new("localhost");
    refuses(other.dir(), &ours, "certificate is not believed");
    // For somebody else, and for us by another name.
    let elsewhere = pki.stranger("elsewhere");
    pki.signer.signs(&elsewhere, For::Server, "disks.example", 2090, 9);
    refuses(&elsewhere, &ours, "it is for another host");
    let named = address(&socket, "root", pki.dir(), "&tls-hostname=disks.example");
    let tls = ServerTls::open(&elsewhere, false).unwrap();
    serving(&memory(), &socket, &tls, || exercise(&try_open(&named).unwrap()));
    // Once, and not any more.
    let expired = pki.stranger("expired");
    pki.signer.signs(&expired, For::Server, "localhost", 2002, 10);
    refuses(&expired, &ours, "it has expired");
    // For clients, not for servers.
    let misused = pki.stranger("misused");
    pki.signer.signs(&misused, For::Client, "localhost", 2090, 11);
    for file in ["cert", "key"] {
        let (from, to) = (format!("client-{file}.pem"), format!("server-{file}.pem"));
        std::fs::rename(misused.join(from), misused.join(to)).unwrap();
    }
    refuses(&misused, &ours, "certificate is not believed");
    // Whoever wants to believe everybody does.
    let anybody = address(&socket, "root", pki.dir(), "&tls-verify-peer=false");
    let tls = ServerTls::open(&expired, false).unwrap();
    serving(&memory(), &socket, &tls, || exercise(&try_open(&anybody).unwrap()));
    // Taken back.
    let careful = pki.stranger("careful");
    pki.signer.revokes(&careful, 7);
    refuses(pki.dir(), &address(&socket, "root", &careful, ""), "it was revoked");
    // Nobody is believed for the reason that the system does.
    let text = format!("nbds+unix:///root?socket={}", socket.display());
    refuses(pki.dir(), &Address::parse(&text).unwrap(), "certificate is not believed");
}

#[test]
fn our_server_lets_in_only_whom_its_signer_knows() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    let refuses = |server: &Path, client: &Path| {
        let tls = ServerTls::open(server, true).unwrap();
        let of = address(&socket, "root", client, "");
        let what = serving(&memory(), &socket, &tls, || no_tls(&of));
        assert!(what.contains("certificate of this side"), "{what}");
    };
    let forged = pki.stranger("forged");
    Signer::new("a signer").signs(&forged, For::Client, "a client", 2090, 8);
    refuses(pki.dir(), &forged);
    let expired = pki.stranger("expired");
    pki.signer.signs(&expired, For::Client, "a client", 2002, 12);
    refuses(pki.dir(), &expired);
    let careful = pki.stranger("careful");
    pki.signer.signs(&careful, For::Server, "localhost", 2090, 13);
    pki.signer.revokes(&careful, 8);
    refuses(&careful, pki.dir());
}

#[test]
fn files_that_are_missing_or_no_certificates_are_named() {
    let pki = Pki::new("localhost");
    let said = |dir: &Path| {
        let address = address(Path::new("/nowhere"), "", dir, "");
        let error = try_open(&address).unwrap_err();
        assert!(matches!(error, NbdError::Certificates { .. }), "{error:?}");
        error.to_string()
    };
    let half = pki.stranger("half");
    std::fs::copy(pki.dir().join("client-cert.pem"), half.join("client-cert.pem")).unwrap();
    assert!(said(&half).contains("it has only one"), "{}", said(&half));
    assert!(said(&pki.dir().join("none")).contains("ca-cert.pem"));
    let wrong = pki.stranger("wrong");
    std::fs::write(wrong.join("ca-cert.pem"), "nothing\n").unwrap();
    assert!(said(&wrong).contains("there is no certificate in it"), "{}", said(&wrong));
    let mixed = pki.stranger("mixed");
    pki.signer.signs(&mixed, For::Server, "localhost", 2090, 14);
    std::fs::copy(pki.dir().join("server-key.pem"), mixed.join("server-key.pem")).unwrap();
    let error = ServerTls::open(&mixed, false).unwrap_err().to_string();
    assert!(error.contains("server-key.pem"), "{error}");
    std::fs::remove_file(mixed.join("ca-cert.pem")).unwrap();
    let error = ServerTls::open(&mixed, true).unwrap_err().to_string();
    assert!(error.contains("ca-cert.pem"), "{error}");
}

#[test]
fn after_a_lost_connection_tls_is_made_again_and_nothing_is_forgotten() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    let tls = ServerTls::open(pki.dir(), true).unwrap();
    let settings = Settings { tries: 8, ..Settings::default() };
    let client = serving(&memory(), &socket, &tls, || {
        let address = address(&socket, "root", pki.dir(), "");
        let client = NbdDevice::open(&address, false, settings).unwrap();
        client.write_at(0, &[2; 4096]).unwrap();
        client
    });
    // The files are not looked at again: a mount has none of them in its sandbox.
    for file in ["ca-cert.pem", "client-cert.pem", "client-key.pem"] {
        std::fs::remove_file(pki.dir().join(file)).unwrap();
    }
    let forgot = memory();
    serving(&forgot, &socket, &tls, || {
        client.flush().unwrap();
        assert!(client.reconnections() > 0);
    });
    let mut now = [0; 4096];
    forgot.read_at(0, &mut now).unwrap();
    assert_eq!(now, [2; 4096], "a flush that returned lies");
    // Another one that answers at the same place is not believed because the first was.
    let other = Pki::new("localhost");
    let tls = ServerTls::open(other.dir(), false).unwrap();
    serving(&memory(), &socket, &tls, || {
        let error = client.read_at(0, &mut [0; 512]).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("not believed"), "{cause}");
    });
}

/// Passes bytes on both ways, and cuts each connection after some of them.
fn relay(from: &UnixListener, to: &Path, random: &mut Prng, end: &AtomicBool) {
    from.set_nonblocking(true).unwrap();
    threads::scope(|scope| {
        while !end.load(Ordering::Acquire) {
            let Ok((near, _)) = from.accept() else {
                SystemClock.sleep(Duration::from_millis(2));
                continue;
            };
            near.set_nonblocking(false).unwrap();
            let Ok(far) = UnixStream::connect(to) else { continue };
            // A handshake is some 2000 bytes to each side.
            let budget = random.below(60_000) as usize;
            let ways = [
                (near.try_clone().unwrap(), far.try_clone().unwrap(), budget),
                (far, near, usize::MAX),
            ];
            for (mut from, mut to, mut left) in ways {
                let pass = move || {
                    let mut bytes = [0; 1000];
                    while left > 0 {
                        let most = left.min(bytes.len());
                        let Ok(count @ 1..) = from.read(&mut bytes[..most]) else { break };
                        if to.write_all(&bytes[..count]).is_err() {
                            break;
                        }
                        left -= count;
                    }
                    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
                };
                scope.spawn("relay", pass).unwrap();
            }
        }
    })
    .unwrap();
}

#[test]
fn connections_that_are_cut_anywhere_in_tls_lose_nothing() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let (near, far) = (dir.path().join("near"), dir.path().join("far"));
    let tls = ServerTls::open(pki.dir(), true).unwrap();
    let device = memory();
    let listener = UnixListener::bind(&near).unwrap();
    let end = AtomicBool::new(false);
    serving(&device, &far, &tls, || {
        threads::scope(|scope| {
            let relaying = || relay(&listener, &far, &mut Prng::new(11), &end);
            scope.spawn("relay", relaying).unwrap();
            let address = address(&near, "root", pki.dir(), "");
            let settings = Settings { limit: Duration::from_secs(20), tries: 12 };
            let client = (0..20).find_map(|_| NbdDevice::open(&address, false, settings).ok());
            let client = client.unwrap();
            let (mut random, mut wanted) = (Prng::new(12), vec![0u8; 64 << 10]);
            for number in 0..300u32 {
                let (at, len) = (random.below(60_000) as usize, 1 + random.below(4000) as usize);
                let fill = number as u8 | 1;
                client.write_at(at as u64, &vec![fill; len]).unwrap();
                wanted[at..at + len].fill(fill);
                let mut now = vec![0; len];
                client.read_at(at as u64, &mut now).unwrap();
                assert!(now == wanted[at..at + len], "{number}");
                if random.one_in(10) {
                    client.flush().unwrap();
                }
            }
            client.flush().unwrap();
            assert!(client.reconnections() > 5, "{}", client.reconnections());
            let mut now = vec![0; wanted.len()];
            device.read_at(0, &mut now).unwrap();
            assert!(now == wanted);
            drop(client);
            end.store(true, Ordering::Release);
        })
        .unwrap();
    });
}

const HELLO: &[u8] = b"NBDMAGICIHAVEOPT\x00\x03";

fn option_reply(option: u32, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = 0x0003_e889_0455_65a9u64.to_be_bytes().to_vec();
    for word in [option, kind, data.len() as u32] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(data);
    bytes
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// A client that wants TLS, at a server that says hello, then `says` to the wish for TLS, and then, every 50
/// milliseconds, one byte of `drips`. Why there is no TLS, and everything that the client sent.
fn liar(says: &[u8], drips: &[u8]) -> (String, Vec<u8>) {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    threads::scope(|scope| {
        let lie = || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            stream.write_all(HELLO).unwrap();
            // Flags, and the wish.
            let mut seen = vec![0; 4 + 16];
            stream.read_exact(&mut seen).unwrap();
            stream.write_all(says).unwrap();
            for byte in drips {
                SystemClock.sleep(Duration::from_millis(50));
                if stream.write_all(&[*byte]).is_err() {
                    break;
                }
            }
            let _ = stream.read_to_end(&mut seen);
            seen
        };
        let lying = scope.spawn("liar", lie).unwrap();
        let what = no_tls(&address(&socket, "secretname", pki.dir(), ""));
        (what, lying.join().unwrap())
    })
    .unwrap()
}

/// What was sent before TLS is the wish for it and nothing else.
fn is_silent(sent: &[u8]) {
    let wish = [&[0, 0, 0, 3][..], &option(5, &[])].concat();
    let rest = sent.strip_prefix(&wish[..]).unwrap();
    // A record of a handshake, if anything.
    assert!(rest.is_empty() || rest.starts_with(&[22, 3]), "{rest:?}");
    let tells = |what: &[u8]| rest.windows(what.len()).any(|part| part == what);
    assert!(!tells(b"secretname") && !tells(b"IHAVEOPT"), "{rest:?}");
}

#[test]
fn a_server_without_tls_is_not_spoken_with_in_plain_text_instead() {
    let error = 1 << 31;
    for (kind, why) in [(error | 1, "it has none"), (error | 2, "to give none"), (3, "0x3")] {
        let (what, sent) = liar(&option_reply(5, kind, b"never\n"), &[]);
        assert!(what.contains(why) && what.contains("never"), "{what}");
        is_silent(&sent);
        assert_eq!(sent.len(), 20);
    }
}

#[test]
fn what_comes_in_plain_text_behind_the_answer_is_no_answer_to_anything() {
    // What a server would say to the next two options, said too early by somebody between.
    let size = [&[0, 0][..], &SIZE.to_be_bytes(), &[0, 5]].concat();
    let injected = [
        option_reply(5, 1, &[]),
        option_reply(8, 1, &[]),
        option_reply(7, 3, &size),
        option_reply(7, 1, &[]),
    ];
    let (what, sent) = liar(&injected.concat(), &[]);
    assert!(what.contains("is no TLS"), "{what}");
    is_silent(&sent);
}

#[test]
fn a_handshake_that_does_not_end_is_an_error_in_bounded_time() {
    let agreed = option_reply(5, 1, &[]);
    // The head of a record that is never finished; then nothing, or a byte now and then.
    let record = [&[22, 3, 3, 0x3f, 0][..], &[2, 0, 0x3e, 0xff], &[3; 200]].concat();
    for drips in [&record[..0], &record[..3], &record[..]] {
        let start = SystemClock.monotonic();
        let (what, sent) = liar(&agreed, drips);
        let took = SystemClock.monotonic().saturating_sub(start);
        assert!(what.contains("did not finish the handshake within 1.5s"), "{what}");
        // The liar itself stops when nobody listens any more.
        assert!(took < Duration::from_secs(8), "{took:?}");
        is_silent(&sent);
    }
}

/// Says something to our server in plain text, and returns all that it answers behind its greeting.
fn tell(socket: &Path, says: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(&[&[0, 0, 0, 3][..], says].concat()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = Vec::new();
    // What was not read yet when the server went shows as a reset.
    let _ = stream.read_to_end(&mut answer);
    answer.strip_prefix(HELLO).unwrap().to_vec()
}

#[test]
fn without_tls_our_server_tells_nothing_but_that_it_wants_it() {
    let (pki, dir) = (Pki::new("localhost"), tempfile::tempdir().unwrap());
    let socket = dir.path().join("s");
    let tls = ServerTls::open(pki.dir(), false).unwrap();
    serving(&memory(), &socket, &tls, || {
        let error = try_open(&plain(&socket, "root")).unwrap_err();
        assert!(matches!(error, NbdError::NeedsTls { .. }), "{error:?}");
        let refused = (1u32 << 31) | 5;
        let (go, list) = (option(7, b"\0\0\0\x04root\0\0"), option(3, &[]));
        for (number, says) in [(7, go), (3, list), (8, option(8, &[])), (99, option(99, b"x"))] {
            let answer = tell(&socket, &says);
            let wanted = option_reply(number, refused, b"start TLS first");
            assert!(answer == wanted, "{number}: {answer:?}");
        }
        assert_eq!(tell(&socket, &option(1, b"root")), b"");
        assert_eq!(tell(&socket, &option(2, &[])), option_reply(2, 1, &[]));
        // Options in plain text behind the wish are no options.
        let injected = [option(5, &[]), option(3, &[])].concat();
        let answer = tell(&socket, &injected);
        let rest = answer.strip_prefix(&option_reply(5, 1, &[])[..]).unwrap();
        assert!(!rest.windows(4).any(|part| part == b"root"), "{rest:?}");
        // An alert of TLS, if anything.
        assert!(rest.is_empty() || rest[0] == 21, "{rest:?}");
        // A wish with something in it is none.
        let answer = tell(&socket, &option(5, b"now"));
        assert!(answer == option_reply(5, (1 << 31) | 3, &[]), "{answer:?}");
        // It goes on for others.
        exercise(&try_open(&address(&socket, "root", pki.dir(), "")).unwrap());
    });
    // Who asks a server without TLS for it is told so.
    let listening = Listening::Unix(UnixListener::bind(dir.path().join("p")).unwrap());
    let (device, end) = (memory(), AtomicBool::new(false));
    threads::scope(|scope| {
        let serve = || extant_nbd::serve(&device, "root", &listening, &end);
        scope.spawn("serve", serve).unwrap();
        let what = no_tls(&address(&dir.path().join("p"), "root", pki.dir(), ""));
        assert!(what.contains("to give none"), "{what}");
        end.store(true, Ordering::Release);
    })
    .unwrap();
}

#[test]
fn a_client_that_does_not_finish_the_handshake_is_no_trouble_for_others() {
    let (pki, listener) = (Pki::new("localhost"), TcpListener::bind("127.0.0.1:0").unwrap());
    let at = listener.local_addr().unwrap();
    let tls = ServerTls::open(pki.dir(), true).unwrap();
    serving_at(&memory(), &Listening::Tcp(listener), &tls, || {
        let mut idle: Vec<TcpStream> = (0..8).map(|_| TcpStream::connect(at).unwrap()).collect();
        for stream in &mut idle {
            stream.write_all(&[&[0, 0, 0, 3][..], &option(5, &[])].concat()).unwrap();
        }
        let dir = pki.dir().display();
        let text = format!("nbds://localhost:{}/root?tls-certificates={dir}", at.port());
        exercise(&try_open(&Address::parse(&text).unwrap()).unwrap());
        // The end of serving waits for clients in the middle of a handshake: they go first.
        drop(idle);
    });
}
