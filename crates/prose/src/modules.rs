//! The modules of a crate, and what each file of them says of others: its `use`s and its paths.
//!
//! It reads tokens, so that comments and strings name nothing. What is built for tests alone is
//! left out. Modules in a file with others are a part of that file. It must never judge what it
//! finds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::Tree;
use crate::tokens::{Token, tokens};

/// Names from the root of a crate down; the root has none.
pub(crate) type Names = Vec<String>;

/// A module with a file of its own.
#[derive(Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    /// Modules in files below it.
    pub(crate) children: BTreeSet<String>,
    /// Its functions, types, constants and macros.
    pub(crate) defined: BTreeSet<String>,
    /// What it names of others.
    pub(crate) paths: Vec<Named>,
    /// All words outside of `use`.
    pub(crate) words: BTreeSet<String>,
}

/// A path in a file.
pub(crate) struct Named {
    pub(crate) line: usize,
    /// The module that it stands in, from the root: longer than the file's where modules share it.
    pub(crate) inside: Names,
    /// As it is written.
    pub(crate) path: Names,
    pub(crate) how: How,
}

/// How a path is named.
#[derive(PartialEq, Eq)]
pub(crate) enum How {
    /// In the midst of code.
    Inline,
    /// By a `use` that names it so in this module.
    Import { name: String, is_public: bool },
    /// By a `use` in a function.
    Local,
}

/// The modules below this root file, with the root.
pub(crate) fn modules(tree: &Tree, root: &Path) -> BTreeMap<Names, Module> {
    let mut found = BTreeMap::new();
    let folder = root.parent().unwrap_or(Path::new("")).to_path_buf();
    let mut open = vec![(Names::new(), root.to_path_buf(), folder)];
    while let Some((names, file, folder)) = open.pop() {
        let Some(source) = tree.files.get(&file) else { continue };
        let tokens = tokens(source);
        let mut reader = Reader::new(&tokens, &names);
        reader.read();
        for (child, given) in reader.files {
            let inner = folder.join(&child);
            let beside = folder.join(format!("{child}.rs"));
            let given = given.map(|path| file.with_file_name(path));
            let file = given.unwrap_or(if tree.has(&beside) { beside } else { inner.join("mod.rs") });
            let names: Names = names.iter().cloned().chain([child.clone()]).collect();
            reader.module.children.insert(child);
            open.push((names, file, inner));
        }
        reader.module.file = file;
        found.insert(names, reader.module);
    }
    found
}

/// What it has read of a file so far.
struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    /// Where it is: the file's module, and those inside the file.
    inside: Names,
    /// Braces that are open, and whether each is a module's.
    braces: Vec<bool>,
    /// Modules in other files, and where the source says that they are.
    files: Vec<(String, Option<String>)>,
    module: Module,
}

