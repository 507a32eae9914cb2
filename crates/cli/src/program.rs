//! Finds the program the way a shell would and says whether the library can be loaded into it. It
//! refuses what would silently run without Holdfast; it does not judge what the program executes
//! later.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use holdfast_enter::Refusal;

use crate::elf::{self, Kind};
use crate::golang;

/// Why a program is not started. Every message names the program.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// No such program.
    #[error("{0}: no such program")]
    Missing(String),
    /// It, or the interpreter it names, cannot be executed.
    #[error("{program}: {reason}")]
    Unusable {
        /// The program as given.
        program: String,
        /// Why.
        reason: String,
    },
    /// It would run, but without the library.
    #[error("{program} {reason}")]
    Unhookable {
        /// The file that is meant; for a script its interpreter.
        program: String,
        /// Why, and what to do.
        reason: String,
    },
}

impl Refused {
    /// The status a shell's user expects for this.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Missing(_) => 127,
            Self::Unusable { .. } => 126,
            Self::Unhookable { .. } => crate::exit::EXIT_REFUSED,
        }
    }
}

/// The kernel follows at most this many `#!` lines.
const INTERPRETERS_MAX: usize = 5;
/// The kernel looks at this much of a script for its first line.
const FIRST_LINE_BYTES_MAX: u64 = 256;

/// Finds `name` and checks it; returns the path to execute.
pub fn resolve(name: &OsStr) -> Result<PathBuf, Refused> {
    let path = find(name)?;
    check(&path, &path, INTERPRETERS_MAX)?;
    Ok(path)
}

/// Looks up `name` as execvp does: with a slash as it is, else in PATH.
fn find(name: &OsStr) -> Result<PathBuf, Refused> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let candidates = std::env::split_paths(&search).map(|dir| dir.join(name));
    let mut found = candidates.filter(|path| path.is_file()).peekable();
    let first = found.peek().cloned();
    // Like a shell: an executable one further down the path wins over one that is not.
    found
        .find(|path| may_execute(path))
        .or(first)
        .filter(|_| !name.is_empty())
        .ok_or_else(|| Refused::Missing(name.to_string_lossy().into_owned()))
}

fn may_execute(path: &Path) -> bool {
    rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Checks the file at `path`; `asked` is what the user named (another file when `path` is an
/// interpreter).
fn check(path: &Path, asked: &Path, interpreters_left: usize) -> Result<(), Refused> {
    let shown = asked.display().to_string();
    let not_executable = |reason: String| Refused::Unusable { program: shown.clone(), reason };
    let facts = match std::fs::metadata(path) {
        Ok(facts) => facts,
        Err(error) if error.kind() == ErrorKind::NotFound && path == asked => {
            return Err(Refused::Missing(shown));
        }
        Err(error) if path == asked => return Err(not_executable(error.to_string())),
        Err(error) => return Err(not_executable(format!("its interpreter {}: {error}", path.display()))),
    };
    if facts.is_dir() {
        return Err(not_executable("is a directory".to_string()));
    }
    if !facts.is_file() || !may_execute(path) {
        return Err(not_executable(format!("{} is not executable (permission denied)", path.display())));
    }
    if let Some(interpreter) = script_interpreter(path) {
        if interpreters_left == 0 {
            return Err(not_executable("too many interpreters in a row".to_string()));
        }
        return check(&interpreter, asked, interpreters_left - 1);
    }
    if let Some(reason) = secure_execution(path, &facts) {
        return Err(not_preloadable(path, reason));
    }
    loads_library(path, path != asked)
}

/// The interpreter that a script's first line names.
fn script_interpreter(path: &Path) -> Option<PathBuf> {
    let mut head = Vec::new();
    File::open(path).ok()?.take(FIRST_LINE_BYTES_MAX).read_to_end(&mut head).ok()?;
    let line = head.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.trim_ascii().split(|byte| byte.is_ascii_whitespace()).next()?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// Whether the kernel would set AT_SECURE, under which the loader ignores LD_PRELOAD; in words.
fn secure_execution(path: &Path, facts: &Metadata) -> Option<&'static str> {
    const SETUID: u32 = 0o4000;
    const SETGID_AND_GROUP_EXECUTE: u32 = 0o2010;
    let euid = rustix::process::geteuid();
    let mode = facts.mode();
    let reason = if mode & SETUID != 0 && facts.uid() != euid.as_raw() {
        "is setuid: the loader ignores LD_PRELOAD for it. Run the whole command as that user instead"
    } else if mode & SETGID_AND_GROUP_EXECUTE == SETGID_AND_GROUP_EXECUTE
        && facts.gid() != rustix::process::getegid().as_raw()
    {
        "is setgid: the loader ignores LD_PRELOAD for it. Run the whole command as that group instead"
    } else if !euid.is_root() && has_capabilities(path) {
        "has file capabilities: the loader ignores LD_PRELOAD for it. Run the whole command as root, or copy the \
         program (a copy has none)"
    } else {
        return None;
    };
    // Where the kernel does not raise privileges it does not set AT_SECURE either.
    if no_new_privileges() || on_nosuid_mount(path) { None } else { Some(reason) }
}

fn has_capabilities(path: &Path) -> bool {
    // The largest form that there is has 24 bytes; a larger one would be one, too.
    let mut found = [0u8; 64];
    match rustix::fs::getxattr(path, "security.capability", &mut found[..]) {
        Ok(bytes) => bytes > 0,
        Err(errno) => errno == rustix::io::Errno::RANGE,
    }
}

fn no_new_privileges() -> bool {
    std::fs::read_to_string("/proc/self/status").is_ok_and(|text| text.contains("NoNewPrivs:\t1"))
}

fn on_nosuid_mount(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|facts| facts.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID))
}

