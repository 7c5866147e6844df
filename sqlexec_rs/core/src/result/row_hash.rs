//! Hashes of rows, under keys that are drawn at random in each process and never leave it: who writes a query cannot know
//! which values would collide.
//!
//! Hashes of 128 bits (XXH3 under a random secret) decide that rows and tables are equal; those of 64 bits (foldhash) find
//! candidates in hash tables, whose equality decides.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;

use xxhash_rust::xxh3::xxh3_128_with_secret;

/// Bytes of a secret, of which XXH3 needs 136.
const SECRET_WORDS: usize = 24;

static SECRET: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let words = || RandomState::new().hash_one(0_u8).to_le_bytes();
    std::iter::repeat_with(words).take(SECRET_WORDS).flatten().collect()
});

static STATE: LazyLock<foldhash::fast::RandomState> = LazyLock::new(foldhash::fast::RandomState::default);

/// Hashes bytes.
#[inline]
pub(crate) fn hash_bytes(bytes: &[u8]) -> u128 {
    xxh3_128_with_secret(bytes, &SECRET)
}

/// Hashes what is to be found in a hash table.
#[inline]
pub(crate) fn hash_one(value: impl Hash) -> u64 {
    STATE.hash_one(value)
}
