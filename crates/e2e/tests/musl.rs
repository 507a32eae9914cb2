//! Programs with another C library. Nothing can be put in front of musl's own system calls, those of its stdio above all, so
//! such a program is left to the kernel, all of it, and is told so: `run` refuses to start it, `doctor` says why, and below a
//! program that is absorbed it runs as it does natively, an outsider against whom the fences stand.

use std::path::{Path, PathBuf};

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, report};

/// The status of a program that would run without the library.
const REFUSED: i32 = 120;
const TOLD: &str = "this program's C library is not glibc: its writes go to the disk as usual";

/// The program of `programs/guest.c`, linked with musl.
fn guest(directory: &Path) -> PathBuf {
    let program = directory.join("guest-musl");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/guest.c");
    Cmd::new(need::tool("musl-gcc")).args(["-O1", "-w", "-o"]).arg(&program).arg(source).ok();
    program
}

#[test]
fn run_and_doctor_say_that_a_musl_program_is_not_absorbed() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root);
    let pool = Pool::new();
    let refused = pool.run(&[]).arg("--").arg(&program).output();
    refused.expect(&[REFUSED]);
    assert!(refused.stderr.contains("uses musl"), "{}", refused.told());
    let doctor = Cmd::holdfast("doctor").arg("--").arg(&program).output();
    assert!(doctor.told().contains("uses musl"), "{}", doctor.told());
}

/// A preloaded library that a loader cannot load ends the program before its first line. Ours asks for libc alone, so musl
/// loads it, too.
#[test]
fn a_musl_program_below_an_absorbed_one_runs_as_natively() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root);
    let native = Cmd::new(&program).dir(&disk.root).ok().stdout;
    let pool = Pool::new();
    let script = format!(
        "printf before > shell && {program} && printf after >> shell && cat guest.text > copy && cat shell",
        program = program.display()
    );
    let script = format!("cd {} && {script}", disk.root.display());
    let (output, summary) = pool.run_summarised(&[], &["sh", "-c", &script]);
    output.ok();
    assert_eq!(output.stdout, format!("{native}beforeafter"));
    // The program and its child.
    assert!(output.stderr.contains(TOLD), "{}", output.told());
    assert!(report::number(&summary, "writes_absorbed") >= 2, "the shell's writes are absorbed: {summary:#}");
    Cmd::new("cmp").arg(disk.root.join("guest.text")).arg(disk.root.join("copy")).ok();
}

/// What the log holds of a file is on the disk before an outsider writes to it, and never comes back over that.
#[test]
fn a_musl_program_and_an_absorbed_one_share_a_file() {
    let disk = Disk::new(Kind::Ext4);
    let program = guest(&disk.root);
    let pool = Pool::new();
    let script = format!(
        "cd {root} && printf managed > guest.data && printf managed > guest.text && {program} && printf last >> guest.text",
        root = disk.root.display(),
        program = program.display()
    );
    for options in [&[][..], &["--write-behind=at-once"][..]] {
        let (output, _) = pool.run_summarised(options, &["sh", "-c", &script]);
        output.ok();
        let text = std::fs::read_to_string(disk.root.join("guest.text")).expect("text");
        assert!(text.starts_with("line 0\n") && text.ends_with("line 199\nlast"), "{text}");
        let data = std::fs::read(disk.root.join("guest.data")).expect("data");
        assert_eq!((data.len(), &data[3..8]), (600 * 700, &b"child"[..]));
    }
}
