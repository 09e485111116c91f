//! Where an image is, and how its bytes lie there: a raw file or disk, a qcow2 image, an overlay.

pub(crate) mod rbd;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use extant_block::{BlockDevice, FileDevice, OpenError, SharedDevice};
use extant_http::{Account, DiskCache, HttpDevice, HttpError, ObjectAddress};
use extant_nbd::{Address, NbdDevice, NbdError, Settings};
use extant_qcow2::{Elsewhere, Format, How, Opened, Qcow2Error, overlay};

use crate::exit::{Exit, Failure, Result};
use crate::output::complain;
use crate::place::{is_address, is_object, is_rbd, is_web_address};
use crate::size::parse_bytes;
use crate::text::escape;

const SOURCE: &str = "Image";

/// How the bytes of an image lie in its file.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct SourceArgs {
    /// How the disk lies in the file: raw or qcow2.
    ///
    /// Found out when left out, by the contents; but what is qcow2 by its contents and not by its name
    /// (.qcow2) is not written, and not read if it lies over another image: in a raw image, whoever uses it
    /// could have written such a header.
    #[arg(long, value_name = "FORMAT", value_parser = format, help_heading = SOURCE)]
    pub(crate) format: Option<Format>,
    /// The disk as it was when this snapshot inside the qcow2 image was taken; for reading.
    #[arg(long, value_name = "NAME", conflicts_with = "overlay", help_heading = SOURCE)]
    pub(crate) snapshot: Option<String>,
    /// Changes go to FILE, a qcow2 image over the image, which itself is not written.
    ///
    /// FILE is made when it is first needed, and qemu reads it. Any number of overlays share one image, which may be
    /// at an address (nbd://, nbds://, http://, https://, s3://, rbd:).
    #[arg(long, value_name = "FILE", help_heading = SOURCE)]
    pub(crate) overlay: Option<PathBuf>,
    /// Images that a qcow2 image lies over may be in DIR, besides the image's own directory.
    #[arg(long = "backing-dir", value_name = "DIR", help_heading = SOURCE)]
    pub(crate) backing_dirs: Vec<PathBuf>,
    /// Keep what is read of images at http://, https:// and s3:// addresses in DIR, at most SIZE bytes (8G).
    ///
    /// Any number of processes share it, and EXTANT_CACHE says the same for all commands. What is kept counts for the
    /// version of the image that the server names by its entity tag; what was of no use for the longest time goes first.
    #[arg(long, value_name = "DIR[,SIZE]", value_parser = disk_cache, help_heading = SOURCE)]
    pub(crate) cache_dir: Option<DiskCache>,
    /// Ask for s3:// addresses without keys, as anybody may for public objects.
    #[arg(long, help_heading = SOURCE)]
    pub(crate) no_sign_request: bool,
    /// Whether all connections are made at once, because none can be made later.
    #[arg(skip)]
    pub(crate) is_lasting: bool,
}

/// Bytes of a cache whose size is not said.
const CACHE_BYTES: u64 = 8 << 30;

/// Fewest bytes that a cache has: some of the largest requests.
const CACHE_LEAST: u64 = 16 << 20;

/// Says what lies at an address.
fn kind(file: &Path) -> &'static str {
    if is_object(file) { "an object in a store" } else { "a file behind a web server" }
}

/// Reads `DIR[,SIZE]`.
fn disk_cache(text: &str) -> Result<DiskCache, String> {
    let (dir, most_bytes) = match text.rsplit_once(',') {
        Some((dir, size)) => (dir, parse_bytes(size)?),
        None => (text, CACHE_BYTES),
    };
    if dir.is_empty() {
        return Err("DIR[,SIZE]: the directory is missing".to_owned());
    }
    if most_bytes < CACHE_LEAST {
        return Err("a cache has at least 16M".to_owned());
    }
    // A mount goes elsewhere when it is in the background.
    let dir = std::path::absolute(dir).map_err(|error| error.to_string())?;
    Ok(DiskCache { dir, most_bytes })
}

/// Reads the cache that the environment names.
fn cache_of_environment() -> Result<Option<DiskCache>, Failure> {
    let Some(text) = std::env::var_os("EXTANT_CACHE").filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    let wrong = |what: &str| Failure::usage(format!("EXTANT_CACHE: {what}"));
    let text = text.to_str().ok_or_else(|| wrong("it is made of characters"))?;
    disk_cache(text).map(Some).map_err(|what| wrong(&what))
}

/// The characters of an address.
fn address_text(file: &Path) -> Result<&str, SourceError> {
    file.to_str().ok_or_else(|| {
        let name = escape(file.as_os_str().as_bytes());
        SourceError::Other(Failure::usage(format!("{name}: an address is made of characters")))
    })
}

