//! A conversation with a keeper that somebody looks at. One that is held keeps a keeper from
//! ending: it is a matter of moments.

use std::path::Path;

use holdfast_keeper::control::{Control, ControlError};

/// The keeper of a pool, if one runs, for whoever does not look at the pool itself. That nobody may
/// see whether there is one is an error.
pub fn keeper(pool: &Path) -> anyhow::Result<Option<Control>> {
    match Control::connect(pool) {
        Ok(control) => Ok(Some(control)),
        Err(ControlError::NoKeeper(_)) => Ok(None),
        Err(ControlError::Pool(_)) if !pool.exists() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The keeper of a pool, if one runs.
pub fn connect(pool: &Path) -> anyhow::Result<Option<Control>> {
    match Control::connect(pool) {
        Ok(control) => Ok(Some(control)),
        // A pool that cannot be read: whoever looks at it next says what to do about it.
        Err(ControlError::NoKeeper(_) | ControlError::Pool(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
