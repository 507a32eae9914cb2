//! The oracle: what files and names may be after a crash, worked out from what programs did and were told, without any
//! of the product's code.
//!
//! A file is the list of states that may be found since its last real sync: a call that no record holds adds one, and a
//! crash leaves any of them, byte by byte; a call that a record holds is on top of each. So where writes are durable when
//! they return there is one state, and it must be found as it is. Calls under way may have happened or not. Names are a list of changes, of which those that
//! must be durable are marked; the others may be there or not, but none without the earlier ones it builds on.

use std::collections::BTreeMap;
use std::rc::Rc;

/// Index of a file in the model.
pub type FileIndex = usize;
/// The files of the one directory, by name.
pub type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

/// What a call does to a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Bytes at an offset.
    Write {
        /// Where.
        offset: u64,
        /// What.
        bytes: Vec<u8>,
    },
    /// A new size.
    Truncate(u64),
    /// Bytes at the end, wherever it is by then.
    Append(Vec<u8>),
    /// Zeros within the size.
    Punch {
        /// Where.
        offset: u64,
        /// How many.
        bytes: u64,
    },
}

impl Effect {
    fn apply(&self, file: &[u8]) -> Vec<u8> {
        let mut file = file.to_vec();
        match self {
            Self::Write { offset, bytes } => {
                let (from, to) = (*offset as usize, *offset as usize + bytes.len());
                file.resize(file.len().max(to), 0);
                file[from..to].copy_from_slice(bytes);
            }
            Self::Append(bytes) => file.extend_from_slice(bytes),
            Self::Truncate(size) => file.resize(*size as usize, 0),
            Self::Punch { offset, bytes } => {
                let end = file.len().min((offset + bytes) as usize);
                let from = end.min(*offset as usize);
                file[from..end].fill(0);
            }
        }
        file
    }
}

/// One file.
#[derive(Clone, Debug)]
struct File {
    states: Vec<Rc<Vec<u8>>>,
    floor: usize,
    /// Calls that may or may not take effect.
    under_way: Vec<(u64, Effect)>,
    /// Sizes the file had since the oldest append that is under way began.
    ends: Vec<u64>,
    /// An outsider has it: recovery may leave it to a person.
    conflict: bool,
    /// Something of it was ever made durable by a record.
    has_bytes: bool,
    /// A sync failed: what no record holds may be lost for good, and no later sync brings it back.
    broken: bool,
}

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

/// All that is known.
#[derive(Clone, Debug, Default)]
pub struct Model {
    files: Vec<File>,
    /// What is certain of the names.
    names: BTreeMap<Vec<u8>, FileIndex>,
    changes: Vec<NameChange>,
    next_id: u64,
    /// Changes with everything that changes what may be found.
    pub version: u64,
}

impl Model {
    /// A model of files that are all on disk.
    pub fn of(tree: &Tree) -> Self {
        let mut model = Self::default();
        for (name, bytes) in tree {
            model.names.insert(name.clone(), model.files.len());
            model.files.push(File {
                states: vec![Rc::new(bytes.clone())],
                floor: 0,
                under_way: Vec::new(),
                ends: Vec::new(),
                conflict: false,
                has_bytes: true,
                broken: false,
            });
        }
        model
    }

    fn changed(&mut self) -> u64 {
        self.version += 1;
        self.next_id += 1;
        self.next_id
    }

    /// The names as programs see them.
    pub fn current(&self) -> BTreeMap<Vec<u8>, FileIndex> {
        let mut names = self.names.clone();
        self.changes.iter().for_each(|change| change.naming.apply(&mut names));
        names
    }

    /// What programs see in a file.
    pub fn contents(&self, file: FileIndex) -> &[u8] {
        self.files[file].states.last().map_or(&[], |state| state)
    }

    /// A call begins; it may take effect from now on. Gives its number.
    pub fn begin(&mut self, file: FileIndex, effect: Effect) -> u64 {
        let id = self.changed();
        let file = &mut self.files[file];
        if file.under_way.is_empty() {
            file.ends.clear();
        }
        file.ends.push(file.states.last().map_or(0, |state| state.len() as u64));
        file.under_way.push((id, effect));
        id
    }

