//! Runs queries in this thread, on connections of its own: what a thread of the pool does, and what a worker process does.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::connections::Connections;
use crate::copies::Copies;
use crate::dbfile::Inode;
use crate::deadline::Control;
use crate::exec;
use crate::outcome::{Outcome, Status};
use crate::request::Limits;
use crate::stats::Stats;

/// A thread's connections, and what stops a run on them.
pub(crate) struct Local {
    connections: Connections,
    control: Arc<Control>,
}

impl Local {
    /// Starts without a connection; `cap` is the most that stay open.
    pub(crate) fn new(cap: usize, copies: &Arc<Copies>, stats: &Arc<Stats>) -> Self {
        let control = Arc::new(Control::default());
        let connections = Connections::new(cap, Arc::clone(copies), Arc::clone(&control), Arc::clone(stats));
        Self { connections, control }
    }

    /// Tells whether the database is open.
    pub(crate) fn holds(&self, path: &Path, inode: Inode) -> bool {
        self.connections.holds(path, inode)
    }

    /// Opens the database, if it is not open.
    pub(crate) fn open(&mut self, path: &Path, inode: Inode) {
        self.connections.open(path, inode);
    }

    /// Runs one SQL text.
    pub(crate) fn run(
        &mut self,
        path: &Path,
        inode: Inode,
        sql: &str,
        limits: &Limits,
        cancel: Option<Arc<AtomicBool>>,
    ) -> Outcome {
        let sandbox = match self.connections.get(path, inode) {
            Ok(sandbox) => sandbox,
            Err(outcome) => return *outcome,
        };
        let outcome = exec::run(sandbox, &self.control, sql, limits, cancel);
        if outcome.status == Status::DbError {
            self.connections.forget(path);
        }
        outcome
    }

    /// Starts anew after a panic.
    pub(crate) fn recover(&mut self) {
        self.connections.clear();
        self.control.disarm();
    }
}
