//! A Go program that appends lines and acknowledges each once it is synced, built in each way that
//! has its calls led to the hooks in another way.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use super::appends::{self, Appends};
use crate::cmd::Cmd;

/// The program of `programs/golang.go`, in one form or another.
pub struct Built {
    /// Static, as Go builds programs without C.
    pub plain: PathBuf,
    /// The same without symbols and build id.
    pub stripped: PathBuf,
    /// With a loader, and without C code: threads are Go's.
    pub pie: PathBuf,
    /// With a loader and C code: threads are libc's.
    pub with_c: PathBuf,
}

impl Built {
    /// One of each kind, by the words in which its front end is told.
    pub fn kinds(&self) -> [(&Path, &'static str); 3] {
        [(&self.plain, "static Go"), (&self.pie, "Go with a loader"), (&self.with_c, "Go with C code")]
    }
}

/// The source of the program, in a form that has C code.
pub fn source_with_c() -> PathBuf {
    let own = std::fs::read_to_string(source()).expect("readable");
    let path = home().join(format!("with_c-{}.go", std::process::id()));
    std::fs::write(&path, own.replacen("import (", "import \"C\"\nimport (", 1)).expect("written");
    path
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/golang.go")
}

/// A copy of a program in which the instructions are not as they are known to be: two that do not
/// depend on each other, exchanged.
pub fn unknown(program: &Path) -> PathBuf {
    const CALL: [u8; 14] =
        [0x49, 0x89, 0xf2, 0x48, 0x89, 0xfa, 0x48, 0x89, 0xce, 0x48, 0x89, 0xdf, 0x0f, 0x05];
    let name = program.file_name().expect("a file").to_str().expect("paths are text");
    let path = home().join(format!("{name}-unknown-{}", std::process::id()));
    let mut bytes = std::fs::read(program).expect("readable");
    let at = bytes.windows(CALL.len()).position(|window| window == CALL).expect("Go's call");
    bytes[at..at + 6].copy_from_slice(&[0x49, 0x89, 0xf2, 0x48, 0x8b, 0xd7]);
    std::fs::write(&path, bytes).expect("written");
    std::fs::set_permissions(&path, std::fs::metadata("/bin/true").expect("facts").permissions())
        .expect("mode");
    path
}

/// Where the programs are built.
pub fn home() -> &'static Path {
    static HOME: LazyLock<PathBuf> = LazyLock::new(|| appends::home("golang"));
    &HOME
}

/// Builds a source file.
pub fn build(source: &Path, program: &Path, options: &[&str], with_c: bool) {
    appends::build(program, |own| {
        let command = Cmd::new("go").args(["build", "-buildvcs=false"]).args(options).arg("-o").arg(own);
        let command = command.arg(source).env("CGO_ENABLED", if with_c { "1" } else { "0" });
        command.env("GOCACHE", home().join("cache")).env("HOME", home()).env("GOFLAGS", "").dir(home())
    });
}

/// All forms, built once.
pub fn programs() -> &'static Built {
    static BUILT: LazyLock<Built> = LazyLock::new(|| {
        let [plain, stripped, pie, with_c] =
            ["plain", "stripped", "pie", "with-c"].map(|name| home().join(name));
        build(&source(), &plain, &[], false);
        build(&source(), &stripped, &["-ldflags=-s -w"], false);
        build(&source(), &pie, &["-buildmode=pie"], false);
        let source = source_with_c();
        build(&source, &with_c, &[], true);
        std::fs::remove_file(source).expect("removed");
        Built { plain, stripped, pie, with_c }
    });
    &BUILT
}

/// Lines that a program appends to a file.
pub struct Lines(pub &'static Path);

impl Appends for Lines {
    fn title(&self) -> String {
        format!("the Go program {}", self.0.display())
    }

    fn command(&self, lines: String) -> Vec<String> {
        let program = self.0.to_str().expect("paths are text").to_owned();
        vec![program, "lines".to_owned(), lines]
    }

    fn line(&self, ack: &str) -> String {
        format!("line {ack}")
    }
}
