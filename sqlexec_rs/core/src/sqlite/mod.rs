//! The SQLite engine: files and their identity, the sandbox, hooks and bounds, and single runs on a connection.

pub mod busy;
pub mod classify;
pub mod connections;
pub mod dbfile;
pub mod deadline;
pub mod exec;
pub mod functions;
pub mod hidden;
mod hidden_text;
pub mod hooks;
pub mod in_memory_dbs;
pub mod inode;
pub mod local;
pub mod meter;
pub mod sandbox;
pub mod side_files;
pub mod statement_record;
pub mod versions;
