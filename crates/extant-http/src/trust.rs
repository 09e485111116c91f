//! Whose certificates are believed.

use std::path::{Path, PathBuf};

use ureq::tls::{Certificate, PemItem, RootCerts, parse_pem};

/// Where Linux distributions keep the certificates that the system trusts.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Limit in bytes of a bundle that is read.
const BUNDLE_MOST: u64 = 16 << 20;

/// Returns the certificates in the file that `SSL_CERT_FILE` names, or else those that the system
/// trusts, or else those that came with the program.
pub(crate) fn roots() -> RootCerts {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut places = named.into_iter().chain(BUNDLES.map(PathBuf::from));
    places.find_map(|place| bundle(&place)).unwrap_or(RootCerts::WebPki)
}

/// Returns the certificates in a file; `None` if there are none.
fn bundle(place: &Path) -> Option<RootCerts> {
    if std::fs::metadata(place).ok()?.len() > BUNDLE_MOST {
        return None;
    }
    let bytes = std::fs::read(place).ok()?;
    let all: Vec<Certificate<'static>> = parse_pem(&bytes)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    (!all.is_empty()).then(|| RootCerts::new_with_certs(&all))
}
