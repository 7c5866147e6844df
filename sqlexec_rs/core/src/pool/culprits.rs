//! Texts that ended the session or the worker process that ran them: each may do so twice, and is not run again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::outcome::{Outcome, Status};
use crate::request::Key;

/// How often a text may end what runs it.
const MOST_COSTS: u8 = 2;

/// Texts that are remembered.
const MOST_TEXTS: usize = 4_096;

/// The texts of a pool, and how often each has ended what ran it.
#[derive(Debug, Default)]
pub(crate) struct Culprits {
    has_any: AtomicBool,
    costs: Mutex<HashMap<Key, u8>>,
}

impl Culprits {
    /// Notes that a text has ended what ran it so many times.
    pub(crate) fn add(&self, key: &Key, times: u8) {
        let mut costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        if costs.len() >= MOST_TEXTS {
            costs.clear();
        }
        let cost = costs.entry(text_of(key)).or_default();
        *cost = cost.saturating_add(times);
        self.has_any.store(true, Ordering::Relaxed);
    }

    /// Returns the outcome of a text that is not run again.
    pub(crate) fn refusal(&self, key: &Key) -> Option<Outcome> {
        if !self.has_any.load(Ordering::Relaxed) {
            return None;
        }
        let costs = self.costs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_refused = costs.get(&text_of(key)).is_some_and(|cost| *cost >= MOST_COSTS);
        is_refused.then(|| Outcome::failed(Status::Crashed, "the text crashed twice before, and is not run again"))
    }
}

/// Returns the key without limits: other limits make no other text.
fn text_of(key: &Key) -> Key {
    Key { limits: 0, ..key.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Wanted;
    use crate::result::hashed_str::Hashed;

    #[test]
    fn a_text_that_crashed_twice_is_not_run_again() {
        let key = |sql: &str, limits| Key {
            db: 1,
            limits,
            sql: Hashed::new(sql.into()),
            parameters: None,
            wanted: Wanted::Rows,
        };
        let culprits = Culprits::default();
        assert!(culprits.refusal(&key("a", 0)).is_none());
        culprits.add(&key("a", 0), 1);
        assert!(culprits.refusal(&key("a", 0)).is_none());
        culprits.add(&key("a", 1), 1);
        culprits.add(&key("b", 0), 2);
        assert!(["a", "b"].iter().all(|sql| culprits.refusal(&key(sql, 5)).is_some()));
        assert!(culprits.refusal(&key("c", 0)).is_none());
        (0..MOST_TEXTS as u32).for_each(|i| culprits.add(&key(&i.to_string(), 0), 2));
        assert!(culprits.costs.lock().unwrap().len() <= MOST_TEXTS);
    }
}
