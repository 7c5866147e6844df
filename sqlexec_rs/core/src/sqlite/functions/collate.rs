//! SQLite's collations NOCASE and RTRIM, which ask whether they may go on.
//!
//! A collation cannot fail. One that must stop calls all equal, at once, and the run ends as stopped whatever came of it.

use std::cmp::Ordering;

use super::work::{Stopped, Work};

/// Bytes that are compared at once.
const CHUNK: usize = 4 << 10;

/// Compares as NOCASE does: letters of ASCII without regard to case, up to the first NUL that both have in one place; then
/// the lengths count.
pub(super) fn without_case(a: &[u8], b: &[u8], work: &mut Work<'_>) -> Result<Ordering, Stopped> {
    let lengths = a.len().cmp(&b.len());
    for (a, b) in a.chunks(CHUNK).zip(b.chunks(CHUNK)) {
        let n = a.len().min(b.len());
        work.spend(n)?;
        for (a, b) in a.iter().zip(b) {
            let order = a.to_ascii_lowercase().cmp(&b.to_ascii_lowercase());
            if order.is_ne() {
                return Ok(order);
            }
            if *a == 0 {
                return Ok(lengths);
            }
        }
    }
    Ok(lengths)
}

/// Compares as RTRIM does: bytes, but for spaces at the end.
pub(super) fn without_end_spaces(a: &[u8], b: &[u8], work: &mut Work<'_>) -> Result<Ordering, Stopped> {
    let (a, b) = (trimmed(a, work)?, trimmed(b, work)?);
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

fn trimmed<'a>(text: &'a [u8], work: &mut Work<'_>) -> Result<&'a [u8], Stopped> {
    let n_spaces = text.iter().rev().take_while(|byte| **byte == b' ').count();
    work.spend(n_spaces)?;
    Ok(&text[..text.len() - n_spaces])
}
