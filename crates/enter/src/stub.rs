//! What the program runs in the place of a call: the instructions that a jump has replaced, with
//! the call among them led to the hooks, or made where it stands.
//!
//! A call that no hook has is made with every register and every flag as the program has them, and
//! with no use of the stack, of which a thread that ends itself may have none.

use yaxpeax_x86::amd64::InstDecoder;

use crate::sites::{Flow, Site, branch_target, flow, length};

/// Room for one.
pub const STUB_BYTES: usize = 160;
/// One byte for each 16-bit number of a call: whether it is led.
pub const TABLE_BYTES: usize = 1 << 16;
/// How far before its own call the look lies at whether the call is led.
pub const CHECK_BYTES: u64 = 40;
const JUMP_BYTES: usize = 5;

/// One that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stub {
    /// How far into it the call lies that is made where it stands.
    pub call: u8,
    /// How far into it goes on what follows the call.
    pub back: u8,
}

/// What stubs know.
#[derive(Clone, Copy)]
pub struct Known {
    /// Where the table of led numbers lies.
    pub table: u64,
    /// Where the address of the way to the hooks stands.
    pub way: u64,
}

/// Bytes of code that is written for an address.
struct Writer<'a> {
    to: &'a mut [u8; STUB_BYTES],
    at: usize,
    address: u64,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Option<()> {
        self.to.get_mut(self.at..self.at + bytes.len())?.copy_from_slice(bytes);
        self.at += bytes.len();
        Some(())
    }

    /// An instruction that ends with the distance to `target`.
    fn put_to(&mut self, instruction: &[u8], target: u64) -> Option<()> {
        self.put(instruction)?;
        let next = self.address + self.at as u64 + 4;
        let distance = i32::try_from(target.wrapping_sub(next) as i64).ok()?;
        self.put(&distance.to_le_bytes())
    }

    /// Copies instructions of the program, from one address up to another. Whether the last of them
    /// goes on with the next.
    fn copy(&mut self, program: &[u8], mut from: u64, to: u64) -> Option<bool> {
        let decoder = InstDecoder::default();
        let (first, mut goes_on) = (from, true);
        while from < to {
            let rest = program.get((from - first) as usize..)?;
            let found = decoder.decode_slice(rest).ok()?;
            let bytes = rest.get(..length(&found))?;
            from += bytes.len() as u64;
            match flow(&found, bytes)? {
                // What fills the place behind a function's end.
                Flow::Next if !goes_on => {}
                Flow::Next => self.put(bytes)?,
                Flow::Conditional(condition) => {
                    self.put_to(&[0x0f, 0x80 | condition], branch_target(&found, bytes, from)?)?;
                }
                Flow::Jump => {
                    self.put_to(&[0xe9], branch_target(&found, bytes, from)?)?;
                    goes_on = false;
                }
                Flow::Return => {
                    self.put(&[0xc3])?;
                    goes_on = false;
                }
            }
        }
        Some(goes_on)
    }
}

/// Writes the stub of a site that is to lie at `address`. `program` is what stands at the site.
pub fn write(
    to: &mut [u8; STUB_BYTES],
    address: u64,
    site: &Site,
    program: &[u8],
    known: &Known,
) -> Option<Stub> {
    to.fill(0xcc);
    let mut writer = Writer { to, at: 0, address };
    writer.copy(program, site.start, site.call)?;
    let check = writer.at;
    // movzx ecx, ax; lea r11, [rip + table]; movzx ecx, byte ptr [rcx + r11]; jrcxz to the call:
    // no flag is changed.
    writer.put(&[0x0f, 0xb7, 0xc8])?;
    writer.put_to(&[0x4c, 0x8d, 0x1d], known.table)?;
    writer.put(&[0x42, 0x0f, 0xb6, 0x0c, 0x19])?;
    writer.put(&[0xe3, 23])?;
    let past = writer.at;
    // lea rsp, [rsp - 128]; call [rip + way]; lea rsp, [rsp + 128]; jrcxz to the call; jmp behind
    // it.
    writer.put(&[0x48, 0x8d, 0x64, 0x24, 0x80])?;
    writer.put_to(&[0xff, 0x15], known.way)?;
    writer.put(&[0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0])?;
    writer.put(&[0xe3, 2, 0xeb, 2])?;
    let call = writer.at;
    if call - past != 23 || (call - check) as u64 != CHECK_BYTES {
        return None;
    }
    writer.put(&[0x0f, 0x05])?;
    let back = writer.at;
    let rest = program.get((site.after - site.start) as usize..)?;
    if writer.copy(rest, site.after, site.end)? {
        writer.put_to(&[0xe9], site.end)?;
    }
    Some(Stub { call: u8::try_from(call).ok()?, back: u8::try_from(back).ok()? })
}

