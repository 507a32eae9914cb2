//! Metrics by HTTP, to this machine alone: a loopback address or a Unix socket. Each answer has a
//! thread, and is given within moments: who asks slowly is let go of, and keeps nobody waiting.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::Format;
use crate::report;
use crate::words::shown;

/// A request is asked, and its answer taken, within so long.
const ASKED_MAX: Duration = Duration::from_secs(2);
/// Of its head no more is read.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Nobody is let in for so long when that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A loopback address.
    Loopback(SocketAddr),
    /// A Unix socket.
    Socket(PathBuf),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            let path = Path::new(path);
            return match path.is_absolute() {
                true => Ok(Self::Socket(path.to_owned())),
                false => Err("unix: takes an absolute path".to_owned()),
            };
        }
        let address = text.strip_prefix("localhost:").map_or_else(
            || text.parse::<SocketAddr>().ok(),
            |port| port.parse().ok().map(|port| SocketAddr::from(([127, 0, 0, 1], port))),
        );
        match address {
            Some(address) if address.ip().is_loopback() => Ok(Self::Loopback(address)),
            Some(address) => Err(format!(
                "{} is no loopback address: it listens on this machine alone; put a proxy that knows who asks in \
                 front of it",
                address.ip()
            )),
            None => Err("write 127.0.0.1:PORT, [::1]:PORT or unix:PATH".to_owned()),
        }
    }
}

/// So many ask at a time; who comes then takes the place of who has asked for longest.
const ASKERS_MAX: usize = 32;

/// A stream whose peer cannot hold us up.
trait Limited: Send + Sync + 'static {
    fn limit(&self) -> io::Result<()>;

    /// Ends the conversation, whoever waits in it.
    fn end(&self);
}

/// Who asks at the moment, oldest first.
type Askers<S> = Arc<Mutex<VecDeque<Arc<S>>>>;

