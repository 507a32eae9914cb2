//! dpkg that installs one package after the other into a directory of its own: what it said was
//! installed is, in its database and in the files, and each file is whole.

use std::fs;
use std::sync::{Arc, Mutex, Weak};

use tempfile::TempDir;

use crate::cmd::Cmd;
use crate::disk::Kind;
use crate::need;
use crate::site::{Site, Workload};
use crate::workload::shared;

const PACKAGES: [&str; 3] = ["alpha", "beta", "gamma"];
const VERSIONS: u64 = 12;
const FILES: u64 = 4;

/// Installations into one directory.
pub struct Dpkg {
    /// Where it runs.
    kind: Kind,
    packages: Arc<TempDir>,
}

/// Images for containers tell dpkg to sync no file that it installs (`force-unsafe-io`); then it
/// promises nothing of them.
const FORCE: &str = "--force-not-root --force-bad-path --no-force-unsafe-io";

const INSTALL: &str = "
version=0
while [ $version -lt $3 ]; do
    version=$((version+1))
    for package in alpha beta gamma; do
        dpkg --root=\"$1\" --log=/dev/null $4 -i \"$2/$package-$version.deb\" >&2 || exit 1
        echo ack $package $version
    done
done
sleep 60
";

fn content(package: &str, version: u64, file: u64) -> String {
    let lines = 1 + (version * 91 + file * 301) % 500;
    format!("{package} {version} {file}\n").repeat(lines as usize)
}

fn make_packages() -> TempDir {
    let home = tempfile::tempdir_in("/dev/shm").expect("/dev/shm");
    for package in PACKAGES {
        for version in 1..=VERSIONS {
            let tree = home.path().join("tree");
            fs::create_dir_all(tree.join("DEBIAN")).expect("directory");
            let control = format!(
                "Package: {package}\nVersion: {version}\nArchitecture: all\n\
                 Maintainer: nobody <nobody@example.org>\nDescription: a package\n"
            );
            fs::write(tree.join("DEBIAN/control"), control).expect("control");
            let share = tree.join("usr/share").join(package);
            fs::create_dir_all(&share).expect("directory");
            for file in 0..FILES {
                fs::write(share.join(format!("file-{file}")), content(package, version, file)).expect("file");
            }
            let deb = home.path().join(format!("{package}-{version}.deb"));
            Cmd::new("dpkg-deb").args(["-Znone", "--root-owner-group", "-b"]).args([&tree, &deb]).ok();
            fs::remove_dir_all(&tree).expect("tree");
        }
    }
    home
}

impl Dpkg {
    /// With packages of which all share one set.
    pub fn new(kind: Kind) -> Self {
        static PACKAGES: Mutex<Weak<TempDir>> = Mutex::new(Weak::new());
        Self { kind, packages: shared(&PACKAGES, make_packages) }
    }

    /// dpkg renames files that it has synced, and syncs no directory of theirs. Where there is one
    /// journal, what it syncs afterwards commits the renames; on btrfs it may be through with a
    /// package of which files are missing.
    fn is_ordered(&self) -> bool {
        self.kind != Kind::Btrfs
    }
}

impl Workload for Dpkg {
    fn name(&self) -> String {
        "dpkg".into()
    }

    fn prepare(&self, site: &Site) {
        let admin = site.dir.join("var/lib/dpkg");
        for name in ["info", "updates", "triggers"] {
            fs::create_dir_all(admin.join(name)).expect("directory");
        }
        fs::write(admin.join("status"), "").expect("status");
        fs::create_dir_all(site.dir.join("usr/share")).expect("directory");
    }

    fn program(&self, site: &Site) -> Vec<String> {
        let dir = site.dir.to_str().expect("text").to_owned();
        let packages = self.packages.path().to_str().expect("text").to_owned();
        vec![
            "/bin/sh".into(),
            "-c".into(),
            INSTALL.into(),
            "sh".into(),
            dir,
            packages,
            VERSIONS.to_string(),
            FORCE.into(),
        ]
    }

    fn acks_min(&self) -> usize {
        6
    }

    fn life_ms_max(&self) -> u64 {
        1500
    }

    fn check(&self, site: &Site, acks: &[String]) -> Result<(), String> {
        let admin = format!("--admindir={}", site.path("var/lib/dpkg"));
        let format = "--showformat=${Package} ${Version} ${db:Status-Status}\n";
        need::tool("dpkg-query");
        let told = Cmd::new("dpkg-query").args([admin.as_str(), "-W", format]).output();
        // It complains of a database in which nothing was ever installed.
        if !told.status.success() && !acks.is_empty() {
            return Err(told.told());
        }
        for package in PACKAGES {
            let acked = acks.iter().filter_map(|ack| ack.strip_prefix(package)?.trim().parse().ok()).max();
            let acked: u64 = acked.unwrap_or(0);
            let row = told.stdout.lines().find_map(|line| line.strip_prefix(package)).unwrap_or(" 0 none");
            let mut words = row.split_whitespace();
            let known: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
            if known < acked {
                return Err(format!(
                    "{package} {acked} was installed; the database has{row}\n{}",
                    told.told()
                ));
            }
            let is_installed = words.next() == Some("installed");
            for file in 0..FILES {
                let path = site.dir.join(format!("usr/share/{package}/file-{file}"));
                let found = match fs::read_to_string(&path) {
                    Err(_) if acked == 0 && !is_installed || !self.is_ordered() => continue,
                    Err(error) => return Err(format!("{}: {error}; known is{row}", path.display())),
                    Ok(found) => found,
                };
                let version = found.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
                if found != content(package, version, file) {
                    return Err(format!("{} has {} bytes of no version", path.display(), found.len()));
                }
                if self.is_ordered() && (version < acked || is_installed && version != known) {
                    return Err(format!(
                        "{} is of version {version}; {acked} was installed, known is{row}",
                        path.display()
                    ));
                }
            }
        }
        Ok(())
    }
}
