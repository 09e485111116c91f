//! Images in Ceph clusters.

use std::ffi::OsString;
use std::path::Path;

use extant_qcow2::Elsewhere;

use crate::exit::{Exit, Failure};
use crate::source::SourceError;

/// The name that everybody may see: without a password.
#[cfg(feature = "rbd")]
pub(crate) fn shown(file: &Path) -> OsString {
    let address = file.to_str().map(extant_rbd::Address::parse);
    address.and_then(Result::ok).map_or("rbd".into(), |address| address.to_string().into())
}

/// The name that everybody may see. What could be a password is left out with all the rest.
#[cfg(not(feature = "rbd"))]
pub(crate) fn shown(_: &Path) -> OsString {
    "rbd".into()
}

/// Opens an image in a cluster.
#[cfg(feature = "rbd")]
pub(crate) fn open(file: &Path, write: bool) -> Result<Elsewhere, SourceError> {
    use std::sync::Arc;

    use extant_block::BlockDevice as _;
    use extant_qcow2::Format;
    use extant_rbd::{Address, RbdDevice, Settings};

    use crate::output::complain;
    use crate::text::escape;

    let device = Address::parse(super::address_text(file)?)
        .and_then(|address| RbdDevice::open(&address, !write, &Settings::default()));
    let device = device.map_err(|error| SourceError::Other(error.into()))?;
    let (address, version) = (device.describe().to_string(), device.version());
    if write && !device.is_locked() {
        let name = escape(address.as_bytes());
        complain(&format!(
            "{name}: note: the image has not the feature exclusive-lock: nothing keeps others from writing it meanwhile"
        ));
    }
    Ok(Elsewhere { address, device: Arc::new(device), format: Format::Raw, version })
}

/// Says that this command cannot.
#[cfg(not(feature = "rbd"))]
pub(crate) fn open(file: &Path, _: bool) -> Result<Elsewhere, SourceError> {
    let name = crate::text::escape(file.as_os_str().as_encoded_bytes());
    let message = format!("{name}: this command was built without Ceph (feature rbd)");
    Err(SourceError::Other(Failure::new(Exit::Unsupported, message)))
}

#[cfg(feature = "rbd")]
impl From<extant_rbd::RbdError> for Failure {
    fn from(error: extant_rbd::RbdError) -> Failure {
        use extant_rbd::RbdError;
        let (exit, hint) = match &error {
            RbdError::Address { .. } => (Exit::Usage, None),
            RbdError::Library { package, .. } => {
                (Exit::Unsupported, Some(format!("apt-get install {package}")))
            }
            RbdError::Static { .. } => {
                let hint = "build it here: make install, or cargo install --path crates/extant-cli";
                (Exit::Unsupported, Some(hint.to_owned()))
            }
            RbdError::Option { .. } => (Exit::Usage, None),
            RbdError::NotFound { what: "pool", .. } => {
                (Exit::NotFound, Some("ceph osd pool ls shows the pools".to_owned()))
            }
            RbdError::NotFound { what: "snapshot", .. } => {
                (Exit::NotFound, Some("rbd snap ls POOL/IMAGE shows the snapshots".to_owned()))
            }
            RbdError::NotFound { .. } => {
                (Exit::NotFound, Some("rbd ls POOL shows the images".to_owned()))
            }
            RbdError::Locked { .. } => {
                let hint = "end that client, or write to an overlay (--overlay FILE); one that was killed counts as alive for 30 seconds more";
                (Exit::Refused, Some(hint.to_owned()))
            }
            RbdError::Snapshot { .. } => {
                let hint = "write to an overlay (--overlay FILE), or to the image itself";
                (Exit::Refused, Some(hint.to_owned()))
            }
            RbdError::MayNotWrite { id, .. } => {
                let hint = format!(
                    "ceph auth get client.{id} shows what it may (profile rbd writes); or write to an overlay (--overlay FILE)"
                );
                (Exit::Refused, Some(hint))
            }
            RbdError::Connect { id, .. } => {
                let hint = format!("ceph -s --id {id} asks the same cluster");
                (Exit::Io, Some(hint))
            }
            RbdError::Ceph { source, .. }
                if matches!(
                    source.kind(),
                    std::io::ErrorKind::TimedOut
                        | std::io::ErrorKind::StorageFull
                        | std::io::ErrorKind::QuotaExceeded
                ) =>
            {
                let hint = "ceph health detail says what the cluster waits for: a pool that is full takes no writes";
                (Exit::Io, Some(hint.to_owned()))
            }
            _ => (Exit::Io, None),
        };
        let mut failure = Failure::caused(exit, "", &error);
        failure.hint = hint;
        failure
    }
}
