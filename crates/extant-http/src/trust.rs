//! Whose certificates are believed.

use std::io;
use std::path::Path;

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
///
/// Whoever names a file wants no others: if it has none, none are believed.
pub(crate) fn roots() -> RootCerts {
    match std::env::var_os("SSL_CERT_FILE").filter(|name| !name.is_empty()) {
        Some(name) => bundle(Path::new(&name)).unwrap_or(RootCerts::new_with_certs(&[])),
        None => {
            let found = BUNDLES.iter().find_map(|place| bundle(Path::new(place)));
            found.unwrap_or(RootCerts::WebPki)
        }
    }
}

/// Returns what is wrong with a certificate, if that is why a connection failed.
pub(crate) fn doubt(error: &io::Error) -> Option<String> {
    use rustls::CertificateError as Wrong;
    let rustls::Error::InvalidCertificate(wrong) = error.get_ref()?.downcast_ref()? else {
        return None;
    };
    Some(match wrong {
        Wrong::UnknownIssuer => "nobody who is trusted signed it".to_owned(),
        Wrong::BadSignature => "the signature on it is wrong".to_owned(),
        Wrong::Expired | Wrong::ExpiredContext { .. } => "it has expired".to_owned(),
        Wrong::NotValidYet | Wrong::NotValidYetContext { .. } => "it is not valid yet".to_owned(),
        Wrong::NotValidForName | Wrong::NotValidForNameContext { .. } => {
            "it is for another host".to_owned()
        }
        wrong => wrong.to_string(),
    })
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
