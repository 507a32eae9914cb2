//! Where a static program of C calls the kernel: every `syscall` instruction, and around each one
//! whole instructions that a jump can take the place of.
//!
//! Every two bytes that may be a call are looked at. What precedes them is decoded from each byte
//! at which an instruction may begin; where all ways come together, there is one way to read what
//! follows. Every place to which a jump, a table of jumps or an address in the data may lead is
//! noted: none may lie behind the first byte of what is replaced. Whatever leaves a doubt refuses
//! the program as a whole. Must never guess: a call that was missed would be made past the log.

use yaxpeax_arch::LengthedInstruction;
use yaxpeax_x86::amd64::{InstDecoder, Instruction, Opcode, Operand, RegSpec};

use crate::refusal::Refusal;

/// A jump to an address within two gigabytes.
pub const NEAR_JUMP_BYTES: usize = 5;
/// How far around a call instructions are looked at.
const AROUND_BYTES: usize = 32;
/// Instructions on each side of a call that may move.
const AROUND_MAX: usize = 6;
/// How far a jump with a short distance leads, and an instruction more.
const SHORT_BYTES: usize = 128 + 16;
/// An instruction is no longer.
const INSTRUCTION_BYTES: usize = 15;
/// Within how many bytes all ways to decode must have come together.
const TOGETHER_BYTES: usize = 192;
/// What is noted of each byte.
const MAPS: usize = 4;
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Code of a program lies in no more parts.
pub(crate) const PARTS_MAX: usize = 16;

/// A part of the program, by its address.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Where it begins.
    pub address: u64,
    /// What is there.
    pub bytes: &'a [u8],
}

impl<'a> Part<'a> {
    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }

    pub(crate) fn has(&self, address: u64) -> bool {
        (self.address..self.end()).contains(&address)
    }

    fn at(&self, address: u64) -> Option<&'a [u8]> {
        self.bytes.get(usize::try_from(address.checked_sub(self.address)?).ok()?..)
    }
}

/// Instructions that a jump replaces, a system call among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The first byte that is replaced.
    pub start: u64,
    /// The call.
    pub call: u64,
    /// Where the call ends.
    pub after: u64,
    /// Where what is replaced ends.
    pub end: u64,
}

/// One bit for each byte of the code.
struct Bits<'a> {
    first: u64,
    bits: &'a mut [u8],
}

impl Bits<'_> {
    fn place(&self, address: u64) -> Option<(usize, u8)> {
        let at = usize::try_from(address.checked_sub(self.first)?).ok()?;
        (at / 8 < self.bits.len()).then_some((at / 8, 1 << (at % 8)))
    }

    fn set(&mut self, address: u64) {
        if let Some((at, bit)) = self.place(address)
            && let Some(byte) = self.bits.get_mut(at)
        {
            *byte |= bit;
        }
    }

    /// The first address at or behind this one that is set.
    fn from(&self, address: u64) -> Option<u64> {
        let (mut at, bit) = self.place(address)?;
        let mut byte = self.bits.get(at)? & !(bit - 1);
        while byte == 0 {
            at += 1;
            // Most of it is empty.
            while self.bits.get(at..at + 8).is_some_and(|eight| eight == [0; 8]) {
                at += 8;
            }
            byte = *self.bits.get(at)?;
        }
        Some(self.first + at as u64 * 8 + u64::from(byte.trailing_zeros()))
    }

    fn has(&self, address: u64) -> bool {
        self.place(address).is_some_and(|(at, bit)| self.bits.get(at).is_some_and(|byte| byte & bit != 0))
    }
}

