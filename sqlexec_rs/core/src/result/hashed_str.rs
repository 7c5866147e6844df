//! SQL texts as keys: hashed once, and compared where hashes agree.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::result::value::combine;

/// A text with its hash.
#[derive(Clone, Debug)]
pub struct Hashed<T> {
    hash: u64,
    /// The text.
    pub text: T,
}

impl<T: AsRef<str>> Hashed<T> {
    /// Hashes a text, in another way in each process: texts come from strangers, who must not know which ones collide.
    pub fn new(text: T) -> Self {
        static SEED: OnceLock<u64> = OnceLock::new();
        let seed = *SEED.get_or_init(|| RandomState::new().hash_one(0));
        Self { hash: xxh3_64_with_seed(text.as_ref().as_bytes(), seed), text }
    }

    /// Returns the hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Tells whether two are one text.
    pub fn is<U: AsRef<str>>(&self, other: &Hashed<U>) -> bool {
        self.hash == other.hash && self.text.as_ref() == other.text.as_ref()
    }

    /// Returns the same with a text that holds the same.
    pub fn with<U>(&self, text: U) -> Hashed<U> {
        Hashed { hash: self.hash, text }
    }
}

impl<T: AsRef<str>> PartialEq for Hashed<T> {
    fn eq(&self, other: &Self) -> bool {
        self.is(other)
    }
}

impl<T: AsRef<str>> Eq for Hashed<T> {}

impl<T> Hash for Hashed<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// A map whose keys are numbers, addresses and texts that are hashed already.
pub(crate) type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// Mixes numbers.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = combine(self.0, number);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
