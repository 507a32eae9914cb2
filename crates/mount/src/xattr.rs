//! Extended attributes, ACLs among them, of what an `O_PATH` descriptor is open on. A symbolic link
//! cannot be reached in this way; it has no attributes that programs may set, and none are told.

use std::ffi::OsStr;

use nix::errno::Errno;

use crate::nodes::Node;
use crate::raw::{self, Result};

/// What the kernel asked for.
pub enum Told {
    /// The length alone.
    Length(u32),
    /// The bytes.
    Bytes(Vec<u8>),
}

fn told(size: u32, ask: impl Fn(&mut [u8]) -> Result<usize>) -> Result<Told> {
    let mut bytes = vec![0; size as usize];
    let len = ask(&mut bytes)?;
    if size == 0 {
        return Ok(Told::Length(u32::try_from(len).map_err(|_| Errno::E2BIG)?));
    }
    bytes.truncate(len);
    Ok(Told::Bytes(bytes))
}

/// One attribute, of `size` bytes at most.
pub fn get(node: &Node, name: &OsStr, size: u32) -> Result<Told> {
    if node.is_link {
        return Err(Errno::ENODATA);
    }
    let (path, name) = (raw::path_of(node), raw::c_name(name)?);
    told(size, |into| raw::attribute(&path, &name, into))
}

/// All names.
pub fn list(node: &Node, size: u32) -> Result<Told> {
    if node.is_link {
        return told(size, |_| Ok(0));
    }
    let path = raw::path_of(node);
    told(size, |into| raw::attributes(&path, into))
}

/// Sets one.
pub fn set(node: &Node, name: &OsStr, value: &[u8], flags: i32) -> Result<()> {
    if node.is_link {
        return Err(Errno::EPERM);
    }
    raw::set_attribute(&raw::path_of(node), &raw::c_name(name)?, value, flags)
}

/// Removes one.
pub fn remove(node: &Node, name: &OsStr) -> Result<()> {
    if node.is_link {
        return Err(Errno::EPERM);
    }
    raw::remove_attribute(&raw::path_of(node), &raw::c_name(name)?)
}
