//! The terminal while `top` has it: raw, with a screen of its own, and given back as it was however
//! the program ends: by its end, a panic or a signal.

use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

use super::view::{Line, Style};

/// How it was, while it is another way.
static BEFORE: Mutex<Option<Termios>> = Mutex::new(None);

const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The terminal.
pub struct Screen {
    signals: SignalFd,
}

impl Screen {
    /// Takes it.
    pub fn take() -> anyhow::Result<Self> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            bail!("top needs a terminal: `holdfast status --watch` prints again and again anywhere");
        }
        let ends = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGWINCH];
        let set: SigSet = ends.into_iter().collect();
        set.thread_swap_mask(SigmaskHow::SIG_BLOCK).context("cannot block signals")?;
        let signals = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
            .context("cannot make a descriptor for signals")?;
        let before = tcgetattr(io::stdin()).context("cannot ask the terminal how it is")?;
        let mut raw = before.clone();
        raw.make_raw();
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let said = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            give_back();
            said(panic);
        }));
        let screen = Self { signals };
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).context("cannot set the terminal")?;
        io::stdout().write_all(ENTER).context("cannot write to the terminal")?;
        Ok(screen)
    }

    /// Columns and rows.
    pub fn size(&self) -> (usize, usize) {
        let size = tcgetwinsize(io::stdout()).ok().map(|size| (size.ws_col.into(), size.ws_row.into()));
        size.filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or((80, 24))
    }

    /// Shows a picture, in one write, so that it does not flicker.
    pub fn show(&self, lines: &[Line]) -> io::Result<()> {
        let mut bytes = Vec::from(&b"\x1b[H"[..]);
        for (index, (style, text)) in lines.iter().enumerate() {
            let style = match style {
                Style::Plain => "",
                Style::Head => "\x1b[7m",
                Style::Alarm => "\x1b[1;31m",
            };
            // What was there goes first: behind a full line the cursor stands on its last column.
            write!(bytes, "\x1b[{};1H\x1b[K{style}{text}\x1b[0m", index + 1)?;
        }
        if lines.len() < self.size().1 {
            write!(bytes, "\x1b[{};1H\x1b[J", lines.len() + 1)?;
        }
        let mut out = io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()
    }

    /// Whether a signal says that it is over; a change of size does not.
    pub fn is_over(&self) -> bool {
        let mut over = false;
        while let Ok(Some(info)) = self.signals.read_signal() {
            over |= info.ssi_signo != Signal::SIGWINCH as u32;
        }
        over
    }
}

impl AsFd for Screen {
    /// Readable when a signal has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signals.as_fd()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    // A panic may have happened while somebody had it.
    let before = BEFORE.try_lock().ok().and_then(|mut before| before.take());
    if let Some(before) = before {
        let mut out = io::stdout();
        let _ = out.write_all(LEAVE).and_then(|()| out.flush());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &before);
    }
}
