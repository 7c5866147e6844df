//! Chooses the queries to send to a worker process ahead of time, so that neither side waits between short runs.
//!
//! Queries are sent ahead only if all recent runs were on the same database and quick, and if enough remain for the
//! other threads. Answers arrive in request order. Once a run is slow, the queries behind it return to the queue for
//! other threads, and their answers are discarded. Since that wastes work, each occurrence doubles the number of
//! quick runs required before sending ahead again. A long period without one halves it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::outcome::Outcome;
use crate::request::{InFlightQuery, Limits};

/// Maximum number of queries that a worker holds at a time.
const MAX_HELD: usize = 16;

/// Number of consecutive quick runs before queries are sent ahead: initially, and at most.
const QUICK_RUNS: u32 = 8;
const MAX_QUICK_RUNS: u32 = 4_096;

/// Maximum duration of a quick run. Its result must also be small.
pub(super) const QUICK: Duration = Duration::from_micros(300);
const SMALL_BYTES: usize = 4 << 10;

/// Maximum bytes of a SQL text that is sent ahead.
const SHORT_TEXT: usize = 2 << 10;

/// Supplies a thread with queries. Each query that is taken must be run or returned.
pub(crate) trait Source {
    /// Takes the next query if it is on this database state and at least `n_more` others follow.
    fn take(&mut self, db: u32, n_more: usize) -> Option<Arc<InFlightQuery>>;

    /// Returns queries to the front of the queue.
    fn return_queries(&mut self, queries: VecDeque<Arc<InFlightQuery>>);
}

/// A source without queries.
pub(crate) struct NoSource;

impl Source for NoSource {
    fn take(&mut self, _: u32, _: usize) -> Option<Arc<InFlightQuery>> {
        None
    }

    fn return_queries(&mut self, _: VecDeque<Arc<InFlightQuery>>) {}
}

/// The queries that were taken ahead of time, in execution order.
pub(super) struct PrefetchedQueries {
    taken: VecDeque<Arc<InFlightQuery>>,
    /// How many of them, from the front, the worker already has.
    n_sent: usize,
    /// Limits of earlier requests whose answers will be discarded.
    unwanted: VecDeque<Arc<Limits>>,
    /// Number of consecutive quick runs, and their database.
    n_quick: u32,
    db: u32,
    /// Number of quick runs required before sending ahead.
    n_needed: u32,
}

impl Default for PrefetchedQueries {
    fn default() -> Self {
        let (taken, unwanted) = (VecDeque::new(), VecDeque::new());
        Self { taken, n_sent: 0, unwanted, n_quick: 0, db: 0, n_needed: QUICK_RUNS }
    }
}

impl PrefetchedQueries {
    /// Returns the next query, and whether the worker already has it.
    pub(super) fn next(&mut self) -> Option<(Arc<InFlightQuery>, bool)> {
        let query = self.taken.pop_front()?;
        let is_sent = self.n_sent > 0;
        self.n_sent = self.n_sent.saturating_sub(1);
        Some((query, is_sent))
    }

    /// Takes queries that are worth sending ahead after one on this database, and counts them as sent.
    pub(super) fn take(&mut self, db: u32, source: &mut dyn Source) -> impl Iterator<Item = &Arc<InFlightQuery>> {
        if db != self.db {
            (self.n_quick, self.db) = (0, db);
        }
        let has_room = self.n_quick >= self.n_needed && self.taken.len() <= MAX_HELD / 2 && self.unwanted.is_empty();
        while has_room
            && self.taken.len() < MAX_HELD
            && let Some(query) = source.take(db, MAX_HELD)
        {
            self.taken.push_back(query);
        }
        // While a worker sends a result it reads nothing, so requests must fit the socket's buffer.
        let is_short =
            |query: &&Arc<InFlightQuery>| query.key.sql.text.len() <= SHORT_TEXT && query.key.parameters.is_none();
        let n_short = if has_room { self.taken.iter().skip(self.n_sent).take_while(is_short).count() } else { 0 };
        let n_before = self.n_sent;
        self.n_sent += n_short;
        self.taken.iter().skip(n_before).take(n_short)
    }

