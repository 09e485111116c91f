//! Types that can be used as a path or a name inside an image.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

mod sealed {
    pub trait Sealed {}
}

/// A path, or one name of a path, inside an image: a string, bytes, or a path type of `std`.
///
/// ext4 stores names as bytes, so bytes can express every name; a `str` expresses those that are
/// UTF-8. Every function of this crate that takes a path or a name takes anything that implements
/// this trait:
///
/// ```
/// # fn show(fs: &extant::Fs) -> extant::Result<()> {
/// use std::ffi::OsStr;
/// use std::path::Path;
/// fs.metadata("/etc/passwd")?;
/// fs.metadata(Path::new("/etc").join("passwd"))?;
/// fs.metadata(OsStr::new("/etc/passwd"))?;
/// fs.metadata(b"/srv/caf\xe9")?; // Latin-1, which is not valid UTF-8.
/// # Ok(())
/// # }
/// ```
///
/// The trait is sealed: other crates cannot implement it.
pub trait ImagePath: sealed::Sealed {
    /// Returns the bytes that the image stores.
    fn image_bytes(&self) -> &[u8];
}

macro_rules! image_path {
    ($($kind:ty, $this:ident => $bytes:expr;)*) => {$(
        impl sealed::Sealed for $kind {}

        impl ImagePath for $kind {
            fn image_bytes(&self) -> &[u8] {
                let $this = self;
                $bytes
            }
        }
    )*};
}

image_path! {
    str, this => this.as_bytes();
    String, this => this.as_bytes();
    [u8], this => this;
    Vec<u8>, this => this;
    Box<[u8]>, this => this;
    Cow<'_, [u8]>, this => this;
    Cow<'_, str>, this => this.as_bytes();
    OsStr, this => this.as_encoded_bytes();
    OsString, this => this.as_encoded_bytes();
    Path, this => this.as_os_str().as_encoded_bytes();
    PathBuf, this => this.as_os_str().as_encoded_bytes();
}

impl<const N: usize> sealed::Sealed for [u8; N] {}

impl<const N: usize> ImagePath for [u8; N] {
    fn image_bytes(&self) -> &[u8] {
        self
    }
}

impl<T: ImagePath + ?Sized> sealed::Sealed for &T {}

impl<T: ImagePath + ?Sized> ImagePath for &T {
    fn image_bytes(&self) -> &[u8] {
        (**self).image_bytes()
    }
}
