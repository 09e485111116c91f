//! Reachability from the root, link counts, and inodes that may be without links.

use extant_base::Ino;
use extant_format::features::RoCompat;
use extant_format::inode::LINKS_MAX;

use crate::Problem;
use crate::base::Base;
use crate::checker::Checker;
use crate::findings::Findings;
use crate::tables::Detail;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    No,
    OnTheWay,
    Done,
}

/// An inode in use, and what leads to it.
struct Linked<'a> {
    ino: Ino,
    links: u16,
    names: u32,
    is_value: bool,
    is_orphan: bool,
    dtime: u32,
    directory: Option<&'a Detail>,
}

impl Linked<'_> {
    fn check(&self, base: &Base<'_>, findings: &mut Findings<'_>, has_dir_nlink: bool) {
        let (ino, links) = (self.ino, self.links);
        let is_special = base.is_special(ino);
        if links == 0 {
            if !self.is_orphan && !is_special {
                findings.problem(Problem::NotOrphan { ino });
            }
            return;
        }
        if self.dtime != 0 && !self.is_orphan {
            findings.problem(Problem::Dtime { ino, dtime: self.dtime, links });
        }
        if is_special {
            return;
        }
        let stored = u32::from(links);
        if self.is_value {
            if stored != 1 {
                findings.problem(Problem::Links { ino, stored, counted: 1 });
            }
        } else if let Some(detail) = self.directory {
            let counted = match detail.children().saturating_add(2) {
                many if many > LINKS_MAX && has_dir_nlink => 1,
                counted => counted,
            };
            if stored != counted {
                findings.problem(Problem::Links { ino, stored, counted });
            }
            let wanted = if ino == Ino::ROOT { Ino::ROOT } else { detail.parent() };
            let found = detail.dotdot();
            if wanted.0 == 0 {
                findings.problem(Problem::Unreachable { ino });
            } else if found != wanted {
                findings.problem(Problem::Dots { dir: ino, name: "..", found, wanted });
            }
        } else if self.names == 0 {
            if !self.is_orphan {
                findings.problem(Problem::Unreachable { ino });
            }
        } else if self.names != stored {
            findings.problem(Problem::Links { ino, stored, counted: self.names });
        }
    }
}

impl Checker<'_> {
    /// Links, parents, reachability.
    pub(crate) fn check_links(&mut self) {
        self.check_root();
        self.check_loops();
        let has_dir_nlink = self.base.sb.features.has_ro_compat(RoCompat::DIR_NLINK);
        let Checker { base, findings, found } = self;
        let tables = &found.tables;
        let mut details = tables.details.iter().peekable();
        let mut counts = tables.links.iter().peekable();
        let mut dtimes = found.dtimes.keys().copied().peekable();
        let (mut ino, mut odd) = (Ino(0), 0);
        loop {
            // Most are files with one link and one name: looked at is the next that is not, or of which there is more.
            let before = ino;
            if odd <= before.0 {
                odd = base.states.next_odd(Ino(before.0.saturating_add(1))).0;
            }
            let detail = details.peek().map_or(u32::MAX, |detail| detail.ino.0);
            let count = counts.peek().map_or(u32::MAX, |(with, _)| *with);
            let dtime = dtimes.peek().copied().unwrap_or(u32::MAX);
            ino = Ino(detail.min(count).min(dtime).min(odd));
            if ino.0 > base.sb.inodes_count || ino <= before {
                break;
            }
            let count = counts.next_if(|(with, _)| *with == ino.0).map(|(_, count)| *count);
            let detail = details.next_if(|detail| detail.ino == ino);
            dtimes.next_if(|with| *with == ino.0);
            let state = base.states.get(ino);
            if !state.is_known() {
                continue;
            }
            let inode = Linked {
                ino,
                links: detail.map(|detail| detail.links).or(count).unwrap_or(1),
                names: base.states.names(ino),
                is_value: state.is_value(),
                is_orphan: found.orphans.contains(&ino.0),
                dtime: found.dtimes.get(&ino.0).copied().unwrap_or(0),
                directory: detail.filter(|detail| detail.is_dir()),
            };
            inode.check(base, findings, has_dir_nlink);
        }
    }

    fn check_root(&mut self) {
        let root = self.found.tables.detail(Ino::ROOT);
        if !root.is_some_and(|root| root.is_dir() && root.links > 0) {
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
                let ino = detail.ino;
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
                    parent => tables.place(parent),
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
