//! What a service manager is told (`sd_notify`): datagrams to the socket that `NOTIFY_SOCKET`
//! names. Who has none is told nothing. A message that cannot be sent is lost: nothing here may
//! hold up a keeper.

use std::ffi::OsString;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use anyhow::Context;

use crate::words::shown;

/// The way to a service manager.
pub struct Notify {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl Notify {
    /// The manager that waits for this process, if there is one.
    pub fn from_environment() -> anyhow::Result<Option<Self>> {
        std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()).map(Self::to).transpose()
    }

    fn to(name: OsString) -> anyhow::Result<Self> {
        let bytes = name.as_bytes();
        let address = match bytes.first() {
            Some(b'@') => SocketAddr::from_abstract_name(&bytes[1..]),
            _ => SocketAddr::from_pathname(&name),
        };
        let made = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            // A manager that does not read must not stop us.
            socket.set_nonblocking(true)?;
            Ok(Self { socket, address })
        });
        made.with_context(|| format!("NOTIFY_SOCKET={} cannot be used", shown(&name.to_string_lossy())))
    }

    /// Sends assignments, one a line.
    pub fn send(&self, text: &str) {
        let _ = self.try_send(text);
    }

    fn try_send(&self, text: &str) -> io::Result<usize> {
        self.socket.send_to_addr(text.as_bytes(), &self.address)
    }

    /// Sends a line for people.
    pub fn status(&self, text: &str) {
        self.send(&format!("STATUS={}", shown(text)));
    }
}

/// How often a sign of life is expected, if this process is asked for any.
pub fn watchdog() -> Option<Duration> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_ours = match std::env::var_os("WATCHDOG_PID") {
        Some(_) => number("WATCHDOG_PID") == Some(u64::from(std::process::id())),
        None => true,
    };
    number("WATCHDOG_USEC").filter(|us| is_ours && *us > 0).map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn managers_are_told_by_path_and_by_abstract_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify");
        let by_path = UnixDatagram::bind(&path).expect("bound");
        let name = format!("holdfast-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name.as_bytes()).expect("a name");
        let abstractly = UnixDatagram::bind_addr(&address).expect("bound");
        for (socket, name) in [(by_path, path.into_os_string()), (abstractly, format!("@{name}").into())] {
            let notify = Notify::to(name).expect("usable");
            notify.status("all\nREADY=1");
            let mut heard = [0; 64];
            let bytes = socket.recv(&mut heard).expect("a message");
            assert_eq!(&heard[..bytes], b"STATUS=all\\nREADY=1");
        }
        assert!(Notify::to("x".repeat(200).into()).is_err());
    }
}
