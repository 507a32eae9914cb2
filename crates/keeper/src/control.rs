//! Talking to a running keeper from another process: status and drain. A connection that is held
//! keeps the keeper from ending by itself. Must never believe who is another user.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_cache::wire::{DRAIN, EXPECT, STATUS};
use holdfast_media::{Mapping, OpenMode};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags};

use crate::status::{Status, Summary};
use holdfast_recovery::{PoolError, open_file};
use holdfast_socket::{ANSWER_MAX, Peer, connect, socket_path};

/// Answers are JSON in one message; the kernel limits messages to less than this.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Why a keeper could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No keeper owns the pool at the moment.
    #[error("no keeper is running for pool {0}")]
    NoKeeper(PathBuf),
    /// It is there and says nothing.
    #[error(
        "keeper {pid} of pool {pool} has not answered for {} s: is it stopped? (`kill -CONT {pid}` has it go on)",
        ANSWER_MAX.as_secs()
    )]
    Silent {
        /// The pool.
        pool: PathBuf,
        /// The keeper.
        pid: u32,
    },
    /// The conversation broke off.
    #[error("the keeper of pool {pool} did not answer: {source}")]
    Broken {
        /// The pool.
        pool: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Somebody else may be at the other end.
    #[error("whoever serves pool {pool} is not believed: {source}")]
    Stranger {
        /// The pool.
        pool: PathBuf,
        /// Whom it belongs to.
        source: io::Error,
    },
    /// The pool could not be read.
    #[error(transparent)]
    Pool(#[from] PoolError),
}

/// A connection to the keeper of one pool.
pub struct Control {
    pool: PathBuf,
    socket: PathBuf,
    connection: OwnedFd,
    keeper_pid: u32,
}

impl Control {
    /// Connects to the keeper of `pool`, if one runs.
    pub fn connect(pool: &Path) -> Result<Self, ControlError> {
        let unusable = |error: String| {
            let message = format!("pool {} cannot be used: {error}", pool.display());
            ControlError::Pool(PoolError { message, busy: false })
        };
        let file = open_file(pool, OpenMode::ReadOnly)?;
        let (mapping, _) = Mapping::open_fd(file.as_fd(), pool, OpenMode::ReadOnly)
            .map_err(|error| unusable(error.to_string()))?;
        let superblock = holdfast_pool::open(&mapping).map_err(|error| unusable(error.to_string()))?;
        let socket = socket_path(&superblock.uuid);
        let connected = connect(&socket).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                ControlError::NoKeeper(pool.to_owned())
            }
            io::ErrorKind::PermissionDenied => {
                ControlError::Stranger { pool: pool.to_owned(), source: error }
            }
            _ => ControlError::Broken { pool: pool.to_owned(), source: error },
        })?;
        let peer = Peer::of(&connected)
            .map_err(|error| ControlError::Broken { pool: pool.to_owned(), source: error })?;
        Ok(Self { pool: pool.to_owned(), socket, connection: connected, keeper_pid: peer.pid })
    }

    /// Where clients connect; the value of `HOLDFAST_SOCKET`.
    pub fn socket_path(&self) -> &Path {
        &self.socket
    }

    /// The keeper's process id.
    pub fn keeper_pid(&self) -> u32 {
        self.keeper_pid
    }

    /// Asks for the keeper's state.
    pub fn status(&mut self) -> Result<Status, ControlError> {
        self.ask(STATUS, Some(ANSWER_MAX))
    }

    /// Tells the keeper that this process is about to start a program that will be its client: it
    /// stays until that program has connected, even when this process is killed before.
    pub fn expect_program(&mut self) -> Result<(), ControlError> {
        let sent = rustix::net::send(&self.connection, &[EXPECT], SendFlags::NOSIGNAL);
        sent.map(|_| ())
            .map_err(|error| ControlError::Broken { pool: self.pool.clone(), source: error.into() })
    }

    /// Brings everything absorbed so far to the disk; returns once it is there (or says it is not).
    pub fn drain(&mut self) -> Result<Summary, ControlError> {
        // However long the disk takes.
        self.ask(DRAIN, None)
    }

    fn ask<T: serde::de::DeserializeOwned>(
        &self,
        request: u8,
        patience: Option<Duration>,
    ) -> Result<T, ControlError> {
        let broken = |source: io::Error| ControlError::Broken { pool: self.pool.clone(), source };
        set_socket_timeout(&self.connection, Timeout::Recv, patience)
            .map_err(|error| broken(error.into()))?;
        rustix::net::send(&self.connection, &[request], SendFlags::NOSIGNAL)
            .map_err(|error| broken(error.into()))?;
        let mut answer = vec![0u8; ANSWER_BYTES_MAX];
        let bytes = loop {
            match rustix::net::recv(&self.connection, &mut answer[..], RecvFlags::empty()) {
                Ok((bytes, _)) => break bytes,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => {
                    return Err(ControlError::Silent { pool: self.pool.clone(), pid: self.keeper_pid });
                }
                Err(error) => return Err(broken(error.into())),
            }
        };
        if bytes == 0 {
            return Err(broken(io::Error::from(io::ErrorKind::UnexpectedEof)));
        }
        serde_json::from_slice(&answer[..bytes]).map_err(|error| broken(error.into()))
    }
}
