//! What a job was told.

/// The way of reading and writing files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// Through the cache, by calls that wait.
    Buffered,
    /// Past the cache, with the rules of direct I/O, by calls that wait.
    Direct,
    /// Through the cache, by a ring: what would wait goes to a worker, and fio goes on.
    Ring,
}

/// The moment at which writes are durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durable {
    /// When fio syncs (`fsync=`, `fdatasync=`).
    Later,
    /// Each when it is done, with what is needed to read it back.
    Data,
    /// Each when it is done, with all attributes.
    Full,
}

/// Options of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Options {
    /// Path of the image on the host.
    pub(crate) image: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) durable: Durable,
    /// Of the page cache; 0 for the default.
    pub(crate) cache_mib: u32,
}

impl Options {
    /// Options of the texts that fio has, which are missing where nothing was said.
    pub(crate) fn of(
        image: Option<&[u8]>,
        mode: Option<&[u8]>,
        durable: Option<&[u8]>,
        cache_mib: u32,
    ) -> Result<Options, String> {
        let image = image.filter(|image| !image.is_empty());
        let image =
            image.ok_or("no image: give image=PATH, a file or disk with an ext4 file system")?;
        let mode = match mode.unwrap_or(b"buffered") {
            b"buffered" => Mode::Buffered,
            b"direct" => Mode::Direct,
            b"ring" => Mode::Ring,
            other => {
                let other = other.escape_ascii();
                return Err(format!("mode={other}: it is buffered, direct or ring"));
            }
        };
        let durable = match durable.unwrap_or(b"later") {
            b"later" => Durable::Later,
            b"data" => Durable::Data,
            b"full" => Durable::Full,
            other => {
                let other = other.escape_ascii();
                return Err(format!("durable={other}: it is later, data or full"));
            }
        };
        if mode == Mode::Ring && durable != Durable::Later {
            return Err(
                "mode=ring goes with durable=later: syncs are operations of the ring".into()
            );
        }
        Ok(Options { image: image.to_vec(), mode, durable, cache_mib })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused_and_named() {
        let options = Options::of(Some(b"x.img"), None, None, 0).unwrap();
        assert_eq!((options.mode, options.durable), (Mode::Buffered, Durable::Later));
        for (image, mode, durable, told) in [
            (None, None, None, "image=PATH"),
            (Some(&b""[..]), None, None, "image=PATH"),
            (Some(b"x"), Some(&b"fast"[..]), None, "mode=fast"),
            (Some(b"x"), None, Some(&b"never"[..]), "durable=never"),
            (Some(b"x"), Some(b"ring"), Some(b"data"), "operations of the ring"),
        ] {
            let error = Options::of(image, mode, durable, 0).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }
}
