//! A result: typed cells in a table, their hashes, and their forms for people and for Arrow.

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
