//! Verbs that start programs, pass bytes between processes, and count.

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, connect, listen, socket};

use super::attr::pause;
use super::{Agent, Words};
use crate::errno::{Answer, Fail};
use crate::show;

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "exec" => exec(agent, words),
        "spawn" => spawn(agent, words),
        "kill" => kill(agent, words),
        "bind" => bind_socket(agent, words),
        "connect" => connect_socket(agent, words),
        "tally" => tally(agent, words),
        "sleep" => words.signed(1).map(|ms| {
            pause(ms);
            String::new()
        }),
        "perl" => perl(agent, words),
        "tool" => tool(agent, words),
        _ => return None,
    })
}

fn path(agent: &Agent, words: &Words) -> Result<std::ffi::OsString, Fail> {
    use std::os::unix::ffi::OsStringExt;
    let mut path = agent.place(words, 1)?.plain()?.to_vec();
    if !path.contains(&b'/') {
        path.splice(0..0, *b"./");
    }
    Ok(std::ffi::OsString::from_vec(path))
}

/// `exec P WORD…`: how the program ended and what it printed.
fn exec(agent: &Agent, words: &Words) -> Answer {
    let mut command = Command::new(path(agent, words)?);
    command.args(words.0.get(2..).unwrap_or(&[])).stdin(Stdio::null());
    let output = command.output()?;
    let status = match (output.status.code(), output.status.signal()) {
        (Some(code), _) => format!("exit {code}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "?".to_owned(),
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).trim().replace('\n', " / ");
    Ok(if text.is_empty() { status } else { format!("{status}: {text}") })
}

/// `spawn P as NAME WORD…`: a program that goes on running.
fn spawn(agent: &mut Agent, words: &Words) -> Answer {
    let mut command = Command::new(path(agent, words)?);
    command.args(words.0.get(4..).unwrap_or(&[]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    agent.programs.insert(words.word(3)?.to_owned(), command.spawn()?);
    Ok(String::new())
}

/// `kill NAME`
fn kill(agent: &mut Agent, words: &Words) -> Answer {
    let name = words.word(1)?;
    let child = agent.programs.remove(name);
    let mut child = child.ok_or_else(|| Fail::Bad(format!("no program {name}")))?;
    child.kill()?;
    child.wait()?;
    Ok(String::new())
}

/// `bind P as NAME`: a listening unix socket.
fn bind_socket(agent: &mut Agent, words: &Words) -> Answer {
    let address = SocketAddrUnix::new(agent.place(words, 1)?.plain()?)?;
    let file = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    bind(&file, &address)?;
    listen(&file, 1)?;
    agent.files.insert(words.word(3)?.to_owned(), file);
    Ok(String::new())
}

/// `connect P`
fn connect_socket(agent: &Agent, words: &Words) -> Answer {
    let address = SocketAddrUnix::new(agent.place(words, 1)?.plain()?)?;
    let file = socket(AddressFamily::UNIX, SocketType::STREAM, None)?;
    connect(&file, &address)?;
    Ok(String::new())
}

/// `tally P LEN`: the contents as records of LEN bytes: how many of each.
fn tally(agent: &Agent, words: &Words) -> Answer {
    let data = std::fs::read(path(agent, words)?)?;
    let mut counts = std::collections::BTreeMap::<&[u8], usize>::new();
    for record in data.chunks(words.size(2)?) {
        *counts.entry(record).or_default() += 1;
    }
    let shown = counts.iter().map(|(record, count)| format!("{}={count}", show::bytes(record)));
    Ok(shown.take(16).collect::<Vec<_>>().join(" "))
}

/// `perl NAME WORD…`: one of the scripts below, for calls that safe Rust has no word for.
fn perl(_: &Agent, words: &Words) -> Answer {
    let script = match words.word(1)? {
        "lease" => include_str!("../../perl/lease.pl"),
        "handle" => include_str!("../../perl/handle.pl"),
        "msync" => include_str!("../../perl/msync.pl"),
        "ioctl" => include_str!("../../perl/ioctl.pl"),
        "syncrange" => include_str!("../../perl/syncrange.pl"),
        other => return Err(Fail::Bad(format!("no script {other}"))),
    };
    let mut command = Command::new("perl");
    command.arg("-e").arg(script).args(words.0.get(2..).unwrap_or(&[])).stdin(Stdio::null());
    said(command.output()?)
}

/// `tool PROGRAM WORD…`: what a program of the host prints.
fn tool(_: &Agent, words: &Words) -> Answer {
    let mut command = Command::new(words.word(1)?);
    command.args(words.0.get(2..).unwrap_or(&[])).stdin(Stdio::null());
    command.env("LC_ALL", "C").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    said(command.output()?)
}

fn said(output: std::process::Output) -> Answer {
    let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
    let text = String::from_utf8_lossy(&text);
    let words: Vec<_> = text.split_whitespace().collect();
    Ok(words.join(" "))
}
