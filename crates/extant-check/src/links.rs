//! Reachability from the root, link counts, and inodes that may be without links.

use extant_base::Ino;
use extant_format::features::RoCompat;
use extant_format::inode::LINKS_MAX;

use crate::Problem;
use crate::checker::{Checker, Info};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    No,
    OnTheWay,
    Done,
}

impl Checker<'_> {
    /// Links, parents, reachability.
    pub(crate) fn check_links(&mut self) {
        self.check_root();
        self.check_loops();
        let has_dir_nlink = self.sb.features.has_ro_compat(RoCompat::DIR_NLINK);
        for number in 0..self.infos.len() {
            let Some(info) = self.infos.get(number) else { break };
            let ino = info.ino;
            if info.links == 0 {
                if !info.is_orphan && !self.is_special(ino) {
                    self.problem(Problem::NotOrphan { ino });
                }
                continue;
            }
            let (dtime, links) = (info.dtime, info.links);
            if dtime != 0 && !info.is_orphan {
                self.problem(Problem::Dtime { ino, dtime, links });
            }
            let Some(info) = self.infos.get(number) else { break };
            if self.is_special(ino) {
                continue;
            }
            let stored = u32::from(links);
            if info.is_value() {
                if stored != 1 {
                    self.problem(Problem::Links { ino, stored, counted: 1 });
                }
                continue;
            }
            if info.is_dir() {
                let counted = match info.children.saturating_add(2) {
                    many if many > LINKS_MAX && has_dir_nlink => 1,
                    counted => counted,
                };
                let (dotdot, wanted) = (info.dotdot, wanted_parent(info));
                let is_lost = wanted.0 == 0;
                if stored != counted {
                    self.problem(Problem::Links { ino, stored, counted });
                }
                if is_lost {
                    self.problem(Problem::Unreachable { ino });
                } else if dotdot != wanted {
                    let (dir, name, found) = (ino, "..", dotdot);
                    self.problem(Problem::Dots { dir, name, found, wanted });
                }
            } else if info.names == 0 {
                if !info.is_orphan {
                    self.problem(Problem::Unreachable { ino });
                }
            } else if info.names != stored {
                let counted = info.names;
                self.problem(Problem::Links { ino, stored, counted });
            }
        }
    }

    fn check_root(&mut self) {
        if !self.info(Ino::ROOT).is_some_and(|info| info.is_dir() && info.links > 0) {
            let why = "which is no directory in use";
            self.problem(Problem::SpecialInode { field: "the root", ino: Ino::ROOT, why });
        }
    }

    /// Directories that are their own ancestors; each loop once.
    fn check_loops(&mut self) {
        let mut seen = vec![Seen::No; self.infos.len()];
        let mut way = Vec::new();
        for number in 0..self.infos.len() {
            let mut at = Some(number);
            while let Some(place) = at {
                let (Some(info), Some(mark)) = (self.infos.get(place), seen.get_mut(place)) else {
                    break;
                };
                match mark {
                    Seen::No => *mark = Seen::OnTheWay,
                    Seen::OnTheWay => {
                        let ino = info.ino;
                        self.problem(Problem::Loop { ino });
                        break;
                    }
                    Seen::Done => break,
                }
                way.push(place);
                at = match info.parent {
                    Ino(0) => None,
                    _ if info.ino == Ino::ROOT => None,
                    parent => self.place(parent),
                };
            }
            for place in way.drain(..) {
                if let Some(mark) = seen.get_mut(place) {
                    *mark = Seen::Done;
                }
            }
        }
    }
}

/// Returns where `..` must lead; 0 when nothing leads to the directory.
fn wanted_parent(info: &Info) -> Ino {
    if info.ino == Ino::ROOT { Ino::ROOT } else { info.parent }
}
