//! The command lines of those that look at a keeper.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use holdfast_look::metrics::{self, Place};

use crate::sizes;

pub const STATUS_EXAMPLES: &str = "\
Examples:
  holdfast status
  holdfast status --pool /mnt/pmem/db.pool --json
  holdfast status --watch=5
  holdfast status --watch --json | jq .backlog_bytes          an object a line";

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Say it again and again, with so many seconds between [default: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1",
          value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub watch: Option<u64>,
}

pub const TOP_EXAMPLES: &str = "\
Examples:
  holdfast top
  holdfast top --pool /mnt/pmem/db.pool --interval 200ms

Keys: q quits; s and r choose the order; / filters by path, state or reason; arrows, PgUp, PgDn,
Home and End move; space halts; + and - change the interval; ? helps.";

/// Arguments of `top`.
#[derive(Args, Debug)]
pub struct TopArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// How often to look, for example 200ms or 5s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = sizes::parse_ms)]
    pub interval: u64,
}

pub const FILES_EXAMPLES: &str = "\
Examples:
  holdfast files
  holdfast files --pool /mnt/pmem/db.pool --json";

/// Arguments of `files`.
#[derive(Args, Debug)]
pub struct FilesArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub const METRICS_EXAMPLES: &str = "\
Examples:
  holdfast metrics
  holdfast metrics --pool /mnt/pmem/db.pool --listen 127.0.0.1:9637
  holdfast metrics --pool /mnt/pmem/db.pool --listen unix:/run/holdfast-redis/metrics.sock
  holdfast metrics --format prometheus > /var/lib/node_exporter/holdfast.prom

With --listen it answers GET /metrics until it is ended, in the format that is asked for. It listens
on this machine alone. Names of files are not told. contrib/prometheus has alerts, contrib/grafana a
dashboard.";

/// Arguments of `metrics`.
#[derive(Args, Debug)]
pub struct MetricsArgs {
    /// The pool [default: /dev/shm/holdfast-UID.pool]
    #[arg(long, value_name = "PATH", env = "HOLDFAST_POOL")]
    pub pool: Option<PathBuf>,
    /// Serve it by HTTP: a loopback address with a port, or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Option<Place>,
    /// Which text is printed
    #[arg(long, value_enum, default_value_t = Format::Openmetrics, conflicts_with = "listen")]
    pub format: Format,
}

/// The texts that monitoring reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// OpenMetrics 1.0
    Openmetrics,
    /// The text format of Prometheus, version 0.0.4
    Prometheus,
}

impl From<Format> for metrics::Format {
    fn from(format: Format) -> Self {
        match format {
            Format::Openmetrics => Self::Openmetrics,
            Format::Prometheus => Self::Prometheus,
        }
    }
}
