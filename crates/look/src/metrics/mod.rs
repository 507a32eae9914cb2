//! What a keeper counted, as text for monitoring, once or by HTTP. It
//! tells no names of files.

mod listen;
mod text;

use std::path::Path;

pub use listen::{Place, serve};
pub use text::Format;
use text::Text;

use crate::{keepers, report};

/// Prints what a pool's keeper counted.
pub fn print(pool: &Path, format: Format) -> anyhow::Result<()> {
    report::print(now(pool, format)?)
}

/// The text of a moment.
fn now(pool: &Path, format: Format) -> anyhow::Result<String> {
    let status = match keepers::keeper(pool)? {
        Some(mut control) => Some(control.status()?),
        None => None,
    };
    let mut text = Text::new(format, &pool.to_string_lossy());
    text::write(&mut text, status.as_ref());
    Ok(text.end())
}
