//! Serves one forgetful disk to a test: `holdfast-forgetful MOUNT_POINT BYTES BLOCK_BYTES`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
    let (Some(mount_point), Some(len), Some(block_bytes)) = (arguments.first(), number(1), number(2)) else {
        eprintln!("usage: holdfast-forgetful MOUNT_POINT BYTES BLOCK_BYTES");
        return ExitCode::from(2);
    };
    match holdfast_forgetful::serve(Path::new(mount_point), len, block_bytes as usize) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("holdfast-forgetful: {error}");
            ExitCode::FAILURE
        }
    }
}
