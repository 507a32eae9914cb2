//! Whether what was found after a crash is possible.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::{Effect, FileIndex, Model, Tree, difference};

impl Model {
    /// Checks what was found after a crash; says what is wrong. `exempt` are names that somebody
    /// else had a hand in.
    pub fn check(&self, found: &Tree, exempt: &BTreeSet<Vec<u8>>) -> Result<(), String> {
        let (mut nearest, mut is_possible) = (None, false);
        self.names.every_outcome(|names| {
            match self.check_names(names, found, exempt) {
                Ok(()) => is_possible = true,
                Err(wrong) => nearest = nearest.take().or(Some(wrong)),
            }
            !is_possible
        });
        if is_possible {
            return Ok(());
        }
        Err(nearest.unwrap_or_else(|| "no outcome is possible".to_owned()))
    }

    fn check_names(
        &self,
        names: &BTreeMap<Vec<u8>, FileIndex>,
        found: &Tree,
        exempt: &BTreeSet<Vec<u8>>,
    ) -> Result<(), String> {
        for (name, &file) in names.iter().filter(|(name, _)| !exempt.contains(*name)) {
            let shown = String::from_utf8_lossy(name);
            match found.get(name) {
                None if self.files[file].conflict => {}
                None => return Err(format!("{shown} is not there")),
                Some(bytes) => {
                    self.check_file(file, bytes).map_err(|wrong| format!("{shown}: {wrong}"))?;
                }
            }
        }
        match found.keys().find(|name| !names.contains_key(*name) && !exempt.contains(*name)) {
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
