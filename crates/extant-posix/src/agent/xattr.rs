//! Verbs about extended attributes and access control lists.

use rustix::fs::{self, XattrFlags};

use super::{Agent, Place, Words};
use crate::errno::{Answer, Fail};
use crate::{acl, show};

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "setx" => set(agent, words, true),
        "lsetx" => set(agent, words, false),
        "getx" => get(agent, words, true),
        "lgetx" => get(agent, words, false),
        "sizex" => size(agent, words),
        "rmx" => remove(agent, words, true),
        "lrmx" => remove(agent, words, false),
        "listx" => list(agent, words, true),
        "llistx" => list(agent, words, false),
        "listsizex" => list_size(agent, words),
        _ => return None,
    })
}

/// `acl` and `dacl` are the two access control lists.
fn name(words: &Words, at: usize) -> Result<Vec<u8>, Fail> {
    Ok(match words.word(at)? {
        "acl" => b"system.posix_acl_access".to_vec(),
        "dacl" => b"system.posix_acl_default".to_vec(),
        _ => words.bytes(at)?,
    })
}

fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// `setx P NAME VALUE [create|replace]`: the value of `acl` and `dacl` is a list as text, unless
/// it starts with `raw:`.
fn set(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let (place, name) = (agent.place(words, 1)?, name(words, 2)?);
    let text = words.word(3)?;
    let value = match text.strip_prefix("raw:") {
        Some(raw) => crate::words::expand(raw),
        None if is_acl(&name) => {
            acl::encode(text).ok_or_else(|| Fail::Bad(format!("{text} is no list")))?
        }
        None => words.bytes(3)?,
    };
    let flags = match words.get(4) {
        Some("create") => XattrFlags::CREATE,
        Some("replace") => XattrFlags::REPLACE,
        Some("both") => XattrFlags::CREATE | XattrFlags::REPLACE,
        _ => XattrFlags::empty(),
    };
    match (place.itself, follow) {
        (true, _) => fs::fsetxattr(place.dir, &name[..], &value, flags)?,
        (_, true) => fs::setxattr(place.plain()?, &name[..], &value, flags)?,
        (_, false) => fs::lsetxattr(place.plain()?, &name[..], &value, flags)?,
    }
    Ok(String::new())
}

fn read(place: &Place<'_>, name: &[u8], buffer: &mut [u8], follow: bool) -> Result<usize, Fail> {
    Ok(match (place.itself, follow) {
        (true, _) => fs::fgetxattr(place.dir, name, buffer)?,
        (_, true) => fs::getxattr(place.plain()?, name, buffer)?,
        (_, false) => fs::lgetxattr(place.plain()?, name, buffer)?,
    })
}

/// `getx P NAME [SIZE]`: with a buffer of SIZE bytes, 64 KiB otherwise.
fn get(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let (place, name) = (agent.place(words, 1)?, name(words, 2)?);
    let mut buffer = vec![0; if words.get(3).is_some() { words.size(3)? } else { 65_536 }];
    let count = read(&place, &name, &mut buffer, follow)?;
    let value = buffer.get(..count).unwrap_or(&[]);
    let list = if is_acl(&name) { acl::decode(value) } else { None };
    Ok(list.unwrap_or_else(|| show::bytes(value)))
}

/// `sizex P NAME`: what a call without a buffer says.
fn size(agent: &Agent, words: &Words) -> Answer {
    let (place, name) = (agent.place(words, 1)?, name(words, 2)?);
    Ok(fs::getxattr_query(place.plain()?, &name[..])?.to_string())
}

fn remove(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let (place, name) = (agent.place(words, 1)?, name(words, 2)?);
    match (place.itself, follow) {
        (true, _) => fs::fremovexattr(place.dir, &name[..])?,
        (_, true) => fs::removexattr(place.plain()?, &name[..])?,
        (_, false) => fs::lremovexattr(place.plain()?, &name[..])?,
    }
    Ok(String::new())
}

/// `listx P [SIZE]`: the names, sorted.
fn list(agent: &Agent, words: &Words, follow: bool) -> Answer {
    let place = agent.place(words, 1)?;
    let mut buffer = vec![0; if words.get(2).is_some() { words.size(2)? } else { 65_536 }];
    let count = match (place.itself, follow) {
        (true, _) => fs::flistxattr(place.dir, &mut buffer[..])?,
        (_, true) => fs::listxattr(place.plain()?, &mut buffer[..])?,
        (_, false) => fs::llistxattr(place.plain()?, &mut buffer[..])?,
    };
    let names = buffer.get(..count).unwrap_or(&[]);
    let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    Ok(show::sorted(names.map(show::bytes).collect()))
}

/// `listsizex P`
fn list_size(agent: &Agent, words: &Words) -> Answer {
    Ok(fs::listxattr_query(agent.place(words, 1)?.plain()?)?.to_string())
}
