//! The `metrics` subcommand: what a keeper counted, as text for monitoring, once or by HTTP. It
//! tells no names of files.

mod listen;
mod text;

use std::path::Path;

pub use listen::Place;
use text::Text;

use crate::args::{Format, MetricsArgs};
use crate::{report, status, user};

/// The `metrics` subcommand.
pub fn run(args: &MetricsArgs) -> anyhow::Result<u8> {
    let Some(place) = &args.listen else {
        let pool = status::pool_of(args.pool.as_deref())?;
        report::print(now(&pool, args.format)?)?;
        return Ok(0);
    };
    // A pool may come and go while it is looked at.
    let pool = status::named_or_default(args.pool.as_deref())?;
    user::become_owner(&pool)?;
    listen::serve(place, &pool)
}

/// The text of a moment.
fn now(pool: &Path, format: Format) -> anyhow::Result<String> {
    let status = match status::keeper(pool)? {
        Some(mut control) => Some(control.status()?),
        None => None,
    };
    let mut text = Text::new(format, &pool.to_string_lossy());
    text::write(&mut text, status.as_ref());
    Ok(text.end())
}
