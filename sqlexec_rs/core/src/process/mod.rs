//! Runs queries in worker processes: a run that no handler can stop is killed, and a crash affects no other run.
//!
//! Each thread of the pool owns one process (`remote`). It sends queries over a socket (`channel`, with the formats
//! of `wire` and `cells`) and waits for each reply with its own clock. If runs are quick, queries are sent ahead of
//! time (`prefetch`). The process (`worker`) runs queries exactly like a thread. It is a separate program, never a fork
//! of the caller, so it shares no memory, locks or threads with the caller.

mod cells;
mod channel;
mod foreign;
mod prefetch;
mod remote;
mod restrictions;
mod wire;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use foreign::{ForeignEngine, Rows, serve_foreign};
pub(crate) use prefetch::{NoSource, Source};
pub(crate) use remote::RemoteRunner;
pub use wire::{outcome_from_bytes, outcome_to_bytes};
pub use worker::worker_main;

/// How worker processes are started, and when they are killed.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The program `sqlexec-worker` of this build, or an interpreter that loads it.
    pub program: PathBuf,
    /// Its first arguments: for an interpreter, the program to run.
    pub arguments: Vec<OsString>,
    /// How long a run may exceed its wall time before its process is killed. Within this time the worker's own
    /// handlers stop almost everything.
    pub grace: Duration,
    /// How long a process may be silent when no wall time applies (a run without one, opening a database, sending
    /// rows) before it is killed as hung; `None` for no limit.
    pub hang: Option<Duration>,
    /// Maximum address space of a process, in bytes.
    pub memory_bytes: u64,
}

impl WorkerConfig {
    /// Creates the default configuration: 25 ms of grace, one minute until hung, 2 GiB.
    pub fn new(program: PathBuf) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            grace: Duration::from_millis(25),
            hang: Some(Duration::from_secs(60)),
            memory_bytes: 2 << 30,
        }
    }
}