/// How many bytes of memory, all zero, [`find`] needs.
pub fn scratch_bytes(data: &[Part<'_>]) -> usize {
    let (first, end) = span(data);
    usize::try_from(end.saturating_sub(first)).unwrap_or(0).div_ceil(8) * MAPS
}

fn span(code: &[Part<'_>]) -> (u64, u64) {
    code.iter().fold((u64::MAX, 0), |(first, end), part| (first.min(part.address), end.max(part.end())))
}

/// Finds all calls in the code, in the order of their addresses. `data` is everything that is
/// mapped; `wanted` says whether a call of that number needs to be led: others whose number stands
/// right before them are left alone.
///
/// # Errors
/// The first call that cannot be replaced, or a doubt.
pub fn find(
    code: &[Part<'_>],
    data: &[Part<'_>],
    scratch: &mut [u8],
    wanted: impl Fn(u32) -> bool,
    mut each: impl FnMut(Site) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let (first, _) = span(data);
    let bytes = scratch.len() / MAPS;
    let (starts, rest) = scratch.split_at_mut(bytes);
    let (targets, rest) = rest.split_at_mut(bytes);
    let (named, calls) = rest.split_at_mut(bytes);
    let mut seen = Seen {
        code: span(code),
        starts: Bits { first, bits: starts },
        targets: Bits { first, bits: targets },
        named: Bits { first, bits: named },
        calls: Bits { first, bits: calls },
        decoder: InstDecoder::default(),
    };
    for part in code {
        seen.look_at_bytes(*part);
        seen.read_around_calls(*part)?;
    }
    for part in data {
        seen.note_tables(*part);
        seen.note_addresses(*part);
    }
    for part in code {
        let mut free_from = part.address;
        let mut next = seen.calls.from(part.address);
        while let Some(call) = next.filter(|call| part.has(*call)) {
            next = seen.calls.from(call + 1);
            let at = (call - part.address) as usize;
            let is_call = part.bytes.get(at..).is_some_and(|rest| rest.starts_with(&SYSCALL));
            if is_call && seen.starts.has(call) && !seen.is_unwanted(*part, at, &wanted) {
                let site = seen.choose(*part, call, free_from).ok_or(Refusal::Call(call))?;
                free_from = site.end;
                each(site)?;
            }
        }
    }
    Ok(())
}

/// What bytes begin something that is looked at, for each first byte: the rest need not be.
const IS_LOOKED_AT: [bool; 256] = {
    let mut table = [false; 256];
    let mut at = 0;
    while at < FIRST_BYTES.len() {
        table[FIRST_BYTES[at] as usize] = true;
        at += 1;
    }
    table
};
const FIRST_BYTES: [u8; 5] = [0x0f, 0x8d, 0xcd, 0xe8, 0xe9];

/// Whether this may call the kernel, or end an instruction that takes the register by which threads
/// are known.
fn may_be_call(bytes: &[u8]) -> bool {
    matches!(bytes, [0x0f, 0x05 | 0x34, ..] | [0xcd, 0x80, ..] | [0x0f, 0xae, 0xd8..=0xdf, ..])
}

/// What is known of the code.
struct Seen<'a> {
    /// Where it begins and ends.
    code: (u64, u64),
    /// Where instructions begin, as far as they were read.
    starts: Bits<'a>,
    /// Where jumps may lead.
    targets: Bits<'a>,
    /// What instructions name by its distance from them: tables of jumps, for instance.
    named: Bits<'a>,
    /// What may be a call.
    calls: Bits<'a>,
    decoder: InstDecoder,
}

impl Seen<'_> {
    /// Reads the code around everything that may be a call.
    fn read_around_calls(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        let mut read_to = 0;
        let mut next = self.calls.from(part.address);
        while let Some(call) = next.filter(|call| part.has(*call)) {
            next = self.calls.from(call + 1);
            let at = (call - part.address) as usize;
            let doubt = Refusal::Call(part.address + at as u64);
            let from = at.saturating_sub(SHORT_BYTES + AROUND_BYTES);
            if from > read_to {
                read_to = self.come_together(part, from).ok_or(doubt)?;
            }
            let to = (at + SHORT_BYTES + AROUND_BYTES).min(part.bytes.len());
            read_to = self.read(part, read_to, to, at).ok_or(doubt)?;
            let is_other = part.bytes.get(at..).is_some_and(|rest| !rest.starts_with(&SYSCALL));
            if is_other && (at.saturating_sub(2)..=at).any(|from| self.calls_otherwise(part, from)) {
                return Err(doubt);
            }
        }
        Ok(())
    }

    /// Where an instruction begins, at or a little before `goal`, whichever way one reads what
    /// precedes it.
    fn come_together(&self, part: Part<'_>, goal: usize) -> Option<usize> {
        let begin = goal.saturating_sub(TOGETHER_BYTES);
        if begin == 0 {
            // The part begins with an instruction.
            return Some(0);
        }
        let mut first = begin;
        // One of so many neighbours begins an instruction.
        for other in begin + 1..=begin + INSTRUCTION_BYTES {
            let mut other = other;
            while first != other {
                let behind = if first < other { &mut first } else { &mut other };
                *behind +=
                    self.decoder.decode_slice(part.bytes.get(*behind..)?).map_or(1, |found| length(&found));
                if first.max(other) > goal {
                    return None;
                }
            }
        }
        Some(first)
    }

    /// Reads on up to a place, and past it by an instruction. `None`: what is no instruction stands
    /// before the call, or near behind it.
    fn read(&mut self, part: Part<'_>, mut at: usize, to: usize, call: usize) -> Option<usize> {
        while at < to {
            let address = part.address + at as u64;
            let rest = part.bytes.get(at..)?;
            let Ok(found) = self.decoder.decode_slice(rest) else {
                if at <= call + AROUND_BYTES {
                    return None;
                }
                // What follows is read anew, should a call be there.
                return Some(at);
            };
            let bytes = rest.get(..length(&found))?;
            self.starts.set(address);
            if let Some(target) = branch_target(&found, bytes, address + bytes.len() as u64) {
                self.targets.set(target);
            }
            at += bytes.len();
        }
        Some(at)
    }

    fn is_code(&self, address: u64) -> bool {
        (self.code.0..self.code.1).contains(&address)
    }

    /// Notes what may be a call, where jumps over a long distance lead, and what is named, wherever
    /// such an instruction may begin.
    fn look_at_bytes(&mut self, part: Part<'_>) {
        for (at, byte) in part.bytes.iter().enumerate() {
            if !IS_LOOKED_AT[usize::from(*byte)] {
                continue;
            }
            let rest = part.bytes.get(at..).unwrap_or_default();
            let bytes = match rest {
                [0xe8 | 0xe9, ..] => 5,
                [0x0f, 0x80..=0x8f, ..] => 6,
                [0x8d, modes, ..] if modes & 0xc7 == 0x05 => 6,
                _ => {
                    if may_be_call(rest) {
                        self.calls.set(part.address + at as u64);
                    }
                    continue;
                }
            };
            let Some(distance) = rest.get(bytes - 4..bytes).and_then(|four| four.try_into().ok()) else {
                continue;
            };
            let next = part.address + (at + bytes) as u64;
            let target = next.wrapping_add_signed(i32::from_le_bytes(distance).into());
            self.targets.set(target);
            if *byte == 0x8d {
                self.named.set(target);
            }
        }
    }

    /// Notes where tables of distances from their own beginnings lead, each up to the next thing
    /// that is named, as long as it leads into the code.
    fn note_tables(&mut self, part: Part<'_>) {
        let mut table = None;
        let skipped = (part.address.wrapping_neg() % 4) as usize;
        for (at, entry) in part.bytes.get(skipped..).unwrap_or_default().chunks_exact(4).enumerate() {
            let address = part.address + (skipped + at * 4) as u64;
            if self.named.has(address) {
                table = Some(address);
            }
            let Some(base) = table else { continue };
            let distance = i32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]);
            let target = base.wrapping_add_signed(distance.into());
            if self.is_code(target) {
                self.targets.set(target);
            } else {
                table = None;
            }
        }
    }

    /// Notes the addresses of code that stand in the data.
    fn note_addresses(&mut self, part: Part<'_>) {
        let skipped = (part.address.wrapping_neg() % 8) as usize;
        for word in part.bytes.get(skipped..).unwrap_or_default().chunks_exact(8) {
            let Ok(word) = word.try_into().map(u64::from_le_bytes) else { continue };
            if self.is_code(word) {
                self.targets.set(word);
            }
        }
    }

    /// Whether what begins here calls the kernel in another way, or takes the register by which
    /// threads are known.
    fn calls_otherwise(&self, part: Part<'_>, at: usize) -> bool {
        let Some(rest) = part.bytes.get(at..).filter(|_| self.starts.has(part.address + at as u64)) else {
            return false;
        };
        rest.starts_with(&[0xcd, 0x80])
            || self
                .decoder
                .decode_slice(rest)
                .is_ok_and(|found| matches!(found.opcode(), Opcode::SYSENTER | Opcode::WRGSBASE))
    }

    /// Whether a call has its number right before it, and that is none that would be led.
    fn is_unwanted(&self, part: Part<'_>, at: usize, wanted: impl Fn(u32) -> bool) -> bool {
        let call = part.address + at as u64;
        let before = |bytes: usize| at.checked_sub(bytes).and_then(|from| part.bytes.get(from..at));
        let begins = |bytes: u64| self.starts.has(call.wrapping_sub(bytes));
        let number = match (before(5), before(7)) {
            (Some([0xb8, number @ ..]), _) if begins(5) => number,
            (_, Some([0x48, 0xc7, 0xc0, number @ ..])) if begins(7) => number,
            _ => return false,
        };
        !self.targets.has(call) && number.try_into().is_ok_and(|number| !wanted(u32::from_le_bytes(number)))
    }

    /// Chooses what a jump replaces: the fewest bytes, and rather before the call, as compilers
    /// have other places to which computed jumps lead behind it.
    fn choose(&self, part: Part<'_>, call: u64, free_from: u64) -> Option<Site> {
        let after = call + length(&self.decoder.decode_slice(part.at(call)?).ok()?) as u64;
        let mut befores = [call; AROUND_MAX + 1];
        let befores_count = self.befores(part, &mut befores, free_from);
        let mut afters = [after; AROUND_MAX + 1];
        let afters_count = self.afters(part, &mut afters);
        let mut best: Option<(u64, Site)> = None;
        for start in befores.iter().take(befores_count) {
            for end in afters.iter().take(afters_count) {
                let site = Site { start: *start, call, after, end: *end };
                let price = (end - start) + (end - after) * 4;
                if end - start >= NEAR_JUMP_BYTES as u64
                    && !(start + 1..*end).any(|inside| self.starts.has(inside) && self.targets.has(inside))
                    && best.is_none_or(|(least, _)| price < least)
                {
                    best = Some((price, site));
                }
            }
        }
        best.map(|(_, site)| site)
    }

    /// Where what is replaced may begin; the first is the call itself.
    fn befores(&self, part: Part<'_>, befores: &mut [u64; AROUND_MAX + 1], free_from: u64) -> usize {
        let mut count = 1;
        let mut start = befores[0];
        let call = start;
        while count < befores.len() {
            let lowest = free_from.max(call.saturating_sub(AROUND_BYTES as u64)).max(part.address);
            let Some(previous) = (lowest..start).rev().find(|address| self.starts.has(*address)) else {
                break;
            };
            let Some(rest) = part.at(previous) else { break };
            let Ok(found) = self.decoder.decode_slice(rest) else { break };
            if previous + length(&found) as u64 != start || flow(&found, rest) != Some(Flow::Next) {
                break;
            }
            befores[count] = previous;
            count += 1;
            start = previous;
        }
        count
    }

    /// Where what is replaced may end; the first is right behind the call.
    fn afters(&self, part: Part<'_>, afters: &mut [u64; AROUND_MAX + 1]) -> usize {
        let mut count = 1;
        let (mut end, mut is_over) = (afters[0], false);
        while count < afters.len() {
            let Some(rest) = part.at(end).filter(|rest| !rest.is_empty()) else { break };
            let Ok(found) = self.decoder.decode_slice(rest) else { break };
            // Behind the end of a function lies what fills its place.
            let fills = found.opcode() == Opcode::NOP || rest.first() == Some(&0xcc);
            match flow(&found, rest) {
                Some(Flow::Next) if !is_over || fills => {}
                Some(Flow::Conditional(_)) if !is_over => {}
                Some(Flow::Jump | Flow::Return) if !is_over => is_over = true,
                _ => break,
            }
            end += length(&found) as u64;
            afters[count] = end;
            count += 1;
        }
        count
    }
}

