//! redis-server with `appendfsync always` cut off under load: every acknowledged key is there
//! afterwards and redis-check-aof is content.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::cmd::Cmd;
use crate::need;
use crate::site::{Acks, Site, Workload};

/// redis-server with two clients that set one key after the other.
pub struct Redis;

/// A client of the server's own protocol, as far as SET and GET need it.
struct Client(BufReader<UnixStream>);

impl Client {
    /// Nothing if it is over before the server answers.
    fn connect(socket: &str, over: impl Fn() -> bool) -> Option<Self> {
        let started = Instant::now();
        while !over() {
            if let Ok(stream) = UnixStream::connect(socket) {
                stream.set_read_timeout(Some(Duration::from_secs(20))).expect("timeout");
                let mut client = Self(BufReader::new(stream));
                if client.ask(&["PING"]).as_deref() == Some("PONG") {
                    return Some(client);
                }
            }
            assert!(started.elapsed() < Duration::from_secs(20), "redis-server does not answer at {socket}");
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }

    /// The answer, or nothing once the server is gone or refuses.
    fn ask(&mut self, words: &[&str]) -> Option<String> {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            text += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(text.as_bytes()).ok()?;
        let head = self.line()?;
        match head.split_at_checked(1)? {
            ("+", answer) => Some(answer.to_owned()),
            ("$", length) if length != "-1" => self.line(),
            _ => None,
        }
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.0.read_line(&mut line).ok()?;
        line.strip_suffix("\r\n").map(str::to_owned)
    }
}

fn value_of(key: &str) -> String {
    format!("{key}-").repeat(20)
}

fn server(dir: &Path, socket: &str) -> Vec<String> {
    let dir = dir.to_str().expect("text");
    let options = [
        "--port",
        "0",
        "--unixsocket",
        socket,
        "--dir",
        dir,
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--save",
        "",
        "--daemonize",
        "no",
    ];
    let program = need::tool("redis-server").to_str().expect("text").to_owned();
    std::iter::once(program).chain(options.into_iter().map(str::to_owned)).collect()
}

impl Workload for Redis {
    fn name(&self) -> String {
        "redis-server appendfsync always".into()
    }

    fn prepare(&self, _site: &Site) {}

    fn program(&self, site: &Site) -> Vec<String> {
        server(&site.dir, &site.aside("socket"))
    }

    fn start_clients(&self, site: &Site, acks: &Acks) -> Vec<JoinHandle<()>> {
        let client = |number: u32| {
            let (socket, acks, over) = (site.aside("socket"), acks.clone(), site.over.clone());
            std::thread::spawn(move || {
                let over = || over.load(Ordering::Relaxed);
                let Some(mut client) = Client::connect(&socket, over) else { return };
                for key in (0u64..).map(|count| format!("key-{number}-{count}")) {
                    if client.ask(&["SET", &key, &value_of(&key)]).as_deref() != Some("OK") {
                        break;
                    }
                    acks.lock().expect("acks").push(key);
                }
            })
        };
        (0..2).map(client).collect()
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let manifest = site.path("appendonlydir/appendonly.aof.manifest");
        if acks.is_empty() && !Path::new(&manifest).exists() {
            // It did not come so far.
            return Ok(());
        }
        let checked = Cmd::new("redis-check-aof").arg(&manifest).output();
        if !checked.status.success() {
            return Err(checked.told());
        }
        let socket = site.aside("socket-check");
        let argv = server(&site.dir, &socket);
        let mut child = Cmd::new(&argv[0]).args(&argv[1..]).spawn();
        let mut client = Client::connect(&socket, || false).expect("it is never over");
        let lost = acks.iter().find(|key| client.ask(&["GET", key]) != Some(value_of(key)));
        drop(child.kill());
        drop(child.wait());
        lost.map_or(Ok(()), |key| Err(format!("{key} is missing or wrong, of {}", acks.len())))
    }
}
