//! Names: a list of changes, of which some must be found after a crash.

use std::collections::{BTreeMap, BTreeSet};

/// Index of a file in the model.
pub type FileIndex = usize;

/// What happened to names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Naming {
    /// A file was created.
    Create(Vec<u8>, FileIndex),
    /// A name was removed.
    Unlink(Vec<u8>, FileIndex),
    /// A file got another name, and perhaps took it from one.
    Rename(Vec<u8>, Vec<u8>, FileIndex, Option<FileIndex>),
}

impl Naming {
    fn files(&self) -> [Option<FileIndex>; 2] {
        match self {
            Self::Create(_, file) | Self::Unlink(_, file) => [Some(*file), None],
            Self::Rename(_, _, file, replaced) => [Some(*file), *replaced],
        }
    }

    fn names(&self) -> [Option<&[u8]>; 2] {
        match self {
            Self::Create(name, _) | Self::Unlink(name, _) => [Some(name), None],
            Self::Rename(from, to, ..) => [Some(from), Some(to)],
        }
    }

    fn builds_on(&self, earlier: &Self) -> bool {
        self.files().iter().flatten().any(|file| earlier.files().contains(&Some(*file)))
            || self.names().iter().flatten().any(|name| earlier.names().contains(&Some(*name)))
    }

