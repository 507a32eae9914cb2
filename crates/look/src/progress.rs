//! A progress bar for long work: drawn on standard error only if that is a terminal and only after
//! half a second, so that short work and scripts see nothing. It never delays the work.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Work shorter than this draws nothing.
const QUIET: Duration = Duration::from_millis(500);
/// Between turns of a spinner.
const TICK: Duration = Duration::from_millis(100);

/// A bar in bytes that appears late.
pub struct Progress {
    started: Instant,
    wanted: bool,
    bar: Option<ProgressBar>,
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Progress {
    /// Starts the clock; draws nothing yet.
    pub fn new() -> Self {
        Self { started: Instant::now(), wanted: std::io::stderr().is_terminal(), bar: None }
    }

    /// Tells how far the work is.
    pub fn update(&mut self, stage: &str, done_bytes: u64, total_bytes: u64) {
        if !self.wanted || (self.bar.is_none() && self.started.elapsed() < QUIET) {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(
                "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            )
            .expect("the template is a constant and valid")
            .progress_chars("=> ");
            ProgressBar::new(total_bytes).with_style(style)
        });
        bar.set_message(stage.to_string());
        bar.set_length(total_bytes);
        bar.set_position(done_bytes);
    }

    /// Removes the bar.
    pub fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A spinner, for work of which nobody knows how long it takes; gone when it is dropped.
pub struct Spinner(ProgressBar);

impl Spinner {
    /// One that turns at once.
    pub fn new(message: String) -> Self {
        let spinner = ProgressBar::new_spinner().with_message(message);
        spinner.enable_steady_tick(TICK);
        Self(spinner)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
