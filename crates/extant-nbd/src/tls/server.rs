//! The server's side: what it shows, and whom it lets in.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{ServerConfig, ServerConnection};

use super::files::{CA_CERT, certificates, key, revoked, signers};
use super::session::Session;
use crate::error::NbdError;
use crate::stream::Stream;

const CERT: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// The certificate of a server, and whose certificates it wants to see.
pub struct ServerTls(Arc<ServerConfig>);

impl ServerTls {
    /// Reads `server-cert.pem` and `server-key.pem` in `dir`. With `verify_peer`, only clients come in that have a
    /// certificate which somebody in `ca-cert.pem` signed, and which no list in `ca-crl.pem` has, if there is that
    /// file.
    ///
    /// # Errors
    ///
    /// [`NbdError::Certificates`].
    pub fn open(dir: &Path, verify_peer: bool) -> Result<ServerTls, NbdError> {
        let config = config(dir, verify_peer).map_err(|what| NbdError::Certificates { what })?;
        Ok(ServerTls(Arc::new(config)))
    }

    pub(crate) fn start(&self, stream: &mut Stream) -> io::Result<Session> {
        let connection = ServerConnection::new(Arc::clone(&self.0)).map_err(io::Error::other)?;
        Session::start(connection.into(), stream)
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls").finish_non_exhaustive()
    }
}

fn config(dir: &Path, verify_peer: bool) -> Result<ServerConfig, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = match verify_peer {
        true => {
            let roots = Arc::new(signers(&dir.join(CA_CERT))?);
            let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider)
                .with_crls(revoked(dir)?)
                .only_check_end_entity_revocation()
                .allow_unknown_revocation_status()
                .build()
                .map_err(|error| format!("{}: {error}", dir.join(CA_CERT).display()))?;
            builder.with_client_cert_verifier(verifier)
        }
        false => builder.with_no_client_auth(),
    };
    let mut config = builder
        .with_single_cert(certificates(&dir.join(CERT))?, key(&dir.join(KEY))?)
        .map_err(|error| format!("{CERT} and {KEY} in {}: {error}", dir.display()))?;
    // Each connection shows its certificate again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
