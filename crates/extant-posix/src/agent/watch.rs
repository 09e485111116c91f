//! Verbs about inotify.

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use std::mem::MaybeUninit;

use super::attr::pause;
use super::{Agent, Words};
use crate::errno::Answer;
use crate::show;

pub(super) fn call(agent: &mut Agent, verb: &str, words: &Words) -> Option<Answer> {
    Some(match verb {
        "watch" => watch(agent, words),
        "events" => events(agent, words),
        _ => return None,
    })
}

/// `watch P as NAME`: every event.
fn watch(agent: &mut Agent, words: &Words) -> Answer {
    let file = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let path = agent.place(words, 1)?.plain()?.to_vec();
    inotify::add_watch(&file, &path[..], WatchFlags::ALL_EVENTS)?;
    agent.files.insert(words.word(3)?.to_owned(), file);
    Ok(String::new())
}

/// `events NAME`: what happened since, in order: `kind:name`.
fn events(agent: &Agent, words: &Words) -> Answer {
    let table = [
        (ReadFlags::ACCESS, "access"),
        (ReadFlags::MODIFY, "modify"),
        (ReadFlags::ATTRIB, "attrib"),
        (ReadFlags::CLOSE_WRITE, "closew"),
        (ReadFlags::CLOSE_NOWRITE, "close"),
        (ReadFlags::OPEN, "open"),
        (ReadFlags::MOVED_FROM, "from"),
        (ReadFlags::MOVED_TO, "to"),
        (ReadFlags::CREATE, "create"),
        (ReadFlags::DELETE, "delete"),
        (ReadFlags::DELETE_SELF, "gone"),
        (ReadFlags::MOVE_SELF, "moved"),
        (ReadFlags::IGNORED, "ignored"),
    ];
    pause(20);
    let mut buffer = [MaybeUninit::uninit(); 16_384];
    let mut reader = Reader::new(agent.open_file(words, 1)?, &mut buffer);
    let mut out = Vec::new();
    while let Ok(event) = reader.next() {
        for (flag, word) in table {
            if event.events().contains(flag) {
                let name = event.file_name().map_or(String::new(), |n| show::bytes(n.to_bytes()));
                out.push(if name.is_empty() { word.to_owned() } else { format!("{word}:{name}") });
            }
        }
    }
    Ok(if out.is_empty() { "-".to_owned() } else { out.join(" ") })
}
