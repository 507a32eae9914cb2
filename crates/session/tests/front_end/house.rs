//! A pool, a keeper in a process of its own, and a directory that it has for itself.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use holdfast_cache::Client;
use holdfast_cache::wire::{HELLO, Hello, WIRE_VERSION, Welcome};
use holdfast_keeper::audience::{Audience, Level, Stage};
use holdfast_keeper::config::{FenceChoice, KeeperConfig};
use holdfast_testkit::ScratchPool;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use zerocopy::{FromBytes, IntoBytes};

/// How the keeper's process is told what to be.
const CONFIG: &str = "HOLDFAST_TEST_KEEPER";
const READY: &str = "the keeper listens at ";

pub struct House {
    keeper: Child,
    socket: PathBuf,
    pool: ScratchPool,
    directory: tempfile::TempDir,
}

impl Drop for House {
    fn drop(&mut self) {
        self.kill_keeper();
    }
}

impl House {
    pub fn new(name: &str, configure: impl FnOnce(&mut KeeperConfig)) -> Self {
        let pool = ScratchPool::new(name);
        holdfast_recovery::format(&pool, 64 << 20, true, true, &mut |_, _| {}).unwrap();
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut config = KeeperConfig::new(pool.to_path_buf());
        config.volatile = true;
        config.exclusive = vec![directory.path().canonicalize().unwrap()];
        config.fence = FenceChoice::None;
        configure(&mut config);
        let mut keeper = Command::new(std::env::current_exe().unwrap())
            .args(["keeper", "--exact", "--nocapture"])
            .env(CONFIG, serde_json::to_string(&config).unwrap())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(keeper.stdout.take().unwrap()).lines();
        let ready = lines.find_map(|line| {
            let line = line.unwrap();
            line.split_once(READY).map(|(_, socket)| PathBuf::from(socket))
        });
        // It says nothing more.
        let socket = ready.expect("a keeper");
        Self { keeper, socket, pool, directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// A client of the keeper.
    pub fn attach(&self) -> Client {
        attach(&self.socket)
    }

    /// It does nothing any more once this returns.
    pub fn kill_keeper(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }

    pub fn recover(&self) {
        use holdfast_recovery::FileOutcome;
        let options = holdfast_recovery::RecoverOptions::default();
        let report = holdfast_recovery::recover(&self.pool, &options, &mut |_, _, _| {}).unwrap();
        assert!(!report.clean);
        let is_lost = |outcome: FileOutcome| outcome.is_unresolved() || outcome == FileOutcome::Discarded;
        assert!(!report.files.iter().any(|file| is_lost(file.outcome)), "{report:?}");
    }
}

struct Starter;

impl Audience for Starter {
    fn stage(&self, stage: Stage<'_>) {
        if let Stage::Ready { socket, .. } = stage {
            println!("{READY}{}", socket.display());
        }
    }

    fn say(&self, _: Level, _: &str) {}
}

/// Is a keeper, if this process was started to be one.
pub fn keep() {
    if let Ok(config) = std::env::var(CONFIG) {
        holdfast_keeper::serve(serde_json::from_str(&config).unwrap(), Arc::new(Starter)).unwrap();
    }
}

fn attach(socket: &Path) -> Client {
    let connection =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&connection, &SocketAddrUnix::new(socket).unwrap()).unwrap();
    let hello = Hello { kind: HELLO, forked: 0, blind: 0, front_end: 0, version: WIRE_VERSION.into() };
    rustix::net::send(&connection, hello.as_bytes(), SendFlags::empty()).unwrap();
    let mut answer = [0u8; size_of::<Welcome>()];
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [std::io::IoSliceMut::new(&mut answer)];
    rustix::net::recvmsg(&connection, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC).unwrap();
    let mut descriptors: Vec<OwnedFd> = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    let welcome = Welcome::read_from_bytes(&answer).unwrap();
    Client::attach(&welcome, descriptors[0].as_fd(), descriptors[1].as_fd()).unwrap()
}
