//! SQLite's collations NOCASE and RTRIM, with checks of the run's bounds.
//!
//! A collation cannot fail. After a stop it returns "equal" immediately, and the run ends as stopped whatever its
//! result.

use std::cmp::Ordering;

use super::work::{RunStopped, WorkMeter};

/// Bytes that are compared between two checks.
const CHUNK: usize = 4 << 10;

/// Lower-case ASCII letters.
static SMALL: [u8; 256] = {
    let mut small = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        small[byte] = (byte as u8).to_ascii_lowercase();
        byte += 1;
    }
    small
};

/// Compares like NOCASE: ignores the case of ASCII letters, up to the first NUL at the same position in both; then
/// the lengths decide.
#[inline]
pub(super) fn without_case(a: &[u8], b: &[u8], work: &mut WorkMeter<'_>) -> Result<Ordering, RunStopped> {
    let lengths = a.len().cmp(&b.len());
    if a.len().min(b.len()) <= CHUNK {
        return Ok(chunk_without_case(a, b, lengths).unwrap_or(lengths));
    }
    for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
        work.spend(a.len().min(b.len()))?;
        if let Some(order) = chunk_without_case(a, b, lengths) {
            return Ok(order);
        }
    }
    Ok(lengths)
}

/// Compares the common length; `None` if it is equal and contains no NUL.
#[inline]
fn chunk_without_case(a: &[u8], b: &[u8], lengths: Ordering) -> Option<Ordering> {
    for (a, b) in a.iter().zip(b) {
        if a == b {
            if *a == 0 {
                return Some(lengths);
            }
        } else {
            let (a, b) = (SMALL[usize::from(*a)], SMALL[usize::from(*b)]);
            if a != b {
                return Some(a.cmp(&b));
            }
        }
    }
    None
}

/// Compares like RTRIM: by bytes, ignoring trailing spaces.
#[inline]
pub(super) fn without_end_spaces(a: &[u8], b: &[u8], work: &mut WorkMeter<'_>) -> Result<Ordering, RunStopped> {
    let (a, b) = (trimmed(a, work)?, trimmed(b, work)?);
    if a.len().min(b.len()) <= CHUNK {
        return Ok(a.cmp(b));
    }
    for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
        let n = a.len().min(b.len());
        work.spend(n)?;
        let order = a[..n].cmp(&b[..n]);
        if order.is_ne() {
            return Ok(order);
        }
    }
    Ok(a.len().cmp(&b.len()))
}

#[inline]
fn trimmed<'a>(text: &'a [u8], work: &mut WorkMeter<'_>) -> Result<&'a [u8], RunStopped> {
    let n_spaces = text.iter().rev().take_while(|byte| **byte == b' ').count();
    work.spend(n_spaces)?;
    Ok(&text[..text.len() - n_spaces])
}
