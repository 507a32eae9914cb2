//! What `top` shows: the last look at a keeper, what changed since the one before, and how the user
//! wants it. Pure: it asks nobody and draws nothing.

use std::collections::VecDeque;
use std::time::Instant;

use holdfast_keeper::status::Status;

use super::keys::Key;
use crate::files::Known;

/// Rates that are kept, one a look.
const HISTORY_MAX: usize = 240;
/// Intervals between looks that `+` and `-` choose from, in milliseconds.
const INTERVALS_MS: [u64; 7] = [100, 200, 500, 1000, 2000, 5000, 10_000];
const FILTER_CHARS_MAX: usize = 60;

/// A look at a keeper.
pub struct Look {
    /// When.
    pub at: Instant,
    /// What it says, or why nobody says anything.
    pub found: Result<(Status, Vec<Known>), String>,
}

/// What happens a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Writes absorbed.
    pub writes: f64,
    /// Their bytes.
    pub bytes: f64,
    /// Syncs absorbed.
    pub absorbed: f64,
    /// Syncs that the kernel answered.
    pub real: f64,
    /// Bytes that went to NVM.
    pub nvm_bytes: f64,
}

/// The order of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Oldest write that is not on disk first.
    Age,
    /// By state.
    State,
    /// Largest first.
    Size,
    /// By path.
    Path,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Age => Self::State,
            Self::State => Self::Size,
            Self::Size => Self::Path,
            Self::Path => Self::Age,
        }
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::State => "state",
            Self::Size => "size",
            Self::Path => "path",
        }
    }
}

/// What a key asks for besides another picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Nothing.
    None,
    /// The end.
    Quit,
    /// Another interval.
    Interval,
}

/// Everything that is shown.
pub struct Model {
    /// What was found last.
    pub status: Option<Status>,
    /// All files that it knew.
    files: Vec<Known>,
    /// When it was looked for last.
    pub at: Instant,
    /// Why nothing is found now.
    pub trouble: Option<String>,
    /// What happened a second between the last two looks at one keeper.
    pub rates: Option<Rates>,
    /// Syncs a second, newest last.
    pub history: VecDeque<f64>,
    /// How files are ordered.
    pub order: Order,
    /// The other way round.
    pub reversed: bool,
    /// Only what contains this.
    pub filter: String,
    /// It is being typed.
    pub typing: bool,
    /// Nothing new is shown.
    pub halted: bool,
    /// The keys are explained.
    pub helps: bool,
    /// The first file that is shown.
    pub first: usize,
    /// Files that fit on a page; the view says so.
    pub page: usize,
    /// Between two looks, in milliseconds.
    pub interval_ms: u64,
}

impl Model {
    /// Nothing was looked at yet.
    pub fn new(interval_ms: u64) -> Self {
        Self {
            status: None,
            files: Vec::new(),
            at: Instant::now(),
            trouble: None,
            rates: None,
            history: VecDeque::new(),
            order: Order::Age,
            reversed: false,
            filter: String::new(),
            typing: false,
            halted: false,
            helps: false,
            first: 0,
            page: 1,
            interval_ms,
        }
    }

    /// Takes a look in.
    pub fn take(&mut self, look: Look) {
        if self.halted {
            return;
        }
        match look.found {
            Ok((status, files)) => {
                let before = self.status.as_ref().filter(|before| before.keeper_pid == status.keeper_pid);
                let passed_s = look.at.saturating_duration_since(self.at).as_secs_f64();
                self.rates = before.filter(|_| passed_s > 0.0).map(|before| rates(before, &status, passed_s));
                if let Some(rates) = self.rates {
                    if self.history.len() >= HISTORY_MAX {
                        self.history.pop_front();
                    }
                    self.history.push_back(rates.absorbed + rates.real);
                }
                (self.status, self.files, self.trouble) = (Some(status), files, None);
            }
            Err(trouble) => {
                // What is shown is what was known last.
                (self.trouble, self.rates) = (Some(trouble), None);
            }
        }
        self.at = look.at;
    }

    /// The files that are to be shown, in order.
    pub fn shown(&self) -> Vec<&Known> {
        let wanted = self.filter.to_lowercase();
        let contains = |text: &str| text.to_lowercase().contains(&wanted);
        let mut shown: Vec<&Known> = self
            .files
            .iter()
            .filter(|file| {
                contains(&file.path) || contains(&file.state) || file.reason.as_deref().is_some_and(contains)
            })
            .collect();
        match self.order {
            Order::Age => shown.sort_by_key(|file| {
                let age = if file.dirty { Some(file.oldest_ns.unwrap_or(0)) } else { None };
                (std::cmp::Reverse(age), &file.path)
            }),
            Order::State => shown.sort_by_key(|file| (&file.state, &file.path)),
            Order::Size => shown.sort_by_key(|file| (std::cmp::Reverse(file.size_bytes), &file.path)),
            Order::Path => shown.sort_by_key(|file| &file.path),
        }
        if self.reversed {
            shown.reverse();
        }
        shown
    }

