//! SQL texts as keys: hashed once, and compared only if the hashes are equal.

use std::hash::{Hash, Hasher};

use crate::result::row_hash::hash_bytes;

/// A text with its hash.
#[derive(Clone, Debug)]
pub struct Hashed<T> {
    hash: u64,
    /// The text.
    pub text: T,
}

impl<T: AsRef<str>> Hashed<T> {
    /// Hashes a text with a per-process seed, because untrusted clients must not know which texts collide.
    pub fn new(text: T) -> Self {
        Self { hash: hash_bytes(text.as_ref().as_bytes()) as u64, text }
    }

    /// Returns the hash.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Returns whether both texts are equal.
    pub fn is<U: AsRef<str>>(&self, other: &Hashed<U>) -> bool {
        self.hash == other.hash && self.text.as_ref() == other.text.as_ref()
    }

    /// Returns the hash with another copy of the text.
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
