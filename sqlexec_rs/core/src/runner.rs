//! Where a thread of the pool runs its queries: here, or in a worker process that it owns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::cache::Flight;
use crate::copies::Copies;
use crate::error::Fault;
use crate::local::Local;
use crate::outcome::Outcome;
use crate::process::{Remote, WorkerConfig};
use crate::stats::Stats;

/// The one or the other.
pub(crate) enum Runner {
    Thread(Local),
    Process(Remote),
}

impl Runner {
    /// Makes the runner of a thread; a worker process starts with its first query.
    pub(crate) fn new(
        worker: Option<&WorkerConfig>,
        cap: usize,
        copies: &Arc<Copies>,
        stats: &Arc<Stats>,
    ) -> Result<Self, Fault> {
        Ok(match worker {
            None => Self::Thread(Local::new(cap, copies, stats)),
            Some(worker) => Self::Process(Remote::new(worker, cap, copies.access(), stats)?),
        })
    }

    /// Runs a query. A panic of ours is a fault, after which everything is opened anew.
    pub(crate) fn run(&mut self, flight: &Flight) -> Result<Outcome, Fault> {
        let run = || match self {
            Self::Thread(local) => {
                let cancel = Some(Arc::clone(&flight.cancel));
                Ok(local.run(&flight.path, flight.inode, &flight.key.sql, &flight.limits, cancel))
            }
            Self::Process(remote) => remote.run(flight),
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            match self {
                Self::Thread(local) => local.recover(),
                Self::Process(remote) => remote.recover(),
            }
            Err(Fault::of_panic(panic.as_ref()))
        })
    }

    /// Does what can wait until the outcome is delivered.
    pub(crate) fn tidy(&mut self) {
        if let Self::Process(remote) = self {
            remote.tidy();
        }
    }
}
