//! A connection in records of TLS.

use std::io::{self, BufRead, Read, Write};

use extant_base::sabotage;
use rustls::{AlertDescription, CertificateError, Connection, Error};

use crate::stream::Stream;

/// One side of TLS over a [`Stream`].
pub(crate) struct Session {
    connection: Connection,
    /// Something went out in part. The rest must never follow: it would complete what counts as not sent.
    is_broken: bool,
}

impl Session {
    /// Shakes hands.
    pub(super) fn start(connection: Connection, stream: &mut Stream) -> io::Result<Session> {
        let mut session = Session { connection, is_broken: false };
        while session.connection.is_handshaking() {
            session.push_out(stream)?;
            if session.connection.is_handshaking() && session.fill(stream)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        session.push_out(stream)?;
        Ok(session)
    }

    fn push_out(&mut self, stream: &mut Stream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(stream) {
                Ok(0) => {
                    self.is_broken = true;
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.is_broken = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes what comes; 0 when the connection has ended.
    fn fill(&mut self, stream: &mut Stream) -> io::Result<usize> {
        // Who is gone may have said why before.
        let sent = match self.is_broken {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => self.push_out(stream),
        };
        if let Err(error) = sent
            && !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
        {
            return Err(error);
        }
        let count = self.connection.read_tls(stream)?;
        if let Err(error) = self.connection.process_new_packets() {
            // The other side is told why, if it still listens.
            let _ = self.push_out(stream);
            self.is_broken = true;
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(count)
    }

    pub(crate) fn read(&mut self, stream: &mut Stream, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(out) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            self.fill(stream)?;
        }
    }

    /// Returns 0 when nothing more comes; takes nothing.
    pub(crate) fn peek(&mut self, stream: &mut Stream) -> io::Result<usize> {
        loop {
            match self.connection.reader().fill_buf() {
                Ok(bytes) => return Ok(bytes.len()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                Err(error) => return Err(error),
            }
            self.fill(stream)?;
        }
    }

    pub(crate) fn send(
        &mut self,
        stream: &mut Stream,
        head: &[u8],
        payload: &[u8],
    ) -> io::Result<()> {
        for part in [head, payload] {
            let mut rest = part;
            while !rest.is_empty() {
                let count = self.connection.writer().write(rest)?;
                if count == 0 && !self.connection.wants_write() {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                rest = rest.get(count..).unwrap_or_default();
                if !rest.is_empty() {
                    // As much waits to go out as may.
                    self.push_out(stream)?;
                }
            }
        }
        self.push_out(stream)
    }

    /// Says that nothing more comes. Nobody waits for an answer.
    pub(crate) fn end(&mut self, stream: &mut Stream) {
        if !self.is_broken || sabotage("nbd.tls.rest-follows") {
            self.connection.send_close_notify();
            let _ = self.push_out(stream);
            self.is_broken = true;
        }
    }
}

/// Says what is wrong about TLS, if that is why something failed.
pub(crate) fn explain(error: &io::Error) -> Option<String> {
    let error: &Error = error.get_ref()?.downcast_ref()?;
    Some(match error {
        Error::InvalidCertificate(wrong) => {
            format!("its certificate is not believed: {}", doubt(wrong))
        }
        Error::NoCertificatesPresented => "it shows no certificate".to_owned(),
        Error::InvalidMessage(_) | Error::InappropriateMessage { .. } | Error::DecryptError => {
            format!("what it sends is no TLS, or was changed on the way ({error})")
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::CertificateRequired => {
                "it wants a certificate of this side, and was shown none".to_owned()
            }
            AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::DecryptError
            | AlertDescription::AccessDenied => {
                format!("it does not believe the certificate of this side ({alert:?})")
            }
            alert => format!("it ended TLS: {alert:?}"),
        },
        error => error.to_string(),
    })
}

fn doubt(wrong: &CertificateError) -> String {
    use CertificateError as Wrong;
    match wrong {
        Wrong::UnknownIssuer => "nobody who is trusted signed it".to_owned(),
        Wrong::BadSignature => "the signature on it is wrong".to_owned(),
        Wrong::Expired | Wrong::ExpiredContext { .. } => "it has expired".to_owned(),
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        Wrong::Revoked => "it was revoked".to_owned(),
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
            "it is for another host".to_owned()
        }
        wrong => wrong.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use extant_sync::threads;
    use rustls::crypto::ring;
    use rustls::{ClientConfig, RootCertStore, ServerConfig};

    use super::*;
    use crate::stream::Kind;

    /// Both ends of a connection, and the server's socket.
    fn pair() -> ((Session, Stream), Session, UnixStream) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = made.signing_key.serialize_der().try_into().unwrap();
        let provider = || Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider());
        let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
        let mut server = server.with_single_cert(vec![made.cert.der().clone()], key).unwrap();
        // What nobody reads would be a reset in place of an end.
        server.send_tls13_tickets = 0;
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider());
        let client = client.with_safe_default_protocol_versions().unwrap();
        let client = client.with_root_certificates(roots).with_no_client_auth();
        let name = "localhost".try_into().unwrap();
        let client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
        let (here, there) = UnixStream::pair().unwrap();
        here.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
        let mut far = Stream::new(Kind::Unix(there.try_clone().unwrap()));
        let mut near = Stream::new(Kind::Unix(here));
        let (client, server) = threads::scope(|scope| {
            let serving =
                scope.spawn("server", || Session::start(server.into(), &mut far).unwrap()).unwrap();
            (Session::start(client.into(), &mut near).unwrap(), serving.join().unwrap())
        })
        .unwrap();
        ((client, near), server, there)
    }

    /// Takes what has come.
    fn taken(from: &mut UnixStream) -> usize {
        from.set_nonblocking(true).unwrap();
        let (mut bytes, mut all) = (vec![0; 1 << 16], 0);
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            all += count;
        }
        all
    }

    #[test]
    fn the_rest_of_what_went_out_in_part_never_follows() {
        let ((mut session, mut stream), _server, mut there) = pair();
        let payload = vec![7; 8 << 20];
        session.send(&mut stream, &[1; 28], &payload).unwrap_err();
        assert!((1..payload.len()).contains(&taken(&mut there)));
        session.end(&mut stream);
        assert_eq!(
            taken(&mut there),
            0,
            "the server got more of a request that counts as not sent"
        );
    }

    #[test]
    fn an_end_is_told_from_a_connection_that_is_cut() {
        for is_told in [true, false] {
            let ((mut session, mut stream), mut server, there) = pair();
            session.send(&mut stream, b"head", b"payload").unwrap();
            if is_told {
                session.end(&mut stream);
            }
            drop(stream);
            let mut there = Stream::new(Kind::Unix(there));
            assert_eq!(server.peek(&mut there).unwrap(), 4);
            let (mut all, mut buffer) = (Vec::new(), [0; 64]);
            let end = loop {
                match server.read(&mut there, &mut buffer) {
                    Ok(0) => break Ok(()),
                    Ok(count) => all.extend_from_slice(&buffer[..count]),
                    Err(error) => break Err(error.kind()),
                }
            };
            assert_eq!(all, b"headpayload");
            assert_eq!(end, if is_told { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof) });
            // Who waits for the next request hears of an end either way.
            assert_eq!(server.peek(&mut there).unwrap(), 0);
        }
    }
}
