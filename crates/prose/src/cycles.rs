//! No arrow inside a crate leads back to where it came from.
//!
//! Compared are the modules at the top of a crate, and those of each folder: siblings, and the
//! file that declares them (`lib.rs`, `mod.rs`, or `a.rs` beside `a/`). A module *uses* another
//! when one of its files, or one below it, names something of it by a `use` or by a path. Tests,
//! comments and strings use nothing, and neither does a call of a method, which names no module.
//!
//! A facade is no arrow. What a parent takes in by `use` is looked up where it comes from: a child
//! that says `super::A` uses the sibling that defines `A`. A parent that hands a child's items on
//! by `pub use` does not use them, unless its own code names them, too. But a child that uses what
//! is *defined in* its parent, while the parent uses the child, makes a cycle with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::modules::{How, Module, Named, Names, modules};
use crate::{Fault, Tree};

/// How the file that declares the others is called.
const PARENT: &str = "its own file";

/// An arrow: who uses whom.
type Arrow = (String, String);
/// The first place of each arrow: file, line, and the path that is written there.
type Arrows = BTreeMap<Arrow, (PathBuf, usize, String)>;

/// All cycles.
pub fn cycles(tree: &Tree) -> Vec<Fault> {
    let mut faults = Vec::new();
    for root in tree.files.keys().filter(|path| is_root(path)) {
        let name = root.iter().nth(1).and_then(|name| name.to_str()).unwrap_or("");
        for (folder, arrows) in arrows(&modules(tree, root)) {
            let place = [&[name.to_owned()][..], &folder[..]].concat().join("::");
            faults.extend(circles(&arrows).iter().map(|cycle| fault(&place, cycle, &arrows)));
        }
    }
    faults
}

/// Whether a crate begins with this file.
fn is_root(path: &Path) -> bool {
    let parts: Vec<_> = path.iter().map(|part| part.to_str().unwrap_or("")).collect();
    matches!(parts[..], ["crates", _, "src", "lib.rs" | "main.rs"] | ["crates", _, "src", "bin", _])
}

fn fault(place: &str, cycle: &BTreeSet<String>, arrows: &Arrows) -> Fault {
    let within = arrows.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
    let modules = cycle.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let mut what = format!("a cycle of modules in {place}: {modules}");
    let (mut file, mut line) = (PathBuf::new(), 0);
    for ((from, to), (at, number, path)) in within {
        what.push_str(&format!("\n    {from} -> {to}: {}:{number}: {path}", at.display()));
        (file, line) = (at.clone(), *number);
    }
    Fault { file, line, what }
}

/// The arrows of each folder.
fn arrows(modules: &BTreeMap<Names, Module>) -> BTreeMap<Names, Arrows> {
    let mut found: BTreeMap<Names, Arrows> = BTreeMap::new();
    for (user, module) in modules {
        for named in &module.paths {
            let Some(used) = used(modules, user, named) else { continue };
            let shared = user.iter().zip(&used).take_while(|(a, b)| a == b).count();
            let end = |names: &Names| names.get(shared).map_or(PARENT, String::as_str).to_owned();
            let (from, to) = (end(user), end(&used));
            if from == to || (from == PARENT && is_facade(modules, module, named, &used)) {
                continue;
            }
            let place = (module.file.clone(), named.line, named.path.join("::"));
            found.entry(user[..shared].to_vec()).or_default().entry((from, to)).or_insert(place);
        }
    }
    found
}

/// Whether a parent only hands on what is its children's.
fn is_facade(modules: &BTreeMap<Names, Module>, parent: &Module, named: &Named, used: &Names) -> bool {
    let How::Import { name, is_public: true } = &named.how else { return false };
    let is_used = |name: &String| parent.words.contains(name);
    if name == "*" { !modules[used].defined.iter().any(is_used) } else { !is_used(name) }
}

/// The module whose item a path names, if it is of this crate.
fn used(modules: &BTreeMap<Names, Module>, user: &Names, named: &Named) -> Option<Names> {
    let mut path = absolute(modules, user, &named.inside, &named.path)?;
    // Names that are handed on are followed; nobody hands one on in a circle, but tests may.
    for _ in 0..16 {
        let at = deepest(modules, &path);
        let rest = &path[at.len()..];
        if !user.starts_with(&at) || at == *user {
            return Some(at);
        }
        let Some(item) = rest.first() else {
            // A module above, named by itself: what is used of it is named elsewhere.
            return None;
        };
        let parent = &modules[&at];
        let Some(handed) = handed(modules, &at, parent, item) else { return Some(at) };
        path = [&handed?, &rest[1..]].concat();
    }
    None
}

/// The longest beginning of a path that is a module.
fn deepest(modules: &BTreeMap<Names, Module>, path: &[String]) -> Names {
    let is_module = |length: &usize| modules.contains_key(&path[..*length]);
    (0..=path.len()).take_while(is_module).last().map_or(Names::new(), |length| path[..length].to_vec())
}

/// What a parent hands on by this name, if it has it from elsewhere: none inside if that is another
/// crate.
fn handed(
    modules: &BTreeMap<Names, Module>,
    at: &Names,
    parent: &Module,
    item: &String,
) -> Option<Option<Names>> {
    if parent.defined.contains(item) {
        return None;
    }
    let imports = parent.paths.iter().filter(|named| named.inside == *at);
    let mut globs = Vec::new();
    for named in imports {
        match &named.how {
            How::Import { name, .. } if name == item => {
                return Some(absolute(modules, at, at, &named.path));
            }
            How::Import { name, .. } if name == "*" => globs.push(named),
            _ => {}
        }
    }
    globs.into_iter().find_map(|named| {
        let mut path = absolute(modules, at, at, &named.path)?;
        path.pop();
        let found = modules.get(&path).is_some_and(|module| module.defined.contains(item));
        path.push(item.clone());
        found.then_some(Some(path))
    })
}

