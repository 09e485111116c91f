//! Signers, and what they sign, in directories as the programs of NBD want them.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, date_time_ymd,
};

/// Who a certificate is for.
#[derive(Clone, Copy)]
pub(crate) enum For {
    Server,
    Client,
}

pub(crate) struct Signer {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Signer {
    pub(crate) fn new(name: &str) -> Signer {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let pem = params.self_signed(&key).unwrap().pem();
        Signer { issuer: Issuer::new(params, key), pem }
    }

    /// Says in `dir` that this signer is believed.
    pub(crate) fn is_believed(&self, dir: &Path) {
        std::fs::write(dir.join("ca-cert.pem"), &self.pem).unwrap();
    }

    /// Puts a certificate and its key for `name` into `dir`.
    pub(crate) fn signs(&self, dir: &Path, whom: For, name: &str, last_year: i32, number: u64) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.serial_number = Some(SerialNumber::from(number));
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let (usage, file) = match whom {
            For::Server => (ExtendedKeyUsagePurpose::ServerAuth, "server"),
            For::Client => (ExtendedKeyUsagePurpose::ClientAuth, "client"),
        };
        params.extended_key_usages = vec![usage];
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(dir.join(format!("{file}-cert.pem")), cert.pem()).unwrap();
        std::fs::write(dir.join(format!("{file}-key.pem")), key.serialize_pem()).unwrap();
    }

    /// Takes back what it signed under a number.
    pub(crate) fn revokes(&self, dir: &Path, number: u64) {
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1u64),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from(number),
                revocation_time: date_time_ymd(2020, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        std::fs::write(dir.join("ca-crl.pem"), list.pem().unwrap()).unwrap();
    }
}

/// A server and a client who know each other, with all files in one directory.
pub(crate) struct Pki {
    dir: tempfile::TempDir,
    pub(crate) signer: Signer,
}

impl Pki {
    /// For a server of the name `host`.
    pub(crate) fn new(host: &str) -> Pki {
        let (dir, signer) = (tempfile::tempdir().unwrap(), Signer::new("a signer"));
        signer.is_believed(dir.path());
        signer.signs(dir.path(), For::Server, host, 2090, 7);
        signer.signs(dir.path(), For::Client, "a client", 2090, 8);
        Pki { dir, signer }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A directory that only knows whom to believe.
    pub(crate) fn stranger(&self, name: &str) -> PathBuf {
        let dir = self.dir.path().join(name);
        std::fs::create_dir_all(&dir).unwrap();
        self.signer.is_believed(&dir);
        dir
    }
}