    /// Returns whether the worker has further queries, so that its death may be caused by one of them.
    pub(super) fn has_others(&self) -> bool {
        self.n_sent > 0 || !self.unwanted.is_empty()
    }

    /// Returns all queries to the queue because the current run is slow.
    pub(super) fn return_queries(&mut self, source: &mut dyn Source) {
        if self.taken.is_empty() {
            return;
        }
        (self.n_quick, self.n_needed) = (0, (self.n_needed * 2).min(MAX_QUICK_RUNS));
        self.unwanted.extend(self.taken.iter().take(self.n_sent).map(|query| Arc::clone(&query.limits)));
        self.n_sent = 0;
        source.return_queries(std::mem::take(&mut self.taken));
    }

    /// Returns the limits of the next answer if it must be discarded.
    pub(super) fn take_discarded(&mut self) -> Option<Arc<Limits>> {
        self.unwanted.pop_front()
    }

    /// Updates the statistics with an outcome.
    pub(super) fn record(&mut self, outcome: &Outcome) {
        let is_small = outcome.table.as_ref().is_none_or(|table| table.bytes() <= SMALL_BYTES);
        self.n_quick = if outcome.elapsed <= QUICK && is_small { self.n_quick + 1 } else { 0 };
        if self.n_quick > 4 * self.n_needed {
            self.n_needed = (self.n_needed / 2).max(QUICK_RUNS);
            self.n_quick = self.n_needed;
        }
    }

