//! A program under Holdfast is the same program: same exit status, same streams, same files. And
//! its writes are absorbed.

use std::path::Path;

use holdfast_e2e::cmd::Cmd;
use holdfast_e2e::disk::{Disk, Kind};
use holdfast_e2e::pool::Pool;
use holdfast_e2e::{need, report};
use holdfast_testkit::Random;

fn text(path: &Path) -> &str {
    path.to_str().expect("paths are text")
}

#[test]
fn exit_status_is_the_programs_own() {
    let pool = Pool::new();
    pool.run(&[]).args(["--", "true"]).output().expect(&[0]);
    pool.run(&[]).args(["--", "false"]).output().expect(&[1]);
    pool.run(&[]).args(["--", "sh", "-c", "exit 42"]).output().expect(&[42]);
    pool.run(&[]).args(["--", "sh", "-c", "kill -TERM $$"]).output().expect(&[143]);
    pool.run(&[]).args(["--", "sh", "-c", "kill -KILL $$"]).output().expect(&[137]);
    pool.run(&[]).args(["--", "sh", "-c", "kill -SEGV $$"]).output().expect(&[139]);
}

#[test]
fn streams_pass_through() {
    let pool = Pool::new();
    let bytes: String = (0..20_000).map(|line| format!("line {line}\n")).collect();
    let output = pool.run(&[]).args(["--", "cat"]).stdin(bytes.clone()).ok();
    assert!(output.stdout == bytes, "cat returned {} bytes of {}", output.stdout.len(), bytes.len());
    let output = pool.run(&[]).args(["--", "sh", "-c", "echo out; echo err >&2"]).ok();
    let streams = (output.stdout.as_str(), output.stderr_of_program());
    assert_eq!(streams, ("out\n", "err\n".to_owned()), "{}", output.told());
}

#[test]
fn arguments_and_environment_pass_through() {
    let pool = Pool::new();
    let output = pool.run(&[]).args(["--", "printf", "%s|", "a b", "", "--pool", "-x"]).env("MARK", "7").ok();
    assert_eq!(output.stdout, "a b||--pool|-x|");
    let output = pool.run(&[]).args(["--", "sh", "-c", "echo $MARK; pwd"]).env("MARK", "7").dir("/usr").ok();
    assert_eq!(output.stdout, "7\n/usr\n");
}

#[test]
fn no_descriptor_is_left_in_the_program() {
    let pool = Pool::new();
    let list = ["sh", "-c", "ls /proc/self/fd | wc -l"];
    let native = Cmd::new("sh").args(&list[1..]).ok().stdout;
    let held = pool.run(&[]).arg("--").args(list).ok().stdout;
    assert_eq!(native, held, "number of open descriptors");
}

#[test]
fn run_true_works_again_and_again() {
    let pool = Pool::new();
    let mut took = Vec::new();
    for _ in 0..30 {
        took.push(pool.run(&[]).args(["--", "true"]).ok().took);
    }
    took.sort();
    println!("run -- true: median {:?}, longest {:?}", took[15], took[29]);
    assert!(took[15].as_millis() < 500, "run -- true takes {:?}", took[15]);
}

#[test]
fn dd_with_fsync_is_absorbed_and_whole() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let source: Vec<u8> = (0..3_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let (from, to) = (disk.root.join("from"), disk.root.join("to"));
    std::fs::write(&from, &source).expect("source");
    let program =
        ["dd", &format!("if={}", text(&from)), &format!("of={}", text(&to)), "bs=60000", "conv=fsync"];
    let (output, summary) = pool.run_summarised(&[], &program);
    output.ok();
    assert!(std::fs::read(&to).expect("copy") == source, "the copy differs");
    assert!(report::number(&summary, "writes_absorbed") >= 50, "{summary:#}");
    assert!(report::number(&summary, "bytes_absorbed") >= 3_000_000, "{summary:#}");
    assert!(report::flag(&summary, "drained"), "{summary:#}");
    assert!(report::flag(&summary, "volatile"), "{summary:#}");
}

