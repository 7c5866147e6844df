//! Rows as numbers of 128 bits, which equal rows share and others do not; and all rows of a table as one such number.
//!
//! A state of two words takes in sixteen bytes by one multiplication of 64 by 64 bits, whose product of 128 bits goes back into
//! the state whole. The first state is drawn at random in each process, and what is computed never leaves it: who writes a query cannot
//! know which values would collide. Two rows that differ collide with a chance of about 2^-63 (two products of four words
//! are equal), whatever they hold; what then follows depends on all bits of both words.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;

/// What of a row has been taken in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mix {
    a: u64,
    b: u64,
}

impl Mix {
    /// Starts a row.
    pub(crate) fn new() -> Self {
        static FIRST: OnceLock<Mix> = OnceLock::new();
        *FIRST.get_or_init(|| {
            let draw = RandomState::new();
            Self { a: draw.hash_one(0), b: draw.hash_one(1) }
        })
    }

    /// Takes in two words.
    #[inline]
    pub(crate) fn take(&mut self, words: [u64; 2]) {
        let product = u128::from(self.a ^ words[0]) * u128::from(self.b ^ words[1]);
        self.b = self.b.wrapping_add((product >> 64) as u64);
        self.a = product as u64 ^ self.b;
    }

    /// Takes in at least eight bytes, but not their number.
    pub(crate) fn take_bytes(&mut self, bytes: &[u8]) {
        let (chunks, rest) = bytes.as_chunks::<16>();
        for chunk in chunks {
            self.take(words(*chunk));
        }
        if rest.is_empty() {
            return;
        }
        // What overlaps with what was there before does no harm.
        match (bytes.last_chunk::<16>(), bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            (Some(last), ..) => self.take(words(*last)),
            (None, Some(first), Some(last)) => self.take([u64::from_le_bytes(*first), u64::from_le_bytes(*last)]),
            _ => debug_assert!(false, "short bytes are held in a cell"),
        }
    }

    /// Ends the row. Without this round the sums over different lists of numbers would be equal where the numbers' are.
    #[inline]
    pub(crate) fn end(mut self) -> u128 {
        self.take([0, 0]);
        u128::from(self.a) | (u128::from(self.b) << 64)
    }
}

#[inline]
fn words(bytes: [u8; 16]) -> [u64; 2] {
    let whole = u128::from_le_bytes(bytes);
    [whole as u64, (whole >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn of(words: &[[u64; 2]]) -> u128 {
        let mut mix = Mix::new();
        for pair in words {
            mix.take(*pair);
        }
        mix.end()
    }

    #[test]
    fn every_bit_of_every_word_counts() {
        let plain = [[1, 5], [1, 6], [3, 7]];
        let mut seen = HashSet::from([of(&plain), of(&plain[..2]), of(&[plain[1], plain[0], plain[2]])]);
        for at in 0..3 {
            for half in 0..2 {
                for bit in 0..64 {
                    let mut other = plain;
                    other[at][half] ^= 1 << bit;
                    let (before, now) = (of(&plain), of(&other));
                    let n_changed = (before ^ now).count_ones();
                    assert!((30..98).contains(&n_changed), "{n_changed} of 128 bits changed");
                    assert!(seen.insert(now));
                }
            }
        }
    }

    #[test]
    fn sums_tell_lists_apart_whose_numbers_have_equal_sums() {
        let sum = |numbers: [u64; 2]| numbers.iter().fold(0, |sum: u128, n| sum.wrapping_add(of(&[[1, *n]])));
        for n in 0..1_000 {
            assert_ne!(sum([n, n ^ 3]), sum([n ^ 1, n ^ 2]));
            assert_ne!(sum([n, n + 3]), sum([n + 1, n + 2]));
        }
    }

    #[test]
    fn bytes_of_every_length_are_told_apart() {
        let all: Vec<u8> = (0..100).collect();
        let mut seen = HashSet::new();
        for n in 8..100 {
            for changed in 0..n {
                let mut bytes = all[..n].to_vec();
                bytes[changed] = 255;
                let mut mix = Mix::new();
                mix.take([n as u64, 0]);
                mix.take_bytes(&bytes);
                assert!(seen.insert(mix.end()), "byte {changed} of {n}");
            }
        }
    }
}
