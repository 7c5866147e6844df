//! The module's allocator: mimalloc's for what is small, the system's for what is large.
//!
//! Most of what a batch is made of is allocated by the caller's thread and freed by those that run its queries. The system's
//! allocator is slow at that, and was a seventh of the time of look-ups by key. Results and sorts take large pieces, which
//! the system's resizes without copying; mimalloc would give their pages back and take them anew for each query.

#![allow(unsafe_code, reason = "the trait of allocators is unsafe; each method hands on what it was given")]

use std::alloc::{GlobalAlloc, Layout, System};

use mimalloc::MiMalloc;

/// Pieces from this size on are the system's.
const LARGE: usize = 16 << 10;

pub(crate) struct Allocator;

fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

// SAFETY: both allocators keep the contract, and a piece goes back to the one that it came from: which one that is
// follows from its size, which the layout tells at every call.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's own promise about the layout.
        unsafe { if is_large(layout.size()) { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { if is_large(layout.size()) { System.alloc_zeroed(layout) } else { MiMalloc.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: a piece of this layout came from the allocator that its size tells.
        unsafe { if is_large(layout.size()) { System.dealloc(piece, layout) } else { MiMalloc.dealloc(piece, layout) } }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above. A piece that changes sides is copied: both pieces hold the smaller of the two sizes, and the new
        // layout is valid, as the caller promises of `bytes` and the old alignment.
        unsafe {
            match (is_large(layout.size()), is_large(bytes)) {
                (true, true) => System.realloc(piece, layout, bytes),
                (false, false) => MiMalloc.realloc(piece, layout, bytes),
                _ => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(bytes, layout.align()));
                    if !moved.is_null() {
                        piece.copy_to_nonoverlapping(moved, layout.size().min(bytes));
                        self.dealloc(piece, layout);
                    }
                    moved
                }
            }
        }
    }
}
