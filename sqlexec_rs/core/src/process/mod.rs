//! Runs in worker processes: what no handler can stop is killed, and what dies takes nobody with it.
//!
//! A thread of the pool owns one process (`remote`), asks it queries over a socket (`channel`, in the bytes of `wire` and
//! `cells`), and waits for each answer with its own clock; where runs are quick it asks some before their turn (`ahead`). The
//! process (`worker`) runs queries exactly as a thread would.
//! It is a program of its own, never a fork of the caller, so nothing of the caller's memory, locks or threads is in it.

mod ahead;
mod cells;
mod channel;
mod foreign;
mod remote;
mod walls;
mod wire;
mod worker;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use ahead::{NoSource, Source};
pub use foreign::{ForeignEngine, Rows, serve_foreign};
pub(crate) use remote::RemoteRunner;
pub use wire::{outcome_from_bytes, outcome_to_bytes};
pub use worker::worker_main;

/// How worker processes are made and when they are killed.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The program `sqlexec-worker` of this very build, or an interpreter that loads it.
    pub program: PathBuf,
    /// What it is told before all else: an interpreter, what to run.
    pub arguments: Vec<OsString>,
    /// What a run may take beyond its wall time before its process is killed: the time in which the worker's own handlers
    /// stop almost everything.
    pub grace: Duration,
    /// After how long a process that has no wall time to keep to (a run without one, opening a database, sending rows)
    /// counts as hung and is killed; `None` is never.
    pub hang: Option<Duration>,
    /// Address space that a process may take.
    pub memory_bytes: u64,
}

impl WorkerConfig {
    /// Takes the defaults: 25 ms of grace, hung after a minute, 2 GiB.
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