#[test]
fn sqlite_shell_is_absorbed() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let inserts: String = (0..50).map(|row| format!("INSERT INTO item VALUES({row});")).collect();
        let script = format!("CREATE TABLE item(id INTEGER); {inserts} SELECT count(*) FROM item;");
        let run = || {
            let (disk, pool) = (Disk::new(kind), Pool::new());
            let db = disk.root.join("app.db");
            let (output, summary) = pool.run_summarised(&[], &["sqlite3", text(&db), &script]);
            assert_eq!(output.ok().stdout, "50\n", "{}", output.told());
            assert!(report::number(&summary, "writes_absorbed") >= 100, "{kind:?}: {summary:#}");
            let count =
                Cmd::new("sqlite3").arg(&db).arg("PRAGMA integrity_check; SELECT sum(id) FROM item").ok();
            assert_eq!(count.stdout, "ok\n1225\n");
            // Without a sync saved there would be no point.
            report::number(&summary, "syncs_absorbed")
        };
        // What is pending on btrfs is committed once a second, and this takes less: a run that
        // begins with something pending may end with it.
        let absorbed: Vec<u64> = (0..3).map(|_| run()).take_while(|absorbed| *absorbed < 50).collect();
        assert!(absorbed.len() < 3, "{kind:?}: {absorbed:?} syncs absorbed");
    }
}

#[test]
fn python_fsync_is_absorbed() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("log");
    let script = "
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
for number in range(200):
    os.write(fd, b'entry %d\\n' % number)
    os.fsync(fd)
assert os.fstat(fd).st_size == os.stat(sys.argv[1]).st_size
os.close(fd)
with open(sys.argv[1], 'a') as log:
    log.write('end\\n'); log.flush(); os.fdatasync(log.fileno())
";
    let (output, summary) = pool.run_summarised(&[], &["python3", "-c", script, text(&file)]);
    output.ok();
    let expected: String = (0..200).map(|number| format!("entry {number}\n")).collect::<String>() + "end\n";
    assert_eq!(std::fs::read_to_string(&file).expect("log"), expected);
    assert!(report::number(&summary, "writes_absorbed") >= 201, "{summary:#}");
    assert!(report::number(&summary, "syncs_absorbed") >= 195, "{summary:#}");
}

/// stdio calls `write` inside libc: only the patched entries see it.
#[test]
fn stdio_is_absorbed() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let source = disk.root.join("stdio.c");
    let program = disk.root.join("stdio");
    let file = disk.root.join("out");
    let code = r#"
        #include <stdio.h>
        #include <unistd.h>
        int main(int argc, char **argv) {
            FILE *out = fopen(argv[1], "w");
            for (int i = 0; i < 100; i++) {
                fprintf(out, "number %d\n", i);
                if (fflush(out) || fsync(fileno(out))) return 1;
            }
            if (fseek(out, 0, SEEK_SET) || fputs("NUMBER", out) < 0) return 2;
            return fclose(out) ? 3 : 0;
        }"#;
    std::fs::write(&source, code).expect("source");
    Cmd::new("gcc").arg("-o").arg(&program).arg(&source).ok();
    let (output, summary) = pool.run_summarised(&[], &[text(&program), text(&file)]);
    output.ok();
    let expected: String = (0..100).map(|number| format!("number {number}\n")).collect();
    assert_eq!(std::fs::read_to_string(&file).expect("out"), expected.replacen("number", "NUMBER", 1));
    assert!(report::number(&summary, "writes_absorbed") >= 101, "{summary:#}");
    assert!(report::number(&summary, "syncs_absorbed") >= 95, "{summary:#}");
}

#[test]
fn shell_redirections_and_exec_chains_work() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "
        echo one > a; echo two >> a; cat a a > b; tail -n 1 b > c
        (echo sub; exec sh -c 'echo exec; exec cat a') > d
        sort -r b -o b; mv c e; ln e f; cp a g; truncate -s 3 g; : > a; sync d
        { echo first; env sleep 0; echo second; } >> f; rm d
    ";
    let [native, held] = ["native", "held"].map(|name| disk.root.join(name));
    for dir in [&native, &held] {
        std::fs::create_dir(dir).expect("directory");
    }
    Cmd::new("sh").args(["-ec", script]).dir(&native).ok();
    pool.run(&[]).args(["--", "sh", "-ec", script]).dir(&held).ok();
    Cmd::new("diff").arg("-r").arg(&native).arg(&held).ok();
}