    /// Resets the state after the worker is lost.
    pub(super) fn reset(&mut self) {
        (self.n_sent, self.n_quick) = (0, 0);
        self.unwanted.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Status;
    use crate::request::{Parameters, RunKey, tests};

    /// Queries on database 1.
    #[derive(Default)]
    struct Queries(VecDeque<Arc<InFlightQuery>>);

    impl Source for Queries {
        fn take(&mut self, db: u32, n_more: usize) -> Option<Arc<InFlightQuery>> {
            if db == 1 && self.0.len() > n_more { self.0.pop_front() } else { None }
        }

        fn return_queries(&mut self, mut queries: VecDeque<Arc<InFlightQuery>>) {
            queries.append(&mut self.0);
            self.0 = queries;
        }
    }

    impl Queries {
        fn new(n: usize) -> Self {
            Self((0..n).map(|i| query(&format!("SELECT {i}"), None)).collect())
        }
    }

    fn query(sql: &str, parameters: Option<Arc<Parameters>>) -> Arc<InFlightQuery> {
        let query = tests::query(sql, 1);
        Arc::new(InFlightQuery { key: RunKey { parameters, ..query.key.clone() }, ..query })
    }

    fn take_texts(prefetched: &mut PrefetchedQueries, db: u32, source: &mut Queries) -> Vec<String> {
        prefetched.take(db, source).map(|query| query.key.sql.text.to_string()).collect()
    }

    fn record(prefetched: &mut PrefetchedQueries, micros: u64, n: u32) {
        let outcome = Outcome { elapsed: Duration::from_micros(micros), ..Outcome::failed(Status::NoSql, "") };
        (0..n).for_each(|_| prefetched.record(&outcome));
    }

    #[test]
    fn nothing_is_taken_until_runs_on_the_database_are_quick() {
        let (mut prefetched, mut source) = (PrefetchedQueries::default(), Queries::new(100));
        for (db, micros, n) in [(1, 1, QUICK_RUNS - 1), (1, 1_000, 1), (1, 1, QUICK_RUNS), (2, 1, QUICK_RUNS)] {
            assert!(take_texts(&mut prefetched, db, &mut source).is_empty());
            record(&mut prefetched, micros, n);
        }
        assert!(take_texts(&mut prefetched, 2, &mut source).is_empty(), "no quick runs on database 2");
        assert!(take_texts(&mut prefetched, 1, &mut source).is_empty(), "no statistics after a change of database");
        record(&mut prefetched, 1, QUICK_RUNS);
        assert_eq!(take_texts(&mut prefetched, 1, &mut source).len(), MAX_HELD);
        assert_eq!(source.0.len(), 100 - MAX_HELD);
    }

    #[test]
    fn queries_keep_their_order_and_are_sent_once() {
        let (mut prefetched, mut source) = (PrefetchedQueries::default(), Queries::new(100));
        take_texts(&mut prefetched, 1, &mut source);
        record(&mut prefetched, 1, QUICK_RUNS);
        let mut texts = Vec::new();
        for turn in 0..3 * MAX_HELD {
            texts.extend(take_texts(&mut prefetched, 1, &mut source));
            let (query, is_sent) = prefetched.next().unwrap();
            assert_eq!((&*query.key.sql.text, is_sent), (&*format!("SELECT {turn}"), true));
        }
        assert_eq!(texts, (0..texts.len()).map(|i| format!("SELECT {i}")).collect::<Vec<_>>());
    }

    #[test]
    fn large_requests_are_not_sent_ahead() {
        let (mut prefetched, mut source) = (PrefetchedQueries::default(), Queries::new(100));
        source.0[2] = query(&"x".repeat(SHORT_TEXT + 1), None);
        source.0[4] = query("SELECT ?", Some(Arc::new(Parameters { names: Vec::new(), values: Vec::new() })));
        take_texts(&mut prefetched, 1, &mut source);
        record(&mut prefetched, 1, QUICK_RUNS);
        assert_eq!(take_texts(&mut prefetched, 1, &mut source), ["SELECT 0", "SELECT 1"]);
        let turns: Vec<bool> = (0..3).map(|_| prefetched.next().unwrap().1).collect();
        assert_eq!(turns, [true, true, false]);
    }

    #[test]
    fn give_back_returns_all_and_discards_pending_answers() {
        let (mut prefetched, mut source) = (PrefetchedQueries::default(), Queries::new(100));
        take_texts(&mut prefetched, 1, &mut source);
        record(&mut prefetched, 1, QUICK_RUNS);
        take_texts(&mut prefetched, 1, &mut source);
        prefetched.next();
        prefetched.return_queries(&mut source);
        assert_eq!((source.0.len(), &*source.0[0].key.sql.text), (99, "SELECT 1"));
        assert!(prefetched.next().is_none() && prefetched.has_others());
        record(&mut prefetched, 1, 2 * QUICK_RUNS);
        assert!(take_texts(&mut prefetched, 1, &mut source).is_empty(), "the worker has enough to do");
        assert_eq!(std::iter::from_fn(|| prefetched.take_discarded()).count(), MAX_HELD - 1);
        assert!(!prefetched.has_others());
        assert_eq!(take_texts(&mut prefetched, 1, &mut source)[0], "SELECT 1");
    }

    #[test]
    fn wasted_work_doubles_the_required_runs_and_success_halves_them() {
        let (mut prefetched, mut source) = (PrefetchedQueries::default(), Queries::new(1_000));
        take_texts(&mut prefetched, 1, &mut source);
        for round in 0..5 {
            record(&mut prefetched, 1, (QUICK_RUNS << round) - 1);
            assert!(take_texts(&mut prefetched, 1, &mut source).is_empty());
            record(&mut prefetched, 1, 1);
            assert_eq!(take_texts(&mut prefetched, 1, &mut source).len(), MAX_HELD);
            prefetched.return_queries(&mut source);
            while prefetched.take_discarded().is_some() {}
        }
        record(&mut prefetched, 1, (100 * QUICK_RUNS) << 5);
        record(&mut prefetched, 1_000, 1);
        record(&mut prefetched, 1, QUICK_RUNS);
        assert_eq!(take_texts(&mut prefetched, 1, &mut source).len(), MAX_HELD);
    }

    #[test]
    fn queries_of_a_lost_worker_still_run() {
        let (mut prefetched, mut source) = (PrefetchedQueries::default(), Queries::new(100));
        take_texts(&mut prefetched, 1, &mut source);
        record(&mut prefetched, 1, QUICK_RUNS);
        take_texts(&mut prefetched, 1, &mut source);
        prefetched.reset();
        assert!(!prefetched.has_others());
        for turn in 0..MAX_HELD {
            let (query, is_sent) = prefetched.next().unwrap();
            assert_eq!((&*query.key.sql.text, is_sent), (&*format!("SELECT {turn}"), false));
            assert!(take_texts(&mut prefetched, 1, &mut source).is_empty(), "one query at a time");
        }
        assert!(prefetched.next().is_none());
    }
}
