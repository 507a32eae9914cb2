//! The scratch directory that hostile pools talk about: files they may name, and everything around
//! them that they must not reach.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use holdfast_disk::identity::{file_system, identify};
use holdfast_pool::Identity;
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// What can be seen of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub inode: u64,
    pub mode: u32,
    pub owner: (u32, u32),
    pub links: u64,
    pub bytes: u64,
    pub modified: (i64, i64),
    /// Checksum of the first bytes, or of a link's target.
    pub content: u32,
    pub identity: Option<Identity>,
}

/// The directory.
pub struct Yard {
    root: tempfile::TempDir,
    base: PathBuf,
    /// Identities that a slot can have: of files here, of one that is gone, of what is no file.
    pub identities: Vec<Identity>,
    /// Paths below which or at which something interesting stands.
    pub paths: Vec<Vec<u8>>,
}

/// Bytes of a file that a snapshot looks at: sparse files may be large.
const LOOKED_AT_BYTES: u64 = 64 << 10;

impl Yard {
    /// Makes one on a file system whose files have identities.
    pub fn new() -> io::Result<Self> {
        let places = [std::env::temp_dir(), "/var/tmp".into(), std::env::current_dir()?];
        let place =
            places.iter().find(|place| File::open(place).and_then(file_system).is_ok()).ok_or_else(|| {
                io::Error::other(
                    "fuzzing recovery needs a directory on ext4, xfs or btrfs: set TMPDIR to one",
                )
            })?;
        let root = tempfile::Builder::new().prefix("holdfast-fuzz-").tempdir_in(place.canonicalize()?)?;
        let base = root.path().to_owned();
        let mut yard = Self { root, base, identities: Vec::new(), paths: Vec::new() };
        yard.fill()?;
        Ok(yard)
    }

    fn fill(&mut self) -> io::Result<()> {
        let base = self.root.path().to_owned();
        let (inside, outside) = (base.join("in"), base.join("out"));
        fs::create_dir_all(inside.join("deep/er"))?;
        fs::create_dir_all(&outside)?;
        for (name, bytes) in
            [("a", &b"0123456789"[..]), ("b", b""), ("deep/c", &[7; 9000]), ("taken", b"other")]
        {
            fs::write(inside.join(name), bytes)?;
        }
        // Decoys: no slot has the identity of any of these.
        for name in ["secret", "locked", "second"] {
            fs::write(outside.join(name), name)?;
        }
        fs::set_permissions(outside.join("locked"), fs::Permissions::from_mode(0o400))?;
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(outside.join("secret"), Some(12_345), Some(12_345))?;
            mknodat(
                CWD,
                inside.join("device"),
                FileType::CharacterDevice,
                Mode::RUSR,
                rustix::fs::makedev(1, 3),
            )?;
        }
        symlink(&outside, inside.join("link"))?;
        symlink(outside.join("secret"), inside.join("file-link"))?;
        mknodat(CWD, inside.join("pipe"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        fs::hard_link(inside.join("deep/c"), inside.join("deep/c2"))?;
        self.identities = identities(&inside)?;
        self.paths = paths(&base);
        Ok(())
    }

    /// Puts everything back to how it was made.
    pub fn restore(&mut self) -> io::Result<()> {
        for entry in fs::read_dir(&self.base)? {
            fs::remove_dir_all(entry?.path())?;
        }
        self.fill()
    }

    /// Everything in it, without following a link.
    pub fn look(&self) -> io::Result<BTreeMap<Vec<u8>, Seen>> {
        let mut seen = BTreeMap::new();
        look_into(&self.base, &mut seen)?;
        Ok(seen)
    }
}

/// What is in each slot of a hostile pool, perhaps: files there are, and some there are not.
fn identities(inside: &Path) -> io::Result<Vec<Identity>> {
    let gone = inside.join("gone");
    fs::write(&gone, "gone")?;
    let of = |path: &Path| File::open(path).and_then(identify).map(|(identity, _)| identity);
    let mut identities =
        vec![of(&inside.join("a"))?, of(&inside.join("b"))?, of(&inside.join("deep/c"))?, of(&gone)?];
    identities.push(of(inside)?);
    fs::remove_file(&gone)?;
    let first = identities[0].clone();
    identities.push(Identity { fs_uuid: [9; 16], ..first.clone() });
    identities.push(Identity { handle_type: first.handle_type ^ 0x40, ..first.clone() });
    identities.push(Identity { handle: first.handle[..4].to_vec(), ..first.clone() });
    identities.push(Identity { handle: vec![0xff; 128], ..first.clone() });
    // Some file systems take a generation of zero in a handle for any generation.
    let mut any = first.clone();
    if let Some(generation) = any.handle.get_mut(4..8) {
        generation.fill(0);
    }
    identities.push(any);
    Ok(identities)
}

/// Names in the yard and outside of it, well made and not.
fn paths(base: &Path) -> Vec<Vec<u8>> {
    let below = |name: &[u8]| [base.as_os_str().as_bytes(), b"/", name].concat();
    vec![
        below(b"in/a"),
        below(b"in/b"),
        below(b"in/deep/c"),
        below(b"in/new"),
        below(b"in/taken"),
        below(b"in/missing/dir/new"),
        below(b"in/deep/er"),
        below(b"in/device"),
        below(b"in/pipe"),
        below(b"in/link/secret"),
        below(b"in/link/new"),
        below(b"in/file-link"),
        below(b"in/../out/secret"),
        below(b"in/deep/../../out/new"),
        below(b"in/./a"),
        below(b"in//new"),
        below(b"in/new/"),
        below(b"in/.."),
        below(b"in/a/below-a-file"),
        below(b"in/not-\xff\xfe-utf8"),
        below(b"in/zero\0byte"),
        below(&[b"in/".as_slice(), &[b'n'; 255]].concat()),
        below(&[b"in/".as_slice(), &[b'n'; 256]].concat()),
        below(&b"in/d/".iter().copied().chain(b"d/".repeat(800)).collect::<Vec<u8>>()),
        b"relative".to_vec(),
        b"../relative".to_vec(),
        b"/".to_vec(),
        Vec::new(),
        b"/dev/null".to_vec(),
        b"/proc/self/status".to_vec(),
        b"/proc/self/fd/1".to_vec(),
        b"/proc/self/cwd/new".to_vec(),
    ]
}

fn look_into(directory: &Path, seen: &mut BTreeMap<Vec<u8>, Seen>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        let kind = meta.file_type();
        let (content, identity) = if kind.is_file() {
            let file = File::open(&path)?;
            let identity = identify(&file).ok().map(|(identity, _)| identity);
            let mut bytes = Vec::new();
            file.take(LOOKED_AT_BYTES).read_to_end(&mut bytes)?;
            (crc32c::crc32c(&bytes), identity)
        } else if kind.is_symlink() {
            (crc32c::crc32c(fs::read_link(&path)?.as_os_str().as_bytes()), None)
        } else {
            (u32::from(kind.is_fifo()), None)
        };
        let of_directory = kind.is_dir();
        seen.insert(
            path.clone().into_os_string().into_vec(),
            Seen {
                inode: meta.ino(),
                mode: meta.mode(),
                owner: (meta.uid(), meta.gid()),
                // A directory changes with its entries, which are looked at themselves.
                links: if of_directory { 0 } else { meta.nlink() },
                bytes: if of_directory { 0 } else { meta.len() },
                modified: if of_directory { (0, 0) } else { (meta.mtime(), meta.mtime_nsec()) },
                content,
                identity,
            },
        );
        if of_directory {
            look_into(&path, seen)?;
        }
    }
    Ok(())
}
