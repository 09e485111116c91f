//! What a server asks its keeper, which may look where the server may not.

use std::os::fd::OwnedFd;
use std::time::Duration;

use extant_sync::threads::{self, Receiver, Sender};
use extant_sync::{Mutex, Rank};

use crate::exit::Result;
use crate::mounting::link::{Link, Word};

/// The keeper's answers to one kind of question: one question at a time.
pub(super) struct Answer<T> {
    asking: Mutex<()>,
    sender: Sender<T>,
    receiver: Receiver<T>,
}

impl<T: Send> Default for Answer<T> {
    fn default() -> Answer<T> {
        let (sender, receiver) = threads::channel(1);
        Answer { asking: Mutex::new(Rank::Leaf, ()), sender, receiver }
    }
}

impl<T: Send> Answer<T> {
    /// What the keeper says to `question`, if it says something in time.
    pub(super) fn to(&self, link: &Link, question: &Word, within: Duration) -> Option<T> {
        let _asking = self.asking.lock();
        // An answer that came too late for who asked before.
        while self.receiver.try_recv().is_ok() {}
        link.say(question).ok()?;
        self.receiver.recv_timeout(within).ok()
    }

    pub(super) fn give(&self, answer: T) {
        // Nobody waits for a second one.
        let _ = self.sender.try_send(answer);
    }
}

/// What the keeper is asked.
#[derive(Default)]
pub(super) struct Answers {
    /// [`Word::AskArgument`]: of which thread, and what.
    pub(super) arguments: Answer<(u32, Option<Vec<u8>>)>,
    /// [`Word::GiveArgument`]: of which thread, and whether.
    pub(super) given: Answer<(u32, bool)>,
    /// [`Word::HandOver`].
    pub(super) handed_over: Answer<bool>,
    /// [`Word::AskUser`].
    pub(super) users: Answer<Option<u32>>,
    /// [`Word::AskFile`].
    pub(super) files: Answer<Result<OwnedFd>>,
}
