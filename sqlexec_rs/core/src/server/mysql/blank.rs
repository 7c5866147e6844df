//! White space and comments in MariaDB's grammar.

/// Skips white space and comments.
pub(super) fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = match bytes.get(at) {
            Some(byte) if byte.is_ascii_whitespace() || *byte == 0x0b => at + 1,
            Some(b'#' | b'-' | b'/') => match comment_end(bytes, at) {
                Some(end) => end,
                None => return at,
            },
            _ => return at.min(bytes.len()),
        };
    }
}

/// Returns the end of a comment that starts here; `None` without a comment.
pub(super) fn comment_end(bytes: &[u8], at: usize) -> Option<usize> {
    let line_end = || memchr::memchr(b'\n', &bytes[at..]).map_or(bytes.len(), |n| at + n + 1);
    match &bytes[at..] {
        [b'#', ..] => Some(line_end()),
        // Two hyphens start a comment only before white space.
        [b'-', b'-', byte, ..] if byte.is_ascii_whitespace() || byte.is_ascii_control() => Some(line_end()),
        [b'-', b'-'] => Some(bytes.len()),
        [b'/', b'*', rest @ ..] => Some(memchr::memmem::find(rest, b"*/").map_or(bytes.len(), |n| at + n + 4)),
        _ => None,
    }
}
