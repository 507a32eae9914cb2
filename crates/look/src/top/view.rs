//! The picture that `top` draws, as lines that fit the terminal. Pure. Whatever the size, a line
//! has no more columns than there are, and there are no more lines than rows.

use std::collections::BTreeMap;
use std::path::Path;

use holdfast_keeper::status::TookCount;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::model::Model;
use crate::files::{self, Known};
use crate::sizes::{human_bytes, human_count, human_ns};
use crate::words::shown;

/// How a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As text.
    Plain,
    /// As a head.
    Head,
    /// As a warning.
    Alarm,
}

/// A line of the picture.
pub type Line = (Style, String);

const HELP: [&str; 12] = [
    "q, Ctrl-C    quit",
    "s            next order: age, state, size, path",
    "r            the other way round",
    "/            filter by path, state or reason; Enter ends, Esc clears",
    "arrows, j k  move; PgUp, PgDn, Home, End",
    "space        halt, go on",
    "+ -          look less often, more often",
    "",
    "through: logged, and written to the page cache; behind: the page cache follows",
    "unsynced: nobody has synced it yet; bypassed, declined: left to the kernel",
    "removed: no name is left; failed: its disk refuses it",
    "any key goes back",
];

/// Draws; tells the model how many files fit.
pub fn draw(model: &mut Model, pool: &Path, columns: usize, rows: usize) -> Vec<Line> {
    let mut lines = vec![(Style::Head, title(model, pool))];
    if model.helps {
        lines.extend(HELP.map(|text| (Style::Plain, format!("  {text}"))));
    } else {
        if let Some(trouble) = &model.trouble {
            // With what to do about it, which stands at its end.
            lines.extend(folded(&shown(trouble), columns).map(|text| (Style::Alarm, text)));
        }
        lines.extend(about_keeper(model, columns));
        let shown = model.shown();
        let (count, all) = (shown.len(), model.file_count());
        lines.push((Style::Head, list_head(model, count, all)));
        let page = rows.saturating_sub(lines.len());
        let first = model.first.min(count.saturating_sub(page.max(1)));
        lines
            .extend(shown.into_iter().skip(first).take(page).map(|file| (Style::Plain, line(file, columns))));
        (model.page, model.first) = (page.max(1), first);
    }
    lines.truncate(rows);
    lines.into_iter().map(|(style, text)| (style, fit(&text, columns, style == Style::Head))).collect()
}

fn title(model: &Model, pool: &Path) -> String {
    let what = match &model.status {
        _ if model.trouble.is_some() => "no answer".to_owned(),
        None => "looking".to_owned(),
        Some(status) if status.stopping => format!("keeper {} is stopping", status.keeper_pid),
        Some(status) => format!("keeper {}", status.keeper_pid),
    };
    let halted = if model.halted { "  HALTED" } else { "" };
    let every = human_ns(model.interval_ms * 1_000_000);
    format!("holdfast top  {what}  every {every}{halted}  ? helps  {}", shown(&pool.to_string_lossy()))
}

fn list_head(model: &Model, count: usize, all: usize) -> String {
    let order = model.order.name();
    let way = if model.reversed { ", reversed" } else { "" };
    let filter = match (model.typing, model.filter.is_empty()) {
        (true, _) => format!("  /{}_", shown(&model.filter)),
        (false, false) => format!("  /{}", shown(&model.filter)),
        (false, true) => String::new(),
    };
    let columns = format!("{:<9} {:>9} {:>10}", "STATE", "AGE", "SIZE");
    format!("{columns}  FILE  {count} of {all}, by {order}{way}{filter}")
}

