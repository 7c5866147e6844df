//! Characters as SQLite reads them: any bytes are text, and broken UTF-8 is decoded in a defined way.

/// The replacement for invalid sequences: overlong encodings, surrogates, and noncharacters.
const REPLACEMENT: u32 = 0xfffd;

/// Returns whether a byte continues a character.
pub(super) fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Returns the bytes before the first NUL, where SQLite's string functions stop.
pub(super) fn until_nul(bytes: &[u8]) -> &[u8] {
    memchr::memchr(0, bytes).map_or(bytes, |end| &bytes[..end])
}

/// Returns the length of the character at the front: a leading byte and every continuation byte after it.
pub(super) fn character_len(bytes: &[u8]) -> usize {
    match bytes {
        [] => 0,
        [first, rest @ ..] if *first >= 0xc0 => 1 + rest.iter().take_while(|byte| is_continuation(**byte)).count(),
        _ => 1,
    }
}

/// Reads the character at `at`, which must be in range; returns it with the position of the next.
///
/// A continuation byte without a leading byte is a separate character.
#[inline]
pub(super) fn read(bytes: &[u8], at: usize) -> (u32, usize) {
    let first = bytes[at];
    if first < 0xc0 {
        return (u32::from(first), at + 1);
    }
    read_sequence(bytes, at)
}

fn read_sequence(bytes: &[u8], at: usize) -> (u32, usize) {
    let first = u32::from(bytes[at]);
    // The leading byte's bits that belong to the character; 0xfe and 0xff have none.
    let mut character = match first {
        0xc0..=0xdf => first & 0x1f,
        0xe0..=0xef => first & 0x0f,
        0xf0..=0xf7 => first & 0x07,
        0xf8..=0xfb => first & 0x03,
        0xfc..=0xfd => first & 0x01,
        _ => 0,
    };
    let mut next = at + 1;
    while let Some(byte) = bytes.get(next).filter(|byte| is_continuation(**byte)) {
        character = (character << 6).wrapping_add(u32::from(byte & 0x3f));
        next += 1;
    }
    let is_broken = character < 0x80 || character & 0xffff_f800 == 0xd800 || character & 0xffff_fffe == 0xfffe;
    (if is_broken { REPLACEMENT } else { character }, next)
}