    fn apply(&self, names: &mut BTreeMap<Vec<u8>, FileIndex>) {
        match self {
            Self::Create(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Unlink(name, _) => {
                names.remove(name);
            }
            Self::Rename(from, to, file, _) => {
                names.remove(from);
                names.insert(to.clone(), *file);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct NameChange {
    naming: Naming,
    /// It must be found.
    sure: bool,
    id: u64,
    /// When it was made; until then it may not happen at all.
    made: Option<u64>,
}

/// All that is known of the names.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    certain: BTreeMap<Vec<u8>, FileIndex>,
    changes: Vec<NameChange>,
    /// Old and new names of renames, whether they are durable or not, and whether another file had
    /// the new one.
    renames: Vec<([Vec<u8>; 2], bool)>,
    /// The disk has a journal: what happened to names is found in order.
    in_order: bool,
}

impl Names {
    /// Names that are all on disk.
    pub(super) fn of(certain: BTreeMap<Vec<u8>, FileIndex>, in_order: bool) -> Self {
        Self { certain, in_order, ..Self::default() }
    }

    /// As programs see them.
    pub(super) fn current(&self) -> BTreeMap<Vec<u8>, FileIndex> {
        let mut names = self.certain.clone();
        // A rename that is about to be made has not taken the old name yet.
        let made =
            |change: &&NameChange| change.made.is_some() || !matches!(change.naming, Naming::Rename(..));
        self.changes.iter().filter(made).for_each(|change| change.naming.apply(&mut names));
        names
    }

    /// Names are about to change.
    pub(super) fn announce(&mut self, id: u64, naming: Naming) {
        if let Naming::Rename(from, to, _, replaced) = &naming {
            self.renames.push(([from.clone(), to.clone()], replaced.is_some()));
        }
        self.changes.push(NameChange { naming, sure: false, id, made: None });
    }

    /// The announced change was made, behind what was made of the same names or files meanwhile.
    pub(super) fn made(&mut self, id: u64, now: u64) {
        if let Some(at) = self.changes.iter().position(|change| change.id == id) {
            let mut change = self.changes.remove(at);
            change.made = Some(now);
            let is_before =
                |other: &NameChange| other.made.is_some() && other.naming.builds_on(&change.naming);
            let behind = self.changes[at..].iter().rposition(is_before).map_or(at, |last| at + last + 1);
            self.changes.insert(behind, change);
        }
    }

    /// The announced change failed.
    pub(super) fn not_made(&mut self, id: u64) {
        self.changes.retain(|change| change.id != id);
    }

    /// Whether a change that is about to be made is the announced one.
    pub(super) fn is_announced(&self, id: u64, naming: &Naming) -> bool {
        self.changes.iter().any(|change| change.id == id && change.naming == *naming)
    }

    /// The names that depend on what somebody did to one of them after a crash that left `found`: a
    /// file that was changed under its old name does not get its new one, and one that was to get
    /// the name stays under its old one.
    pub(super) fn tied_to(&self, name: &[u8], found: &BTreeMap<Vec<u8>, Vec<u8>>) -> BTreeSet<Vec<u8>> {
        let mut tied = BTreeSet::from([name.to_vec()]);
        loop {
            let before = tied.len();
            for ([from, to], replaces) in &self.renames {
                if tied.contains(from) && (*replaces || !found.contains_key(to)) {
                    tied.insert(to.clone());
                }
                if tied.contains(to) && (*replaces || found.contains_key(from)) {
                    tied.insert(from.clone());
                }
            }
            if tied.len() == before {
                return tied;
            }
        }
    }

    /// Changes up to a number are durable, but for creations of files that are to be left out. Says
    /// whether that is news.
    pub(super) fn synced(&mut self, up_to: u64, is_left_out: impl Fn(FileIndex) -> bool) -> bool {
        let mut is_news = false;
        for index in 0..self.changes.len() {
            let change = &self.changes[index];
            let left_out = matches!(change.naming, Naming::Create(_, file) if is_left_out(file));
            if change.made.is_some_and(|made| made <= up_to) && !change.sure && !left_out {
                self.make_sure(index);
                is_news = true;
            }
        }
        self.fold();
        is_news
    }

    /// The file must be found under the name with which it was created, or a later one.
    pub(super) fn must_exist(&mut self, file: FileIndex) {
        for index in 0..self.changes.len() {
            if matches!(self.changes[index].naming, Naming::Create(_, created) if created == file) {
                self.make_sure(index);
            }
        }
    }

    /// Visits what may be found, the likeliest first: everything happened; until the visitor has
    /// enough of it.
    pub(super) fn every_outcome(&self, mut visit: impl FnMut(&BTreeMap<Vec<u8>, FileIndex>) -> bool) {
        let unsure: Vec<usize> = (0..self.changes.len()).filter(|&index| !self.changes[index].sure).collect();
        for mask in (0..1u32 << unsure.len().min(16)).rev() {
            let lost: Vec<usize> = unsure
                .iter()
                .enumerate()
                .filter(|(bit, _)| mask >> bit & 1 == 0)
                .map(|(_, &index)| index)
                .collect();
            let builds_on_lost = (0..self.changes.len()).any(|index| {
                !lost.contains(&index)
                    && lost.iter().any(|&lost| {
                        // What was not made yet was in nobody's way.
                        lost < index && self.changes[lost].made.is_some() && self.needs(index, lost)
                    })
            });
            if builds_on_lost {
                continue;
            }
            let mut names = self.certain.clone();
            for (index, change) in self.changes.iter().enumerate() {
                if !lost.contains(&index) {
                    change.naming.apply(&mut names);
                }
            }
            if !visit(&names) {
                return;
            }
        }
    }

    /// Whether a change is found only where an earlier one is, once that was made: on a journal
    /// that is so of all of them.
    fn needs(&self, later: usize, earlier: usize) -> bool {
        let (later, earlier) = (&self.changes[later], &self.changes[earlier]);
        // Of two at once the one that was announced first may be made last.
        let came_first = later.made.zip(earlier.made).is_none_or(|(later, earlier)| earlier < later);
        self.in_order && came_first || later.naming.builds_on(&earlier.naming)
    }

    /// With a change all earlier ones that it builds on are certain, if they were made at all.
    fn make_sure(&mut self, index: usize) {
        self.changes[index].sure = true;
        for earlier in (0..index).rev() {
            let later = (earlier + 1..=index).filter(|&later| self.changes[later].sure);
            let needed = later.clone().any(|later| self.needs(later, earlier));
            if needed && self.changes[earlier].made.is_some() {
                self.changes[earlier].sure = true;
            }
        }
    }

    /// Certain changes at the beginning of the list become part of what is certain.
    fn fold(&mut self) {
        while self.changes.first().is_some_and(|change| change.sure) {
            let change = self.changes.remove(0);
            change.naming.apply(&mut self.certain);
        }
    }
}