fn about_keeper(model: &Model, columns: usize) -> Vec<Line> {
    let Some(status) = &model.status else { return Vec::new() };
    let summary = &status.summary;
    let rates = model.rates.unwrap_or_default();
    let per_second = |rate: f64| format!("{}/s", human_count(rate.round() as u64));
    let syncs = if summary.is_board_damaged { 0 } else { summary.syncs_absorbed + summary.syncs_real };
    let share = summary.syncs_absorbed.saturating_mul(1000).checked_div(syncs);
    let none = if summary.is_board_damaged { "not known: the board is damaged" } else { "no syncs yet" };
    let share = share.map_or_else(
        || none.to_owned(),
        |share| format!("{}.{} % of {} absorbed", share / 10, share % 10, human_count(syncs)),
    );
    let used = status.segments.saturating_sub(status.segments_free);
    let fill = used * 100 / status.segments.max(1);
    let stalls = format!("{} ({})", human_count(summary.stalls), human_ns(summary.stall_ns));
    let oldest = status.oldest_ns.map(|ns| format!(", oldest {}", human_ns(ns))).unwrap_or_default();
    let volatile = if summary.volatile { "  volatile" } else { "" };
    let clients: Vec<String> = status.clients.iter().map(u32::to_string).collect();
    let mut told = vec![
        (
            "syncs",
            format!(
                "{} absorbed  {} by the kernel  {share}",
                per_second(rates.absorbed),
                per_second(rates.real)
            ),
        ),
        (
            "writes",
            format!(
                "{}  {}/s  to NVM {}/s  in all {} ({})",
                per_second(rates.writes),
                human_bytes(rates.bytes as u64),
                human_bytes(rates.nvm_bytes as u64),
                human_count(summary.writes_absorbed),
                human_bytes(summary.bytes_absorbed)
            ),
        ),
        ("pool", format!("{} {fill:>3} % of {}{volatile}", bar(fill, 24), human_bytes(status.pool_bytes))),
        (
            "not on disk",
            format!(
                "{} files, at most {}{oldest}",
                human_count(status.files_dirty),
                human_bytes(status.backlog_bytes)
            ),
        ),
        (
            "waits",
            format!(
                "{stalls}  spilled {} of {}{}",
                status.frames_used,
                status.frames,
                took(&status.syncs_real_took)
            ),
        ),
        ("programs", format!("{}  {}  fence {}", clients.len(), clients.join(" "), summary.fence)),
    ];
    let files: Vec<String> = summary.files.iter().map(|(state, count)| format!("{count} {state}")).collect();
    told.push(("files", if files.is_empty() { "none".to_owned() } else { files.join(", ") }));
    let label = |name: &str| format!("{name:>11}  ");
    let mut lines: Vec<Line> =
        told.into_iter().map(|(name, text)| (Style::Plain, label(name) + &text)).collect();
    let room = columns.saturating_sub(label("").len());
    lines.insert(1, (Style::Plain, label("") + &spark(model.history.iter().copied(), room)));
    let why = why_bypassed(model);
    if !why.is_empty() {
        lines.push((Style::Plain, label("kernel's") + &why));
    }
    for unseen in summary.programs_unseen.iter().take(2) {
        let text = format!("not absorbed: what {} writes: {}", shown(&unseen.program), unseen.reason);
        lines.push((Style::Alarm, label("") + &text));
    }
    if let Some(error) = status.errors.last() {
        lines.push((Style::Alarm, label("error") + &shown(error)));
    }
    lines
}

/// What half and nearly all syncs of the kernel's took at most.
fn took(counts: &[TookCount]) -> String {
    let all: u64 = counts.iter().map(|took| took.count).sum();
    let within = |percent: u64| {
        let mut seen = 0;
        counts.iter().find_map(|took| {
            seen += took.count;
            (seen * 100 >= all * percent && all > 0).then_some(took.below_ns)
        })
    };
    let told = |below_ns: Option<u64>| below_ns.map_or_else(|| "long".to_owned(), human_ns);
    match (within(50), within(99)) {
        (Some(half), Some(most)) => format!("  kernel's syncs p50 <{}, p99 <{}", told(half), told(most)),
        _ => String::new(),
    }
}

/// A line of the list. Of a long path the end is shown, which tells more.
fn line(file: &Known, columns: usize) -> String {
    let facts = format!("{:<9} {:>9} {:>10}  ", file.state, files::age(file), files::size(file));
    let path = shown(&file.path);
    let room = columns.saturating_sub(facts.width());
    if path.width() <= room {
        return facts + &files::name(file);
    }
    let mut used = 1;
    let fits = |char: &char| {
        used += char.width().unwrap_or(0);
        used <= room
    };
    let mut end: Vec<char> = path.chars().rev().take_while(fits).collect();
    end.push('…');
    facts + &end.into_iter().rev().collect::<String>()
}

/// Why files are left to the kernel, and how many.
fn why_bypassed(model: &Model) -> String {
    let mut reasons: BTreeMap<&str, u64> = BTreeMap::new();
    for file in model.status.iter().flat_map(|status| &status.summary.bypassed) {
        *reasons.entry(&file.reason).or_default() += 1;
    }
    let mut reasons: Vec<_> = reasons.into_iter().collect();
    reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    reasons.iter().map(|(reason, count)| format!("{count} {reason}")).collect::<Vec<_>>().join("; ")
}

fn bar(percent: u64, cells: u64) -> String {
    let full = (percent.min(100) * cells).div_ceil(100) as usize;
    format!("[{}{}]", "#".repeat(full), "-".repeat(cells as usize - full))
}

/// The last values as bars of eight heights.
fn spark(values: impl DoubleEndedIterator<Item = f64>, cells: usize) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let mut last: Vec<f64> = values.rev().take(cells).collect();
    last.reverse();
    let most = last.iter().copied().fold(0.0, f64::max);
    last.iter()
        .map(|value| match most > 0.0 && *value > 0.0 {
            true => BARS[((value / most * 7.0).ceil() as usize).min(7)],
            false => BARS[0],
        })
        .collect()
}

/// A text in lines of so many columns, as far as its words let it.
fn folded(text: &str, columns: usize) -> impl Iterator<Item = String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.width() + 1 + word.width() <= columns => *line += &format!(" {word}"),
            _ => lines.push(format!("  {word}")),
        }
    }
    lines.into_iter()
}

