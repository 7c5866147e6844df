//! Runs SQL that nobody has read on SQLite files, in parallel, read-only and under hard limits, and compares the results.
//!
//! A request goes `plan` (equal pairs share a run) → `cache` (run before, or in flight) → `queue` → a worker of the `pool`
//! → `exec` on a connection of the `sandbox`, watched by `deadline` → an [`Outcome`] with a typed [`Table`] → `compare` →
//! a [`Score`]. Bad SQL is data: it has a [`Status`]. Only a [`Fault`] of ours is an error. Nothing here knows Python.

mod cache;
mod classify;
pub mod compare;
mod connections;
mod dbfile;
pub mod deadline;
mod error;
mod exec;
mod functions;
mod hooks;
mod job;
mod meter;
mod outcome;
mod plan;
mod pool;
mod queue;
mod request;
mod sandbox;
mod scan;
mod score;
mod stats;
mod table;
mod value;

pub use compare::{Options, Rule};
pub use error::Fault;
pub use outcome::{Outcome, Status, Stop};
pub use pool::{Config, Job, Pool};
pub use request::{Caps, Limits};
pub use score::{GoldSource, Score, ScoreItem};
pub use table::{CELL_BYTES, Table};
pub use value::Value;

/// Returns the version of the SQLite that was compiled in.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}

/// Returns the options that SQLite says it was compiled with.
pub fn compile_options() -> Result<Vec<String>, Fault> {
    let read = || -> rusqlite::Result<Vec<String>> {
        let connection = rusqlite::Connection::open_in_memory()?;
        let mut statement = connection.prepare("PRAGMA compile_options")?;
        statement.query_map([], |row| row.get(0))?.collect()
    };
    read().map_err(|error| Fault::CannotStart(error.to_string()))
}
