//! The module's allocator: mimalloc for small allocations, the system's for large ones.
//!
//! Most objects of a batch are allocated by the caller's thread and freed by the threads that run its queries. The
//! system's allocator is slow at that, and took a seventh of the time of lookups by key. Results and sorts use large
//! allocations, which the system's allocator resizes without copying; mimalloc would return their pages and request
//! new ones for each query.

#![allow(unsafe_code, reason = "the allocator trait is unsafe; each method passes on its arguments")]

use std::alloc::{GlobalAlloc, Layout, System};

use mimalloc::MiMalloc;

/// Minimum size of an allocation that the system's allocator handles.
const LARGE: usize = 16 << 10;

pub(crate) struct Allocator;

fn is_large(bytes: usize) -> bool {
    bytes >= LARGE
}

// SAFETY: both allocators fulfil the contract, and an allocation returns to its own allocator, which follows from the
// size in its layout.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise about the layout.
        unsafe { if is_large(layout.size()) { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { if is_large(layout.size()) { System.alloc_zeroed(layout) } else { MiMalloc.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        // SAFETY: an allocation of this layout came from the allocator for its size.
        unsafe { if is_large(layout.size()) { System.dealloc(piece, layout) } else { MiMalloc.dealloc(piece, layout) } }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above. An allocation that changes allocators is copied: both are at least as large as the
        // smaller of the two sizes, and the new layout is valid by the caller's promise about `bytes` and the old
        // alignment.
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
