//! Where a thread of the pool runs its queries: here, or in a worker process that it owns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::error::Fault;
use crate::outcome::Outcome;
use crate::process::{Remote, WorkerConfig};
use crate::request::InFlightQuery;
use crate::result::table_arena;
use crate::sqlite::in_memory_dbs::InMemoryDbs;
use crate::sqlite::local::Local;
use crate::stats::Stats;

/// The one or the other.
#[allow(clippy::large_enum_variant, reason = "there is one a thread, and it stays where it is")]
pub(crate) enum Runner {
    Thread(Local),
    Process(Remote),
}

impl Runner {
    /// Makes the runner of a thread; a worker process starts with its first query.
    pub(crate) fn new(
        worker: Option<&WorkerConfig>,
        cap: usize,
        copies: &Arc<InMemoryDbs>,
        stats: &Arc<Stats>,
    ) -> Result<Self, Fault> {
        Ok(match worker {
            None => Self::Thread(Local::new(cap, copies, stats)),
            Some(worker) => Self::Process(Remote::new(worker, cap, copies.access(), stats)?),
        })
    }

    /// Runs a query; `more_wait` tells that others are to follow. A panic of ours is a fault, after which everything is
    /// opened anew.
    pub(crate) fn run(&mut self, query: &InFlightQuery, more_wait: bool) -> Result<Outcome, Fault> {
        let run = || match self {
            Self::Thread(local) => Ok(local.run_in_burst(query, more_wait)),
            Self::Process(remote) => remote.run(query),
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            match self {
                Self::Thread(local) => local.recover(),
                Self::Process(remote) => remote.recover(),
            }
            Err(Fault::of_panic(panic.as_ref()))
        })
    }

    /// Gives back what is kept from one query to the next, as there is none at the moment.
    pub(crate) fn park(&mut self) {
        if let Self::Thread(local) = self {
            local.release();
            table_arena::release();
        }
    }

    /// Does what can wait until the outcome is delivered.
    pub(crate) fn prune(&mut self) {
        if let Self::Process(remote) = self {
            remote.prune();
        }
    }
}