pub(crate) fn format(word: &str) -> Result<Format, String> {
    Format::of_name(word).ok_or_else(|| "raw or qcow2".to_owned())
}

/// Why an image could not be opened as what it is.
#[derive(Debug)]
pub(crate) enum SourceError {
    /// The file could not.
    Open(OpenError),
    /// The rest.
    Other(Failure),
}

impl From<SourceError> for Failure {
    fn from(error: SourceError) -> Failure {
        match error {
            SourceError::Open(error) => error.into(),
            SourceError::Other(failure) => failure,
        }
    }
}

impl From<Qcow2Error> for SourceError {
    fn from(error: Qcow2Error) -> SourceError {
        match error {
            Qcow2Error::Open(error) => SourceError::Open(error),
            other => SourceError::Other(other.into()),
        }
    }
}

impl From<Qcow2Error> for Failure {
    fn from(error: Qcow2Error) -> Failure {
        let exit = match &error {
            Qcow2Error::Device(error) if error.is_full() => Exit::NoSpace,
            Qcow2Error::Open(_) | Qcow2Error::Device(_) => Exit::Io,
            Qcow2Error::Io { source, .. } => match source.kind() {
                std::io::ErrorKind::InvalidData => Exit::Image,
                _ => crate::fault::io_exit(source),
            },
            Qcow2Error::NotQcow2 { .. } | Qcow2Error::Damaged { .. } => Exit::Image,
            Qcow2Error::Unsupported { .. } => Exit::Unsupported,
            Qcow2Error::NoSnapshot { .. } => Exit::NotFound,
            _ => Exit::Refused,
        };
        let hint = match &error {
            Qcow2Error::NotQcow2 { .. } => Some("--format raw says that it is none"),
            Qcow2Error::Damaged { .. } => Some("qemu-img check tells more"),
            Qcow2Error::Doubtful { .. } => {
                Some("--format qcow2 says that it is one, --format raw that it is none")
            }
            Qcow2Error::NotWritable { what: "dirty", .. } => Some(
                "qemu-img check -r all repairs its reference counts; an overlay over it can be written",
            ),
            Qcow2Error::NotWritable { .. } => Some("an overlay over it can be written (--overlay)"),
            Qcow2Error::OtherBase { .. } => {
                Some("extant overlay rebase moves an overlay to another image")
            }
            Qcow2Error::Elsewhere { .. } => Some(
                "give the address, too: --overlay FILE ADDRESS, or with extant overlay commit and rebase --over ADDRESS",
            ),
            Qcow2Error::BaseChanged { .. } => Some(
                "what the overlay has makes sense over the old version only: get that back, or make a new overlay; extant overlay rebase --as-is goes by what is there now",
            ),
            Qcow2Error::ReadOnlyBase { .. } => Some(
                "download the base (curl -O, aws s3 cp), extant overlay rebase FILE --over ADDRESS --base COPY, then commit",
            ),
            _ => None,
        };
        if let Qcow2Error::Open(error) = error {
            return error.into();
        }
        let mut failure = Failure::caused(exit, "", &error);
        failure.hint = hint.map(str::to_owned);
        failure
    }
}

impl From<NbdError> for Failure {
    fn from(error: NbdError) -> Failure {
        let exit = match &error {
            NbdError::Address { .. } | NbdError::Certificates { .. } => Exit::Usage,
            NbdError::Refused { .. } => Exit::NotFound,
            NbdError::ReadOnly { .. } | NbdError::NoFlush { .. } | NbdError::NeedsTls { .. } => {
                Exit::Refused
            }
            _ => Exit::Io,
        };
        let failure = Failure::caused(exit, "", &error);
        match &error {
            NbdError::Refused { .. } => {
                failure.hint("nbdinfo --list shows the exports of a server")
            }
            NbdError::Tls { .. } | NbdError::NeedsTls { .. } => failure.hint(
                "?tls-certificates=DIR names a directory with ca-cert.pem, and with client-cert.pem and client-key.pem for a server that wants to know its clients",
            ),
            _ => failure,
        }
    }
}