/// How an instruction goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// With the next one.
    Next,
    /// With the next one, or elsewhere, by this condition.
    Conditional(u8),
    /// Elsewhere.
    Jump,
    /// Where the stack says.
    Return,
}

pub(crate) fn length(instruction: &Instruction) -> usize {
    usize::from(instruction.len().to_const() as u8)
}

/// How an instruction that may be copied elsewhere goes on; `None`: it may not.
pub(crate) fn flow(instruction: &Instruction, bytes: &[u8]) -> Option<Flow> {
    match (instruction.opcode(), bytes) {
        (Opcode::SYSCALL | Opcode::CALL | Opcode::CALLF | Opcode::JRCXZ | Opcode::JECXZ, _)
        | (Opcode::LOOP | Opcode::LOOPZ | Opcode::LOOPNZ | Opcode::XBEGIN | Opcode::JMPF | Opcode::RETF, _)
        | (Opcode::IRET | Opcode::IRETD | Opcode::IRETQ | Opcode::UIRET, _) => None,
        (Opcode::JMP, [0xe9 | 0xeb, ..]) => Some(Flow::Jump),
        (Opcode::JMP, _) => None,
        (Opcode::RETURN, [0xc3, ..] | [0xf3, 0xc3, ..]) => Some(Flow::Return),
        (Opcode::RETURN, _) => None,
        (_, [condition @ 0x70..=0x7f, ..] | [0x0f, condition @ 0x80..=0x8f, ..]) => {
            Some(Flow::Conditional(condition & 0xf))
        }
        (opcode, _) if is_jump(opcode) => None,
        _ if has_relative(instruction) => None,
        _ => Some(Flow::Next),
    }
}

