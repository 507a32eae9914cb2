//! The operations of a case and their spelling: `who:verb path [path]`, steps parted by semicolons.
//! This module knows what a step is, not what comes of it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};

/// Who makes a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// The program under Holdfast.
    P,
    /// A child of it, another program under the same keeper.
    Q,
    /// A process without Holdfast.
    O,
}

impl Who {
    /// As the actor knows it.
    pub fn letter(self) -> char {
        match self {
            Self::P => 'p',
            Self::Q => 'q',
            Self::O => 'o',
        }
    }
}

/// What a verb changes, or that it is a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theme {
    /// Names.
    Names,
    /// Bytes.
    Bytes,
    /// Bytes, and they are to be durable when the call returns.
    Synchronous,
    /// Size and space.
    Space,
    /// Mode, owner, times, extended attributes.
    Attributes,
    /// A sync, or a close.
    Syncs,
}

/// A verb of the actors.
#[derive(Debug, PartialEq, Eq)]
pub struct Verb {
    /// As it is spelled.
    pub name: &'static str,
    /// What it changes.
    pub theme: Theme,
    /// How many paths it takes.
    pub paths: usize,
    /// Part of the small vocabulary, of which all sequences of two are made.
    pub core: bool,
}

const fn verb(name: &'static str, theme: Theme, paths: usize, core: bool) -> Verb {
    Verb { name, theme, paths, core }
}

/// All verbs. Those that only set up a case or belong to the oracle are not here.
pub static VERBS: &[Verb] = &[
    verb("create", Theme::Names, 1, true),
    verb("tmplink", Theme::Names, 1, true),
    verb("mkdir", Theme::Names, 1, true),
    verb("rmdir", Theme::Names, 1, true),
    verb("symlink", Theme::Names, 1, true),
    verb("link", Theme::Names, 2, true),
    verb("rename", Theme::Names, 2, true),
    verb("exchange", Theme::Names, 2, true),
    verb("unlink", Theme::Names, 1, true),
    verb("write", Theme::Bytes, 1, false),
    verb("fill", Theme::Bytes, 1, false),
    verb("append", Theme::Bytes, 1, true),
    verb("over", Theme::Bytes, 1, true),
    verb("hole", Theme::Bytes, 1, false),
    verb("mmap", Theme::Bytes, 1, false),
    verb("sover", Theme::Synchronous, 1, false),
    verb("dover", Theme::Synchronous, 1, true),
    verb("sappend", Theme::Synchronous, 1, true),
    verb("dappend", Theme::Synchronous, 1, false),
    verb("rsover", Theme::Synchronous, 1, false),
    verb("rdover", Theme::Synchronous, 1, false),
    verb("rsappend", Theme::Synchronous, 1, false),
    verb("rdappend", Theme::Synchronous, 1, false),
    verb("shrink", Theme::Space, 1, true),
    verb("grow", Theme::Space, 1, false),
    verb("cut", Theme::Space, 1, true),
    verb("otrunc", Theme::Space, 1, true),
    verb("falloc", Theme::Space, 1, false),
    verb("fkeep", Theme::Space, 1, false),
    verb("punch", Theme::Space, 1, true),
    verb("zero", Theme::Space, 1, false),
    verb("collapse", Theme::Space, 1, false),
    verb("insert", Theme::Space, 1, false),
    verb("clone", Theme::Space, 2, false),
    verb("sfalloc", Theme::Synchronous, 1, false),
    verb("dfalloc", Theme::Synchronous, 1, false),
    verb("spunch", Theme::Synchronous, 1, false),
    verb("szero", Theme::Synchronous, 1, false),
    verb("scollapse", Theme::Synchronous, 1, false),
    verb("dinsert", Theme::Synchronous, 1, false),
    verb("scopy", Theme::Synchronous, 1, false),
    verb("dsend", Theme::Synchronous, 1, false),
    verb("ssplice", Theme::Synchronous, 1, false),
    verb("chmod", Theme::Attributes, 1, false),
    verb("fchmod", Theme::Attributes, 1, true),
    verb("chown", Theme::Attributes, 1, false),
    verb("utimens", Theme::Attributes, 1, true),
    verb("xattr", Theme::Attributes, 1, false),
    verb("fsync", Theme::Syncs, 1, true),
    verb("fdatasync", Theme::Syncs, 1, true),
    verb("msync", Theme::Syncs, 1, false),
    verb("close", Theme::Syncs, 1, false),
    verb("syncfs", Theme::Syncs, 0, true),
    verb("sync", Theme::Syncs, 0, false),
];

/// What stands in the place of a step that the oracle leaves out. It changes nothing, and keeps the
/// tags of the others and the files that the case begins with.
pub static NOTHING: Verb = verb("nothing", Theme::Syncs, 0, false);

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who makes it.
    pub who: Who,
    /// What is done.
    pub verb: &'static Verb,
    /// To what.
    pub paths: Vec<String>,
}

