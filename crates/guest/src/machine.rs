//! One boot of the guest: QEMU without KVM, its NVM and its disks in files that outlive
//! it. It ends by SIGKILL only.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_e2e::need;

const NVDIMM_BYTES: u64 = 512 << 20;

/// What outlives a boot.
pub struct Images {
    /// The kernel image.
    pub kernel: PathBuf,
    /// The guest's first file system.
    pub initramfs: PathBuf,
    /// The files of its disks, /dev/vda first.
    pub disks: Vec<PathBuf>,
    /// How many NVDIMMs it has.
    pub nvdimms: usize,
    /// A directory for the NVM and the console's log.
    pub home: PathBuf,
}

impl Images {
    fn nvdimm(&self, number: usize) -> PathBuf {
        self.home.join(format!("nvdimm-{number}"))
    }

    /// Makes the NVM.
    pub fn create(&self) -> Result<()> {
        for number in 0..self.nvdimms {
            File::create(self.nvdimm(number))?.set_len(NVDIMM_BYTES)?;
        }
        Ok(())
    }

    fn console(&self) -> PathBuf {
        self.home.join("console")
    }
}

/// A running guest.
pub struct Machine {
    qemu: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    console: PathBuf,
}

impl Machine {
    /// Boots; `orders` are variables for the guest's first process.
    pub fn boot(images: &Images, orders: &[(&str, String)]) -> Result<Self> {
        let text = |path: &Path| path.to_str().context("paths are text").map(str::to_owned);
        let orders: String = orders.iter().map(|(name, value)| format!(" {name}={value}")).collect();
        let mut command = Command::new(need::tool("qemu-system-x86_64"));
        command
            .args(["-machine", "q35,nvdimm=on,nvdimm-persistence=mem-ctrl,accel=tcg", "-cpu", "max"])
            .args(["-m", "1G,slots=4,maxmem=8G", "-display", "none", "-nic", "none", "-no-reboot"])
            .args(["-serial", &format!("file:{}", text(&images.console())?), "-serial", "stdio"])
            .args(["-kernel", &text(&images.kernel)?, "-initrd", &text(&images.initramfs)?])
            .args(["-append", &format!("console=ttyS0 quiet loglevel=4 panic=1 mitigations=off{orders}")]);
        for (number, disk) in images.disks.iter().enumerate() {
            // Writes reach the disk's file at once, and a flush of the guest is a flush of that
            // file.
            let drive = format!("file={},format=raw,if=none,id=d{number},cache=writeback", text(disk)?);
            command.args(["-drive", &drive, "-device", &format!("virtio-blk-pci,drive=d{number}")]);
        }
        for number in 0..images.nvdimms {
            let path = text(&images.nvdimm(number))?;
            let memory =
                format!("memory-backend-file,id=m{number},share=on,mem-path={path},size={NVDIMM_BYTES}");
            command.args(["-object", &memory, "-device", &format!("nvdimm,id=n{number},memdev=m{number}")]);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu = command.spawn().context("cannot start QEMU")?;
        let stdout = BufReader::new(qemu.stdout.take().context("piped")?);
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = lines.clone();
        let reader = std::thread::spawn(move || listen(stdout, &heard));
        Ok(Self { qemu, lines, reader: Some(reader), console: images.console() })
    }

    /// The lines that begin so, without their beginning.
    pub fn heard(&self, start: &str) -> Vec<String> {
        let lines = self.lines.lock().expect("no holder panics");
        lines.iter().filter_map(|line| line.strip_prefix(start)).map(str::to_owned).collect()
    }

    /// Waits until `holds`; an error when the guest fails, or is at one step for longer than
    /// `limit`. How long many steps take says nothing: beside other work an emulated processor is
    /// slow.
    pub fn wait(&mut self, what: &str, limit: Duration, holds: impl Fn(&Self) -> bool) -> Result<()> {
        let (mut started, mut steps) = (Instant::now(), 0);
        while !holds(self) {
            let seen = self.heard("step ").len();
            if seen > steps {
                (started, steps) = (Instant::now(), seen);
            }
            let failed = self.heard("failed: ");
            let ended = self.qemu.try_wait()?;
            if started.elapsed() > limit || !failed.is_empty() || ended.is_some() {
                let console = std::fs::read(&self.console).unwrap_or_default();
                let console = String::from_utf8_lossy(&console);
                let tail: Vec<&str> = console.lines().rev().take(40).collect();
                let tail: Vec<&str> = tail.into_iter().rev().collect();
                bail!(
                    "waited {:?} in vain for {what}; failed: {failed:?}; ended: {ended:?}; the console:\n{}",
                    started.elapsed(),
                    tail.join("\n")
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Ends it as a power cut does, and returns every whole line that it had sent.
    pub fn kill(mut self) -> Result<Vec<String>> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader does not panic");
        }
        Ok(std::mem::take(&mut *self.lines.lock().expect("no holder panics")))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

fn listen(mut stdout: impl BufRead, heard: &Mutex<Vec<String>>) {
    let mut bytes = Vec::new();
    // What is cut off in the middle of a line says nothing.
    while stdout.read_until(b'\n', &mut bytes).is_ok_and(|length| length > 0) && bytes.last() == Some(&b'\n')
    {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        heard.lock().expect("no holder panics").push(line);
        bytes.clear();
    }
}
