//! Loop devices over files, by the kernel's own calls: a case needs two, and a process for each
//! would cost more than the case.
#![allow(unsafe_code)] // ioctls whose arguments rustix does not know.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl};

const CONFIGURE: u32 = 0x4c0a;
const GET_FREE: u32 = 0x4c82;
const AUTOCLEAR: u32 = 4;
/// `BTRFS_IOC_FORGET_DEV`.
const FORGET: u32 = 0x5000_9405;

#[repr(C)]
struct Info {
    before: [u64; 5],
    number: u32,
    encrypt: [u32; 2],
    flags: u32,
    names: [u8; 160],
    init: [u64; 2],
}

#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304);

/// `LOOP_CTL_GET_FREE`: the number of a free device, which is made if there is none.
struct FreeNumber;

// SAFETY: the call takes no argument, changes no memory of ours and returns a number.
unsafe impl Ioctl for FreeNumber {
    type Output = i32;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(number: IoctlOutput, _: *mut std::ffi::c_void) -> rustix::io::Result<i32> {
        Ok(number)
    }
}

/// `struct btrfs_ioctl_vol_args`.
#[repr(C)]
struct Volume {
    fd: i64,
    name: [u8; 4088],
}

const _: () = assert!(size_of::<Volume>() == 4096);

/// A device over a file. The kernel detaches it once nobody has it open or mounted.
pub struct Loop {
    /// Where it is.
    pub path: PathBuf,
    _open: File,
}

impl Loop {
    /// Attaches a file to a free device.
    pub fn over(image: &Path) -> anyhow::Result<Self> {
        let backing = File::options().read(true).write(true).open(image)?;
        let control = File::options().read(true).write(true).open("/dev/loop-control");
        let control = control.context("/dev/loop-control")?;
        for _ in 0..1000 {
            // SAFETY: it takes no argument, and FreeNumber's claims are true.
            let number = unsafe { ioctl(&control, FreeNumber) }.context("LOOP_CTL_GET_FREE")?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = match File::options().read(true).write(true).open(&path) {
                Ok(device) => device,
                // Its node is made by somebody else, a moment later.
                Err(_) => {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                    continue;
                }
            };
            let info = Info {
                before: [0; 5],
                number: 0,
                encrypt: [0; 2],
                flags: AUTOCLEAR,
                names: [0; 160],
                init: [0; 2],
            };
            let config = Config { fd: backing.as_raw_fd() as u32, block_size: 0, info, reserved: [0; 8] };
            // SAFETY: LOOP_CONFIGURE reads a `struct loop_config`, which Config is laid out as.
            match unsafe { ioctl(&device, Setter::<CONFIGURE, Config>::new(config)) } {
                Ok(()) => return Ok(Self { path, _open: device }),
                // Somebody else was faster, or its last user has not let go of it.
                Err(Errno::BUSY) => std::thread::sleep(std::time::Duration::from_micros(200)),
                Err(error) => return Err(error).with_context(|| format!("cannot attach {}", path.display())),
            }
        }
        anyhow::bail!("no loop device is free")
    }
}

/// Lets the kernel forget that btrfs was seen on a device: the next one bears the same identity.
pub fn forget_btrfs(device: &Path) {
    use std::os::unix::ffi::OsStrExt;
    let Ok(control) = File::options().read(true).write(true).open("/dev/btrfs-control") else { return };
    let mut volume = Volume { fd: 0, name: [0; 4088] };
    let bytes = device.as_os_str().as_bytes();
    volume.name[..bytes.len()].copy_from_slice(bytes);
    // SAFETY: BTRFS_IOC_FORGET_DEV reads a `struct btrfs_ioctl_vol_args`, which Volume is laid out
    // as. It fails when the kernel never saw btrfs there, which is as well.
    let _ = unsafe { ioctl(&control, Setter::<FORGET, Volume>::new(volume)) };
}
