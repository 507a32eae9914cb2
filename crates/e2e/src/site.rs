//! A workload and where it runs: how a program under load is prepared, started and checked.
//!
//! It must never cut anything.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What the program acknowledged so far, in order.
pub type Acks = Arc<Mutex<Vec<String>>>;

/// Where a workload runs.
pub struct Site {
    /// Its directory on the file system that may be cut.
    pub dir: PathBuf,
    /// A directory elsewhere, for sockets and scripts.
    pub aside: PathBuf,
    /// A directory on tmpfs, which no file system's end touches and where Holdfast manages no file.
    pub memory: PathBuf,
    /// Set once the program has been cut off.
    pub over: Arc<AtomicBool>,
}

impl Site {
    /// A path below the directory, as text.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().expect("paths are text").to_owned()
    }

    /// A path in memory, as text.
    pub fn memory(&self, name: &str) -> String {
        self.memory.join(name).to_str().expect("paths are text").to_owned()
    }

    /// A path outside the file system that is cut, as text.
    pub fn aside(&self, name: &str) -> String {
        self.aside.join(name).to_str().expect("paths are text").to_owned()
    }
}

/// A program under load whose acknowledgements can be counted and checked.
pub trait Workload {
    /// For messages.
    fn name(&self) -> String;
    /// Makes what the program starts from, natively. It is brought to disk before the load starts.
    fn prepare(&self, site: &Site);
    /// The program and its arguments.
    fn program(&self, site: &Site) -> Vec<String>;
    /// How to tell what a line of the program's output acknowledges, if anything.
    fn acknowledgement(&self) -> fn(&str) -> Option<String> {
        |line| line.strip_prefix("ack ").map(str::to_owned)
    }
    /// Starts clients that load the program and acknowledge by themselves; they must end once it is
    /// dead.
    fn start_clients(&self, _site: &Site, _acks: &Acks) -> Vec<JoinHandle<()>> {
        Vec::new()
    }
    /// Runs the program's own checker, natively, and looks for every acknowledged item. An error
    /// says what is wrong or lost.
    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String>;
    /// How many items were acknowledged.
    fn acknowledged(&self, _site: &Site, acks: &[String]) -> usize {
        acks.len()
    }
    /// Options for `holdfast run`.
    fn options(&self, _site: &Site) -> Vec<String> {
        Vec::new()
    }
    /// The user it runs as, with capabilities; `None` for root.
    fn user(&self) -> Option<(&str, &str)> {
        None
    }
    /// How many of the last acknowledgements the program does not promise through a power cut, even
    /// without Holdfast: one that ends with a rename or an unlink, without a sync of the directory,
    /// leaves that to luck.
    fn acks_loose_max(&self) -> usize {
        0
    }
    /// How long a run in a storm may live; long enough for some acknowledgements.
    fn life_ms_max(&self) -> u64 {
        250
    }
    /// The smallest number of acknowledgements before the cut.
    fn acks_min(&self) -> usize {
        50
    }
}
