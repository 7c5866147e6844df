//! A table as Arrow columns, and their form in the Arrow C data interface, which any Arrow library imports.
//!
//! SQLite types cells, Arrow columns, so a column's type follows from the kinds of its cells, NULL aside:
//!
//! | cells of the column | Arrow type | value of a cell |
//! |---|---|---|
//! | none | `null` | |
//! | integers | `int64` | |
//! | reals, or reals and integers | `float64` | `CAST(x AS REAL)` |
//! | text, or text and numbers | `large_utf8` | `CAST(x AS TEXT)` |
//! | blobs, blobs and others, text that is not UTF-8 | `large_binary` | `CAST(x AS BLOB)` |

mod columns;
mod ffi;

pub use columns::{Bytes, Column, Data, columns};
pub use ffi::{ArrowArray, ArrowArrayStream, ArrowSchema};
