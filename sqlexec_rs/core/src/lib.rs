//! Runs untrusted SQL on SQLite files, in parallel, read-only and under hard limits, and compares the results.
//!
//! A request passes through `plan` (equal pairs share a run), `job_builder` (file identity), `cache` (finished or
//! in-flight runs), `queue`, a worker of the `pool`, and `exec` on a connection of the `sandbox`, watched by
//! `deadline`. The result is an [`Outcome`] with a typed [`Table`]; `compare` turns it into a [`Score`]. With a
//! [`WorkerConfig`], the steps before the outcome run in a `process` per worker. Bad SQL is data and has a
//! [`Status`]; only a [`PoolError`] is an error. This crate does not depend on Python.
//!
//! # Running
//!
//! ```
//! use std::{path::Path, sync::Arc, time::Duration};
//! use sqlexec_core::{Config, Limits, Pool, Status, Value};
//!
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("shop.sqlite");
//! # rusqlite::Connection::open(&file)?.execute_batch(
//! #     "CREATE TABLE item(name TEXT, price REAL); INSERT INTO item VALUES ('nail', 0.5), ('saw', 12)")?;
//! let pool = Pool::new(&Config { threads: Some(2), ..Config::default() })?;
//! let database: Arc<Path> = file.into();
//! let limits = Arc::new(Limits { timeout: Some(Duration::from_secs(5)), ..Limits::default() });
//!
//! let sql = ["SELECT name FROM item ORDER BY price", "SELECT nmae FROM item", "DELETE FROM item"];
//! let pairs: Vec<_> = sql.map(|sql| (Arc::clone(&database), Arc::from(sql))).into();
//! let job = pool.submit(&pairs, &limits)?; // returns at once
//! assert!(job.wait(Duration::from_secs(60))?);
//!
//! let outcomes = job.outcomes()?;
//! let table = outcomes[0].table.as_ref().expect("it ran");
//! assert!(matches!(table.value(0, 0), Value::Text(b"nail")));
//! assert_eq!(outcomes[1].status, Status::SchemaError);
//! assert_eq!(outcomes[1].hint.as_deref(), Some("Did you mean item.name?"));
//! assert_eq!(outcomes[2].status, Status::Forbidden);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Scoring
//!
//! ```
//! # use std::{path::Path, sync::Arc, time::Duration};
//! use sqlexec_core::{Config, GoldSource, Limits, Options, Pool, Rule, ScoreItem};
//!
//! # let folder = tempfile::tempdir()?;
//! # let file = folder.path().join("shop.sqlite");
//! # rusqlite::Connection::open(&file)?.execute_batch("CREATE TABLE item(name TEXT); INSERT INTO item VALUES ('nail')")?;
//! # let database: Arc<Path> = file.into();
//! let pool = Pool::new(&Config::default())?;
//! let item = ScoreItem {
//!     databases: [database].into(),
//!     predicted: "SELECT count(*) FROM item".into(),
//!     golds: [GoldSource::Sql("SELECT count(name) FROM item".into())].into(),
//!     options: Arc::new(Options::default()),
//! };
//! let job = pool.submit_score(&[item], &[Rule::Bird, Rule::Qatch], &Arc::new(Limits::default()))?;
//! assert!(job.wait(Duration::from_secs(60))?);
//! assert_eq!(job.scores()?[0].values, [1.0, 1.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(not(unix))]
compile_error!(
    "sqlexec_core needs Unix: it identifies files by device and inode, and manages workers by process id and signal"
);

mod abandoned_sessions;
mod budget;
pub mod compare;
mod error;
mod excess;
mod hint;
mod locks;
mod memory;
mod outcome;
mod pool;
mod process;
mod request;
mod result;
mod scan;
mod server;
mod sqlite;
mod stats;
mod target;

pub use compare::score::{GoldSource, Score, ScoreItem};
pub use compare::{Options, Rule};
pub use error::PoolError;
pub use memory::{OutOfMemory, catch as catch_out_of_memory, check_room};
pub use outcome::{Outcome, Status, Stop};
pub use pool::batches::Batches;
pub use pool::items::{Items, NextItem};
pub use pool::job_builder::JobBuilder;
pub use pool::{Config, Job, Observer, Pool};
pub use process::{
    ForeignEngine, Rows, WorkerConfig, outcome_from_bytes, outcome_to_bytes, serve_foreign, worker_main,
};
pub use request::{Limits, OutputKind, ParameterValue, Parameters, Query, StatementLimits};
pub use result::arrow::to_arrow;
pub use result::hashed_str;
pub use result::table::{CELL_BYTES, Table};
pub use result::value::Value;
pub use scan::HALF_PAIR;
pub use server::Url;
pub use sqlite::deadline;
pub use sqlite::hidden::HiddenColumn;
pub use sqlite::hooks::options::{check_options, compile_options};
pub use sqlite::in_memory_dbs::Access;
pub use sqlite::versions::EARLIEST as EARLIEST_SQLITE;
pub use target::setting_query;

/// Returns the version of the bundled SQLite.
pub fn sqlite_version() -> &'static str {
    rusqlite::version()
}
