//! SQLite's collations NOCASE and RTRIM, which ask whether they may go on.
//!
//! A collation cannot fail. One that must stop calls all equal, at once, and the run ends as stopped whatever came of it.

use std::cmp::Ordering;

use super::work::{RunStopped, WorkMeter};

/// Bytes that are compared at once.
const CHUNK: usize = 4 << 10;

/// Letters of ASCII as small ones.
static SMALL: [u8; 256] = {
    let mut small = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        small[byte] = (byte as u8).to_ascii_lowercase();
        byte += 1;
    }
    small
};

/// Compares as NOCASE does: letters of ASCII without regard to case, up to the first NUL that both have in one place; then
/// the lengths count.
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

/// Compares what both have; `None` where that is the same and holds no NUL.
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

/// Compares as RTRIM does: bytes, but for spaces at the end.
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
