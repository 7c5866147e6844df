//! The computations of `instr`, `replace`, `trim` and `unhex`, on bytes.
//!
//! SQLite's own functions take time proportional to the product of their arguments' lengths: `instr` for near misses,
//! `trim` and `unhex` for a large set. These run in linear time, or check the run's bounds between steps.

use std::collections::{HashMap, HashSet};

use memchr::memmem;

use super::utf8;
use super::work::{RunStopped, WorkMeter};

/// Returns SQLite's `instr` of two texts: the position of the first match, in characters from 1, or 0.
///
/// SQLite tries the first byte and then each byte that starts a character, so a broken character at the start of
/// `needle` is found only at the start of `haystack`.
pub(super) fn instr_text(haystack: &[u8], needle: &[u8], work: &mut WorkMeter<'_>) -> Result<i64, RunStopped> {
    if needle.is_empty() {
        return Ok(1);
    }
    work.spend(haystack.len())?;
    if haystack.starts_with(needle) {
        return Ok(1);
    }
    if utf8::is_continuation(needle[0]) {
        return Ok(0);
    }
    Ok(memmem::find(haystack, needle).map_or(0, |at| {
        let start_time = haystack[1..=at].iter().filter(|byte| !utf8::is_continuation(**byte)).count();
        start_time as i64 + 1
    }))
}

/// Returns SQLite's `instr` for a needle that becomes empty by its conversion to text: the position of the first NUL,
/// or of the end.
pub(super) fn instr_vanished(haystack: &[u8]) -> i64 {
    match memchr::memchr(0, haystack).unwrap_or(haystack.len()) {
        0 => 1,
        at => haystack[1..at].iter().filter(|byte| !utf8::is_continuation(**byte)).count() as i64 + 2,
    }
}

/// Returns SQLite's `instr` of two blobs: the position of the first match, in bytes from 1, or 0.
pub(super) fn instr_blob(haystack: &[u8], needle: &[u8], work: &mut WorkMeter<'_>) -> Result<i64, RunStopped> {
    work.spend(haystack.len())?;
    Ok(memmem::find(haystack, needle).map_or(0, |at| at as i64 + 1))
}

/// Counts the matches to replace.
pub(super) fn count_matches(text: &[u8], pattern: &[u8], work: &mut WorkMeter<'_>) -> Result<usize, RunStopped> {
    work.spend(text.len())?;
    Ok(memmem::find_iter(text, pattern).count())
}

/// Writes `text` with every match of `pattern` replaced to `out`, which has exactly the required length.
pub(super) fn replace_into(
    out: &mut [u8],
    text: &[u8],
    pattern: &[u8],
    replacement: &[u8],
    work: &mut WorkMeter<'_>,
) -> Result<(), RunStopped> {
    work.spend(out.len())?;
    let mut rest = out;
    let mut put = |bytes: &[u8]| {
        let (head, tail) = std::mem::take(&mut rest).split_at_mut(bytes.len());
        head.copy_from_slice(bytes);
        rest = tail;
    };
    let mut copied = 0;
    for at in memmem::find_iter(text, pattern) {
        put(&text[copied..at]);
        put(replacement);
        copied = at + pattern.len();
    }
    put(&text[copied..]);
    Ok(())
}

/// Writes texts with a separator between them to `out`, which has exactly the required length.
pub(super) fn join_into<'a>(
    out: &mut [u8],
    texts: impl Iterator<Item = &'a [u8]>,
    separator: &[u8],
    work: &mut WorkMeter<'_>,
) -> Result<(), RunStopped> {
    work.spend(out.len())?;
    let mut at = 0;
    for (number, text) in texts.enumerate() {
        for piece in [if number == 0 { b"" } else { separator }, text] {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    }
    Ok(())
}

/// The characters that a trim removes.
///
/// A character is defined as in SQLite: a leading byte and all continuation bytes after it, however many. If several
/// fit (only in broken UTF-8), the first in the set's order is used, as in SQLite.
pub(super) struct TrimSet<'a> {
    /// Single-byte characters; most sets have no others.
    single: [bool; 256],
    by_first: HashMap<u8, Vec<&'a [u8]>>,
    by_last: HashMap<u8, Vec<&'a [u8]>>,
}

impl<'a> TrimSet<'a> {
    pub(super) fn new(set: &'a [u8], work: &mut WorkMeter<'_>) -> Result<Self, RunStopped> {
        let mut this = Self { single: [false; 256], by_first: HashMap::new(), by_last: HashMap::new() };
        let mut known = HashSet::new();
        let mut rest = utf8::until_nul(set);
        while !rest.is_empty() {
            let (character, tail) = rest.split_at(utf8::character_len(rest));
            rest = tail;
            work.spend(character.len())?;
            let (first, last) = (character[0], character[character.len() - 1]);
            if first < 0x80 {
                this.single[usize::from(first)] = true;
            } else if known.insert(character) {
                this.by_first.entry(first).or_default().push(character);
                this.by_last.entry(last).or_default().push(character);
            }
        }
        Ok(this)
    }

    /// Returns the text without leading characters of the set.
    pub(super) fn trim_start<'t>(&self, mut text: &'t [u8], work: &mut WorkMeter<'_>) -> Result<&'t [u8], RunStopped> {
        while let Some(first) = text.first() {
            let candidates = self.by_first.get(first).map_or(&[][..], Vec::as_slice);
            work.spend(1 + candidates.len())?;
            if self.single[usize::from(*first)] {
                text = &text[1..];
            } else if let Some(character) = candidates.iter().find(|character| text.starts_with(character)) {
                text = &text[character.len()..];
            } else {
                break;
            }
        }
        Ok(text)
    }

    /// Returns the text without trailing characters of the set.
    pub(super) fn trim_end<'t>(&self, mut text: &'t [u8], work: &mut WorkMeter<'_>) -> Result<&'t [u8], RunStopped> {
        while let Some(last) = text.last() {
            let candidates = self.by_last.get(last).map_or(&[][..], Vec::as_slice);
            work.spend(1 + candidates.len())?;
            if self.single[usize::from(*last)] {
                text = &text[..text.len() - 1];
            } else if let Some(character) = candidates.iter().find(|character| text.ends_with(character)) {
                text = &text[..text.len() - character.len()];
            } else {
                break;
            }
        }
        Ok(text)
    }
}

/// Decodes hexadecimal digits, skipping characters of `ignored` between pairs; `None` for any other character.
pub(super) fn unhex(digits: &[u8], ignored: &[u8], work: &mut WorkMeter<'_>) -> Result<Option<Vec<u8>>, RunStopped> {
    let digits = utf8::until_nul(digits);
    let mut skipped = HashSet::new();
    let mut at = 0;
    while at < ignored.len() {
        let (character, next) = utf8::read(ignored, at);
        work.spend(next - at)?;
        skipped.insert(character);
        at = next;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 2);
    let mut at = 0;
    while at < digits.len() {
        work.spend(1)?;
        let Some(high) = digit(digits[at]) else {
            let (character, next) = utf8::read(digits, at);
            if !skipped.contains(&character) {
                return Ok(None);
            }
            at = next;
            continue;
        };
        let Some(low) = digits.get(at + 1).and_then(|byte| digit(*byte)) else { return Ok(None) };
        bytes.push(high << 4 | low);
        at += 2;
    }
    Ok(Some(bytes))
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}