fn locked<S>(askers: &Askers<S>) -> MutexGuard<'_, VecDeque<Arc<S>>> {
    askers.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Limited for TcpStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(ASKED_MAX))?;
        self.set_write_timeout(Some(ASKED_MAX))
    }

    fn end(&self) {
        // It may have ended by itself.
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Limited for UnixStream {
    fn limit(&self) -> io::Result<()> {
        self.set_read_timeout(Some(ASKED_MAX))?;
        self.set_write_timeout(Some(ASKED_MAX))
    }

    fn end(&self) {
        // As above.
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Answers until it is ended.
pub fn serve(place: &Place, pool: &Path) -> anyhow::Result<u8> {
    let told = pool.display();
    match place {
        Place::Loopback(address) => {
            let listener =
                TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
            let address = listener.local_addr().unwrap_or(*address);
            report::say(&format!("metrics of pool {told} at http://{address}/metrics"));
            answer_all(pool, || listener.accept().map(|(stream, _)| stream))
        }
        Place::Socket(path) => {
            remove_left_over(path)?;
            let listener =
                UnixListener::bind(path).with_context(|| format!("cannot listen at {}", path.display()))?;
            report::say(&format!("metrics of pool {told} at unix:{}", path.display()));
            answer_all(pool, || listener.accept().map(|(stream, _)| stream))
        }
    }
}

fn answer_all<S: Limited>(pool: &Path, mut accept: impl FnMut() -> io::Result<S>) -> anyhow::Result<u8>
where
    for<'a> &'a S: Read + Write,
{
    let askers = Askers::default();
    loop {
        match accept() {
            Ok(stream) if stream.limit().is_ok() => {
                if !let_in(&askers, Arc::new(stream), pool) {
                    std::thread::sleep(PAUSE);
                }
            }
            Ok(_) => {}
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
            // No descriptor is free, perhaps: not again and again at once.
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}

/// Answers in a thread. False where there is none to be had.
fn let_in<S: Limited>(askers: &Askers<S>, stream: Arc<S>, pool: &Path) -> bool
where
    for<'a> &'a S: Read + Write,
{
    {
        let mut askers = locked(askers);
        askers.push_back(Arc::clone(&stream));
        if askers.len() > ASKERS_MAX
            && let Some(longest) = askers.pop_front()
        {
            longest.end();
        }
    }
    let (all, asker, pool) = (Arc::clone(askers), Arc::clone(&stream), pool.to_owned());
    let answering = std::thread::Builder::new().name("metrics".to_owned()).spawn(move || {
        answer(&*asker, &pool);
        locked(&all).retain(|other| !Arc::ptr_eq(other, &asker));
    });
    if answering.is_err() {
        locked(askers).retain(|other| !Arc::ptr_eq(other, &stream));
    }
    answering.is_ok()
}

/// A socket that nobody serves any more is in the way of a new one; anything else is not ours to
/// remove.
fn remove_left_over(path: &Path) -> anyhow::Result<()> {
    match std::fs::symlink_metadata(path) {
        Ok(meta) if !meta.file_type().is_socket() => bail!("{} exists and is no socket", path.display()),
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)
                .with_context(|| format!("cannot remove {}, which is left over", path.display())),
            _ => bail!("somebody serves {} already", path.display()),
        },
        Err(_) => Ok(()),
    }
}

/// Reads one request and answers it. Whoever does not keep to HTTP gets no more than an error.
fn answer(mut stream: impl Read + Write, pool: &Path) {
    let (status, kind, body) = match head(&mut stream) {
        None => return,
        Some(head) => respond(&head, pool),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

/// The head of a request, as far as its empty line.
fn head(stream: &mut impl Read) -> Option<String> {
    let (mut bytes, mut part, begun) = (Vec::new(), [0; 1024], Instant::now());
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        if bytes.len() >= HEAD_BYTES_MAX || begun.elapsed() > ASKED_MAX {
            return None;
        }
        match stream.read(&mut part) {
            Ok(0) => return None,
            Ok(count) => bytes.extend(&part[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    String::from_utf8(bytes).ok()
}

fn respond(head: &str, pool: &Path) -> (&'static str, &'static str, String) {
    const PLAIN: &str = "text/plain; charset=utf-8";
    let mut words = head.lines().next().unwrap_or_default().split(' ');
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    if method != "GET" {
        return ("405 Method Not Allowed", PLAIN, "only GET\n".to_owned());
    }
    if !matches!(path.split('?').next(), Some("/metrics" | "/")) {
        return ("404 Not Found", PLAIN, "see /metrics\n".to_owned());
    }
    let (format, kind) = asked_format(head);
    match super::now(pool, format) {
        Ok(text) => ("200 OK", kind, text),
        Err(error) => ("503 Service Unavailable", PLAIN, shown(&format!("{error:#}")) + "\n"),
    }
}

/// OpenMetrics for who can read it.
fn asked_format(head: &str) -> (Format, &'static str) {
    let accepts = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    let mut accepts = accepts.filter(|(name, _)| name.trim().eq_ignore_ascii_case("accept"));
    if accepts.any(|(_, kinds)| kinds.contains("application/openmetrics-text")) {
        (Format::Openmetrics, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    } else {
        (Format::Prometheus, "text/plain; version=0.0.4; charset=utf-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_listens_on_this_machine_alone() {
        for (text, place) in [
            ("127.0.0.1:9637", Place::Loopback(SocketAddr::from(([127, 0, 0, 1], 9637)))),
            ("localhost:80", Place::Loopback(SocketAddr::from(([127, 0, 0, 1], 80)))),
            ("unix:/run/a.sock", Place::Socket("/run/a.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        assert!("[::1]:1".parse::<Place>().is_ok());
        for text in ["0.0.0.0:1", "[::]:1", "10.1.2.3:80", "9637", "unix:a.sock", "example.org:1", ""] {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    #[test]
    fn only_what_is_asked_for_is_answered() {
        let pool = Path::new("/dev/shm/no-such.pool");
        assert!(respond("POST /metrics HTTP/1.1\r\n\r\n", pool).0.starts_with("405"));
        assert!(respond("GET /etc/passwd HTTP/1.1\r\n\r\n", pool).0.starts_with("404"));
        let (status, kind, body) = respond("GET /metrics HTTP/1.1\r\n\r\n", pool);
        assert!(status.starts_with("200") && kind.starts_with("text/plain"), "{status} {kind}");
        assert!(body.contains("holdfast_up{pool=\"/dev/shm/no-such.pool\"} 0"), "{body}");
        let accepts = "GET / HTTP/1.1\r\naccept: application/openmetrics-text;version=1.0.0,*/*\r\n\r\n";
        assert!(respond(accepts, pool).2.ends_with("# EOF\n"));
    }

    #[test]
    fn heads_are_read_to_their_end_and_no_further_than_their_limit() {
        assert_eq!(head(&mut &b"GET / HTTP/1.1\r\n\r\n"[..]).as_deref(), Some("GET / HTTP/1.1\r\n\r\n"));
        assert_eq!(head(&mut &b"GET / HTTP/1.1\r\n"[..]), None);
        assert_eq!(head(&mut &vec![b'x'; 100_000][..]), None);
    }
}
