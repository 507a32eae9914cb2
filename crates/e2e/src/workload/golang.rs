//! A static Go program that appends lines and acknowledges each once it is synced.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use crate::cmd::Cmd;
use crate::crash::{Site, Workload};

/// The program of `programs/golang.go`, in one form or another.
pub struct Built {
    /// Static, as Go builds programs without C.
    pub plain: PathBuf,
    /// The same without symbols and build id.
    pub stripped: PathBuf,
}

/// Where the programs are built; on a file system of which no test manages files.
pub fn home() -> &'static Path {
    static HOME: LazyLock<PathBuf> = LazyLock::new(|| {
        // Kept to the end of the process, which nobody tells; it is small, and its name is one.
        let home = std::env::temp_dir().join("holdfast-e2e-golang");
        std::fs::create_dir_all(&home).expect("a directory");
        home
    });
    &HOME
}

/// Builds a source file.
pub fn build(source: &Path, program: &Path, options: &[&str], with_c: bool) {
    // Several suites may build at once: each moves what it has made into place.
    let own = program.with_extension(std::process::id().to_string());
    let command = Cmd::new("go").args(["build", "-buildvcs=false"]).args(options).arg("-o").arg(&own);
    let command = command.arg(source).env("CGO_ENABLED", if with_c { "1" } else { "0" });
    command.env("GOCACHE", home().join("cache")).env("HOME", home()).env("GOFLAGS", "").dir(home()).ok();
    std::fs::rename(&own, program).expect("renamed");
}

/// Both forms, built once.
pub fn programs() -> &'static Built {
    static BUILT: LazyLock<Built> = LazyLock::new(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/golang.go");
        let built = Built { plain: home().join("plain"), stripped: home().join("stripped") };
        build(&source, &built.plain, &[], false);
        build(&source, &built.stripped, &["-ldflags=-s -w"], false);
        built
    });
    &BUILT
}

/// Lines that are appended to a file.
pub struct Lines;

impl Workload for Lines {
    fn name(&self) -> String {
        "lines of a Go program".into()
    }

    fn prepare(&self, site: &Site) {
        std::fs::write(site.path("lines"), "").expect("written");
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let program = programs().plain.to_str().expect("paths are text").to_owned();
        vec![program, "lines".to_owned(), site.path("lines")]
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
                Some(line) if line == format!("line {ack}") => {}
                other => return Err(format!("line {ack} is {other:?}")),
            }
        }
        Ok(())
    }
}
