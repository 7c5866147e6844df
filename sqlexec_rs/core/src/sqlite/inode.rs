//! Identity of the file that a path leads to.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(u64, u64);

impl Inode {
    /// Returns the inode of a file's metadata.
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self(metadata.dev(), metadata.ino())
    }
}
