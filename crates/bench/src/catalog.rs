//! The list of benchmarks: name, what it shows with its bar, what it needs. It runs nothing.

use anyhow::Result;

use crate::lab::Lab;
use crate::report::Outcome;
use crate::{
    append_api, behind_reads, behind_writes, fio_benches, lifecycle, maildir, mount, postgres, presence,
    recovery, redis, rocksdb, saves, sqlite, stages, varmail,
};

/// One named benchmark.
pub struct Benchmark {
    /// What the user types.
    pub name: &'static str,
    /// What it shows, with its bar.
    pub about: &'static str,
    /// Programs it needs, with their Debian packages.
    pub tools: &'static [(&'static str, &'static str)],
    /// Whether it runs when no name is given.
    pub quick: bool,
    /// Whether every run under Holdfast writes, so that one that absorbed nothing proves nothing.
    pub absorbs: bool,
    /// Runs it.
    pub run: fn(&Lab) -> Result<Outcome>,
}

const FIO: (&str, &str) = ("fio", "fio");
const EATMYDATA: (&str, &str) = ("eatmydata", "eatmydata");
const SQLITE: (&str, &str) = ("sqlite3", "sqlite3");

/// All benchmarks, in the order they run.
pub const BENCHMARKS: &[Benchmark] = &[
    Benchmark {
        name: "fio-randwrite",
        about: "4 KiB random write + fsync, one job: >= 0.55 x native without fsync, >= 15 x native with it",
        tools: &[FIO],
        quick: true,
        absorbs: true,
        run: fio_benches::randwrite,
    },
    Benchmark {
        name: "fio-append",
        about: "256-byte append + fsync: >= 40 x native",
        tools: &[FIO],
        quick: true,
        absorbs: true,
        run: fio_benches::append,
    },
    Benchmark {
        name: "fio-two-jobs",
        about: "4 KiB random write + fsync, two threads on two files: >= 1.5 x one",
        tools: &[FIO],
        quick: false,
        absorbs: true,
        run: fio_benches::two_jobs,
    },
    Benchmark {
        name: "append-api",
        about: "durable 4 KiB append through the library, no hook: <= 1.6 x bare stream and fence",
        tools: &[],
        quick: true,
        absorbs: false,
        run: append_api::append_api,
    },
    Benchmark {
        name: "saturated",
        about: "pool 1/16 of what is written, final drain included: >= 0.8 x native with one fsync at the end",
        tools: &[FIO],
        quick: false,
        absorbs: true,
        run: fio_benches::saturated,
    },
    Benchmark {
        name: "reads",
        about: "4 KiB reads from a warm page cache, sequential and random: >= 0.97 x native",
        tools: &[FIO],
        quick: false,
        absorbs: false,
        run: fio_benches::reads,
    },
    Benchmark {
        name: "sqlite-wal",
        about: "SQLite WAL, synchronous=FULL, single-row transactions: >= 0.75 x eatmydata",
        tools: &[SQLITE, EATMYDATA],
        quick: true,
        absorbs: true,
        run: sqlite::wal,
    },
    Benchmark {
        name: "sqlite-delete",
        about: "SQLite DELETE journal, synchronous=FULL, single-row transactions: >= 4 x native",
        tools: &[SQLITE, EATMYDATA],
        quick: true,
        absorbs: true,
        run: sqlite::delete,
    },
    Benchmark {
        name: "redis",
        about: "redis-server appendfsync always, SET: >= 0.75 x eatmydata",
        tools: &[("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"), EATMYDATA],
        quick: false,
        absorbs: true,
        run: redis::set,
    },
    Benchmark {
        name: "rocksdb",
        about: "db_bench fillsync: >= 0.75 x eatmydata",
        tools: &[("db_bench", "rocksdb-tools"), EATMYDATA],
        quick: false,
        absorbs: true,
        run: rocksdb::fillsync,
    },
    Benchmark {
        name: "postgres",
        about: "PostgreSQL, pgbench's TPC-B with 4 clients: against native, and against fsync=off",
        tools: &[("initdb", "postgresql-15"), ("setpriv", "util-linux")],
        quick: false,
        absorbs: true,
        run: postgres::tpcb,
    },
    Benchmark {
        name: "maildir",
        about: "mail delivery (4 KiB: create, write, fsync, rename, fsync of the directory): >= 1.5 x native, four at a time >= 0.9 x",
        tools: &[EATMYDATA],
        quick: false,
        absorbs: true,
        run: maildir::deliveries,
    },
    Benchmark {
        name: "saves",
        about: "a file saved by a rename over the old one (4 KiB, fsync of file and directory): >= 4 x native",
        tools: &[EATMYDATA],
        quick: false,
        absorbs: true,
        run: saves::replacing,
    },
    Benchmark {
        name: "varmail",
        about: "mail server's store (remove, make, extend, read; 8 KiB, four threads): against native",
        tools: &[EATMYDATA],
        quick: false,
        absorbs: true,
        run: varmail::rounds,
    },
    Benchmark {
        name: "mount",
        about: "holdfast mount: 4 KiB write + fsync <= 15 us and 1/8 of native; cached reads >= 0.95 x native, 1 MiB requests >= 0.9 x",
        tools: &[],
        quick: false,
        absorbs: false,
        run: mount::mount,
    },
    Benchmark {
        name: "startup",
        about: "holdfast run -- true, existing pool: <= 25 ms over true",
        tools: &[],
        quick: true,
        absorbs: false,
        run: lifecycle::startup,
    },
    Benchmark {
        name: "cargo-build",
        about: "cargo build of a small crate, which syncs nothing: >= 0.97 x native",
        tools: &[("cargo", "cargo"), ("bash", "bash")],
        quick: false,
        absorbs: true,
        run: presence::cargo_build,
    },
    Benchmark {
        name: "find-cat",
        about: "find /usr -type f | xargs cat of files up to 1 MiB, warm, nothing written: >= 0.97 x native",
        tools: &[("bash", "bash")],
        quick: false,
        absorbs: false,
        run: presence::find_cat,
    },
    Benchmark {
        name: "recovery",
        about: "holdfast recover after everything was killed: >= 1 GiB of log per second",
        tools: &[FIO],
        quick: false,
        absorbs: false,
        run: recovery::recovery,
    },
    Benchmark {
        name: "idle",
        about: "CPU time of a keeper with an idle client: none in 10 s",
        tools: &[],
        quick: true,
        absorbs: false,
        run: lifecycle::idle,
    },
    Benchmark {
        name: "board-size",
        about: "shared memory besides the pool: <= pool/64 + 8 MiB",
        tools: &[],
        quick: true,
        absorbs: false,
        run: lifecycle::board_size,
    },
    Benchmark {
        name: "hot-reads",
        about: "write-behind: 4 KiB reads of a hot file: >= 2 x native pread",
        tools: &[],
        quick: false,
        absorbs: true,
        run: behind_reads::hot_reads,
    },
    Benchmark {
        name: "mixed",
        about: "write-behind: random 4 KiB reads and writes, 50/50: >= 1.5 x native without fsync",
        tools: &[],
        quick: false,
        absorbs: true,
        run: behind_reads::mixed,
    },
    Benchmark {
        name: "outside-open",
        about: "write-behind: open by an outsider, 64 MiB in the log alone: <= 500 ms",
        tools: &[],
        quick: false,
        absorbs: true,
        run: behind_reads::outside_open,
    },
    Benchmark {
        name: "figure-5",
        about: "write-behind: random writes through logs of 64 MiB to 2 GiB (NVCache, figure 5)",
        tools: &[],
        quick: false,
        absorbs: true,
        run: behind_reads::figure_5,
    },
    Benchmark {
        name: "figure-6",
        about: "write-behind: the same with batches of 4 KiB to 20 MiB (NVCache, figure 6)",
        tools: &[],
        quick: false,
        absorbs: true,
        run: behind_reads::figure_6,
    },
    Benchmark {
        name: "figure-7",
        about: "write-behind: 50/50 with read caches of 0 to 1 GiB (NVCache, figure 7)",
        tools: &[],
        quick: false,
        absorbs: true,
        run: behind_reads::figure_7,
    },
    Benchmark {
        name: "behind-randwrite",
        about: "write-behind: 4 KiB random write + fsync: >= 2 x tmpfs, >= 150 x native; two jobs >= 1.5 x one",
        tools: &[FIO],
        quick: false,
        absorbs: true,
        run: behind_writes::randwrite,
    },
    Benchmark {
        name: "behind-steady",
        about: "write-behind: the same for two minutes: >= 0.9 x a short run",
        tools: &[FIO],
        quick: false,
        absorbs: true,
        run: behind_writes::steady,
    },
    Benchmark {
        name: "behind-append",
        about: "write-behind: 256-byte append + fsync: >= 2 x tmpfs",
        tools: &[FIO],
        quick: false,
        absorbs: true,
        run: behind_writes::append,
    },
    Benchmark {
        name: "behind-saturated",
        about: "write-behind, pool 1/16 of what is written: >= 0.9 x native with one fsync, no write over 100 ms",
        tools: &[FIO],
        quick: false,
        absorbs: true,
        run: behind_writes::saturated,
    },
    Benchmark {
        name: "where-time-goes",
        about: "write-behind: the stages of one 4 KiB write, by themselves and together",
        tools: &[],
        quick: false,
        absorbs: false,
        run: stages::stages,
    },
];
