//! Results: typed cells in a table, their hashes, and their rendering as text and as Arrow data.

pub mod arrow;
pub mod cell;
pub mod hashed_str;
pub mod header;
pub mod index;
pub mod pretty;
pub mod row_hash;
pub mod table;
pub mod table_arena;
pub mod value;
