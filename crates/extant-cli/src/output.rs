//! Standard output: buffered, escaped on a terminal, exact when piped.

use std::io::{self, BufWriter, IsTerminal, StdoutLock, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use extant::{FileKind, Xattr};
use serde_json::{Map, Value, json};

use crate::exit::{Exit, Failure};
use crate::{progress, stdio, text};

/// Standard output as it was when the program began: writing is an error where there was none.
pub(crate) struct Stdout(StdoutLock<'static>);

/// Standard output, for this thread alone.
pub(crate) fn stdout() -> Stdout {
    Stdout(io::stdout().lock())
}

/// Returns whether there is a standard output to be written to.
pub(crate) fn is_there() -> io::Result<()> {
    match stdio::was_missing() {
        true => Err(rustix::io::Errno::BADF.into()),
        false => Ok(()),
    }
}

impl Stdout {
    pub(crate) fn is_terminal(&self) -> bool {
        self.0.is_terminal()
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        is_there()?;
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Tells a line to whoever listens; a server does its work also for nobody.
pub(crate) fn announce(line: &str) -> io::Result<()> {
    match stdio::was_missing() {
        true => Ok(()),
        false => put(format!("{line}\n").as_bytes()),
    }
}

/// Standard output with what is known about it.
pub(crate) struct Out {
    inner: BufWriter<Stdout>,
    /// Escape names, which might otherwise control the terminal.
    escapes: bool,
    colours: bool,
}

impl Out {
    pub(crate) fn new() -> Out {
        let stdout = stdout();
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

/// Writes all of standard output at once: a failure is known when this returns.
pub(crate) fn put(bytes: &[u8]) -> io::Result<()> {
    let mut out = Out::new();
    out.write_all(bytes)?;
    out.flush()
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

/// Returns whether colours may be shown on a terminal: not with `NO_COLOR` set to anything, nor on
/// one that has none.
pub(crate) fn colours_wanted() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    !set("NO_COLOR") && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Whether errors are objects, as the data is.
static ERRORS_AS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on, every line on standard error is a JSON object.
pub(crate) fn errors_as_json() {
    ERRORS_AS_JSON.store(true, Ordering::Relaxed);
}

/// Returns whether they are.
pub(crate) fn is_json() -> bool {
    ERRORS_AS_JSON.load(Ordering::Relaxed)
}

/// Writes whole lines to standard error, clear of a progress bar.
fn say(lines: &str) {
    // With standard error gone, there is nobody to tell; the exit code is all there is.
    progress::aside(|| drop(io::stderr().lock().write_all(lines.as_bytes())));
}

/// One problem as an object.
fn say_json(level: &str, exit: Option<Exit>, message: &str, rest: Option<&Failure>) {
    let hint = rest.and_then(|failure| failure.hint.as_deref()).map(text::one_line);
    let object = rest.and_then(|failure| failure.object.as_deref()).map(text::one_line);
    let value = json!({
        "level": level,
        "code": exit.map(Exit::code),
        "family": exit.map(Exit::family),
        "message": text::one_line(message),
        "hint": hint,
        "object": object,
    });
    say(&format!("{}\n", text::json_plain(&value.to_string())));
}

/// Prints a line about something that is worth knowing and no failure.
pub(crate) fn complain(message: &str) {
    match is_json() {
        true => say_json("note", None, message.strip_prefix("note: ").unwrap_or(message), None),
        false => say(&format!("extant: {}\n", text::one_line(message))),
    }
}

/// Names one of several things that could not be done; the command goes on.
pub(crate) fn report_one(failure: &Failure) {
    match is_json() {
        true => say_json("error", Some(failure.exit), &failure.message, Some(failure)),
        false => complain(&failure.message),
    }
}

/// Says what happened on one line and what to do about it on the next.
pub(crate) fn report(failure: &Failure) {
    if failure.message.is_empty() {
        return;
    }
    if is_json() {
        return report_one(failure);
    }
    let bold = io::stderr().is_terminal() && colours_wanted();
    let (on, off) = if bold { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
    let mut lines = format!("{on}extant:{off} {}\n", text::one_line(&failure.message));
    if let Some(hint) = &failure.hint {
        lines += &format!("hint: {}\n", text::one_line(hint));
    }
    say(&lines);
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