/// Whether a loader is musl's, which is its C library, too.
pub fn is_musl(loader: &Path) -> bool {
    loader.file_name() == Some(OsStr::new("ld-musl-x86_64.so.1"))
}

fn is_known(loader: &Path) -> bool {
    loader.file_name() == Some(OsStr::new("ld-linux-x86-64.so.2")) || is_musl(loader)
}

/// Whether the program's loader is glibc's or musl's, or its own calls can be led.
fn loads_library(path: &Path, is_interpreter: bool) -> Result<(), Refused> {
    let loader = match elf::kind(path) {
        Ok(Kind::Dynamic(loader)) => loader,
        // The kernel starts a script's interpreter, and nobody is in between.
        Ok(Kind::Static) if is_interpreter => {
            return Err(not_preloadable(path, &Refusal::NotGo.to_string()));
        }
        Ok(Kind::Static) => {
            return golang::judge(path).map_err(|why| not_preloadable(path, &why.to_string()));
        }
        Ok(Kind::Foreign(what)) => {
            return Err(not_preloadable(path, &format!("is {what}: only x86_64 works")));
        }
        Ok(Kind::NotElf) => {
            let reason = "is neither an ELF program nor a script with a #! line".to_string();
            return Err(Refused::Unusable { program: path.display().to_string(), reason });
        }
        // Execute permission without read permission is enough for the kernel, not for us.
        Err(error) => return Err(not_preloadable(path, &format!("cannot be inspected: {error:#}"))),
    };
    if !is_known(&loader) {
        let reason = format!("is loaded by {}: only those of glibc and musl work", loader.display());
        return Err(not_preloadable(path, &reason));
    }
    if !loader.exists() {
        let reason = format!("its loader {} does not exist", loader.display());
        return Err(Refused::Unusable { program: path.display().to_string(), reason });
    }
    Ok(())
}

fn not_preloadable(path: &Path, reason: &str) -> Refused {
    Refused::Unhookable { program: path.display().to_string(), reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    fn code(name: impl AsRef<OsStr>) -> u8 {
        resolve(name.as_ref()).expect_err("must be refused").exit_code()
    }

    fn file(dir: &Path, name: &str, bytes: impl AsRef<[u8]>, mode: u32) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, bytes).expect("written");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("mode set");
        path
    }

    #[test]
    fn plain_programs_are_found_in_the_path() {
        assert!(resolve(OsStr::new("true")).expect("found").is_absolute());
        resolve(OsStr::new("/bin/true")).expect("found");
    }

    #[test]
    fn missing_programs_are_127_and_unusable_ones_126() {
        let dir = tempfile::tempdir().expect("a directory");
        assert_eq!(code("holdfast-no-such-program"), 127);
        assert_eq!(code(""), 127);
        assert_eq!(code("/no/such/program"), 127);
        assert_eq!(code(dir.path()), 126);
        assert_eq!(code(file(dir.path(), "data", "hello", 0o644)), 126);
        assert_eq!(code(file(dir.path(), "text", "hello", 0o755)), 126);
        assert_eq!(code(file(dir.path(), "lost", "#!/no/such/interpreter\n", 0o755)), 126);
        let own = dir.path().join("own");
        assert_eq!(code(file(dir.path(), "own", format!("#!{}\n", own.display()), 0o755)), 126);
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = file(dir.path(), "script", "#! /bin/sh -e\ntrue\n", 0o755);
        assert_eq!(resolve(script.as_os_str()).expect("fine"), script);
        assert_eq!(script_interpreter(&script), Some(PathBuf::from("/bin/sh")));
    }

    #[test]
    fn setuid_of_another_user_is_refused_and_ones_own_is_not() {
        let dir = tempfile::tempdir().expect("a directory");
        let copy = file(dir.path(), "copy", std::fs::read("/bin/true").expect("readable"), 0o4755);
        resolve(copy.as_os_str()).expect("one's own");
        if rustix::process::geteuid().is_root() && !on_nosuid_mount(&copy) && !no_new_privileges() {
            std::os::unix::fs::chown(&copy, Some(1), None).expect("chown");
            std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o4755)).expect("mode set");
            assert_eq!(code(&copy), 120);
        }
    }

    #[test]
    fn static_programs_are_judged_by_their_calls() {
        let dir = tempfile::tempdir().expect("a directory");
        let plain = "int main(void) { return 0; }\n";
        let other =
            "int main(void) { __asm__ volatile(\"int $0x80\" : : \"a\"(20) : \"memory\"); return 0; }\n";
        for (name, text) in [("plain.c", plain), ("other.c", other)] {
            let source = file(dir.path(), name, text, 0o644);
            for flag in ["-static", "-static-pie"] {
                let program = dir.path().join("a.out");
                let built = Command::new("cc").arg(flag).arg("-o").arg(&program).arg(&source).output();
                if !built.is_ok_and(|output| output.status.success()) {
                    continue;
                }
                if name == "plain.c" {
                    resolve(program.as_os_str()).expect("all of its calls can be led");
                } else {
                    assert_eq!(code(&program), 120, "{flag}");
                }
            }
        }
    }

    #[test]
    fn foreign_loaders_are_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut bytes = std::fs::read("/bin/true").expect("readable");
        let glibc = b"/lib64/ld-linux-x86-64.so.2\0";
        let Some(at) = bytes.windows(glibc.len()).position(|window| window == glibc) else { return };
        for (loader, status) in
            [(b"/system/bin/linker64\0\0\0\0\0\0\0\0", 120), (b"/none/ld-musl-x86_64.so.1\0\0\0", 126)]
        {
            bytes[at..at + glibc.len()].copy_from_slice(loader);
            assert_eq!(code(file(dir.path(), "foreign", &bytes, 0o755)), status);
        }
    }
}
