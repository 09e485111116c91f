//! Reachability from the root, link counts, and inodes that may be without links.

use extant_base::Ino;
use extant_format::features::RoCompat;
use extant_format::inode::LINKS_MAX;

use crate::Problem;
use crate::checker::Checker;

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
        let has_dir_nlink = self.base.sb.features.has_ro_compat(RoCompat::DIR_NLINK);
        for number in 0..self.found.tables.infos.len() {
            self.check_links_of(number, has_dir_nlink);
        }
    }

    fn check_links_of(&mut self, number: usize, has_dir_nlink: bool) {
        let Some(info) = self.found.tables.infos.get(number) else { return };
        let (ino, links, names, is_value) = (info.ino, info.links, info.names(), info.is_value());
        // Most are files with one link and one name.
        let is_plain = info.detail == 0 && !is_value && links == 1 && names == 1;
        if is_plain && self.found.dtimes.is_empty() {
            return;
        }
        let is_orphan = self.found.orphans.contains(&ino.0);
        let directory = match info.is_dir() {
            true => self.found.tables.detail_of(info),
            false => None,
        };
        let directory = directory.map(|detail| {
            let wanted = if ino == Ino::ROOT { Ino::ROOT } else { detail.parent() };
            (detail.children(), detail.dotdot(), wanted)
        });
        if links == 0 {
            if !is_orphan && !self.base.is_special(ino) {
                self.problem(Problem::NotOrphan { ino });
            }
            return;
        }
        let dtime = self.found.dtimes.get(&ino.0).copied().unwrap_or(0);
        if dtime != 0 && !is_orphan {
            self.problem(Problem::Dtime { ino, dtime, links });
        }
        if self.base.is_special(ino) {
            return;
        }
        let stored = u32::from(links);
        if is_value {
            if stored != 1 {
                self.problem(Problem::Links { ino, stored, counted: 1 });
            }
        } else if let Some((children, dotdot, wanted)) = directory {
            let counted = match children.saturating_add(2) {
                many if many > LINKS_MAX && has_dir_nlink => 1,
                counted => counted,
            };
            if stored != counted {
                self.problem(Problem::Links { ino, stored, counted });
            }
            if wanted.0 == 0 {
                self.problem(Problem::Unreachable { ino });
            } else if dotdot != wanted {
                let (dir, name, found) = (ino, "..", dotdot);
                self.problem(Problem::Dots { dir, name, found, wanted });
            }
        } else if names == 0 {
            if !is_orphan {
                self.problem(Problem::Unreachable { ino });
            }
        } else if names != stored {
            self.problem(Problem::Links { ino, stored, counted: names });
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
        let tables = &self.found.tables;
        let mut seen = vec![Seen::No; tables.details.len()];
        let (mut way, mut loops) = (Vec::new(), Vec::new());
        for number in 0..tables.details.len() {
            let mut at = Some(number);
            while let Some(place) = at {
                let (Some(detail), Some(mark)) = (tables.details.get(place), seen.get_mut(place))
                else {
                    break;
                };
                let ino = tables.infos.get(detail.place as usize).map_or(Ino(0), |info| info.ino);
                match mark {
                    Seen::No => *mark = Seen::OnTheWay,
                    Seen::OnTheWay => {
                        loops.push(ino);
                        break;
                    }
                    Seen::Done => break,
                }
                way.push(place as u32);
                at = match detail.parent() {
                    Ino(0) => None,
                    _ if ino == Ino::ROOT => None,
                    parent => tables
                        .info(&self.base.sb, parent)
                        .and_then(|info| (info.detail as usize).checked_sub(1)),
                };
            }
            for place in way.drain(..) {
                if let Some(mark) = seen.get_mut(place as usize) {
                    *mark = Seen::Done;
                }
            }
        }
        for ino in loops {
            self.problem(Problem::Loop { ino });
        }
    }
}
