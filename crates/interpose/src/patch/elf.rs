//! Finding symbols in the objects that the loader has mapped, without `dlsym`.
//!
//! Reads the mapped dynamic section, symbol table and GNU hash of each object. It only reads.
#![allow(unsafe_code)] // Walks structures that the loader mapped.

use core::ffi::{CStr, c_int, c_void};

const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
const DT_VERSYM: i64 = 0x6fff_fff0;
const PT_DYNAMIC: u32 = 2;
const STT_FUNC: u8 = 2;
/// Set in a version index when the version is not the default one.
const VERSION_HIDDEN: u16 = 0x8000;

/// A mapped object's symbols.
#[derive(Clone, Copy)]
pub struct Object {
    base: usize,
    strings: *const u8,
    symbols: *const libc::Elf64_Sym,
    hash: *const u32,
    versions: *const u16,
}

/// A symbol's place.
#[derive(Clone, Copy)]
pub struct Symbol {
    /// Its address.
    pub address: usize,
    /// Bytes of the function.
    pub bytes: usize,
    /// A function, not a variable or a resolver.
    pub function: bool,
    /// The version that new programs are linked with.
    pub default: bool,
}

/// Calls `visit` with name and symbols of each mapped object, in the order of symbol search.
pub fn objects(mut visit: impl FnMut(&CStr, Object)) {
    let mut visit: &mut dyn FnMut(&CStr, Object) = &mut visit;
    // SAFETY: the callback gets back the pointer passed here, during this call only.
    unsafe { libc::dl_iterate_phdr(Some(each), (&raw mut visit).cast()) };
}

unsafe extern "C" fn each(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: `data` is what `objects` passed; `info` is valid during the callback.
    let (visit, info) = unsafe { (&mut *data.cast::<&mut dyn FnMut(&CStr, Object)>(), &*info) };
    // SAFETY: the loader's program headers of a mapped object.
    if let Some(object) = unsafe { read(info) } {
        let name =
            // SAFETY: the loader's name for the object.
            if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
        visit(name, object);
    }
    0
}

/// # Safety
/// `info` describes a mapped object.
unsafe fn read(info: &libc::dl_phdr_info) -> Option<Object> {
    let base = info.dlpi_addr as usize;
    let mut object = Object {
        base,
        strings: core::ptr::null(),
        symbols: core::ptr::null(),
        hash: core::ptr::null(),
        versions: core::ptr::null(),
    };
    for index in 0..usize::from(info.dlpi_phnum) {
        // SAFETY: within the table of program headers.
        let header = unsafe { &*info.dlpi_phdr.add(index) };
        if header.p_type != PT_DYNAMIC {
            continue;
        }
        let mut entry = (base + header.p_vaddr as usize) as *const [i64; 2];
        loop {
            // SAFETY: the dynamic section ends with a zero tag.
            let [tag, value] = unsafe { *entry };
            // glibc writes absolute addresses into the section; objects it may not write to keep
            // offsets.
            let address = if (value as usize) < base { base + value as usize } else { value as usize };
            match tag {
                0 => break,
                DT_STRTAB => object.strings = address as *const u8,
                DT_SYMTAB => object.symbols = address as *const libc::Elf64_Sym,
                DT_GNU_HASH => object.hash = address as *const u32,
                DT_VERSYM => object.versions = address as *const u16,
                _ => {}
            }
            // SAFETY: not yet at the end.
            entry = unsafe { entry.add(1) };
        }
    }
    let whole = !object.strings.is_null() && !object.symbols.is_null() && !object.hash.is_null();
    whole.then_some(object)
}

fn gnu_hash(name: &CStr) -> u32 {
    name.to_bytes().iter().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(u32::from(*byte)))
}

impl Object {
    /// Calls `found` for each version of `name` that this object defines.
    pub fn find(&self, name: &CStr, mut found: impl FnMut(Symbol)) {
        let wanted = gnu_hash(name);
        // SAFETY: the layout of DT_GNU_HASH: four words, a bloom filter, buckets, chains that end
        // with a set low bit; all indexes come from the table itself, which the loader trusts as
        // well.
        unsafe {
            let [buckets, first, bloom_words] = [*self.hash, *self.hash.add(1), *self.hash.add(2)];
            if buckets == 0 {
                return;
            }
            let bucket_table = self.hash.add(4 + bloom_words as usize * 2);
            let chains = bucket_table.add(buckets as usize);
            let mut index = *bucket_table.add((wanted % buckets) as usize);
            if index < first {
                return;
            }
            loop {
                let hash = *chains.add((index - first) as usize);
                if hash | 1 == wanted | 1 {
                    self.check(name, index, &mut found);
                }
                if hash & 1 != 0 {
                    return;
                }
                index += 1;
            }
        }
    }

    /// # Safety
    /// `index` is one of this object's symbol table.
    unsafe fn check(&self, name: &CStr, index: u32, found: &mut impl FnMut(Symbol)) {
        // SAFETY: the caller's promise; names are offsets into the string table.
        let (symbol, symbol_name) = unsafe {
            let symbol = &*self.symbols.add(index as usize);
            (symbol, CStr::from_ptr(self.strings.add(symbol.st_name as usize).cast()))
        };
        if symbol.st_shndx == 0 || symbol_name != name {
            return;
        }
        let hidden = !self.versions.is_null()
            // SAFETY: one version index per symbol.
            && unsafe { *self.versions.add(index as usize) } & VERSION_HIDDEN != 0;
        found(Symbol {
            address: self.base + symbol.st_value as usize,
            bytes: symbol.st_size as usize,
            function: symbol.st_info & 0xf == STT_FUNC,
            default: !hidden,
        });
    }

    /// The default version of `name`.
    pub fn default_of(&self, name: &CStr) -> Option<usize> {
        let mut address = None;
        self.find(name, |symbol| {
            if symbol.default {
                address = Some(symbol.address);
            }
        });
        address
    }

    /// The function of that name: the default version, or else any.
    pub fn function(&self, name: &CStr) -> Option<usize> {
        let mut found: Option<Symbol> = None;
        self.find(name, |symbol| {
            if symbol.function && (symbol.default || found.is_none()) {
                found = Some(symbol);
            }
        });
        found.map(|symbol| symbol.address)
    }

    /// Whether this object contains `address`' symbol under `name`.
    pub fn defines_at(&self, name: &CStr, address: usize) -> bool {
        let mut same = false;
        self.find(name, |symbol| same |= symbol.address == address);
        same
    }
}
