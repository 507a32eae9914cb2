//! Names that would change a terminal, end a line or leave a quotation, in each place where a
//! command takes one: whatever it says is of its own lines, and what it says to paste is the name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_e2e::cmd::{Cmd, Output};
use holdfast_e2e::disk::{self, Disk, Kind};
use holdfast_e2e::pool::{Pool, fresh_path};
use holdfast_e2e::running::Running;
use holdfast_e2e::{need, proc};

/// What stands behind the line feed begins no line of anything that is said.
const BEHIND: &str = "holdfast: all is well";
/// A part of a name.
const HOSTILE: &str = "a'b \u{1b}[31m\u{7}\u{85}\u{202e}$(c)\nholdfast: all is well";

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

/// All commands that a person is told of, one of which must be in every case's list.
fn commands() -> Vec<String> {
    let help = Cmd::new(need::holdfast()).arg("--help").ok().stdout;
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| line.starts_with("  ")).filter_map(|line| {
        let name = line.get(2..)?.split(' ').next()?;
        (!name.is_empty()).then(|| name.to_owned())
    });
    let names: Vec<String> = names.filter(|name| name != "help").collect();
    assert!(names.len() > 12 && names.contains(&"run".to_owned()), "{help}");
    names
}

/// The commands with a pool in them that are to be pasted.
fn pools_to_paste(said: &str) -> Vec<String> {
    let quotations = said.split("`holdfast ").skip(1).filter_map(|rest| {
        // A word in quotation marks may have any of them in it, but no name here has such a mark.
        rest.split_once('`').map(|(command, _)| command.to_owned())
    });
    let lines =
        said.lines().filter_map(|line| line.split_once(": holdfast ")).map(|(_, rest)| rest.to_owned());
    quotations.chain(lines).filter(|command| command.contains("--pool ")).collect()
}

struct Case {
    what: String,
    output: Output,
}

/// What a command says, all of it, holds no character that a terminal takes for an order, and no
/// line that another one wrote.
fn judge(case: &Case, pool: &Path, complaints: &mut Vec<String>) {
    let Case { what, output } = case;
    for (stream, said) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let is_hidden = |char: char| char.is_control() && char != '\n' || char == '\u{202e}';
        if said.chars().any(is_hidden) {
            complaints.push(format!("{what}: {stream}: raw: {said:?}"));
        }
        if said.lines().any(|line| line.starts_with(BEHIND)) {
            complaints.push(format!("{what}: {stream}: a line of its own: {said:?}"));
        }
        for command in pools_to_paste(said) {
            let script = format!("printf '%s\\0' {command}");
            let words = Cmd::new("bash").args(["-c", &script]).output().stdout;
            let words: Vec<&str> = words.split('\0').collect();
            let named = words.iter().position(|word| *word == "--pool").and_then(|at| words.get(at + 1));
            if named != Some(&text(pool)) {
                complaints.push(format!("{what}: {stream}: not to be pasted: {command}"));
            }
        }
    }
    if output.stderr.contains("panicked") {
        complaints.push(format!("{what}: {}", output.told()));
    }
}

/// In which state the thing is that a name stands for.
fn pools(directory: &Path) -> Vec<(&'static str, PathBuf)> {
    let absent = directory.join(format!("absent {HOSTILE}"));
    let no_directory = directory.join(format!("no {HOSTILE}")).join("pool");
    let other = directory.join(format!("other {HOSTILE}"));
    std::fs::write(&other, "some text").expect("file");
    let dir = directory.join(format!("directory {HOSTILE}"));
    std::fs::create_dir(&dir).expect("directory");
    let damaged = fresh_path(&format!("damaged-{HOSTILE}"));
    Cmd::holdfast("format").args(["--volatile", "--size=16M", "--pool", text(&damaged)]).ok();
    let mut bytes = std::fs::read(&damaged).expect("pool");
    bytes[33] ^= 1;
    bytes[4096 + 2048 + 33] ^= 1;
    std::fs::write(&damaged, bytes).expect("pool");
    let clean = fresh_path(&format!("clean-{HOSTILE}"));
    Cmd::holdfast("format").args(["--volatile", "--size=16M", "--pool", text(&clean)]).ok();
    let shared = fresh_path(&format!("shared-{HOSTILE}"));
    std::fs::copy(&clean, &shared).expect("pool");
    std::fs::set_permissions(&shared, std::os::unix::fs::PermissionsExt::from_mode(0o622)).expect("mode");
    vec![
        ("absent", absent),
        ("in no directory", no_directory),
        ("something else", other),
        ("a directory", dir),
        ("damaged", damaged),
        ("shared", shared),
        ("clean", clean),
    ]
}

