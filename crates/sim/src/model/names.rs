//! Names: a list of changes, of which some must be found after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::{File, FileIndex, Model, NameChange, Tree};

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
    pub(super) fn files(&self) -> [Option<FileIndex>; 2] {
        match self {
            Self::Create(_, file) | Self::Unlink(_, file) => [Some(*file), None],
            Self::Rename(_, _, file, replaced) => [Some(*file), *replaced],
        }
    }

    pub(super) fn names(&self) -> [Option<&[u8]>; 2] {
        match self {
            Self::Create(name, _) | Self::Unlink(name, _) => [Some(name), None],
            Self::Rename(from, to, ..) => [Some(from), Some(to)],
        }
    }

    pub(super) fn builds_on(&self, earlier: &Self) -> bool {
        self.files().iter().flatten().any(|file| earlier.files().contains(&Some(*file)))
            || self.names().iter().flatten().any(|name| earlier.names().contains(&Some(*name)))
    }

    pub(super) fn apply(&self, names: &mut BTreeMap<Vec<u8>, FileIndex>) {
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

impl Model {
    /// A file that was just created, without bytes.
    pub fn create(&mut self, name: &[u8]) -> FileIndex {
        let file = self.files.len();
        self.files.push(File {
            states: vec![Rc::new(Vec::new())],
            floor: 0,
            under_way: Vec::new(),
            ends: Vec::new(),
            conflict: false,
            has_bytes: false,
            broken: false,
        });
        self.name(Naming::Create(name.to_vec(), file));
        file
    }

    /// Names changed.
    pub fn name(&mut self, naming: Naming) -> u64 {
        let id = self.announce(naming);
        self.named(id);
        id
    }

    /// Names are about to change.
    pub fn announce(&mut self, naming: Naming) -> u64 {
        let id = self.changed();
        if let Naming::Rename(from, to, _, replaced) = &naming {
            self.renames.push(([from.clone(), to.clone()], replaced.is_some()));
        }
        self.changes.push(NameChange { naming, sure: false, id, made: None });
        id
    }

    /// The announced change was made, behind what was made of the same names or files meanwhile.
    pub fn named(&mut self, id: u64) {
        let now = self.changed();
        if let Some(at) = self.changes.iter().position(|change| change.id == id) {
            let mut change = self.changes.remove(at);
            change.made = Some(now);
            let is_before =
                |other: &NameChange| other.made.is_some() && other.naming.builds_on(&change.naming);
            let behind = self.changes[at..].iter().rposition(is_before).map_or(at, |last| at + last + 1);
            self.changes.insert(behind, change);
        }
    }

    /// Whether the change that is about to be made is the announced one.
    pub fn is_announced(&self, id: u64, naming: &Naming) -> bool {
        self.changes.iter().any(|change| change.id == id && change.naming == *naming)
    }

    /// The names that depend on what somebody did to one of them after a crash that left `found`: a
    /// file that was changed under its old name does not get its new one, and one that was to get
    /// the name stays under its old one.
    pub fn tied_to(&self, name: &[u8], found: &Tree) -> BTreeSet<Vec<u8>> {
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

    /// A change of names failed.
    pub fn not_named(&mut self, id: u64) {
        self.changed();
        self.changes.retain(|change| change.id != id);
    }

    /// The number of changes of names so far: what a sync that begins now will cover.
    pub fn name_changes(&self) -> u64 {
        self.next_id
    }

    /// Changes of names up to a number are durable. Creations of files that have no byte are so
    /// only `with_blank`: no promise covers them.
    pub fn names_synced(&mut self, up_to: u64, with_blank: bool) {
        for index in 0..self.changes.len() {
            let change = &self.changes[index];
            let blank = matches!(change.naming, Naming::Create(_, file) if !self.files[file].has_bytes);
            if change.made.is_some_and(|made| made <= up_to) && !change.sure && (with_blank || !blank) {
                self.make_sure(index);
            }
        }
        self.fold();
    }

    pub(super) fn must_exist(&mut self, file: FileIndex) {
        for index in 0..self.changes.len() {
            if matches!(self.changes[index].naming, Naming::Create(_, created) if created == file) {
                self.make_sure(index);
            }
        }
    }

    /// Whether a change is found only where an earlier one is, once that was made: on a journal
    /// that is so of all of them.
    pub(super) fn needs(&self, later: usize, earlier: usize) -> bool {
        let (later, earlier) = (&self.changes[later], &self.changes[earlier]);
        // Of two at once the one that was announced first may be made last.
        let came_first = later.made.zip(earlier.made).is_none_or(|(later, earlier)| earlier < later);
        self.in_order && came_first || later.naming.builds_on(&earlier.naming)
    }

    /// With a change all earlier ones that it builds on are certain, if they were made at all.
    fn make_sure(&mut self, index: usize) {
        self.changes[index].sure = true;
        self.version += 1;
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
            change.naming.apply(&mut self.names);
        }
    }

    /// How many changes of names may be lost.
    pub fn names_unsure(&self) -> usize {
        self.changes.iter().filter(|change| !change.sure).count()
    }
}
