//! C programs that are linked statically, by each C library, built once; and the lines that one of
//! them appends and acknowledges.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::appends::{self, Appends};
use crate::cmd::Cmd;
use crate::need;

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
        appends::build(program, |own| {
            let cc = Cmd::new(need::tool(compiler)).args([how, "-O1", "-w", "-pthread", "-o"]).arg(own);
            cc.args(sources).args(options)
        });
    }
}

/// A source below `crates/e2e`.
pub fn source(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Where the programs are built.
pub fn home() -> &'static Path {
    static HOME: LazyLock<PathBuf> = LazyLock::new(|| appends::home("static"));
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

impl Appends for Lines {
    fn title(&self) -> String {
        format!("a static program ({:?})", self.0)
    }

    fn command(&self, lines: String) -> Vec<String> {
        let program = appends(self.0).to_str().expect("paths are text").to_owned();
        vec![program, lines, "100000000".to_owned()]
    }

    fn line(&self, ack: &str) -> String {
        format!("{ack:0>9}")
    }
}