/// Whether it names memory by where it stands itself.
fn has_relative(instruction: &Instruction) -> bool {
    (0..instruction.operand_count()).any(|at| match instruction.operand(at) {
        Operand::Disp { base, .. } | Operand::DispMasked { base, .. } | Operand::MemDeref { base } => {
            base == RegSpec::rip()
        }
        _ => false,
    })
}

/// Where a jump or a call with a distance leads.
pub(crate) fn branch_target(instruction: &Instruction, bytes: &[u8], next: u64) -> Option<u64> {
    let is_near = matches!(bytes, [0xe8 | 0xe9, ..] | [0x0f, 0x80..=0x8f, ..] | [0xc7, 0xf8, ..]);
    let is_short = matches!(bytes, [0xeb | 0x70..=0x7f | 0xe0..=0xe3, ..]);
    // With a prefix.
    let is_other =
        matches!(instruction.opcode(), Opcode::JMP | Opcode::CALL) || is_jump(instruction.opcode());
    if !is_near && !is_short && !is_other {
        return None;
    }
    let distance = match instruction.operand(0) {
        Operand::ImmediateI8 { imm } => i64::from(imm),
        Operand::ImmediateI32 { imm } => i64::from(imm),
        _ => return None,
    };
    Some(next.wrapping_add_signed(distance))
}

