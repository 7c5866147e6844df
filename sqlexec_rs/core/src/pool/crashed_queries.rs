//! Queries that crashed the session or the worker process that ran them. After two crashes, a query is blocked for
//! some time.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::locks::lock;
use crate::outcome::{Outcome, Status};
use crate::request::{InFlightQuery, RunKey};

/// Number of crashes after which a query is blocked.
const MAX_CRASHES: u8 = 2;

/// How long a crash is remembered. Afterwards the server may be repaired, or may have crashed for another reason.
const RETENTION: Duration = Duration::from_secs(600);

/// Maximum number of remembered queries.
const MAX_QUERIES: usize = 4_096;

/// For each query, the number of crashes and the time of the last one.
type Crashes = HashMap<(Arc<Path>, RunKey), (u8, Instant)>;

/// The crashes of a pool's queries.
#[derive(Debug, Default)]
pub(crate) struct CrashedQueries {
    has_any: AtomicBool,
    crashes: Mutex<Crashes>,
}

impl CrashedQueries {
    /// Records `n_crashes` crashes of a query.
    pub(crate) fn add(&self, query: &InFlightQuery, n_crashes: u8) {
        let mut crashes = lock(&self.crashes);
        if crashes.len() >= MAX_QUERIES {
            crashes.clear();
        }
        let now = Instant::now();
        let (count, last) = crashes.entry(identify(query)).or_insert((0, now));
        *count = if now - *last < RETENTION { count.saturating_add(n_crashes) } else { n_crashes };
        *last = now;
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Returns the outcome of a blocked query.
    pub(crate) fn refusal(&self, query: &InFlightQuery) -> Option<Outcome> {
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let crashes = lock(&self.crashes);
        let is_blocked = |(count, last): &(u8, Instant)| *count >= MAX_CRASHES && last.elapsed() < RETENTION;
        let is_known = crashes.get(&identify(query)).is_some_and(is_blocked);
        is_known.then(|| Outcome::failed(Status::Crashed, "the query crashed twice and is blocked for ten minutes"))
    }
}

/// Returns the text and its database. Limits do not distinguish queries here, and a server has no state.
fn identify(query: &InFlightQuery) -> (Arc<Path>, RunKey) {
    let db = if query.engine.is_server() { 0 } else { query.key.db };
    (Arc::clone(&query.path), RunKey { db, limits: 0, ..query.key.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests;
    use crate::target::Engine;

    fn query(sql: &str, limits: u32, engine: Engine, db: u32) -> InFlightQuery {
        let query = tests::query(sql, db);
        InFlightQuery { engine, key: RunKey { limits, ..query.key.clone() }, ..query }
    }

    #[test]
    fn query_that_crashed_long_ago_runs_again() {
        let (crashed_queries, text) = (CrashedQueries::default(), query("a", 0, Engine::Mysql, 1));
        let age = || crashed_queries.crashes.lock().unwrap().values_mut().for_each(|(_, last)| *last -= RETENTION);
        crashed_queries.add(&text, 2);
        assert!(crashed_queries.refusal(&text).is_some());
        age();
        assert!(crashed_queries.refusal(&text).is_none());
        crashed_queries.add(&text, 1);
        assert!(crashed_queries.refusal(&text).is_none(), "older crashes must not count");
        crashed_queries.add(&text, 1);
        assert!(crashed_queries.refusal(&text).is_some());
    }

    #[test]
    fn query_that_crashed_twice_is_blocked() {
        let key = |sql: &str, limits| query(sql, limits, Engine::Sqlite, 1);
        let crashed_queries = CrashedQueries::default();
        assert!(crashed_queries.refusal(&key("a", 0)).is_none());
        crashed_queries.add(&key("a", 0), 1);
        assert!(crashed_queries.refusal(&key("a", 0)).is_none());
        crashed_queries.add(&key("a", 1), 1);
        crashed_queries.add(&key("b", 0), 2);
        assert!(["a", "b"].iter().all(|sql| crashed_queries.refusal(&key(sql, 5)).is_some()));
        assert!(crashed_queries.refusal(&key("c", 0)).is_none());
        assert!(crashed_queries.refusal(&query("a", 0, Engine::Sqlite, 2)).is_none(), "the file has changed");
        crashed_queries.add(&query("d", 0, Engine::Mysql, 3), 2);
        assert!(crashed_queries.refusal(&query("d", 0, Engine::Mysql, 4)).is_some());
        (0..MAX_QUERIES as u32).for_each(|i| crashed_queries.add(&key(&i.to_string(), 0), 2));
        assert!(crashed_queries.crashes.lock().unwrap().len() <= MAX_QUERIES);
    }
}
