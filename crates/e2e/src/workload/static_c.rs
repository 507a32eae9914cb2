//! C programs that are linked statically, by each C library, built once; and the lines that one of
//! them appends and acknowledges.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::cmd::Cmd;
use crate::need;
use crate::site::{Site, Workload};

/// How a program is linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linked {
    /// With glibc, at fixed addresses.
    Glibc,
    /// With glibc, anywhere.
    GlibcPie,
    /// With musl.
    Musl,
}

/// All of them.
pub const LINKED: [Linked; 3] = [Linked::Glibc, Linked::GlibcPie, Linked::Musl];

impl Linked {
    /// Builds a program of these sources.
    pub fn build(self, program: &Path, sources: &[PathBuf], options: &[&str]) {
        let (compiler, how) = match self {
            Self::Glibc => ("gcc", "-static"),
            Self::GlibcPie => ("gcc", "-static-pie"),
            Self::Musl => ("musl-gcc", "-static"),
        };
        // Several suites may build at once: each moves what it has made into place.
        let own = program.with_extension(std::process::id().to_string());
        let cc = Cmd::new(need::tool(compiler)).args([how, "-O1", "-w", "-pthread", "-o"]).arg(&own);
        cc.args(sources).args(options).ok();
        std::fs::rename(&own, program).expect("renamed");
    }
}

/// A source below `crates/e2e`.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where the programs are built; on a file system of which no test manages files.
pub fn home() -> &'static Path {
    static HOME: LazyLock<PathBuf> = LazyLock::new(|| {
        // Kept to the end of the process, which nobody tells; it is small, and its name is one.
        let home = std::env::temp_dir().join("holdfast-e2e-static");
        std::fs::create_dir_all(&home).expect("a directory");
        home
    });
    &HOME
}

/// The program of `programs/appends.c`, in each form.
pub fn appends(linked: Linked) -> &'static Path {
    static BUILT: LazyLock<[PathBuf; 3]> = LazyLock::new(|| {
        LINKED.map(|linked| {
            let program = home().join(format!("appends-{linked:?}"));
            linked.build(&program, &[source("programs/appends.c")], &[]);
            program
        })
    });
    &BUILT[linked as usize]
}

/// Lines that a static program appends to a file.
pub struct Lines(pub Linked);

impl Workload for Lines {
    fn name(&self) -> String {
        format!("lines of a static program ({:?})", self.0)
    }

    fn prepare(&self, site: &Site) {
        std::fs::write(site.path("lines"), "").expect("written");
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let program = appends(self.0).to_str().expect("paths are text").to_owned();
        vec![program, site.path("lines"), "100000000".to_owned()]
    }

    fn life_ms_max(&self) -> u64 {
        // A busy machine takes a while to start it.
        1000
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let text = std::fs::read_to_string(site.path("lines")).map_err(|error| error.to_string())?;
        let mut lines = text.lines();
        for ack in acks {
            match lines.next() {
                Some(line) if line == format!("{ack:0>9}") => {}
                other => return Err(format!("line {ack} is {other:?}")),
            }
        }
        Ok(())
    }
}
