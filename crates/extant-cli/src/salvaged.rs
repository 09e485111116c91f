//! What was found in a damaged image, made on the host: by open directories, without following links, and never over
//! anything.

use std::os::fd::{AsFd, OwnedFd};

use extant::FileKind;
use extant_base::Ino;
use extant_image::write::Progress;
use extant_salvage::{Damage, Found, Refusal, Target, Xattr};
use rustc_hash::FxHashMap;
use rustix::fs::{self, AtFlags, Mode};
use rustix::io::Errno;

use crate::copying::Trouble;
use crate::copying::host::{self, Made, Omitted, create, link, make_dir, make_special, open_below};
use crate::copying::node::{About, Id};
use crate::exit::Failure;
use crate::fault::io_exit;
use crate::interrupt;
use crate::progress::Bar;
use crate::text::escape;

/// Who hears of damaged files.
type Tell<'a> = &'a mut dyn FnMut(&Damage) -> std::io::Result<()>;

/// A directory of the host, and what is made in it.
pub(crate) struct Salvaged<'a> {
    /// Open directories, the last in those before it. The first is the user's.
    levels: Vec<OwnedFd>,
    /// Their names, but the first's.
    names: Vec<Vec<u8>>,
    /// The file that is being filled, and its name.
    file: Option<(OwnedFd, Vec<u8>)>,
    /// Where inodes with several names were put first: names below the first directory.
    links: FxHashMap<u32, Vec<Vec<u8>>>,
    privileged: bool,
    bar: Bar,
    tell: Tell<'a>,
    complaint: Option<String>,
    pub(crate) omitted: Omitted,
    /// Why nothing more is made.
    pub(crate) failure: Option<Failure>,
}

impl<'a> Salvaged<'a> {
    pub(crate) fn new(root: OwnedFd, privileged: bool, bar: Bar, tell: Tell<'a>) -> Salvaged<'a> {
        Salvaged {
            levels: vec![root],
            names: Vec::new(),
            file: None,
            links: FxHashMap::default(),
            privileged,
            bar,
            tell,
            complaint: None,
            omitted: Omitted::default(),
            failure: None,
        }
    }

    /// The open directory.
    fn dir(&self) -> Result<OwnedFd, Refusal> {
        let dir = self.levels.last().and_then(|dir| dir.try_clone().ok());
        dir.ok_or_else(|| Refusal::Skip("too many open files".to_owned()))
    }

    /// Asked for before anything is made.
    fn go_on(&self) -> Result<(), Refusal> {
        if interrupt::requested() { Err(Refusal::Stop) } else { Ok(()) }
    }

    fn refuse(&mut self, trouble: Trouble, name: &[u8]) -> Refusal {
        let (doing, errno) = match trouble {
            Trouble::Host(doing, errno) => (doing, errno),
            Trouble::Refused(_, message, _) => return Refusal::Skip(message),
            Trouble::Fs(error) => return Refusal::Skip(error.to_string()),
        };
        let error = std::io::Error::from(errno);
        if matches!(errno, Errno::NOSPC | Errno::DQUOT | Errno::IO | Errno::ROFS) {
            // Every other file would fail alike.
            let what = format!("cannot {doing} {}", escape(name));
            let failure = Failure::caused(io_exit(&error), &what, &error);
            self.failure.get_or_insert(failure.hint(
                "what was found so far is there; give a directory on another file system, and start again",
            ));
            return Refusal::Stop;
        }
        Refusal::Skip(format!("cannot {doing}: {error}"))
    }

    /// Attributes, in the order in which none undoes another. What cannot be set is a complaint.
    fn attributes(&mut self, made: &Made<'_>, found: &Found, xattrs: &[Xattr]) {
        let about = about(found);
        let mut said = Vec::new();
        let mut note = |result: Result<(), Trouble>| {
            if let Err(Trouble::Host(doing, errno)) = result {
                said.push(format!("cannot {doing}: {}", std::io::Error::from(errno)));
            }
        };
        if self.privileged {
            note(made.set_owner(&about));
        } else {
            self.omitted.owner(&about);
        }
        let (before, after): (Vec<&Xattr>, Vec<&Xattr>) =
            xattrs.iter().partition(|xattr| host::wants_write(&xattr.name));
        for xattr in before.into_iter().map(Some).chain([None]).chain(after.into_iter().map(Some)) {
            let Some(xattr) = xattr else {
                note(made.set_mode(host::allowed_mode(about.permissions, self.privileged)));
                continue;
            };
            if !host::is_open_to_all(&xattr.name) && !self.privileged {
                self.omitted.xattrs += 1;
                continue;
            }
            let set = made.set_xattr(&xattr.name, &xattr.value);
            note(set.map_err(|errno| Trouble::Host("set an extended attribute", errno)));
        }
        note(made.set_times(&about));
        if !said.is_empty() {
            self.complaint = Some(said.join("; "));
        }
    }

    /// Remembers where a file with several names is.
    fn remember(&mut self, name: &[u8], found: &Found) {
        if found.links > 1 {
            let mut names = self.names.clone();
            names.push(name.to_vec());
            self.links.insert(found.ino.0, names);
        }
    }
}

fn about(found: &Found) -> About {
    About {
        kind: found.kind,
        permissions: found.permissions,
        uid: found.uid,
        gid: found.gid,
        atime: found.atime,
        mtime: found.mtime,
        rdev: found.rdev,
        size: found.size,
        stored_bytes: found.size,
        links: u64::from(found.links),
        id: Id::Image(0, found.ino.0),
    }
}

impl Target for Salvaged<'_> {
    fn enter(&mut self, name: &[u8], _found: &Found) -> Result<(), Refusal> {
        self.go_on()?;
        let dir = self.dir()?;
        let made = fs::mkdirat(&dir, name, Mode::from(0o700))
            .map_err(host_error("create"))
            .and_then(|()| open_below(&dir, name).map_err(host_error("open")));
        let made = made.map_err(|trouble| self.refuse(trouble, name))?;
        self.levels.push(made);
        self.names.push(name.to_vec());
        Ok(())
    }

