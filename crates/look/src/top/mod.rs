//! A keeper at work, looked at again and again. A thread asks, so that keys
//! are heard while a keeper does not answer. It never holds a conversation between two looks: that
//! would keep the keeper from ending.

mod keys;
mod model;
mod screen;
mod view;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use self::model::{Look, Model, Wish};
use self::screen::Screen;
use crate::{files, keepers};

/// A picture is drawn at least so often, to say how old it is.
const REDRAW: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// A keeper that has not answered for so long is said not to.
const SILENT: Duration = Duration::from_secs(3);

/// Shows the keeper of a pool, looked at with so many milliseconds between, until a key ends it or
/// the terminal is gone.
pub fn show(pool: &Path, interval_ms: u64) -> anyhow::Result<()> {
    let screen = Screen::take()?;
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("no eventfd")?);
    let (looks, found) = channel();
    let (changes, interval) = channel();
    let asked = (pool.to_owned(), Duration::from_millis(interval_ms), Arc::clone(&bell));
    std::thread::Builder::new()
        .name("asker".to_owned())
        .spawn(move || ask(&asked.0, asked.1, &interval, &looks, &asked.2))
        .context("cannot start a thread")?;
    let mut model = Model::new(interval_ms);
    loop {
        for look in found.try_iter() {
            model.take(look);
        }
        if !model.halted && model.trouble.is_none() {
            let since = model.at.elapsed();
            if since > SILENT + Duration::from_millis(2 * model.interval_ms) {
                model.trouble = Some("the keeper does not answer".to_owned());
            }
        }
        let (columns, rows) = screen.size();
        // A terminal that has gone is no failure.
        if screen.show(&view::draw(&mut model, pool, columns, rows)).is_err() {
            return Ok(());
        }
        let stdin = std::io::stdin();
        let mut watched = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&screen, PollFlags::IN),
            PollFd::new(&*bell, PollFlags::IN),
        ];
        match poll(&mut watched, Some(&REDRAW)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error).context("cannot wait for keys"),
        }
        let ready = watched.map(|fd| !fd.revents().is_empty());
        if ready[2] {
            let _ = rustix::io::read(&*bell, &mut [0; 8]);
        }
        if ready[1] && screen.is_over() {
            return Ok(());
        }
        if ready[0] {
            let mut bytes = [0; 256];
            let count = match rustix::io::read(&stdin, &mut bytes) {
                Ok(0) | Err(Errno::IO) => return Ok(()),
                Ok(count) => count,
                Err(_) => 0,
            };
            for key in keys::keys(&bytes[..count]) {
                match model.press(key) {
                    Wish::None => {}
                    Wish::Quit => return Ok(()),
                    Wish::Interval => _ = changes.send(Duration::from_millis(model.interval_ms)),
                }
            }
        }
    }
}

/// Looks at the keeper until nobody wants to know.
fn ask(pool: &Path, mut every: Duration, changes: &Receiver<Duration>, looks: &Sender<Look>, bell: &OwnedFd) {
    loop {
        let found = look(pool).map_err(|error| format!("{error:#}"));
        if looks.send(Look { at: Instant::now(), found }).is_err() {
            return;
        }
        let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
        match changes.recv_timeout(every) {
            Ok(changed) => every = changed,
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn look(pool: &Path) -> anyhow::Result<(holdfast_keeper::status::Status, Vec<files::Known>)> {
    let connected = keepers::keeper(pool)?;
    let mut control = connected.with_context(|| format!("no keeper runs for pool {}", pool.display()))?;
    let status = control.status()?;
    let files = files::known(&mut control, &status)?;
    Ok((status, files))
}
