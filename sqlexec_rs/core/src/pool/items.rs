//! The items of a job in completion order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::compare::score::Score;
use crate::error::PoolError;
use crate::outcome::Outcome;
use crate::pool::Job;
use crate::pool::completion_log::{Callback, NextUnit};
use crate::pool::csr_groups::CsrGroups;

/// The next item for a reader of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextItem {
    /// The item with this number has finished.
    Item(usize),
    /// No item has finished within the timeout.
    TimedOut,
    /// Every item has been seen.
    End,
}

/// A reader's position in the completion order of a job's items.
///
/// A unit is one run: equal items share it and finish together, in batch order.
pub struct Items {
    job: Job,
    by_unit: CsrGroups,
    n_seen: usize,
    pending: VecDeque<u32>,
}

impl Items {
    /// Returns the next finished item, waiting at most `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Result<NextItem, PoolError> {
        self.job.shared.check_process()?;
        loop {
            if let Some(item) = self.pending.pop_front() {
                return Ok(NextItem::Item(item as usize));
            }
            match self.job.state.completions.wait_for_next(self.n_seen, timeout) {
                NextUnit::Nothing => return Ok(NextItem::TimedOut),
                NextUnit::End => return Ok(NextItem::End),
                NextUnit::Unit(unit) => {
                    self.n_seen += 1;
                    self.pending.extend(self.by_unit.of(unit as usize));
                }
            }
        }
    }

    /// Waits at most `timeout` until `next` can return.
    pub fn wait(&self, timeout: Duration) -> Result<(), PoolError> {
        self.job.shared.check_process()?;
        if self.pending.is_empty() {
            self.job.state.completions.wait_for_next(self.n_seen, timeout);
        }
        Ok(())
    }
}

impl Job {
    /// Returns a reader of the items in completion order.
    pub fn items(&self) -> Items {
        let (_, n_units) = self.state.completions.progress();
        let by_unit = CsrGroups::new(n_units, self.state.unit_of().iter().copied().zip(0..));
        let job = Self { state: Arc::clone(&self.state), shared: Arc::clone(&self.shared) };
        Items { job, by_unit, n_seen: 0, pending: VecDeque::new() }
    }

    /// Calls `callback` once when every item has finished: on the thread that finishes the last, or immediately if
    /// all have.
    ///
    /// That thread runs queries, so a callback must be short and must not wait for the pool.
    pub fn when_done(&self, callback: Callback) -> Result<(), PoolError> {
        self.shared.check_process()?;
        self.state.completions.when_all(callback);
        Ok(())
    }

    /// Returns the outcome of a finished item of an execute job.
    pub fn outcome(&self, item: usize) -> Result<Arc<Outcome>, PoolError> {
        self.state.outcome(item)
    }

    /// Returns the score of a finished item of a score job.
    pub fn score(&self, item: usize) -> Result<&Score, PoolError> {
        self.state.score(item)
    }
}
