//! What a terminal sends when keys are pressed. Pure: bytes in, keys out; whatever is not known is
//! no key.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// A character.
    Char(char),
    /// Enter.
    Enter,
    /// Backspace.
    Backspace,
    /// Escape.
    Escape,
    /// Control and C.
    Interrupt,
    /// A line up.
    Up,
    /// A line down.
    Down,
    /// A page up.
    PageUp,
    /// A page down.
    PageDown,
    /// To the first line.
    Home,
    /// To the last line.
    End,
}

/// The keys in what was read at once.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        let (key, used) = match first {
            0x1b => escape(after),
            3 => (Some(Key::Interrupt), 0),
            b'\r' | b'\n' => (Some(Key::Enter), 0),
            8 | 0x7f => (Some(Key::Backspace), 0),
            0..0x20 => (None, 0),
            _ => character(rest),
        };
        keys.extend(key);
        rest = &after[used..];
    }
    keys
}

/// What follows an escape character, and how many bytes of it belong to the key.
fn escape(after: &[u8]) -> (Option<Key>, usize) {
    let Some((b'[' | b'O', rest)) = after.split_first() else { return (Some(Key::Escape), 0) };
    // Parameters, then one letter or a tilde.
    let Some(end) = rest.iter().position(|byte| (0x40..0x7f).contains(byte)) else {
        return (None, after.len());
    };
    let key = match (&rest[..end], rest[end]) {
        (_, b'A') => Some(Key::Up),
        (_, b'B') => Some(Key::Down),
        (_, b'H') | (b"1" | b"7", b'~') => Some(Key::Home),
        (_, b'F') | (b"4" | b"8", b'~') => Some(Key::End),
        (b"5", b'~') => Some(Key::PageUp),
        (b"6", b'~') => Some(Key::PageDown),
        _ => None,
    };
    (key, end + 2)
}

/// The first character, and how many bytes it has besides the first.
fn character(bytes: &[u8]) -> (Option<Key>, usize) {
    let whole = (1..=bytes.len().min(4)).find_map(|len| std::str::from_utf8(&bytes[..len]).ok());
    match whole.and_then(|text| text.chars().next()) {
        Some(char) if !char.is_control() => (Some(Key::Char(char)), char.len_utf8() - 1),
        Some(char) => (None, char.len_utf8() - 1),
        None => (None, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_apart() {
        for (bytes, expected) in [
            (&b"q"[..], vec![Key::Char('q')]),
            ("ü日".as_bytes(), vec![Key::Char('ü'), Key::Char('日')]),
            (b"\x1b", vec![Key::Escape]),
            (b"\x1b[A\x1bOB", vec![Key::Up, Key::Down]),
            (b"\x1b[5~\x1b[6~x", vec![Key::PageUp, Key::PageDown, Key::Char('x')]),
            (b"\x1b[1~\x1b[F", vec![Key::Home, Key::End]),
            (b"\x1b[200~\x1b[1;5P", vec![]),
            (b"\r\x7f\x03", vec![Key::Enter, Key::Backspace, Key::Interrupt]),
            (b"\x1b[", vec![]),
            (b"\x1b[12", vec![]),
            (b"\xff\xfe\0\x01", vec![]),
            (b"", vec![]),
        ] {
            assert_eq!(keys(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut state = 7u32;
        for _ in 0..2_000 {
            let bytes: Vec<u8> = (0..state % 9)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    b"\x1b[O5~A\xc3\xbc\xe6\x03q"[(state >> 16) as usize % 11]
                })
                .collect();
            keys(&bytes);
            state = state.wrapping_add(1);
        }
    }
}
