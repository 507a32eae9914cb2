//! Media in ordinary memory, of any claimed size: only pages that hold something take memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use holdfast_media::{Bytes, Nvm};

const PAGE_BYTES: u64 = 4096;

/// The media.
pub struct Ram {
    len: u64,
    pages: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Stores since it was last asked: readers must make none.
    stores: Cell<u64>,
}

impl Ram {
    pub fn new(len: u64) -> Self {
        Self { len, pages: RefCell::default(), stores: Cell::new(0) }
    }

    /// Stores made since the last call.
    pub fn take_stores(&self) -> u64 {
        self.stores.take()
    }

    /// Stores a range through the pages it touches.
    pub fn put(&self, offset: u64, bytes: &[u8]) {
        let mut pages = self.pages.borrow_mut();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES) as usize;
            let step = (PAGE_BYTES as usize - within).min(bytes.len() - done);
            let part = &bytes[done..done + step];
            if part.iter().any(|&byte| byte != 0) || pages.contains_key(&(at / PAGE_BYTES)) {
                let page = pages.entry(at / PAGE_BYTES).or_insert_with(|| vec![0; PAGE_BYTES as usize]);
                page[within..within + step].copy_from_slice(part);
            }
            done += step;
        }
    }

    /// Copies a range out.
    pub fn get(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        self.read(offset, &mut buffer);
        buffer
    }

    /// Makes a sparse file of it.
    pub fn store(&self, file: &File) -> io::Result<()> {
        file.set_len(self.len)?;
        for (page, bytes) in self.pages.borrow().iter() {
            file.write_all_at(bytes, page * PAGE_BYTES)?;
        }
        Ok(())
    }
}

impl Nvm for Ram {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        assert!(
            offset.checked_add(buf.len() as u64).is_some_and(|end| end <= self.len),
            "read outside the media"
        );
        let pages = self.pages.borrow();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % PAGE_BYTES) as usize;
            let step = (PAGE_BYTES as usize - within).min(buf.len() - done);
            match pages.get(&(at / PAGE_BYTES)) {
                Some(page) => buf[done..done + step].copy_from_slice(&page[within..within + step]),
                None => buf[done..done + step].fill(0),
            }
            done += step;
        }
    }

    fn write(&self, offset: u64, bytes: &[u8]) {
        self.stores.set(self.stores.get() + 1);
        self.put(offset, bytes);
    }

    fn write_streaming(&self, offset: u64, src: Bytes<'_>, crc: u32) -> u32 {
        let mut bytes = vec![0; src.len()];
        src.copy_to(&mut bytes);
        self.write(offset, &bytes);
        crc32c::crc32c_append(crc, &bytes)
    }

    fn load_u64(&self, offset: u64) -> u64 {
        assert!(offset.is_multiple_of(8), "a word is aligned");
        let mut bytes = [0; 8];
        self.read(offset, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn store_u64(&self, offset: u64, value: u64) {
        self.write(offset, &value.to_le_bytes());
    }

    fn flush(&self, _: u64, _: u64) {}

    fn fence(&self) {}
}