    /// What `done` describes is in the page cache now. With `durable` it must survive from here on; `partial` says that
    /// all of the call may still be found as well, until it returns.
    pub fn took_effect(
        &mut self,
        file: FileIndex,
        id: u64,
        done: Option<&Effect>,
        durable: bool,
        partial: bool,
    ) {
        self.changed();
        let file_model = &mut self.files[file];
        if let Some(effect) = done {
            if durable {
                // Whatever of the earlier states is found, this is on top of it.
                for state in &mut file_model.states[file_model.floor..] {
                    *state = Rc::new(effect.apply(state));
                }
                file_model.has_bytes = true;
            } else {
                let next = effect.apply(file_model.states.last().map_or(&[][..], |state| state));
                file_model.states.push(Rc::new(next));
            }
            file_model.ends.push(file_model.states.last().map_or(0, |state| state.len() as u64));
        }
        if !partial {
            file_model.under_way.retain(|(other, _)| *other != id);
        }
        if durable && done.is_some() {
            self.must_exist(file);
        }
    }

    /// A call returned.
    pub fn returned(&mut self, file: FileIndex, id: u64) {
        if self.files[file].under_way.iter().any(|(other, _)| *other == id) {
            self.changed();
            self.files[file].under_way.retain(|(other, _)| *other != id);
        }
    }

    /// A process died in a call that did not return; what is in the page cache after the repair tells whether it took
    /// effect.
    pub fn resolve(&mut self, file: FileIndex, id: u64, cached: &[u8]) {
        let Some((_, effect)) = self.files[file].under_way.iter().find(|(other, _)| *other == id).cloned()
        else {
            return;
        };
        let end = self.files[file].ends.last().copied().unwrap_or(0);
        let written = |offset: u64, bytes: &[u8]| {
            let offset = offset as usize;
            cached.get(offset..offset + bytes.len()) == Some(bytes)
        };
        let done = match &effect {
            Effect::Write { offset, bytes } => written(*offset, bytes).then_some(effect),
            Effect::Append(bytes) => {
                written(end, bytes).then(|| Effect::Write { offset: end, bytes: bytes.clone() })
            }
            Effect::Truncate(size) => (cached.len() as u64 == *size).then_some(effect),
            Effect::Punch { offset, bytes } => {
                let end = cached.len().min((offset + bytes) as usize);
                let from = end.min(*offset as usize);
                cached[from..end].iter().all(|&byte| byte == 0).then_some(effect)
            }
        };
        match done {
            Some(effect) => self.took_effect(file, id, Some(&effect), true, false),
            None => self.returned(file, id),
        }
    }

    /// The number of states a file has now: what a sync that begins now will cover.
    pub fn states(&self, file: FileIndex) -> usize {
        self.files[file].states.len()
    }

    /// The first `states` states of a file are on disk.
    pub fn synced(&mut self, file: FileIndex, states: usize) {
        let file = &mut self.files[file];
        if file.floor + 1 < states && !file.broken {
            file.floor = states - 1;
            self.version += 1;
        }
    }

    /// A sync of the file is going to fail.
    pub fn will_fail(&mut self, file: FileIndex) {
        self.files[file].broken = true;
    }

    /// An outsider has the file, or has left it.
    pub fn set_conflict(&mut self, file: FileIndex, conflict: bool) {
        self.changed();
        self.files[file].conflict = conflict;
    }

