//! Standard output: buffered, escaped on a terminal, exact when piped.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};

use extant::{FileKind, Xattr};
use serde_json::{Map, Value};

use crate::exit::Failure;
use crate::text;

/// Standard output with what is known about it.
pub(crate) struct Out {
    inner: BufWriter<StdoutLock<'static>>,
    /// Escape names, which might otherwise control the terminal.
    escapes: bool,
    colours: bool,
}

impl Out {
    pub(crate) fn new() -> Out {
        let stdout = io::stdout().lock();
        let escapes = stdout.is_terminal();
        Out {
            inner: BufWriter::with_capacity(1 << 16, stdout),
            escapes,
            colours: escapes && colours_wanted(),
        }
    }

    /// A name or path: escaped on a terminal, as it is otherwise.
    pub(crate) fn name(&mut self, name: &[u8]) -> io::Result<()> {
        if self.escapes {
            self.inner.write_all(text::escape(name).as_bytes())
        } else {
            self.inner.write_all(name)
        }
    }

    /// A name in the colour of its kind, where colours are shown.
    pub(crate) fn coloured(&mut self, name: &[u8], kind: FileKind, mode: u16) -> io::Result<()> {
        let colour = match kind {
            FileKind::Directory => "1;34",
            FileKind::Symlink => "1;36",
            FileKind::CharDevice | FileKind::BlockDevice => "1;33",
            FileKind::Fifo | FileKind::Socket => "35",
            FileKind::Regular if mode & 0o111 != 0 => "1;32",
            FileKind::Regular => "",
        };
        if !self.colours || colour.is_empty() {
            return self.name(name);
        }
        write!(self.inner, "\x1b[{colour}m")?;
        self.name(name)?;
        self.inner.write_all(b"\x1b[0m")
    }

    /// One JSON value on a line of its own.
    pub(crate) fn json(&mut self, value: &Value) -> io::Result<()> {
        self.inner.write_all(text::json_plain(&serde_json::to_string(value)?).as_bytes())?;
        self.inner.write_all(b"\n")
    }

    /// One JSON value, indented for people too.
    pub(crate) fn json_pretty(&mut self, value: &Value) -> io::Result<()> {
        self.inner.write_all(text::json_plain(&serde_json::to_string_pretty(value)?).as_bytes())?;
        self.inner.write_all(b"\n")
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.inner.write(bytes)
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_all(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// Whether colours may be shown on a terminal: not with `NO_COLOR` set to anything, nor on one
/// that has none.
pub(crate) fn colours_wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints a line about something that went wrong and does not end the command.
pub(crate) fn complain(message: &str) {
    // With standard error gone there is nobody to tell.
    let _ = writeln!(io::stderr(), "extant: {}", text::one_line(message));
}

/// Says what happened on one line and what to do about it on the next.
pub(crate) fn report(failure: &Failure) {
    if failure.message.is_empty() {
        return;
    }
    let bold = io::stderr().is_terminal() && colours_wanted();
    let (on, off) = if bold { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let mut err = io::stderr().lock();
    // With standard error gone, the exit code is all there is.
    let _ = writeln!(err, "{on}extant:{off} {}", text::one_line(&failure.message));
    if let Some(hint) = &failure.hint {
        let _ = writeln!(err, "hint: {}", text::one_line(hint));
    }
}

/// Adds `name` to a JSON object under `key`; one that is not UTF-8 also exactly, in hexadecimal,
/// under `key_hex`.
pub(crate) fn put_bytes(object: &mut serde_json::Map<String, Value>, key: &str, bytes: &[u8]) {
    object.insert(key.into(), String::from_utf8_lossy(bytes).into_owned().into());
    if std::str::from_utf8(bytes).is_err() {
        object.insert(format!("{key}_hex"), hex(bytes).into());
    }
}

/// A list of attributes, each with its name and value.
pub(crate) fn xattrs_json(xattrs: &[Xattr]) -> Value {
    let one = |xattr: &Xattr| {
        let mut object = Map::new();
        put_bytes(&mut object, "name", &xattr.name);
        put_bytes(&mut object, "value", &xattr.value);
        Value::Object(object)
    };
    xattrs.iter().map(one).collect()
}

/// Two digits for each byte.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