/// A text in so many columns at most; a head fills them.
fn fit(text: &str, columns: usize, fills: bool) -> String {
    if text.width() <= columns {
        let pad = if fills { columns - text.width() } else { 0 };
        return format!("{text}{}", " ".repeat(pad));
    }
    let mut fitted = String::new();
    let mut used = 0;
    for char in text.chars() {
        let width = char.width().unwrap_or(0);
        if used + width >= columns {
            break;
        }
        used += width;
        fitted.push(char);
    }
    if columns > 0 {
        fitted.push('…');
        used += 1;
    }
    if fills {
        fitted.push_str(&" ".repeat(columns.saturating_sub(used)));
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::super::keys::Key;
    use super::super::model::Look;
    use super::super::model::tests::look;
    use super::*;
    use std::time::{Duration, Instant};

    fn must_fit(model: &mut Model) {
        for columns in [0, 1, 2, 10, 40, 79, 80, 81, 200, 500] {
            for rows in [0, 1, 2, 5, 24, 60] {
                let lines = draw(model, Path::new("/dev/shm/a\u{1b}[2J\n日本.pool"), columns, rows);
                assert!(lines.len() <= rows, "{columns} x {rows}");
                for (_, text) in &lines {
                    assert!(text.width() <= columns, "{columns} x {rows}: {text}");
                    assert!(!text.chars().any(char::is_control), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn every_picture_fits_every_terminal() {
        let (mut model, begun) = (Model::new(1000), Instant::now());
        must_fit(&mut model);
        model.take(look(begun, 300, 10));
        model.take(look(begun + Duration::from_secs(1), 300, 1_000_000));
        must_fit(&mut model);
        for key in [Key::End, Key::Char('?'), Key::Char('q'), Key::Char('/'), Key::Char('日'), Key::Enter] {
            model.press(key);
            must_fit(&mut model);
        }
        let trouble = "no keeper is running for pool /a\u{1b}[31m\nb".to_owned();
        model.take(Look { at: begun + Duration::from_secs(2), found: Err(trouble) });
        must_fit(&mut model);
        let mut hostile = look(begun, 3, 0);
        if let Ok((status, files)) = &mut hostile.found {
            files[0].path = "/srv/\u{1b}]0;title\u{7}\u{202e}日本\n".repeat(30);
            status.errors.push("\u{1b}[2J".to_owned());
            status.segments = 0;
        }
        model.take(hostile);
        must_fit(&mut model);
    }

    #[test]
    fn eighty_columns_say_what_matters() {
        let (mut model, begun) = (Model::new(1000), Instant::now());
        model.take(look(begun, 3, 0));
        model.take(look(begun + Duration::from_secs(1), 3, 3797));
        let lines = draw(&mut model, Path::new("/dev/shm/db.pool"), 80, 24);
        let text: String = lines.into_iter().map(|(_, text)| text + "\n").collect();
        for word in ["3,797/s absorbed", "100.0 % of 3,797", "75 %", "/srv/file-2", "by age"] {
            assert!(text.contains(word), "{word} is missing:\n{text}");
        }
    }

    /// Of a keeper of another version the end was cut off, which says what to do.
    #[test]
    fn what_to_do_about_a_keeper_is_shown_in_whole() {
        let mut model = Model::new(1000);
        let trouble = "the keeper with pid 7 is of another version of holdfast: 0.1.0 (wire 3); the pool has format \
                       version 4, and this command knows 5. Use the command that it was started with, or end it (`kill 7`)";
        model.take(Look { at: Instant::now(), found: Err(trouble.to_owned()) });
        for columns in [60, 80, 150] {
            let lines = draw(&mut model, Path::new("/dev/shm/db.pool"), columns, 24);
            let alarms = lines.iter().filter(|(style, _)| *style == Style::Alarm);
            let words: Vec<&str> = alarms.flat_map(|(_, text)| text.split_whitespace()).collect();
            assert_eq!(words.join(" "), trouble, "{columns} columns");
        }
    }

    #[test]
    fn of_a_long_path_the_end_is_shown() {
        let file = Known { path: format!("/srv/{}/app.db", "long/".repeat(40)), ..Known::default() };
        let line = line(&file, 80);
        assert!(line.ends_with("long//app.db") && line.width() == 80, "{line}");
    }

    #[test]
    fn what_syncs_took_is_told_by_its_bounds() {
        let counts = [(Some(1024), 50), (Some(2048), 48), (Some(4096), 1), (None, 1)];
        let counts = counts.map(|(below_ns, count)| TookCount { below_ns, count });
        assert_eq!(took(&counts), "  kernel's syncs p50 <1.0 us, p99 <4.1 us");
        assert_eq!(took(&counts[3..]), "  kernel's syncs p50 <long, p99 <long");
        assert_eq!(took(&[]), "");
    }

    #[test]
    fn bars_and_sparks_stay_in_their_cells() {
        assert_eq!(bar(0, 4), "[----]");
        assert_eq!(bar(1, 4), "[#---]");
        assert_eq!(bar(250, 4), "[####]");
        assert_eq!(spark([0.0, 1.0, 8.0].into_iter(), 2), "▂█");
        assert_eq!(spark([].into_iter(), 5), "");
        assert_eq!(fit("日本語", 4, true), "日… ");
    }
}
