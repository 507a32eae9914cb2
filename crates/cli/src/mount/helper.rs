//! `mount.holdfast`, by which mount(8) mounts what is of type `holdfast`: its command line, and the
//! options of fstab, in the words of `holdfast mount`. What it does not know it refuses, and names.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use anyhow::bail;
use clap::CommandFactory;

use super::detached;
use crate::args::{Arguments, MOUNT_FLAGS};
use crate::words::shown;

/// What this program is called then.
pub const NAME: &str = "mount.holdfast";

/// mount(8): the command line is wrong.
const EXIT_USAGE: u8 = 1;
/// mount(8): it could not be mounted.
const EXIT_FAILED: u8 = 32;

const USAGE: &str =
    "usage: mount.holdfast DIR MOUNTPOINT [-sfnv] [-o OPTIONS], by mount(8): see mount.holdfast(8)";

/// Options that are mount(8)'s, fstab's or the service manager's own, and those that are so anyway.
const OTHERS: [&str; 17] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "comment",
    "allow_other",
    "default_permissions",
    "async",
    "norelatime",
    "nostrictatime",
    "silent",
];

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    /// What `holdfast mount` is told.
    words: Vec<OsString>,
    /// Nothing is to be mounted.
    is_fake: bool,
}

/// Whether this program was started as that.
pub fn is_meant(line: &[OsString]) -> bool {
    line.first().and_then(|name| Path::new(name).file_name()) == Some(OsStr::new(NAME))
}

/// Mounts as mount(8) asks; its exit status.
pub fn run(line: &[OsString]) -> (anyhow::Result<u8>, u8) {
    let asked = match asked(line.get(1..).unwrap_or_default()) {
        Ok(asked) => asked,
        Err(error) => return (Err(error), EXIT_USAGE),
    };
    // What is wrong with the words is said in one place.
    let whole = ["holdfast", "mount"].map(OsString::from).into_iter().chain(asked.words.iter().cloned());
    if let Err(error) = Arguments::from_line(whole) {
        let said = error.render().to_string();
        let first = said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
        return (Err(anyhow::anyhow!("{first}")), EXIT_USAGE);
    }
    if asked.is_fake {
        return (Ok(0), EXIT_USAGE);
    }
    let done = detached::start(&asked.words).map(|code| if code == 0 { 0 } else { EXIT_FAILED });
    (done, EXIT_FAILED)
}

fn asked(line: &[OsString]) -> anyhow::Result<Asked> {
    let (mut asked, mut places, mut options, mut is_sloppy) =
        (Asked::default(), Vec::new(), Vec::new(), false);
    let mut words = line.iter();
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => match words.next() {
                Some(list) => options.push(list),
                None => bail!("-o needs its options ({USAGE})"),
            },
            // The kind of file system is said by our name.
            b"-t" => drop(words.next()),
            b"-N" => bail!("-N: mount it by a `mount` that is started in that namespace"),
            [b'-', flags @ ..] if !flags.is_empty() && flags.iter().all(|flag| b"sfnvw".contains(flag)) => {
                is_sloppy |= flags.contains(&b's');
                asked.is_fake |= flags.contains(&b'f');
            }
            b"-r" => asked.words.push("--mount-options=ro".into()),
            [b'-', ..] => bail!("{} is unknown ({USAGE})", shown(&word.to_string_lossy())),
            _ => places.push(word),
        }
    }
    let [directory, point] = places[..] else { bail!("{USAGE}") };
    for option in options.iter().flat_map(|list| split(list.as_bytes())) {
        add(&option, is_sloppy, &mut asked.words)?;
    }
    asked.words.push("--at".into());
    asked.words.push(point.clone());
    asked.words.push("--".into());
    asked.words.push(directory.clone());
    Ok(asked)
}

/// The options of a list. A comma inside a pair of double quotes is part of a value, as mount(8)
/// has it.
fn split(list: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut is_quoted) = (vec![Vec::new()], false);
    for byte in list {
        match byte {
            b'"' => is_quoted = !is_quoted,
            b',' if !is_quoted => parts.push(Vec::new()),
            _ => parts.last_mut().expect("there is one").push(*byte),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts
}

fn add(option: &[u8], is_sloppy: bool, words: &mut Vec<OsString>) -> anyhow::Result<()> {
    let key = option.split(|byte| *byte == b'=').next().unwrap_or_default();
    let key = String::from_utf8_lossy(key);
    let is_others = OTHERS.contains(&&*key) || key.starts_with("x-") || key.starts_with("X-");
    if is_others {
        return Ok(());
    }
    if MOUNT_FLAGS.contains(&&*key) && key.len() == option.len() {
        words.push(format!("--mount-options={key}").into());
    } else if is_ours(&key) {
        words.push(OsString::from_vec([b"--", option].concat()));
    } else if &*key == "remount" {
        bail!(
            "what holdfast has mounted cannot be mounted anew with other options: unmount it, and mount it again"
        );
    } else if !is_sloppy {
        bail!("the mount option {} is unknown: `holdfast mount --help` has those there are", shown(&key));
    }
    Ok(())
}

/// Whether `holdfast mount` has an option of this name that has a meaning here.
fn is_ours(key: &str) -> bool {
    let main = Arguments::command();
    let mount = main.find_subcommand("mount").expect("it is there");
    let not_here = ["at", "user", "quiet", "help", "detached", "mount-options"];
    let found = mount.get_arguments().any(|argument| argument.get_long() == Some(key));
    found && !not_here.contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &[&str]) -> anyhow::Result<Vec<String>> {
        let line: Vec<OsString> = line.iter().map(OsString::from).collect();
        let asked = asked(&line)?;
        Ok(asked.words.into_iter().map(|word| word.into_string().expect("text")).collect())
    }

    #[test]
    fn options_of_fstab_are_those_of_the_command() {
        let options = "rw,nosuid,nofail,x-systemd.automount,pool=/mnt/pmem/a.pool,volatile,\"exclude=/a,b\"";
        let found = words(&["/srv/data", "/mnt/fast", "-sv", "-o", options]).expect("known");
        assert_eq!(
            found,
            [
                "--mount-options=rw",
                "--mount-options=nosuid",
                "--pool=/mnt/pmem/a.pool",
                "--volatile",
                "--exclude=/a,b",
                "--at",
                "/mnt/fast",
                "--",
                "/srv/data"
            ]
        );
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_name() {
        for (option, says) in
            [("poool=x", "poool"), ("at=/x", "at"), ("user=x,at", "at"), ("remount,ro", "unmount it")]
        {
            let said = words(&["/srv", "/mnt", "-o", option]).expect_err("refused").to_string();
            assert!(said.contains(says), "{option}: {said}");
        }
        assert!(words(&["/srv", "/mnt", "-s", "-o", "poool=x"]).is_ok(), "sloppy");
        assert!(words(&["/srv"]).is_err());
        assert!(words(&["/srv", "/mnt", "-x"]).is_err());
        assert!(words(&["/srv", "/mnt", "-N", "/proc/1/ns/mnt"]).is_err());
    }
}