    /// How many files there are at all.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// Does what a key asks for.
    pub fn press(&mut self, key: Key) -> Wish {
        if key == Key::Interrupt {
            return Wish::Quit;
        }
        if self.typing {
            self.type_filter(key);
            return Wish::None;
        }
        if self.helps {
            self.helps = false;
            return if key == Key::Char('q') { Wish::Quit } else { Wish::None };
        }
        let last = self.shown().len().saturating_sub(self.page.max(1));
        let page = self.page.max(1);
        match key {
            Key::Char('q') => return Wish::Quit,
            Key::Escape => self.filter.clear(),
            Key::Char('?' | 'h') => self.helps = true,
            Key::Char('s') => self.order = self.order.next(),
            Key::Char('r') => self.reversed = !self.reversed,
            Key::Char(' ') => self.halted = !self.halted,
            Key::Char('/') => self.typing = true,
            Key::Char('+') => return self.change_interval(true),
            Key::Char('-') => return self.change_interval(false),
            Key::Up | Key::Char('k') => self.first = self.first.saturating_sub(1),
            Key::Down | Key::Char('j') => self.first += 1,
            Key::PageUp => self.first = self.first.saturating_sub(page),
            Key::PageDown => self.first += page,
            Key::Home => self.first = 0,
            Key::End => self.first = last,
            _ => {}
        }
        self.first = self.first.min(last);
        Wish::None
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.filter.clear();
            }
            Key::Backspace => _ = self.filter.pop(),
            Key::Char(char) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(char),
            _ => {}
        }
        self.first = 0;
    }

    fn change_interval(&mut self, longer: bool) -> Wish {
        let now = self.interval_ms;
        let next = match longer {
            true => INTERVALS_MS.into_iter().find(|ms| *ms > now),
            false => INTERVALS_MS.into_iter().rev().find(|ms| *ms < now),
        };
        self.interval_ms = next.unwrap_or(now);
        Wish::Interval
    }
}

fn rates(before: &Status, now: &Status, passed_s: f64) -> Rates {
    let (before, now) = (&before.summary, &now.summary);
    let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / passed_s;
    Rates {
        writes: rate(before.writes_absorbed, now.writes_absorbed),
        bytes: rate(before.bytes_absorbed, now.bytes_absorbed),
        absorbed: rate(before.syncs_absorbed, now.syncs_absorbed),
        real: rate(before.syncs_real, now.syncs_real),
        nvm_bytes: rate(before.nvm_bytes, now.nvm_bytes),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use holdfast_keeper::status::Summary;
    use std::time::Duration;

    /// A look at a keeper that has so many files and has absorbed so many syncs.
    pub fn look(at: Instant, files: usize, syncs: u64) -> Look {
        let summary = Summary {
            syncs_absorbed: syncs,
            writes_absorbed: 2 * syncs,
            bytes_absorbed: 8192 * syncs,
            ..Summary::default()
        };
        let status = Status { keeper_pid: 7, segments: 64, segments_free: 16, summary, ..Status::default() };
        let known = |number: usize| Known {
            path: format!("/srv/file-{number}"),
            state: if number.is_multiple_of(2) { "through" } else { "bypassed" }.to_owned(),
            dirty: number.is_multiple_of(3),
            oldest_ns: Some(1000 * number as u64),
            size_bytes: Some(number as u64),
            reason: (number % 2 == 1).then(|| "mapped shared and writable".to_owned()),
            slot: Some(number as u32),
        };
        Look { at, found: Ok((status, (0..files).map(known).collect())) }
    }

    #[test]
    fn rates_are_of_one_keeper() {
        let (mut model, begun) = (Model::new(1000), Instant::now());
        model.take(look(begun, 1, 100));
        assert_eq!(model.rates, None);
        model.take(look(begun + Duration::from_secs(2), 1, 300));
        assert_eq!(model.rates.map(|rates| (rates.absorbed, rates.writes)), Some((100.0, 200.0)));
        let mut other = look(begun + Duration::from_secs(3), 1, 5);
        if let Ok((status, _)) = &mut other.found {
            status.keeper_pid = 8;
        }
        model.take(other);
        assert_eq!(model.rates, None);
        model.take(Look { at: begun + Duration::from_secs(4), found: Err("gone".to_owned()) });
        assert!(model.trouble.is_some() && model.status.is_some());
    }

    #[test]
    fn files_are_ordered_and_filtered() {
        let mut model = Model::new(1000);
        model.take(look(Instant::now(), 7, 0));
        let paths =
            |model: &Model| model.shown().iter().map(|file| file.slot.expect("a slot")).collect::<Vec<_>>();
        assert_eq!(paths(&model), [6, 3, 0, 1, 2, 4, 5]);
        model.press(Key::Char('s'));
        assert_eq!(paths(&model), [1, 3, 5, 0, 2, 4, 6]);
        model.press(Key::Char('s'));
        model.press(Key::Char('r'));
        assert_eq!(paths(&model), [0, 1, 2, 3, 4, 5, 6]);
        model.press(Key::Char('/'));
        "MAPPED".chars().for_each(|char| _ = model.press(Key::Char(char)));
        assert_eq!(model.press(Key::Enter), Wish::None);
        assert_eq!(paths(&model), [1, 3, 5]);
        model.press(Key::Escape);
        assert_eq!(paths(&model).len(), 7);
    }

    #[test]
    fn no_key_leads_out_of_the_list() {
        let mut model = Model::new(1000);
        model.take(look(Instant::now(), 7, 0));
        model.page = 3;
        for (key, first) in [
            (Key::Down, 1),
            (Key::PageDown, 4),
            (Key::PageDown, 4),
            (Key::Up, 3),
            (Key::PageUp, 0),
            (Key::End, 4),
            (Key::Home, 0),
        ] {
            model.press(key);
            assert_eq!(model.first, first, "{key:?}");
        }
    }

    #[test]
    fn the_interval_stays_in_its_bounds_and_q_quits() {
        let mut model = Model::new(1000);
        (0..20).for_each(|_| _ = model.press(Key::Char('+')));
        assert_eq!(model.interval_ms, 10_000);
        (0..20).for_each(|_| _ = model.press(Key::Char('-')));
        assert_eq!(model.interval_ms, 100);
        assert_eq!(model.press(Key::Char('q')), Wish::Quit);
        model.press(Key::Char('/'));
        assert_eq!(model.press(Key::Char('q')), Wish::None, "it is typed");
        assert_eq!(model.press(Key::Interrupt), Wish::Quit);
    }
}