impl From<HttpError> for Failure {
    fn from(error: HttpError) -> Failure {
        let (exit, hint) = match &error {
            HttpError::Address { .. } => (Exit::Usage, None),
            HttpError::Refused { status: 404 | 410, .. } | HttpError::Store { status: 404, .. } => {
                (Exit::NotFound, None)
            }
            HttpError::Account { .. } => (
                Exit::Usage,
                Some(
                    "keys are looked for as the aws command does: aws configure, or \
                     eval \"$(aws configure export-credentials --format env)\"; --no-sign-request does without",
                ),
            ),
            HttpError::Store { code, .. } if code == "ExpiredToken" => (
                Exit::Io,
                Some("eval \"$(aws configure export-credentials --format env)\" gets new ones"),
            ),
            HttpError::NoRanges { .. } => {
                (Exit::Unsupported, Some("download it, and give the file (curl -O)"))
            }
            HttpError::Untrusted { .. } => {
                let hint = "SSL_CERT_FILE=FILE names the certificates to believe (PEM), if the server is yours";
                (Exit::Io, Some(hint))
            }
            HttpError::Connect { .. } | HttpError::Refused { .. } => (Exit::Io, None),
            HttpError::Changed { .. } => (Exit::Io, Some("start again: it is another file now")),
            _ => (Exit::Io, None),
        };
        let failure = Failure::caused(exit, "", &error);
        match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        }
    }
}

/// Returns the address of an export as an overlay stores it, so that it leads there from any directory.
fn stored_address(
    file: &Path,
    device: &NbdDevice,
    overlay: Option<&Path>,
) -> Result<String, SourceError> {
    let given = device.describe();
    // Overlays made by extant until November 2026 may have it as it was given.
    let stored = overlay.and_then(|overlay| extant_qcow2::open_alone(overlay).ok()?.facts().ok());
    if stored.and_then(|facts| facts.backing).as_deref() == Some(&*given) {
        return Ok(given.to_string());
    }
    let other = |failure: Failure| SourceError::Other(failure);
    let directory = std::env::current_dir().map_err(|error| {
        other(Failure::caused(
            crate::fault::io_exit(&error),
            "the current directory has no name",
            &error,
        ))
    })?;
    let address = Address::parse(address_text(file)?).map_err(|error| other(error.into()))?;
    Ok(address.shown_from(&directory))
}

impl SourceArgs {
    fn how(&self, write: bool) -> How {
        How {
            write,
            format: self.format,
            snapshot: self.snapshot.clone(),
            backing_dirs: self.backing_dirs.clone(),
            elsewhere: None,
        }
    }

    /// Opens what the address of a file behind a web server leads to, for reading.
    fn web(&self, file: &Path) -> Result<Elsewhere, SourceError> {
        let other = |failure: Failure| SourceError::Other(failure);
        let text = address_text(file)?;
        let mut settings = extant_http::Settings::default();
        settings.disk_cache = match &self.cache_dir {
            Some(cache) => Some(cache.clone()),
            None => cache_of_environment().map_err(other)?,
        };
        let device = match is_object(file) {
            true => ObjectAddress::parse(text).and_then(|address| {
                let account = Account::from_environment(!self.no_sign_request)?;
                HttpDevice::open_object(&address, &account, &settings)
            }),
            false => extant_http::Address::parse(text)
                .and_then(|address| HttpDevice::open(&address, &settings)),
        };
        let device = device.map_err(|error| other(error.into()))?;
        let (address, version) = (device.describe().to_string(), device.version());
        let is_named_so = extant_qcow2::is_named_so(Path::new(&address));
        let format = match self.format {
            Some(format) => format,
            None => extant_qcow2::probe(&device)?,
        };
        let how = self.how(false);
        let device = extant_qcow2::open_on_device(Arc::new(device), is_named_so, &how)?;
        Ok(Elsewhere { address, device, format, version })
    }

    /// Refuses what makes no sense for a disk behind an address.
    fn check_raw(&self, file: &Path) -> Result<(), SourceError> {
        if self.snapshot.is_none() && self.format != Some(Format::Qcow2) {
            return Ok(());
        }
        let name = escape(file.as_os_str().as_bytes());
        let message = format!("{name}: what is behind an address is taken as a raw disk");
        let failure = Failure::new(Exit::Unsupported, message);
        Err(SourceError::Other(match is_rbd(file) {
            true => failure.hint("a snapshot of an image in a cluster is rbd:POOL/IMAGE@SNAP"),
            false => {
                failure.hint("extant serve nbd IMG serves qcow2 images and overlays as raw disks")
            }
        }))
    }

    /// Opens what the address of an NBD server leads to.
    fn remote(&self, file: &Path, write: bool) -> Result<Arc<NbdDevice>, SourceError> {
        let other = |failure: Failure| SourceError::Other(failure);
        let device = Address::parse(address_text(file)?)
            .and_then(|address| NbdDevice::open(&address, !write, Settings::default()));
        let device = device.map_err(|error| other(error.into()))?;
        if self.is_lasting {
            // From its sandbox a mount makes none.
            device.connect_all();
        }
        Ok(Arc::new(device))
    }