    /// Whether an outsider is just coming.
    pub fn has_conflict(&self) -> bool {
        self.files.iter().any(|file| file.conflict)
    }

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
        self.changes.push(NameChange { naming, sure: false, id, made: None });
        id
    }

    /// The announced change was made.
    pub fn named(&mut self, id: u64) {
        let now = self.changed();
        for change in self.changes.iter_mut().filter(|change| change.id == id) {
            change.made = Some(now);
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

    /// Changes of names up to a number are durable. `only_held` leaves out creations of files that have no byte: no
    /// promise covers them.
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

    fn must_exist(&mut self, file: FileIndex) {
        for index in 0..self.changes.len() {
            if matches!(self.changes[index].naming, Naming::Create(_, created) if created == file) {
                self.make_sure(index);
            }
        }
    }

    /// With a change all earlier ones that it builds on are certain.
    fn make_sure(&mut self, index: usize) {
        self.changes[index].sure = true;
        self.version += 1;
        for earlier in (0..index).rev() {
            let later = (earlier + 1..=index).filter(|&later| self.changes[later].sure);
            let needed = later
                .clone()
                .any(|later| self.changes[later].naming.builds_on(&self.changes[earlier].naming));
            if needed {
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

    /// Checks what was found after a crash; says what is wrong. `exempt` is a name that somebody else changed.
    pub fn check(&self, found: &Tree, exempt: Option<&[u8]>) -> Result<(), String> {
        let unsure: Vec<usize> = (0..self.changes.len()).filter(|&index| !self.changes[index].sure).collect();
        let mut nearest = None;
        // The likeliest first: everything happened.
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
                        lost < index && self.changes[index].naming.builds_on(&self.changes[lost].naming)
                    })
            });
            if builds_on_lost {
                continue;
            }
            let mut names = self.names.clone();
            for (index, change) in self.changes.iter().enumerate() {
                if !lost.contains(&index) {
                    change.naming.apply(&mut names);
                }
            }
            match self.check_names(&names, found, exempt) {
                Ok(()) => return Ok(()),
                Err(wrong) => nearest = nearest.or(Some(wrong)),
            }
        }
        Err(nearest.unwrap_or_else(|| "no outcome is possible".to_owned()))
    }

    fn check_names(
        &self,
        names: &BTreeMap<Vec<u8>, FileIndex>,
        found: &Tree,
        exempt: Option<&[u8]>,
    ) -> Result<(), String> {
        for (name, &file) in names.iter().filter(|(name, _)| Some(&name[..]) != exempt) {
            let shown = String::from_utf8_lossy(name);
            match found.get(name) {
                None if self.files[file].conflict => {}
                None => return Err(format!("{shown} is not there")),
                Some(bytes) => {
                    self.check_file(file, bytes).map_err(|wrong| format!("{shown}: {wrong}"))?;
                }
            }
        }
        match found.keys().find(|name| !names.contains_key(*name) && Some(&name[..]) != exempt) {
            Some(name) => Err(format!("{} is there and must not be", String::from_utf8_lossy(name))),
            None => Ok(()),
        }
    }

    fn check_file(&self, file: FileIndex, found: &[u8]) -> Result<(), String> {
        let file = &self.files[file];
        if file.conflict {
            return Ok(());
        }
        let possible = &file.states[file.floor..];
        let mut outcomes: Vec<Rc<Vec<u8>>> = possible.to_vec();
        for (_, effect) in &file.under_way {
            for outcome in outcomes.clone() {
                outcomes.push(Rc::new(effect.apply(&outcome)));
                if let Effect::Append(bytes) = effect {
                    let at = |&offset: &u64| Effect::Write { offset, bytes: bytes.clone() };
                    let moved = file.ends.iter().map(at).map(|effect| Rc::new(effect.apply(&outcome)));
                    outcomes.extend(moved);
                }
            }
        }
        if outcomes.iter().any(|outcome| outcome[..] == *found) {
            return Ok(());
        }
        if possible.len() == 1 {
            return Err(difference(&outcomes[0], found));
        }
        // Left to the kernel: every byte, and the size, are of some state since the last sync.
        let all: Vec<&Rc<Vec<u8>>> = outcomes.iter().collect();
        if !all.iter().any(|state| state.len() == found.len()) {
            return Err(format!("its size is {}, which it never was since its last sync", found.len()));
        }
        for (at, byte) in found.iter().enumerate() {
            if !all.iter().any(|state| state.get(at).copied().unwrap_or(0) == *byte) {
                return Err(format!("byte {at} is {byte:#x}, which it never was since its last sync"));
            }
        }
        Ok(())
    }
}

fn difference(expected: &[u8], found: &[u8]) -> String {
    let at = expected.iter().zip(found).position(|(a, b)| a != b).unwrap_or(expected.len().min(found.len()));
    let show = |bytes: &[u8]| match bytes.get(at) {
        Some(byte) => format!("{byte:#x}"),
        None => "the end".to_owned(),
    };
    format!(
        "byte {at} is {}, not {} ({} bytes long, should be {})",
        show(found),
        show(expected),
        found.len(),
        expected.len()
    )
}
