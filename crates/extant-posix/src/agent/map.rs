//! Verbs about mapped files. Touching what is not there kills the process, as it should.

use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

use super::{Agent, Words};
use crate::errno::{Answer, Fail};
use crate::show;

/// A mapped part of a file.
pub(super) type Map = MmapRegion<()>;

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "map" => map(agent, words),
        "mread" => read(agent, words),
        "mwrite" => write(agent, words),
        "unmap" => unmap(agent, words),
        _ => return None,
    })
}

/// `map A OFFSET LEN shared|private r|rw|rx as NAME`
fn map(agent: &mut Agent, words: &Words) -> Answer {
    let file = rustix::io::dup(agent.open_file(words, 1)?)?;
    let (offset, len) = (words.number(2)?, words.size(3)?);
    let flags = match words.word(4)? {
        "shared" => libc::MAP_SHARED,
        "validate" => libc::MAP_SHARED_VALIDATE,
        _ => libc::MAP_PRIVATE,
    };
    let prot = words.word(5)?.chars().fold(libc::PROT_NONE, |prot, letter| match letter {
        'r' => prot | libc::PROT_READ,
        'w' => prot | libc::PROT_WRITE,
        'x' => prot | libc::PROT_EXEC,
        _ => prot,
    });
    let file = FileOffset::new(file.into(), offset);
    match MmapRegion::build(Some(file), len, prot, flags) {
        Ok(map) => {
            agent.maps.insert(words.word(7)?.to_owned(), map);
            Ok(String::new())
        }
        Err(vm_memory::mmap::MmapRegionError::Mmap(error)) => Err(error.into()),
        Err(error) => Err(Fail::Bad(error.to_string())),
    }
}

fn find<'a>(agent: &'a Agent, words: &Words) -> Result<&'a Map, Fail> {
    let name = words.word(1)?;
    agent.maps.get(name).ok_or_else(|| Fail::Bad(format!("no map {name}")))
}

/// `mread MAP OFFSET LEN`
fn read(agent: &Agent, words: &Words) -> Answer {
    let mut data = vec![0; words.size(3)?];
    let memory = find(agent, words)?.as_volatile_slice();
    memory.read_slice(&mut data, words.size(2)?).map_err(|error| Fail::Bad(error.to_string()))?;
    Ok(show::bytes(&data))
}

/// `mwrite MAP OFFSET DATA`
fn write(agent: &Agent, words: &Words) -> Answer {
    let memory = find(agent, words)?.as_volatile_slice();
    let data = words.bytes(3)?;
    memory.write_slice(&data, words.size(2)?).map_err(|error| Fail::Bad(error.to_string()))?;
    Ok(String::new())
}

/// `unmap MAP`: the file descriptor of the map goes with it.
fn unmap(agent: &mut Agent, words: &Words) -> Answer {
    let name = words.word(1)?;
    agent.maps.remove(name).ok_or_else(|| Fail::Bad(format!("no map {name}")))?;
    Ok(String::new())
}