/// Every kind of write a program can do, at random: the files are the same as without Holdfast, and
/// reads agree on the way.
#[test]
fn random_operations_leave_the_same_files() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let mut random = Random::named("random operations");
    let python = need::tool("python3");
    for round in 0..4 {
        let seed = random.draw().to_string();
        let mut said = Vec::new();
        for name in ["native", "held"] {
            let dir = disk.root.join(format!("{name}-{round}"));
            std::fs::create_dir(&dir).expect("directory");
            let script = include_str!("operations.py");
            let argv = [text(&python), "-c", script, text(&dir), &seed, "1500"];
            let output = if name == "native" {
                Cmd::new(argv[0]).args(&argv[1..]).ok()
            } else {
                let (output, summary) = pool.run_summarised(&[], &argv);
                output.ok();
                assert!(report::number(&summary, "writes_absorbed") > 100, "{summary:#}");
                output
            };
            said.push(output.stdout);
        }
        assert!(said[0] == said[1], "reads differ, seed {seed}");
        Cmd::new("diff")
            .arg("-r")
            .arg(disk.root.join(format!("native-{round}")))
            .arg(disk.root.join(format!("held-{round}")))
            .ok();
    }
}

#[test]
fn summary_is_printed_for_people() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let file = disk.root.join("file");
    let program = [
        "--summary",
        "--",
        "dd",
        "if=/dev/zero",
        &format!("of={}", text(&file)),
        "bs=4k",
        "count=9",
        "conv=fsync",
    ];
    let output = pool.run(&[]).args(program).ok();
    output.says(&["absorbed", "volatile"], &[]);
    assert!(output.stdout.is_empty(), "the summary belongs on standard error\n{}", output.told());
}

#[test]
fn included_and_excluded_files_are_told_apart() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = "for f in a.log b.dat; do dd if=/dev/zero of=$f bs=4k count=8 conv=fsync status=none; done";
    let absorbed = |options: &[&str]| {
        let cmd = pool.run(options).arg(format!("--summary={}", text(&disk.root.join("summary"))));
        cmd.args(["--", "sh", "-ec", script]).dir(&disk.root).ok();
        let summary = report::parse(&std::fs::read_to_string(disk.root.join("summary")).expect("summary"));
        report::number(&summary, "writes_absorbed")
    };
    assert_eq!(absorbed(&[]), 16);
    let glob = |name: &str| format!("{}/{name}", text(&disk.root));
    assert_eq!(absorbed(&["--exclude", &glob("*.log")]), 8);
    assert_eq!(absorbed(&["--include", &glob("*.dat")]), 8);
    assert_eq!(absorbed(&["--exclude", &glob("*")]), 0);
}

#[test]
fn a_pool_much_smaller_than_what_is_written_only_slows_down() {
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::with_size("16M"));
    let file = disk.root.join("file");
    let program =
        ["dd", "if=/dev/zero", &format!("of={}", text(&file)), "bs=256k", "count=800", "conv=fsync"];
    let (output, summary) = pool.run_summarised(&[], &program);
    output.ok();
    assert_eq!(std::fs::metadata(&file).expect("file").len(), 800 * (256 << 10));
    assert!(report::number(&summary, "bytes_absorbed") > 16 << 20, "{summary:#}");
}

/// A program that gives one of its new files another name soon does so with the others: they are
/// settled by then, and it does not wait for the disk once for each. What it renames or links is as
/// durable as before: nothing of it is left in the log.
#[test]
fn new_files_that_are_linked_one_by_one_are_settled_with_the_first() {
    const FILES: u64 = 24;
    let (disk, pool) = (Disk::new(Kind::Ext4), Pool::new());
    let script = format!(
        "import os, sys, time\n\
         os.chdir(sys.argv[1])\n\
         os.mkdir('linked')\n\
         for n in range({FILES}):\n\
         \x20   with open(f'new{{n:02}}', 'wb') as file: file.write(bytes([n]) * 30000)\n\
         os.link('new00', 'linked/00')\n\
         time.sleep(0.5)\n\
         for n in range(1, {FILES}): os.link(f'new{{n:02}}', f'linked/{{n:02}}')\n"
    );
    // Long before they would be due by their age.
    let (output, summary) =
        pool.run_summarised(&["--age-max", "60000"], &["python3", "-c", &script, text(&disk.root)]);
    output.ok();
    for n in 0..FILES {
        let linked = std::fs::read(disk.root.join(format!("linked/{n:02}"))).expect("a linked file");
        assert!(linked == vec![n as u8; 30_000], "file {n} differs");
    }
    assert_eq!(report::number(&summary, "settles"), 1, "{summary:#}");
    assert!(report::flag(&summary, "drained"), "{summary:#}");
}