    fn enter_lost_found(&mut self) -> Result<(), Refusal> {
        self.go_on()?;
        let dir = self.dir()?;
        let name = b"lost+found";
        let made = make_dir(&dir, name).map_err(|trouble| self.refuse(trouble, name))?;
        // The one of the image may have been closed to everybody.
        let _ = fs::fchmod(&made, Mode::from(0o700));
        self.levels.push(made);
        self.names.push(name.to_vec());
        Ok(())
    }

    fn leave(&mut self, from: Option<(&Found, &[Xattr])>) -> Result<(), Refusal> {
        let dir = match self.levels.len() {
            // The user's own stays open: lost+found is still to come.
            0 | 1 => self.dir().ok(),
            _ => self.levels.pop(),
        };
        self.names.pop();
        if let (Some(dir), Some((found, xattrs))) = (dir, from) {
            self.attributes(&Made::Open(dir.as_fd()), found, xattrs);
        }
        self.go_on()
    }

    fn create(&mut self, name: &[u8], _found: &Found) -> Result<(), Refusal> {
        self.go_on()?;
        let dir = self.dir()?;
        let made = create(&dir, name, Mode::from(0o600));
        let made = made.map_err(|trouble| self.refuse(trouble, name))?;
        self.file = Some((made, name.to_vec()));
        Ok(())
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Refusal> {
        self.go_on()?;
        let Some((file, name)) = &self.file else { return Err(Refusal::Stop) };
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pwrite(file, rest, offset.saturating_add(done as u64)) {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let name = name.clone();
                    return Err(self.refuse(Trouble::Host("write", errno), &name));
                }
            }
        }
        self.bar.add(bytes.len() as u64);
        Ok(())
    }

    fn close(&mut self, found: &Found, size: u64, xattrs: &[Xattr]) -> Result<(), Refusal> {
        let Some((file, name)) = &self.file else { return Err(Refusal::Stop) };
        if let Err(errno) = fs::ftruncate(file, size) {
            let name = name.clone();
            self.abandon();
            return Err(self.refuse(Trouble::Host("set the size", errno), &name));
        }
        if let Some((file, name)) = self.file.take() {
            self.attributes(&Made::Open(file.as_fd()), found, xattrs);
            self.remember(&name, found);
        }
        Ok(())
    }

    fn abandon(&mut self) {
        if let Some((_, name)) = self.file.take()
            && let Some(dir) = self.levels.last()
        {
            // What went wrong before is what is reported.
            let _ = fs::unlinkat(dir, name.as_slice(), AtFlags::empty());
        }
    }

    fn symlink(
        &mut self,
        name: &[u8],
        found: &Found,
        to: &[u8],
        xattrs: &[Xattr],
    ) -> Result<(), Refusal> {
        self.go_on()?;
        let dir = self.dir()?;
        let made = fs::symlinkat(to, &dir, name).map_err(host_error("create"));
        made.map_err(|trouble| self.refuse(trouble, name))?;
        self.attributes(&Made::Named(&dir, name, FileKind::Symlink), found, xattrs);
        self.remember(name, found);
        Ok(())
    }

    fn special(&mut self, name: &[u8], found: &Found, xattrs: &[Xattr]) -> Result<(), Refusal> {
        self.go_on()?;
        if found.rdev.is_some() && !self.privileged {
            self.omitted.devices += 1;
            return Ok(());
        }
        let dir = self.dir()?;
        let made = make_special(&dir, name, found.kind, found.rdev, Mode::from(0o600));
        made.map_err(|trouble| self.refuse(trouble, name))?;
        self.attributes(&Made::Named(&dir, name, found.kind), found, xattrs);
        self.remember(name, found);
        Ok(())
    }

    fn link(&mut self, name: &[u8], ino: Ino) -> Result<bool, Refusal> {
        self.go_on()?;
        let Some(first) = self.links.get(&ino.0).cloned() else { return Ok(false) };
        let (dir, root) = (self.dir()?, self.levels.first());
        let Some(root) = root else { return Err(Refusal::Stop) };
        let made = link(root, &first, &dir, name);
        made.map_err(|trouble| self.refuse(trouble, name)).map(|()| true)
    }

    fn complaint(&mut self) -> Option<String> {
        self.complaint.take()
    }

    fn damaged(&mut self, damage: Damage) -> Result<(), Refusal> {
        (self.tell)(&damage).map_err(|error| {
            self.failure.get_or_insert(Failure::output(error));
            Refusal::Stop
        })
    }
}

/// What was tried, and the host's answer.
fn host_error(doing: &'static str) -> impl Fn(Errno) -> Trouble {
    crate::copying::host(doing)
}
