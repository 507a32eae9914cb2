//! What commands say where something is not as it was meant to be: plainly, soon, and with what to
//! do, in a form that can be pasted into a shell.

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk;
use holdfast_e2e::pool::Pool;
use holdfast_e2e::running::Running;

/// Nothing came of it, or of a start that failed.
const FAILED: i32 = 1;

#[test]
fn the_version_names_the_format_of_pools() {
    let told = Cmd::holdfast("--version").ok().stdout;
    // Bytes 8 to 12 of a pool (docs/format.md).
    let pool = Pool::formatted();
    let bytes = std::fs::read(&pool.path).expect("pool");
    let version = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
    assert!(told.contains(&format!("pools of format version {version}")), "{told}");
}

/// The words of the command that stands in a message between backquotes, as a shell reads them.
fn pasted(message: &str, begins: &str) -> Vec<String> {
    let from =
        message.find(&format!("`{begins}")).unwrap_or_else(|| panic!("`{begins} is not in {message}")) + 1;
    let command = &message[from..from + message[from..].find('`').expect("its end")];
    let script = format!("printf '%s\\0' {command}");
    let words = Cmd::new("bash").args(["-c", &script]).ok().stdout;
    words.trim_end_matches('\0').split('\0').map(str::to_owned).collect()
}

#[test]
fn commands_in_messages_can_be_pasted() {
    let home = disk::directory();
    let path = home.path().join("a pool; of $(it)'s own");
    let path = path.to_str().expect("text");
    let told = Cmd::holdfast("recover").args(["--pool", path]).output();
    told.expect(&[FAILED]);
    assert_eq!(pasted(&told.stderr, "holdfast format"), ["holdfast", "format", "--pool", path]);

    // A pool that was not closed.
    let mut pool = Pool::new();
    pool.path = pool.path.with_extension("$(it)'s; pool");
    let mut run = Running::start(&pool.run(&[]).args(["--", "sh", "-c", "echo begun; exec sleep 60"]));
    run.until("begun");
    run.kill_all(&pool);
    let told = pool.command("format").args(["--size", "64M", "--volatile"]).output();
    told.expect(&[FAILED]);
    assert_eq!(pasted(&told.stderr, "holdfast recover"), ["holdfast", "recover", "--pool", pool.text()]);
    pool.command("recover").ok();
}
