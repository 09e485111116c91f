//! The client's side: whom it believes, and what it shows.

use std::io;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, Error, SignatureScheme};

use super::files::{CA_CERT, certificates, key, revoked, signers, signers_of_system};
use super::session::Session;
use crate::address::{At, Secret};
use crate::stream::Stream;

const CERT: &str = "client-cert.pem";
const KEY: &str = "client-key.pem";

/// Makes sessions with one server. Its files are read once, so that connections can be made where there are none.
pub(crate) struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
    /// Whether a certificate can be shown to a server that asks.
    pub(crate) has_certificate: bool,
}

impl Connector {
    pub(crate) fn new(at: &At, secret: &Secret) -> Result<Connector, String> {
        let host = match (&secret.hostname, at) {
            (Some(name), _) => name.as_str(),
            (None, At::Host(name, _)) => name.as_str(),
            (None, At::Socket(_)) => "localhost",
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| {
            format!("{host:?} is no name that a certificate can be for: tls-hostname=NAME")
        })?;
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let builder = if secret.verify_peer {
            let (roots, revoked) = match &secret.certificates {
                Some(dir) => (signers(&dir.join(CA_CERT))?, revoked(dir)?),
                None => (signers_of_system()?, Vec::new()),
            };
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
                .with_crls(revoked)
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| error.to_string())?;
            builder.with_webpki_verifier(verifier)
        } else {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
        };
        let own = match &secret.certificates {
            Some(dir) => {
                let (cert, key_file) = (dir.join(CERT), dir.join(KEY));
                match (cert.exists(), key_file.exists()) {
                    (true, true) => Some((certificates(&cert)?, key(&key_file)?)),
                    (false, false) => None,
                    _ => {
                        let dir = dir.display();
                        return Err(format!("{dir}: of {CERT} and {KEY}, it has only one"));
                    }
                }
            }
            None => None,
        };
        let has_certificate = own.is_some();
        let mut config = match own {
            Some((chain, key)) => builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| format!("{CERT} and {KEY}: {error}"))?,
            None => builder.with_no_client_auth(),
        };
        // Each new connection looks at the certificate again.
        config.resumption = Resumption::disabled();
        Ok(Connector { config: Arc::new(config), name, has_certificate })
    }

    pub(crate) fn start(&self, stream: &mut Stream) -> io::Result<Session> {
        let connection = ClientConnection::new(Arc::clone(&self.config), self.name.clone())
            .map_err(io::Error::other)?;
        Session::start(connection.into(), stream)
    }
}

/// Believes every certificate, whose key the other side must have all the same.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