/// A path from the root of the crate, if it leads there.
fn absolute(
    modules: &BTreeMap<Names, Module>,
    user: &Names,
    inside: &Names,
    path: &[String],
) -> Option<Names> {
    let mut base = inside.clone();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &path[1..];
        }
        "self" => rest = &path[1..],
        "super" => {}
        first => {
            let is_child = *inside == *user && modules[user].children.contains(first);
            if !is_child {
                return imported(modules, user, inside, path);
            }
        }
    }
    while rest.first().is_some_and(|name| name == "super") {
        base.pop()?;
        rest = &rest[1..];
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// A path that begins with a module that was taken in by a `use`.
fn imported(
    modules: &BTreeMap<Names, Module>,
    user: &Names,
    inside: &Names,
    path: &[String],
) -> Option<Names> {
    let is_it = |named: &&Named| match &named.how {
        How::Import { name, .. } => *name == path[0] && named.path[0] != path[0] && named.inside == *inside,
        _ => false,
    };
    let import = modules[user].paths.iter().find(is_it)?;
    let mut found = absolute(modules, user, inside, &import.path)?;
    if !modules.contains_key(&found) {
        return None;
    }
    found.extend_from_slice(&path[1..]);
    Some(found)
}

/// The sets of modules that all use each other, by others or by themselves.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in arrows.keys() {
        reached.entry(from).or_default().insert(to);
    }
    loop {
        let before: usize = reached.values().map(BTreeSet::len).sum();
        for from in reached.keys().copied().collect::<Vec<_>>() {
            let further: Vec<&str> =
                reached[from].iter().filter_map(|to| reached.get(to)).flatten().copied().collect();
            reached.entry(from).or_default().extend(further);
        }
        if reached.values().map(BTreeSet::len).sum::<usize>() == before {
            break;
        }
    }
    let meets = |a: &str, b: &str| reached.get(a).is_some_and(|reached| reached.contains(b));
    let circles: BTreeSet<BTreeSet<String>> = reached
        .keys()
        .filter(|module| meets(module, module))
        .map(|module| {
            let both = reached[module].iter().filter(|other| meets(other, module));
            both.map(|other| (*other).to_owned()).collect()
        })
        .collect();
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(name, source)| (format!("crates/x/src/{name}"), *source)).collect();
        let files: Vec<_> = files.iter().map(|(path, source)| (path.as_str(), *source)).collect();
        cycles(&tree_of(&files)).iter().map(ToString::to_string).collect()
    }

    const TWO: [(&str, &str); 4] = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
        ("a.rs", "use crate::b::B;\nfn f() {}\n"),
        ("b.rs", "// crate::c\nstruct B;\nfn f() {\n    crate::a::f(\"crate::c\");\n}\n"),
        ("c.rs", "use crate::{a, b::{self}};\n"),
    ];

    #[test]
    fn a_cycle_is_told_with_its_arrows() {
        let told = found(&TWO);
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(told[0].contains("in x: a, b\n    a -> b: crates/x/src/a.rs:1: crate::b::B\n"), "{told:#?}");
        assert!(told[0].ends_with("    b -> a: crates/x/src/b.rs:4: crate::a::f"), "{told:#?}");
    }

    #[test]
    fn a_long_way_round_is_a_cycle_and_a_way_down_is_none() {
        let mut files = TWO;
        files[2].1 = "use super::c;\nstruct B;\n";
        assert!(found(&files)[0].contains("in x: a, b, c\n"));
        files[3].1 = "";
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn folders_are_looked_into() {
        let told = found(&[
            ("lib.rs", "mod a;\n"),
            ("a/mod.rs", "mod b;\nmod c;\n"),
            ("a/b.rs", "mod inner {\n    fn f() {\n        super::super::c::f();\n    }\n}\nfn f() {}\n"),
            ("a/c.rs", "use crate::a as up;\nfn f() {\n    up::b::f();\n}\n"),
        ]);
        assert_eq!(told.len(), 1, "{told:#?}");
        assert!(told[0].contains("in x::a: b, c\n"), "{told:#?}");
    }

    #[test]
    fn a_facade_is_no_arrow_and_what_it_hands_on_is_looked_up() {
        let facade = "mod a;\nmod b;\npub use a::A;\npub use b::*;\npub use far::F;\nfn own() {}\n";
        let mut files = [
            ("lib.rs", facade),
            ("a.rs", "use crate::{F, own};\npub struct A;\n"),
            ("b.rs", "use crate::A;\npub fn b() {}\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
        files[1].1 = "pub struct A(super::b);\nfn f() {\n    super::b();\n}\n";
        assert!(found(&files)[0].contains("in x: a, b\n"), "{:#?}", found(&files));
    }

    #[test]
    fn a_parent_and_a_child_that_use_each_other_are_a_cycle() {
        let users = [
            "use a::A;\n",
            "pub use a::A;\nfn f(_: A) {}\n",
            "pub use a::*;\nfn f(_: A) {}\n",
            "fn f() {\n    a::f();\n}\n",
        ];
        for user in users {
            let root = format!("mod a;\nfn own() {{}}\n{user}");
            let files = [("lib.rs", root.as_str()), ("a.rs", "struct A;\nfn f() {\n    super::own();\n}\n")];
            let told = found(&files);
            assert_eq!(told.len(), 1, "{user}: {told:#?}");
            assert!(told[0].contains("in x: a, its own file\n"), "{told:#?}");
        }
        let down = [("lib.rs", "mod a;\nfn own() {\n    a::f();\n}\n"), ("a.rs", "fn f() {}\n")];
        assert_eq!(found(&down), [""; 0]);
    }
}