impl<'a> Reader<'a> {
    fn new(tokens: &'a [Token<'a>], names: &Names) -> Self {
        Self {
            tokens,
            at: 0,
            inside: names.clone(),
            braces: Vec::new(),
            files: Vec::new(),
            module: Module::default(),
        }
    }

    fn text(&self, at: usize) -> &'a str {
        self.tokens.get(at).map_or("", |token| token.text)
    }

    fn read(&mut self) {
        let (mut is_public, mut given) = (false, None);
        while self.at < self.tokens.len() {
            let (text, next) = (self.text(self.at), self.text(self.at + 1));
            match text {
                "#" => given = self.attribute().or(given),
                "pub" => {
                    is_public = true;
                    self.at += 1;
                    if self.text(self.at) == "(" {
                        self.skip_group();
                    }
                    continue;
                }
                "use" if next != "<" => self.import(is_public),
                "mod" if self.text(self.at + 2) == ";" => {
                    self.files.push((next.to_owned(), given.take()));
                    self.at += 3;
                }
                "mod" if self.text(self.at + 2) == "{" => {
                    self.inside.push(next.to_owned());
                    self.braces.push(true);
                    self.at += 3;
                }
                "{" | "}" => self.brace(text),
                _ => self.word(),
            }
            is_public = false;
        }
    }

    fn brace(&mut self, text: &str) {
        if text == "{" {
            self.braces.push(false);
        } else if self.braces.pop() == Some(true) {
            self.inside.pop();
        }
        self.at += 1;
    }

    /// Whether it is in no function, no type and no module inside the file.
    fn is_outside(&self) -> bool {
        self.braces.is_empty()
    }

    /// Passes over an attribute, with what is built for tests alone behind it, and gives the path
    /// that it has for a module.
    fn attribute(&mut self) -> Option<String> {
        self.at += 1;
        if self.text(self.at) == "!" {
            self.at += 1;
        }
        let from = self.at;
        if self.text(from) != "[" {
            return None;
        }
        self.skip_group();
        let words = &self.tokens[from + 1..self.at];
        let is = |name: &str| words.first().is_some_and(|first| first.text == name);
        let test = words.iter().position(|word| word.text == "test");
        if is("cfg") && test.is_some_and(|test| words[test.saturating_sub(2)].text != "not") {
            self.skip_item();
        }
        let literal = words.get(2).filter(|_| is("path"))?;
        Some(literal.text.trim_matches('"').to_owned())
    }

    /// Passes over the group that begins here.
    fn skip_group(&mut self) {
        let mut depth = 0;
        while self.at < self.tokens.len() {
            match self.text(self.at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    /// Passes over an item, a field, an arm or a statement.
    fn skip_item(&mut self) {
        while self.text(self.at) == "#" {
            self.at += 1;
            self.skip_group();
        }
        if self.text(self.at) == "pub" {
            self.at += 1;
            if self.text(self.at) == "(" {
                self.skip_group();
            }
        }
        let first = self.text(self.at);
        let is_value =
            matches!(first, "use" | "static" | "type" | "let" | "const") && self.text(self.at + 1) != "fn";
        let is_item = matches!(
            first,
            "mod" | "fn" | "impl" | "struct" | "enum" | "trait" | "union" | "unsafe" | "extern" | "const"
        );
        while self.at < self.tokens.len() {
            match self.text(self.at) {
                ";" => return self.at += 1,
                "," if !is_value && !is_item => return self.at += 1,
                ")" | "]" | "}" => return,
                "{" if !is_value => return self.skip_group(),
                "(" | "[" | "{" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Reads a `use` to its end.
    fn import(&mut self, is_public: bool) {
        self.at += 1;
        let is_local = self.braces.last() == Some(&false);
        let mut found = Vec::new();
        self.branch(&Names::new(), &mut found);
        for (line, path, name) in found {
            let how = if is_local { How::Local } else { How::Import { name, is_public } };
            self.module.paths.push(Named { line, inside: self.inside.clone(), path, how });
        }
        self.at += 1;
    }

    /// Reads what follows these names in a `use`.
    fn branch(&mut self, before: &Names, found: &mut Vec<(usize, Names, String)>) {
        let (mut path, mut name) = (before.clone(), None);
        let line = self.tokens.get(self.at).map_or(0, |token| token.line);
        while self.at < self.tokens.len() {
            match self.text(self.at) {
                "{" => {
                    self.at += 1;
                    while !matches!(self.text(self.at), "}" | "") {
                        self.branch(&path, found);
                        if self.text(self.at) == "," {
                            self.at += 1;
                        }
                    }
                    self.at += 1;
                    return;
                }
                "as" => {
                    name = Some(self.text(self.at + 1).to_owned());
                    self.at += 2;
                }
                "," | ";" | "}" => break,
                "::" => self.at += 1,
                "self" if !path.is_empty() => self.at += 1,
                text => {
                    path.push(text.to_owned());
                    self.at += 1;
                }
            }
        }
        let name = name.or_else(|| path.last().cloned()).unwrap_or_default();
        found.push((line, path, name));
    }

    /// Reads a word or a path, or passes over a mark.
    fn word(&mut self) {
        let token = self.tokens[self.at];
        let before = self.at.checked_sub(1).map_or("", |at| self.text(at));
        self.at += 1;
        if !token.is_word() {
            return;
        }
        if self.is_outside() {
            self.define(token.text);
        }
        self.module.words.insert(token.text.to_owned());
        if before == "::" || before == "." || self.text(self.at) != "::" {
            return;
        }
        let mut path = vec![token.text.to_owned()];
        while self.text(self.at) == "::" && self.tokens.get(self.at + 1).is_some_and(Token::is_word) {
            path.push(self.text(self.at + 1).to_owned());
            self.module.words.insert(self.text(self.at + 1).to_owned());
            self.at += 2;
        }
        let inside = self.inside.clone();
        self.module.paths.push(Named { line: token.line, inside, path, how: How::Inline });
    }

    /// Notes what this keyword defines.
    fn define(&mut self, keyword: &str) {
        let next = self.text(self.at);
        let name = match keyword {
            "macro_rules" => self.text(self.at + 1),
            "static" if next == "mut" => self.text(self.at + 1),
            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" => next,
            _ => return,
        };
        self.module.defined.insert(name.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::tree_of;

    #[test]
    fn uses_and_paths_are_read_and_those_of_tests_are_not() {
        let source = "pub(in crate::no) use a::{self, b::{C as D, *}};\n#[cfg(test)]\npub(crate) use \
                      crate::no;\n#[cfg(not(test))]\nuse crate::yes;\nstruct S {\n    #[cfg(test)]\n    a: \
                      crate::no::A,\n    b: <u8 as super::T>::B,\n}\nmod inner {\n    fn f(&self) -> impl A + \
                      use<> {\n        $crate::m!(x.crate_::y);\n        use a::b;\n    }\n}\n#[cfg(all(test, \
                      unix))]\nmod tests {\n    use crate::no;\n}\n#[cfg(test)]\n#[path = \"no.rs\"]\nmod \
                      far;\n";
        let found = modules(&tree_of(&[("crates/x/src/lib.rs", source)]), Path::new("crates/x/src/lib.rs"));
        let root = &found[&Names::new()];
        let expected =
            ["1:a", "1:a::b::C", "1:a::b::*", "5:crate::yes", "9:super::T", "13:crate::m", "14:a::b"];
        let told: Vec<_> =
            root.paths.iter().map(|named| format!("{}:{}", named.line, named.path.join("::"))).collect();
        assert_eq!(told, expected);
        assert_eq!(root.paths[5].inside, ["inner"]);
        assert_eq!(root.defined, BTreeSet::from(["S".to_owned()]));
        assert!(root.children.is_empty());
    }

    #[test]
    fn files_of_modules_are_found() {
        let found = modules(
            &tree_of(&[
                ("crates/x/src/main.rs", "mod a;\nmod b;\n#[path = \"z.rs\"]\nmod c;\n"),
                ("crates/x/src/a.rs", "pub mod d;\n"),
                ("crates/x/src/a/d.rs", ""),
                ("crates/x/src/b/mod.rs", "mod e;\n"),
                ("crates/x/src/b/e.rs", ""),
                ("crates/x/src/z.rs", ""),
                ("crates/x/src/loose.rs", ""),
            ]),
            Path::new("crates/x/src/main.rs"),
        );
        let told: Vec<_> = found.keys().map(|names| names.join("::")).collect();
        assert_eq!(told, ["", "a", "a::d", "b", "b::e", "c"]);
    }
}
