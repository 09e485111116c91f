//! Certificates and keys in files.

use std::io::{self, Read};
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Who signs certificates that are believed.
pub(super) const CA_CERT: &str = "ca-cert.pem";
/// Certificates that are not believed any more.
pub(super) const CA_CRL: &str = "ca-crl.pem";

/// Longest file that is read, in bytes: a system's whole bundle is a quarter of a mebibyte.
const FILE_MOST: u64 = 16 << 20;

/// Where Linux distributions keep the certificates that the system trusts.
const BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

fn read(path: &Path) -> Result<Vec<u8>, String> {
    let named = |error: io::Error| format!("{}: {error}", path.display());
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(named)?;
    file.take(FILE_MOST + 1).read_to_end(&mut bytes).map_err(named)?;
    if bytes.len() as u64 > FILE_MOST {
        return Err(format!("{}: longer than {FILE_MOST} bytes", path.display()));
    }
    Ok(bytes)
}

/// The certificates in a file, at least one.
pub(super) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&read(path)?).collect();
    let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
    match found.is_empty() {
        true => Err(format!("{}: there is no certificate in it", path.display())),
        false => Ok(found),
    }
}

/// The one private key in a file.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let bytes = zeroize::Zeroizing::new(read(path)?);
    PrivateKeyDer::from_pem_slice(&bytes)
        .map_err(|error| format!("{}: no private key: {error}", path.display()))
}

/// What was taken back, if `dir` has a list of it.
pub(super) fn revoked(dir: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>, String> {
    let path = dir.join(CA_CRL);
    if !path.exists() {
        return Ok(Vec::new());
    }
    let found: Result<Vec<_>, _> =
        CertificateRevocationListDer::pem_slice_iter(&read(&path)?).collect();
    let found = found.map_err(|error| format!("{}: {error}", path.display()))?;
    match found.is_empty() {
        true => Err(format!("{}: there is no revocation list in it", path.display())),
        false => Ok(found),
    }
}

/// The signers in the file `path`.
pub(super) fn signers(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(roots)
}

/// The signers in the file that `SSL_CERT_FILE` names, or else those that the system trusts.
pub(super) fn signers_of_system() -> Result<RootCertStore, String> {
    let named = std::env::var_os("SSL_CERT_FILE").filter(|name| !name.is_empty());
    let path = match &named {
        Some(name) => Path::new(name),
        None => BUNDLES.iter().map(Path::new).find(|path| path.exists()).ok_or(
            "this system has no certificates that it trusts, and the address names none: tls-certificates=DIR",
        )?,
    };
    let mut roots = RootCertStore::empty();
    // Among those of a system are some that no program understands.
    roots.add_parsable_certificates(certificates(path)?);
    Ok(roots)
}