/// Whether it goes elsewhere by a condition.
fn is_jump(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::JO
            | Opcode::JNO
            | Opcode::JB
            | Opcode::JNB
            | Opcode::JZ
            | Opcode::JNZ
            | Opcode::JA
            | Opcode::JNA
    ) || matches!(
        opcode,
        Opcode::JS
            | Opcode::JNS
            | Opcode::JP
            | Opcode::JNP
            | Opcode::JL
            | Opcode::JGE
            | Opcode::JLE
            | Opcode::JG
    )
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    const ADDRESS: u64 = 0x40_1000;
    const SYNC: [u8; 5] = [0xb8, 74, 0, 0, 0];
    const GETPID: [u8; 5] = [0xb8, 39, 0, 0, 0];
    const RETURN: u8 = 0xc3;

    /// The sites of code that other code follows, by their distances from its beginning.
    fn sites(code: &[&[u8]]) -> Result<Vec<[u64; 4]>, Refusal> {
        let mut bytes = code.concat();
        bytes.extend([0x90; 64]);
        let parts = [Part { address: ADDRESS, bytes: &bytes }];
        let mut scratch = vec![0; scratch_bytes(&parts)];
        let mut found = Vec::new();
        find(
            &parts,
            &parts,
            &mut scratch,
            |number| number != 39,
            |site| {
                found.push([site.start, site.call, site.after, site.end].map(|address| address - ADDRESS));
                Ok(())
            },
        )?;
        Ok(found)
    }

    #[test]
    fn what_precedes_a_call_is_replaced_with_it() {
        assert_eq!(sites(&[&SYNC, &SYSCALL, &[RETURN]]), Ok(vec![[0, 5, 7, 7]]));
        assert_eq!(sites(&[&GETPID, &SYSCALL, &[RETURN]]), Ok(vec![]), "no hook wants it");
        // mov edi, ebx; mov eax, edx: the nearest bytes that suffice.
        let moves = [0x89, 0xdf, 0x89, 0xd0];
        assert_eq!(sites(&[&[0x90], &moves, &SYSCALL, &[RETURN]]), Ok(vec![[1, 5, 7, 7]]));
    }

    #[test]
    fn no_jump_leads_into_what_is_replaced() {
        // cmp rax, -4095; ret; jmp to the call.
        let compare = [0x48, 0x3d, 1, 0xf0, 0xff, 0xff];
        let jump = [0xeb, (-11_i8) as u8];
        assert_eq!(sites(&[&SYNC, &SYSCALL, &compare, &[RETURN], &jump]), Ok(vec![[5, 5, 7, 13]]));
        // The same, with a jump that needs four bytes for its distance.
        let jump = [0xe9, (-14_i8) as u8, 0xff, 0xff, 0xff];
        assert_eq!(sites(&[&SYNC, &SYSCALL, &compare, &[RETURN], &jump]), Ok(vec![[5, 5, 7, 13]]));
        // An address in the data, and a table of distances that is named.
        let far = [0x90; 50];
        let address = (ADDRESS + 5).to_le_bytes();
        assert_eq!(sites(&[&SYNC, &SYSCALL, &compare, &[RETURN], &far, &address]), Ok(vec![[5, 5, 7, 13]]));
        let named = [0x48, 0x8d, 0x05, 51, 0, 0, 0];
        let distance = (5_i32 - 72).to_le_bytes();
        let all = [&SYNC[..], &SYSCALL, &compare, &[RETURN], &named, &[RETURN], &far, &distance];
        assert_eq!(sites(&all), Ok(vec![[5, 5, 7, 13]]));
        // From both sides.
        let between =
            [[0xeb, 1].as_slice(), &[0x90], &SYSCALL, &[0x90, 0xeb, (-5_i8) as u8, 0xeb, (-5_i8) as u8]];
        assert_eq!(sites(&between), Err(Refusal::Call(ADDRESS + 3)));
    }

    #[test]
    fn bytes_of_another_instruction_are_no_call() {
        // mov eax, 0x0001050f; test eax, 0x050f.
        let constants = [0xb8, 0x0f, 0x05, 1, 0, 0xa9, 0x0f, 0x05, 0, 0, RETURN];
        assert_eq!(sites(&[&constants]), Ok(vec![]));
    }

    #[test]
    fn other_calls_of_the_kernel_are_refused() {
        for other in [&[0xcd, 0x80][..], &[0x0f, 0x34], &[0xf3, 0x48, 0x0f, 0xae, 0xd8]] {
            assert!(matches!(sites(&[&[0x90], other, &[RETURN]]), Err(Refusal::Call(_))), "{other:x?}");
        }
        // In a constant they are none.
        assert_eq!(sites(&[&[0xb8, 0xcd, 0x80, 0, 0, RETURN]]), Ok(vec![]));
    }

    #[test]
    fn two_calls_share_no_byte() {
        let found =
            sites(&[&SYNC, &SYSCALL, &SYNC, &SYSCALL, &[0x89, 0xc7], &SYSCALL, &[0x48, 0x89, 0xc3, RETURN]]);
        assert_eq!(found, Ok(vec![[0, 5, 7, 7], [7, 12, 14, 14], [16, 16, 18, 21]]));
    }

    #[test]
    fn what_is_no_instruction_before_a_call_is_a_doubt() {
        assert!(matches!(sites(&[&[0x06, 0x90, 0x90], &SYNC, &SYSCALL, &[RETURN]]), Err(Refusal::Call(_))));
    }
}