impl Step {
    /// A step of the program.
    pub fn new(who: Who, name: &str, paths: &[&str]) -> Self {
        let verb = VERBS.iter().find(|verb| verb.name == name).expect("a verb of the table");
        assert_eq!(verb.paths, paths.len(), "{name} takes {} paths", verb.paths);
        Self { who, verb, paths: paths.iter().map(|path| (*path).to_owned()).collect() }
    }

    /// Whether it changes nothing that a sync would not.
    pub fn is_sync(&self) -> bool {
        self.verb.theme == Theme::Syncs
    }

    /// Whether it was left out.
    pub fn is_nothing(&self) -> bool {
        *self.verb == NOTHING
    }

    /// Whether it has to do with what an earlier step changed: names it, or is a sync that was
    /// asked to make it durable.
    pub fn has_to_do_with(&self, change: &Self) -> bool {
        let beneath =
            |path: &str, dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'));
        let parent = |path: &str| path.rsplit_once('/').map(|(dir, _)| dir.to_owned());
        // The first path of a link is no entry that it makes, and who syncs a symbolic link syncs
        // what it leads to.
        let entries = match change.verb.name {
            "link" => &change.paths[1..],
            _ if change.verb.theme == Theme::Names => &change.paths[..],
            _ => &[],
        };
        let leads_on = self.is_sync() && change.verb.name == "symlink";
        self.paths.is_empty()
            || self.who == Who::O && self.is_sync()
            || self.paths.iter().any(|path| {
                entries.iter().any(|entry| parent(entry).as_ref() == Some(path))
                    || change.paths.iter().any(|changed| {
                        path == changed && !leads_on
                            || beneath(path, changed)
                            || !self.is_sync() && beneath(changed, path)
                    })
            })
    }

    /// Under which name its file stands once it is done.
    pub fn target(&self) -> &str {
        self.paths.last().map_or("a", String::as_str)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.who != Who::P {
            write!(f, "{}:", self.who.letter())?;
        }
        f.write_str(self.verb.name)?;
        self.paths.iter().try_for_each(|path| write!(f, " {path}"))
    }
}

impl FromStr for Step {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (who, rest) = match text.split_once(':') {
            Some(("p", rest)) => (Who::P, rest),
            Some(("q", rest)) => (Who::Q, rest),
            Some(("o", rest)) => (Who::O, rest),
            Some((who, _)) => bail!("{text}: {who} is nobody (p, q or o)"),
            None => (Who::P, text),
        };
        let mut words = rest.split_whitespace();
        let name = words.next().with_context(|| format!("`{text}` says no verb"))?;
        let verb = VERBS.iter().find(|verb| verb.name == name).with_context(|| {
            let names: Vec<&str> = VERBS.iter().map(|verb| verb.name).collect();
            format!("{name} is no verb; these are: {}", names.join(" "))
        })?;
        let paths: Vec<String> = words.map(str::to_owned).collect();
        ensure!(paths.len() == verb.paths, "{name} takes {} paths", verb.paths);
        ensure!(paths.iter().all(|path| path.len() < 60), "a path has less than 60 bytes");
        Ok(Self { who, verb, paths })
    }
}

/// A sequence of steps, from the files that every case starts from to the cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The steps.
    pub steps: Vec<Step>,
}

impl Case {
    /// Whether somebody takes part.
    pub fn has(&self, who: Who) -> bool {
        self.steps.iter().any(|step| step.who == who)
    }

    /// Whether all steps of another case are among those of this one, in their order.
    pub fn contains(&self, other: &Self) -> bool {
        let mut steps = self.steps.iter();
        other.steps.iter().all(|wanted| steps.any(|step| step == wanted))
    }

    /// The paths named, each once, and their directories.
    pub fn paths(&self) -> Vec<String> {
        let named = self.steps.iter().flat_map(|step| step.paths.iter().cloned());
        let mut paths: Vec<String> = named.collect();
        let parents: Vec<String> = paths
            .iter()
            .filter_map(|path| path.rsplit_once('/'))
            .map(|(parent, _)| parent.to_owned())
            .collect();
        paths.extend(parents);
        paths.sort();
        paths.dedup();
        paths
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps: Vec<String> = self.steps.iter().map(Step::to_string).collect();
        f.write_str(&steps.join("; "))
    }
}

impl FromStr for Case {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let steps = text.split(';').map(str::trim).filter(|step| !step.is_empty());
        let steps = steps.map(Step::from_str).collect::<anyhow::Result<Vec<_>>>()?;
        ensure!(steps.len() <= 16, "a case has 16 steps at most");
        Ok(Self { steps })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_is_read_as_it_is_written() {
        let text = "append a/old; q:rename a/old b/new; o:syncfs; fsync b";
        assert_eq!(text.parse::<Case>().unwrap().to_string(), text);
        assert!("leap a/old".parse::<Case>().is_err());
        assert!("rename a/old".parse::<Case>().is_err());
        assert!("x:append a/old".parse::<Case>().is_err());
    }
}
