//! Static programs, into which `holdfast-enter` brings the library: whether that can be, and
//! where it lies. It starts nothing.

use std::path::{Path, PathBuf};

use anyhow::bail;
use holdfast_enter::{NAME, Refusal};

use crate::elf::{self, Kind};

/// Whether a static program can be entered here.
///
/// # Errors
/// Why not.
pub fn judge(path: &Path) -> Result<(), Refusal> {
    let bytes = std::fs::read(path).map_err(|_| Refusal::NotGo)?;
    if holdfast_enter::is_static_go(&bytes) {
        holdfast_enter::judge(&bytes)?;
        return if has_fsgsbase() { Ok(()) } else { Err(Refusal::Machine) };
    }
    holdfast_enter::judge_plain(&bytes)?;
    let mut scratch = vec![0; holdfast_enter::scratch_bytes(&bytes)];
    holdfast_enter::find_sites(&bytes, &mut scratch, |_| Ok(()))?;
    if has_fsgsbase() && is_x86_feature_detected!("xsavec") { Ok(()) } else { Err(Refusal::PlainMachine) }
}

/// What is executed in the place of a static program, which [`judge`] has let pass.
pub fn agent(path: &Path, library: &Path) -> anyhow::Result<Option<PathBuf>> {
    if !matches!(elf::kind(path), Ok(Kind::Static)) {
        return Ok(None);
    }
    let agent = library.with_file_name(NAME);
    if !agent.is_file() {
        bail!(
            "{} is missing: it must lie beside {} (`cargo build --release` makes both)",
            agent.display(),
            library.display()
        );
    }
    Ok(Some(agent))
}

/// Whether programs may change the bases of FS and GS by themselves: the kernel says so.
fn has_fsgsbase() -> bool {
    const AT_HWCAP2: u64 = 26;
    const FSGSBASE: u64 = 2;
    let vector = std::fs::read("/proc/self/auxv").unwrap_or_default();
    vector.chunks_exact(16).any(|pair| {
        let word =
            |at: usize| pair.get(at..at + 8).and_then(|word| word.try_into().ok()).map(u64::from_le_bytes);
        word(0) == Some(AT_HWCAP2) && word(8).is_some_and(|value| value & FSGSBASE != 0)
    })
}
