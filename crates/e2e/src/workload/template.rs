//! The directory of a server with its first tables: made natively for the first workload that
//! needs it, copied for each run, gone with the last.
//!
//! Must never be run on itself: what a cut leaves of it would be everybody's beginning.

use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;

use crate::cmd::Cmd;
use crate::disk;
use crate::site::Site;
use crate::workload::shared;

/// A server's directory.
pub(super) struct Template {
    home: TempDir,
}

/// Where a kind of server keeps its template.
pub(super) type Place = Mutex<Weak<Template>>;

impl Template {
    /// The one of this place. `make` makes its directory `data` as the user.
    pub fn shared(place: &Place, user: &str, make: impl FnOnce(&Site)) -> Arc<Self> {
        shared(place, || {
            let home = disk::directory();
            disk::give_to(home.path(), user);
            let here = || home.path().to_owned();
            make(&Site { dir: here(), aside: here(), memory: here(), over: Arc::default() });
            Self { home }
        })
    }

    /// A copy of it for a run.
    pub fn copy_to(&self, site: &Site) {
        Cmd::new("cp").arg("-a").arg(self.home.path().join("data")).arg(&site.dir).ok();
    }
}