/// Every command on a pool, as far as it takes one.
fn on_pool(command: &str, pool: &Path) -> Option<Cmd> {
    let cmd = Cmd::holdfast(command).args(["--pool", text(pool)]);
    match command {
        "run" => Some(cmd.args(["--volatile", "--size=32M", "--", "true"])),
        "mount" => Some(cmd.args(["--volatile", "--size=32M", "--at", "/nowhere", "/nowhere"])),
        // A keeper that starts would stay.
        "serve" => Some(cmd.args(["--fence=none", "--volatile"])),
        "format" => Some(cmd.args(["--volatile", "--size=16M"])),
        // As root, of a user that there is not: nothing is made.
        "install" => Some(cmd.args(["--user", "no-such-user", "--volatile"])),
        "metrics" | "files" | "status" | "drain" | "recover" | "remove" | "top" => Some(cmd),
        "config" => Some(Cmd::holdfast("config").args(["show", "--pool", text(pool)])),
        "bench" | "demo" | "doctor" | "completions" | "man" => None,
        other => panic!("{other} is new: say here how it is given a pool"),
    }
}

#[test]
fn what_is_said_of_a_pool_is_of_our_own_lines() {
    let (home, mut complaints) = (disk::directory(), Vec::new());
    let pools = pools(home.path());
    for (state, pool) in &pools {
        // What formats or removes it comes last.
        let mut commands = commands();
        commands.sort_by_key(|command| ["run", "format", "remove"].iter().position(|last| last == command));
        for command in commands {
            let Some(cmd) = on_pool(&command, pool) else { continue };
            let output = cmd.output();
            judge(&Case { what: format!("{command}, {state}"), output }, pool, &mut complaints);
        }
    }
    for (_, pool) in &pools {
        proc::keepers(pool).into_iter().for_each(proc::kill_hard);
        drop(std::fs::remove_file(pool));
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// As above, of a pool that was not closed, whose files have such names, and whose keeper is there
/// before.
#[test]
fn what_is_said_of_a_pool_at_work_is_of_our_own_lines() {
    const APPENDS: &str = "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
for number in range(50):
    os.write(fd, b'x' * 100)
    os.fsync(fd)
print('written', flush=True)
sys.stdin.read()
";
    let (disk, mut pool, mut complaints) = (Disk::new(Kind::Ext4), Pool::new(), Vec::new());
    pool.path = fresh_path(&format!("work-{HOSTILE}"));
    let file = disk.root.join(HOSTILE);
    let mut run =
        Running::start(&pool.run(&["--age-max=1h"]).args(["--", "python3", "-c", APPENDS, text(&file)]));
    run.until("written");
    let mut judged = |what: &str, output: Output| {
        let what = what.to_owned();
        judge(&Case { what, output }, &pool.path, &mut complaints);
    };
    for command in ["status", "files", "metrics", "recover", "format", "remove", "config"] {
        judged(command, on_pool(command, &pool.path).expect("it takes one").output());
    }
    let join = Cmd::holdfast("run").args(["--volatile", "--pool", pool.text(), "--age-max=2s", "--", "true"]);
    judged("join", join.output());
    run.kill_all(&pool);
    // Somebody changed it: it is set aside.
    std::fs::write(&file, "somebody").expect("file");
    let recover = |options: &[&str]| pool.command("recover").args(options).output();
    judged("format, unclosed", on_pool("format", &pool.path).expect("it takes one").output());
    judged("status, unclosed", pool.command("status").output());
    judged("recover --dry-run", recover(&["--dry-run"]));
    judged("recover", recover(&["--replay"]));
    judged("run", pool.run(&[]).args(["--", "true"]).output());
    judged(
        "recover --export",
        recover(&["--export", text(&disk.root.join(format!("no {HOSTILE}")).join("x"))]),
    );
    judged("recover --discard", recover(&["--discard", text(&file)]));
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Each option and variable that takes another name.
#[test]
fn what_is_said_of_other_names_is_of_our_own_lines() {
    let (home, pool, mut complaints) = (disk::directory(), Pool::formatted(), Vec::new());
    let absent = home.path().join(HOSTILE);
    // Some things are made where they are missing.
    let never = home.path().join(format!("no {HOSTILE}"));
    let script = home.path().join(format!("script {HOSTILE}"));
    std::fs::write(&script, "#!/bin/sh\n").expect("file");
    let configuration = home.path().join(format!("configuration {HOSTILE}"));
    std::fs::create_dir_all(configuration.join("pools.d")).expect("directory");
    let in_pools = |name: &str| configuration.join("pools.d").join(format!("{name} {HOSTILE}.toml"));
    std::fs::write(in_pools("bad"), "fence = \"none\"\npool = \"/nowhere\"\nbatch-min = \"x\\u001b\"\n")
        .expect("file");
    let run = |options: &[&str]| pool.run(options).args(["--", "true"]);
    let program = |program: &Path| pool.run(&[]).args(["--", text(program)]);
    let named = |option: &str| format!("{option}{}", text(&never.join("file")));
    let configured = |args: &[&str]| {
        Cmd::new(need::holdfast()).args(args).env("HOLDFAST_CONFIG_DIR", text(&configuration))
    };
    let cases: Vec<(&str, Cmd)> = vec![
        ("program", program(&absent)),
        ("program that is none", program(&script)),
        ("program of a directory", program(home.path())),
        ("doctor", Cmd::holdfast("doctor").args(["--", text(&absent)])),
        ("doctor of a program", Cmd::holdfast("doctor").args(["--", "sh", "-c", "exit 0", HOSTILE])),
        ("--summary", run(&[&named("--summary=")])),
        ("--spill", run(&[&named("--spill=")])),
        ("--exclusive", run(&[&named("--exclusive=")])),
        ("--user", run(&["--user", HOSTILE])),
        ("--size", Cmd::holdfast("run").args(["--size", HOSTILE, "--", "true"])),
        ("--fence", Cmd::holdfast("run").args(["--fence", HOSTILE, "--", "true"])),
        ("a subcommand", Cmd::holdfast(HOSTILE)),
        ("an option", Cmd::holdfast("run").arg(format!("--{HOSTILE}"))),
        ("HOLDFAST_POOL", Cmd::holdfast("status").env("HOLDFAST_POOL", text(&absent))),
        ("HOLDFAST_RUNTIME_DIR", run(&[]).env("HOLDFAST_RUNTIME_DIR", text(&absent))),
        ("XDG_RUNTIME_DIR", run(&[]).env("XDG_RUNTIME_DIR", text(&absent))),
        (
            "NOTIFY_SOCKET",
            Cmd::holdfast("serve")
                .args(["--volatile", "--pool", pool.text(), "--fence=none"])
                .env("NOTIFY_SOCKET", text(&absent)),
        ),
        ("config check", configured(&["config", "check"])),
        ("config show", configured(&["config", "show"])),
        ("recover --all", configured(&["recover", "--all"])),
        ("status, configured", configured(&["status", "--pool", "/nowhere"])),
        (
            "config check of nothing",
            Cmd::holdfast("config").arg("check").env("HOLDFAST_CONFIG_DIR", text(&absent)),
        ),
        (
            "recover --all of nothing",
            Cmd::holdfast("recover").arg("--all").env("HOLDFAST_CONFIG_DIR", text(&absent)),
        ),
        ("mount", Cmd::holdfast("mount").args(["--volatile", "--pool", pool.text(), text(&never)])),
        (
            "mount --at",
            Cmd::holdfast("mount").args([
                "--volatile",
                "--pool",
                pool.text(),
                "--at",
                text(&never),
                text(home.path()),
            ]),
        ),
        ("bench", Cmd::holdfast("bench").arg(&never)),
        ("bench compare", Cmd::holdfast("bench").args(["compare", text(&absent), text(&script)])),
        ("bench --json", Cmd::holdfast("bench").args([text(home.path()), &named("--json=")])),
        ("metrics --listen", pool.command("metrics").arg(named("--listen=unix:"))),
        ("metrics --listen, wrong", pool.command("metrics").args(["--listen", HOSTILE])),
        ("man --dir", Cmd::holdfast("man").args(["--dir", text(&script)])),
        ("completions", Cmd::holdfast("completions").arg(HOSTILE)),
        ("install", Cmd::holdfast("install").args(["--pool", pool.text(), "--user", HOSTILE])),
        ("recover --force", pool.command("recover").args(["--force", text(&absent)])),
    ];
    for (what, cmd) in cases {
        let output = cmd.limit(Duration::from_secs(60)).output();
        judge(&Case { what: what.to_owned(), output }, &pool.path, &mut complaints);
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