    /// Opens the image at an address, as what overlays lie over. `write`: the image itself is to be written. Of
    /// `overlay`, if that exists, the address is read by which it knows the image.
    pub(crate) fn elsewhere(
        &self,
        file: &Path,
        write: bool,
        overlay: Option<&Path>,
    ) -> Result<Elsewhere, SourceError> {
        if is_web_address(file) {
            return self.web(file);
        }
        self.check_raw(file)?;
        if is_rbd(file) {
            return rbd::open(file, write);
        }
        let device = self.remote(file, write)?;
        let version = format!("{} bytes", device.size_bytes());
        let address = stored_address(file, &device, overlay)?;
        Ok(Elsewhere { address, device, format: Format::Raw, version })
    }

    /// Opens the image at an address, or the overlay over it.
    fn at_address(&self, file: &Path, write: bool) -> Result<SharedDevice, SourceError> {
        let Some(over) = &self.overlay else {
            if write && is_web_address(file) {
                let name = escape(file.as_os_str().as_bytes());
                let message = format!("{name}: {} is only read", kind(file));
                let hint = match is_object(file) {
                    true => "write to an overlay (--overlay FILE), or download it (aws s3 cp)",
                    false => "write to an overlay (--overlay FILE), or download it (curl -O)",
                };
                let failure = Failure::new(Exit::Refused, message).hint(hint);
                return Err(SourceError::Other(failure));
            }
            return Ok(self.elsewhere(file, write, None)?.device);
        };
        let base = self.elsewhere(file, false, Some(over))?;
        if !write && !over.exists() {
            // Nothing was changed yet, so the image itself is what the overlay would show.
            return Ok(base.device);
        }
        let how = How { format: None, elsewhere: Some(base), ..self.how(write) };
        Ok(overlay::open_over_elsewhere(over, &how)?.into_device())
    }

    /// Opens the image.
    fn opened(&self, file: &Path, write: bool) -> Result<Opened, SourceError> {
        let how = self.how(write);
        let opened = match &self.overlay {
            Some(over) if write || over.exists() => overlay::open_over(over, file, &how)?,
            // Nothing was changed yet, so the image itself is what the overlay would show.
            _ => extant_qcow2::open(file, &how)?,
        };
        let is_told = self.overlay.is_some() || self.format.is_some();
        if matches!(opened, Opened::Qcow2(_)) && !is_told && !extant_qcow2::is_named_so(file) {
            let name = escape(file.as_os_str().as_bytes());
            complain(&format!("{name}: note: read as a qcow2 image, as its contents say"));
        }
        Ok(opened)
    }

    /// Opens the image for reading.
    pub(crate) fn open_read_only(&self, file: &Path) -> Result<SharedDevice, SourceError> {
        if is_address(file) {
            return self.at_address(file, false);
        }
        Ok(self.opened(file, false)?.into_device())
    }

    /// Opens the image, or the overlay over it, for changes.
    pub(crate) fn open_read_write(&self, file: &Path) -> Result<SharedDevice, SourceError> {
        if is_address(file) {
            return self.at_address(file, true);
        }
        Ok(self.opened(file, true)?.into_device())
    }

    /// Opens the image for a mount; `None` if it is a plain file or disk, whose opening is the mount's own.
    pub(crate) fn open_special(
        &self,
        file: &Path,
        write: bool,
    ) -> Result<Option<SharedDevice>, SourceError> {
        if is_address(file) {
            return SourceArgs { is_lasting: true, ..self.clone() }
                .at_address(file, write)
                .map(Some);
        }
        if !self.is_special(file) {
            return Ok(None);
        }
        match self.opened(file, write)? {
            Opened::Qcow2(image) => Ok(Some(image)),
            Opened::Raw(device) => {
                device.exclude_writers().map_err(SourceError::Open)?;
                Ok(Some(Arc::new(device)))
            }
        }
    }

    /// Returns whether `file` is anything but a plain file or disk. A file that cannot be read is none.
    pub(crate) fn is_special(&self, file: &Path) -> bool {
        if self.overlay.is_some() || self.snapshot.is_some() || is_address(file) {
            return true;
        }
        match self.format {
            Some(format) => format == Format::Qcow2,
            None => has_qcow2_header(file),
        }
    }

    /// The file that is written when the image in `file` is changed.
    pub(crate) fn written<'a>(&'a self, file: &'a Path) -> &'a Path {
        self.overlay.as_deref().unwrap_or(file)
    }
}

/// Tells whether a file begins as a qcow2 image does. One that cannot be read does not.
pub(crate) fn has_qcow2_header(file: &Path) -> bool {
    FileDevice::open_read_only(file)
        .is_ok_and(|device| extant_qcow2::probe(&device).is_ok_and(|found| found == Format::Qcow2))
}
