//! Platforms of images.

use std::fmt;
use std::str::FromStr;

/// Operating system, architecture and variant, in the words that images use: `linux/arm64/v8`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Platform {
    /// The operating system: `linux`.
    pub os: String,
    /// The architecture: `amd64`, `arm64`, `riscv64`.
    pub architecture: String,
    /// The variant, where the architecture has some: `v7`.
    pub variant: Option<String>,
}

impl Platform {
    /// Linux on the processor that this program was made for.
    pub fn host() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Platform { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    /// Returns whether an image for `self` is what was asked for as `wanted`. A variant that was not asked for may be
    /// any.
    pub fn is(&self, wanted: &Platform) -> bool {
        let variant = |platform: &Platform| match (&platform.variant, &*platform.architecture) {
            // The one that all of them have.
            (None, "arm64") => Some("v8".to_owned()),
            (variant, _) => variant.clone(),
        };
        self.os == wanted.os
            && self.architecture == wanted.architecture
            && (wanted.variant.is_none() || variant(self) == variant(wanted))
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        match &self.variant {
            Some(variant) => write!(f, "/{variant}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Platform {
    type Err = String;

    /// `OS/ARCHITECTURE[/VARIANT]`, or an architecture of Linux alone.
    fn from_str(text: &str) -> Result<Platform, String> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match *parts.as_slice() {
            [architecture] => ("linux", architecture, None),
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => ("", "", None),
        };
        let word = |word: &str| {
            !word.is_empty()
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
        };
        if ![os, architecture].into_iter().chain(variant).all(word) {
            return Err(
                "a platform is OS/ARCHITECTURE or OS/ARCHITECTURE/VARIANT: linux/arm64".into()
            );
        }
        // As uname and compilers call them.
        let architecture = match architecture {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let (os, architecture) = (os.to_owned(), architecture.to_owned());
        Ok(Platform { os, architecture, variant: variant.map(str::to_owned) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variants_count_only_where_one_is_asked_for() {
        let platform = |text: &str| text.parse::<Platform>().unwrap();
        for (have, wanted, is) in [
            ("linux/arm64/v8", "linux/arm64", true),
            ("linux/arm64", "arm64/v8", false),
            ("linux/arm64", "linux/arm64/v8", true),
            ("linux/arm/v6", "linux/arm/v7", false),
            ("linux/arm/v6", "linux/arm", true),
            ("linux/amd64", "linux/x86_64", true),
            ("windows/amd64", "linux/amd64", false),
        ] {
            assert_eq!(platform(have).is(&platform(wanted)), is, "{have} {wanted}");
        }
        for bad in ["", "/", "linux/", "a/b/c/d", "linux/am d"] {
            assert!(bad.parse::<Platform>().is_err(), "{bad}");
        }
    }
}
