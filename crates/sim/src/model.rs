//! The oracle: what files and names may be after a crash, worked out from what programs did and
//! were told, without any of the product's code.
//!
//! A file is the list of states that may be found since its last real sync: a call that no record
//! holds adds one, and a crash leaves any of them, byte by byte; a call that a record holds is on
//! top of each. So where writes are durable when they return there is one state, and it must be
//! found as it is. Calls under way may have happened or not. Names are a list of changes, of which
//! those that must be durable are marked; the others may be there or not, but none without the
//! earlier ones it builds on.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

mod effect;
mod names;
mod verdict;

pub use effect::Effect;
use names::Names;
pub use names::{FileIndex, Naming};

/// The files of the one directory, by name.
pub type Tree = BTreeMap<Vec<u8>, Vec<u8>>;

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
    /// A sync or a write of the keeper failed: what no record holds may be lost for good, and no
    /// later sync brings it back.
    broken: bool,
}

impl File {
    fn of(bytes: &[u8], has_bytes: bool) -> Self {
        Self {
            states: vec![Rc::new(bytes.to_vec())],
            floor: 0,
            under_way: Vec::new(),
            ends: Vec::new(),
            conflict: false,
            has_bytes,
            broken: false,
        }
    }
}

/// All that is known.
#[derive(Clone, Debug, Default)]
pub struct Model {
    files: Vec<File>,
    names: Names,
    next_id: u64,
    /// Changes with everything that changes what may be found.
    pub version: u64,
}

impl Model {
    /// A model of files that are all on disk.
    pub fn of(tree: &Tree, in_order: bool) -> Self {
        let indices = tree.keys().cloned().zip(0..).collect();
        let files = tree.values().map(|bytes| File::of(bytes, true)).collect();
        Self { files, names: Names::of(indices, in_order), next_id: 0, version: 0 }
    }

    fn changed(&mut self) -> u64 {
        self.version += 1;
        self.next_id += 1;
        self.next_id
    }

    /// The names as programs see them.
    pub fn current(&self) -> BTreeMap<Vec<u8>, FileIndex> {
        self.names.current()
    }

    /// What programs see in a file.
    pub fn contents(&self, file: FileIndex) -> &[u8] {
        self.files[file].states.last().map_or(&[], |state| state)
    }

    /// Whether programs may see something else: a failed sync may have dropped what the kernel had.
    pub fn is_exempt(&self, file: FileIndex) -> bool {
        self.files[file].broken || self.files[file].conflict
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

    /// What `done` describes is in the page cache now. With `durable` it must survive from here on;
    /// `partial` says that all of the call may still be found as well, until it returns.
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
            self.names.must_exist(file);
        }
    }

    /// A call returned.
    pub fn returned(&mut self, file: FileIndex, id: u64) {
        if self.files[file].under_way.iter().any(|(other, _)| *other == id) {
            self.changed();
            self.files[file].under_way.retain(|(other, _)| *other != id);
        }
    }

    /// What is wrong when programs see part of a write that was under way when its process died:
    /// `cached` is what they see.
    pub fn partial(&self, file: FileIndex, id: u64, cached: &[u8]) -> Option<String> {
        let (_, effect) = self.files[file].under_way.iter().find(|(other, _)| *other == id)?;
        let is_write = matches!(effect, Effect::Write { .. } | Effect::Append(_));
        let (before, after) = (self.contents(file), effect.apply(self.contents(file)));
        let is_whole = cached == before || cached == after;
        (is_write && !self.is_exempt(file) && !is_whole).then(|| difference(&after, cached))
    }

    /// A process died in a call that did not return; what programs see after the repair tells
    /// whether it took effect. With `refused` the disk kept the keeper from finishing it: it may
    /// still come, beneath whatever follows.
    pub fn resolve(&mut self, file: FileIndex, id: u64, cached: &[u8], refused: bool) {
        let Some((_, effect)) = self.files[file].under_way.iter().find(|(other, _)| *other == id).cloned()
        else {
            return;
        };
        if effect.apply(self.contents(file)) == self.contents(file) {
            return self.untold(file, id, &effect);
        }
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
            None if refused => {
                let effect = match self.files[file].under_way.iter().find(|(other, _)| *other == id) {
                    Some((_, Effect::Append(bytes))) => Effect::Write { offset: end, bytes: bytes.clone() },
                    Some((_, effect)) => effect.clone(),
                    None => return,
                };
                self.untold(file, id, &effect);
                self.files[file].broken = true;
            }
            None => self.returned(file, id),
        }
    }

    /// A process died in a call of which nobody can tell whether it took effect, or will: it may
    /// have, on top of each state that a crash may leave, and nothing has to be there because of
    /// it. What programs see is as before.
    fn untold(&mut self, file: FileIndex, id: u64, effect: &Effect) {
        let file_model = &mut self.files[file];
        let (floor, last) = (file_model.floor, file_model.states.len() - 1);
        let newest = Rc::clone(&file_model.states[last]);
        let changed = file_model.states[floor..].iter().map(|state| Rc::new(effect.apply(state)));
        let changed: Vec<_> = changed.filter(|state| *state != newest).collect();
        file_model.states.splice(last..last, changed);
        self.returned(file, id);
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

    /// A sync of a file that holds something returned: it must be found.
    pub fn first_synced(&mut self, file: FileIndex) {
        if !self.contents(file).is_empty() && !self.files[file].broken {
            self.files[file].has_bytes = true;
            self.changed();
            self.names.must_exist(file);
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
        self.files.push(File::of(&[], false));
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
        self.names.announce(id, naming);
        id
    }

    /// The announced change was made, behind what was made of the same names or files meanwhile.
    pub fn named(&mut self, id: u64) {
        let now = self.changed();
        self.names.made(id, now);
    }

    /// Whether the change that is about to be made is the announced one.
    pub fn is_announced(&self, id: u64, naming: &Naming) -> bool {
        self.names.is_announced(id, naming)
    }

    /// The names that depend on what somebody did to one of them after a crash that left `found`.
    pub fn tied_to(&self, name: &[u8], found: &Tree) -> BTreeSet<Vec<u8>> {
        self.names.tied_to(name, found)
    }

    /// A change of names failed.
    pub fn not_named(&mut self, id: u64) {
        self.changed();
        self.names.not_made(id);
    }

    /// The number of changes of names so far: what a sync that begins now will cover.
    pub fn name_changes(&self) -> u64 {
        self.next_id
    }

    /// Changes of names up to a number are durable. Creations of files that have no byte are so
    /// only `with_blank`: no promise covers them.
    pub fn names_synced(&mut self, up_to: u64, with_blank: bool) {
        let files = &self.files;
        let is_news = self.names.synced(up_to, |file| !with_blank && !files[file].has_bytes);
        self.version += u64::from(is_news);
    }
}

pub(crate) fn difference(expected: &[u8], found: &[u8]) -> String {
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
