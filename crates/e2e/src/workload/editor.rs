//! Editors that save a file again and again: it, or the backup that they make first, is whole and
//! not older than the last save.

use std::fs;

use crate::need;
use crate::site::{Site, Workload};

/// How a file is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// A new file, synced and renamed over the old one; then the directory is synced.
    Over,
    /// vim, which renames the old file out of the way, writes and syncs a new one and removes the
    /// old.
    VimRenames,
    /// vim, which copies the old file, cuts it, writes it anew, syncs it and removes the copy.
    VimCopies,
}

/// An editor with one file.
pub struct Editor {
    /// How.
    pub saves: Saves,
}

const OVER: &str = "
import os, sys
path = sys.argv[1]
directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
number = 0
while True:
    number += 1
    with open(path + '.new', 'wb') as file:
        file.write(b'line %08d\\n' % number * (1 + number * 7919 % 700))
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + '.new', path)
    os.fsync(directory)
    os.write(1, b'ack %d\\n' % number)
";

/// Without `backupskip=` vim makes no backups of files below `/tmp`.
const VIM: &str = "
set nocompatible fsync nobackup writebackup backupskip= noswapfile viminfo= backupdir=. shortmess=a fileformat=unix
set fixendofline
let number = 0
while 1
    let number += 1
    let lines = repeat(['line ' . printf('%08d', number)], 1 + number * 7919 % 700)
    silent %delete _
    call setline(1, lines)
    silent write!
    call writefile(['ack ' . number], '/dev/stdout', 'a')
endwhile
";

fn whole(bytes: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(bytes.get(5..13)?).ok()?.parse().ok()?;
    let expected = format!("line {number:08}\n").repeat(1 + (number * 7919 % 700) as usize);
    (bytes == expected.as_bytes()).then_some(number)
}

impl Workload for Editor {
    fn name(&self) -> String {
        format!("editor ({:?})", self.saves)
    }

    fn prepare(&self, site: &Site) {
        if self.saves != Saves::Over {
            let copies = if self.saves == Saves::VimCopies { "yes" } else { "no" };
            let script = VIM.replacen("nocompatible ", &format!("nocompatible backupcopy={copies} "), 1);
            fs::write(site.aside.join("script.vim"), script).expect("script");
        }
        fs::write(site.dir.join("file"), "line 00000000\n").expect("file");
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let tool = |name: &str| need::tool(name).to_str().expect("text").to_owned();
        if self.saves == Saves::Over {
            return vec![tool("python3"), "-c".into(), OVER.into(), site.path("file")];
        }
        let source = format!("source {}", site.aside("script.vim"));
        let options = ["-e", "-s", "-N", "-u", "NONE", "-i", "NONE", "-n", "-c", &source];
        [vec![tool("vim")], options.map(str::to_owned).to_vec(), vec![site.path("file")]].concat()
    }

    fn acks_min(&self) -> usize {
        20
    }

    fn life_ms_max(&self) -> u64 {
        500
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        // It syncs no backup: until its first sync of the file a commit of anybody's leaves what is
        // cut, natively too.
        if self.saves == Saves::VimCopies && acks.is_empty() {
            return Ok(());
        }
        let promised = acks.last().map_or(0, |ack| ack.parse::<u64>().expect("a number"));
        let entries = fs::read_dir(&site.dir).map_err(|error| error.to_string())?.flatten();
        let mut told = Vec::new();
        for entry in entries {
            let name = entry.file_name().into_string().expect("text");
            let bytes = fs::read(entry.path()).map_err(|error| error.to_string())?;
            let version = whole(&bytes);
            let counts = name == "file" || name == "file~" && self.saves != Saves::Over;
            if counts && version.is_some_and(|version| version >= promised) {
                return Ok(());
            }
            told.push(format!("{name} of {} bytes, version {version:?}", bytes.len()));
        }
        Err(format!("version {promised} was saved; there is {}", told.join("; ")))
    }
}
