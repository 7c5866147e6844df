//! Hashes of rows, with keys that are drawn at random in each process and never leave it, so that the author of a
//! query cannot construct collisions.
//!
//! 128-bit hashes (XXH3 with a random secret) decide whether rows and tables are equal. 64-bit hashes (foldhash) find
//! candidates in hash tables, where equality decides.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Words of a secret; XXH3 requires 136 bytes.
const SECRET_WORDS: usize = 24;

static SECRET: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let random_word = || RandomState::new().hash_one(0_u8).to_le_bytes();
    std::iter::repeat_with(random_word).take(SECRET_WORDS).flatten().collect()
});

static STATE: LazyLock<foldhash::fast::RandomState> = LazyLock::new(foldhash::fast::RandomState::default);

/// Hashes bytes.
#[inline]
pub(crate) fn hash_bytes(bytes: &[u8]) -> u128 {
    xxh3_128_with_secret(bytes, &SECRET)
}

/// Hashes a key of a hash table.
#[inline]
pub(crate) fn hash_one(value: impl Hash) -> u64 {
    STATE.hash_one(value)
}
