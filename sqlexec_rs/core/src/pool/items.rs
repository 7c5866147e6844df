//! The items of a job in the order in which they end.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::compare::score::Score;
use crate::error::Fault;
use crate::outcome::Outcome;
use crate::pool::Job;
use crate::pool::completion_log::{Callback, NextUnit};
use crate::pool::csr_groups::CsrGroups;

/// What a reader of a job's items finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextItem {
    /// The item with this number has ended.
    Item(usize),
    /// None has ended within the time given.
    TimedOut,
    /// Every item has been seen.
    End,
}

/// One reader's place in the items of a job.
///
/// Equal items share a run and end together; of those the first in the batch is seen first.
pub struct Items {
    job: Job,
    by_unit: CsrGroups,
    n_seen: usize,
    pending: VecDeque<u32>,
}

impl Items {
    /// Returns the next item that has ended, waiting for it at most `timeout`.
    pub fn next(&mut self, timeout: Duration) -> Result<NextItem, Fault> {
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

    /// Waits at most `timeout` until `next` has something to return.
    pub fn wait(&self, timeout: Duration) -> Result<(), Fault> {
        self.job.shared.check_process()?;
        if self.pending.is_empty() {
            self.job.state.completions.wait_for_next(self.n_seen, timeout);
        }
        Ok(())
    }
}

impl Job {
    /// Starts to read the items in the order in which they end.
    pub fn items(&self) -> Items {
        let (_, n_units) = self.state.completions.progress();
        let by_unit = CsrGroups::new(n_units, self.state.unit_of().iter().copied().zip(0..));
        let job = Self { state: Arc::clone(&self.state), shared: Arc::clone(&self.shared) };
        Items { job, by_unit, n_seen: 0, pending: VecDeque::new() }
    }

    /// Calls `callback` once when every item has ended: on the thread that ends the last, or here and now if all have.
    ///
    /// That thread runs queries, so a callback should be short, and must not wait for the pool.
    pub fn when_done(&self, callback: Callback) -> Result<(), Fault> {
        self.shared.check_process()?;
        self.state.completions.when_all(callback);
        Ok(())
    }

    /// Returns the outcome of one item of an execute job, once it has ended.
    pub fn outcome(&self, item: usize) -> Result<Arc<Outcome>, Fault> {
        self.state.outcome(item)
    }

    /// Returns the score of one item of a score job, once it has ended.
    pub fn score(&self, item: usize) -> Result<&Score, Fault> {
        self.state.score(item)
    }
}