/// The jump that stands at a site from then on, and how many of its bytes count.
pub fn jump(site: &Site, stub: u64) -> Option<[u8; JUMP_BYTES]> {
    let next = site.start + JUMP_BYTES as u64;
    let distance = i32::try_from(stub.wrapping_sub(next) as i64).ok()?;
    let mut jump = [0xe9; JUMP_BYTES];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    Some(jump)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STUB: u64 = 0x50_0000;
    const KNOWN: Known = Known { table: 0x51_0000, way: 0x52_0000 };

    fn stub(program: &[u8], call: u64) -> ([u8; STUB_BYTES], Stub, Site) {
        let start = 0x40_1000;
        let site =
            Site { start, call: start + call, after: start + call + 2, end: start + program.len() as u64 };
        let mut bytes = [0; STUB_BYTES];
        let stub = write(&mut bytes, STUB, &site, program, &KNOWN).expect("it fits");
        (bytes, stub, site)
    }

    fn has(bytes: &[u8], at: usize, wanted: &[u8]) {
        assert_eq!(bytes.get(at..at + wanted.len()), Some(wanted));
    }

    #[test]
    fn the_call_stands_between_what_surrounded_it() {
        let program = [0xb8, 74, 0, 0, 0, 0x0f, 0x05, 0x48, 0x89, 0xc3];
        let (bytes, stub, site) = stub(&program, 5);
        has(&bytes, 0, &program[..5]);
        has(&bytes, stub.call.into(), &[0x0f, 0x05]);
        assert_eq!(stub.back, stub.call + 2);
        has(&bytes, stub.back.into(), &program[7..]);
        let jump_at = usize::from(stub.back) + 3;
        let next = STUB + jump_at as u64 + 5;
        has(&bytes, jump_at, &[0xe9]);
        has(&bytes, jump_at + 1, &(site.end.wrapping_sub(next) as i32).to_le_bytes());
        let jump = jump(&site, STUB).expect("near");
        has(&jump, 0, &[0xe9]);
        has(&jump, 1, &((STUB - site.start - 5) as i32).to_le_bytes());
    }

    #[test]
    fn jumps_lead_where_they_led() {
        // syscall; je +16; ret; and what fills the rest.
        let (bytes, stub, site) = stub(&[0x0f, 0x05, 0x74, 16, 0xc3, 0xcc], 0);
        let at = usize::from(stub.back);
        has(&bytes, at, &[0x0f, 0x84]);
        let next = STUB + at as u64 + 6;
        has(&bytes, at + 2, &((site.start + 4 + 16).wrapping_sub(next) as i32).to_le_bytes());
        has(&bytes, at + 6, &[0xc3, 0xcc, 0xcc]);
    }

    #[test]
    fn what_is_too_far_away_is_refused() {
        let site = Site { start: 0x40_1000, call: 0x40_1005, after: 0x40_1007, end: 0x40_1007 };
        let program = [0xb8, 74, 0, 0, 0, 0x0f, 0x05];
        let mut bytes = [0; STUB_BYTES];
        assert_eq!(write(&mut bytes, 1 << 40, &site, &program, &KNOWN), None);
        assert_eq!(jump(&site, 1 << 40), None);
    }
}
