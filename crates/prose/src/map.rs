//! The code map (docs/code.md) has every crate, and none uses one that stands below it there.

use std::path::{Path, PathBuf};

use crate::text::{Kind, spans};
use crate::{Fault, Tree};

const MAP: &str = "docs/code.md";

/// Crates that the map lacks, rows without a crate, and arrows that point up.
pub fn map(tree: &Tree) -> Vec<Fault> {
    let listed = listed(tree);
    let mut faults = Vec::new();
    let place = |name: &str| listed.iter().position(|(_, listed)| listed == name);
    for (line, name) in &listed {
        if !tree.has(&Path::new("crates").join(name).join("Cargo.toml")) {
            let what = format!("there is no crate {name}: take its row out");
            faults.push(Fault { file: MAP.into(), line: *line, what });
        }
    }
    for (file, name, manifest) in manifests(tree) {
        let Some(own) = place(name) else {
            let what = format!("{MAP} has no row for {name}: say what it is for and must never do");
            faults.push(Fault { file: file.clone(), line: 1, what });
            continue;
        };
        for (line, used) in dependencies(manifest) {
            if place(used).is_some_and(|place| place >= own) {
                let what = format!("{name} uses {used}, which stands below it in {MAP}: no arrow points up");
                faults.push(Fault { file: file.clone(), line, what });
            }
        }
    }
    faults
}

/// The crates of the map, in order: rows of the table that begins with `| crate |`.
fn listed(tree: &Tree) -> Vec<(usize, String)> {
    let Some(map) = tree.documents.iter().find(|document| document.path == Path::new(MAP)) else {
        return Vec::new();
    };
    let lines = map.texts.iter().flat_map(|text| &text.lines);
    let rows = lines.skip_while(|line| !line.text.starts_with("| crate |"));
    let rows = rows.take_while(|line| line.kind == Kind::Row).filter(|line| line.text.starts_with("| `"));
    rows.filter_map(|line| Some((line.number, spans(&line.text).next()?.1.to_owned()))).collect()
}

pub(crate) fn manifests(tree: &Tree) -> impl Iterator<Item = (&PathBuf, &str, &str)> {
    tree.files.iter().filter_map(|(path, content)| {
        let mut parts = path.iter().map(|part| part.to_str().unwrap_or(""));
        let (top, name, file) = (parts.next()?, parts.next()?, parts.next()?);
        (top == "crates" && file == "Cargo.toml").then_some((path, name, content.as_str()))
    })
}

/// Which crates of ours a manifest asks for, tests apart.
pub(crate) fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut found = Vec::new();
    for (at, line) in manifest.lines().enumerate() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        }
        if let Some(name) = line.strip_prefix("holdfast-").filter(|_| inside) {
            let end = name.find(|c: char| !c.is_ascii_alphanumeric() && c != '-').unwrap_or(name.len());
            found.push((at + 1, &name[..end]));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn crates_that_are_missing_and_arrows_that_point_up_are_found() {
        let map_page = "| crate | what |\n| --- | --- |\n| `pool` | a |\n| `gone` | b |\n| `log` | c |\n";
        let uses = |name: &str| {
            format!(
                "[dependencies]\nholdfast-{name}.workspace = true\n[dev-dependencies]\nholdfast-log = 1\n"
            )
        };
        let (up, down) = (uses("log"), uses("pool"));
        let faults = map(&tree_of(&[
            (MAP, map_page),
            ("crates/pool/Cargo.toml", &up),
            ("crates/log/Cargo.toml", &down),
            ("crates/new/Cargo.toml", &down),
        ]));
        let found: Vec<_> = faults.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), 3, "{found:#?}");
        assert!(found[0].contains("no crate gone") && found[1].contains("no row for new"), "{found:#?}");
        assert!(found[2].contains("pool uses log"), "{found:#?}");
    }
}
