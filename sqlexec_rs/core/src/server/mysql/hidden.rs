//! The views of a server: they may call functions that a text does not show, such as those that take locks.

use std::time::Instant;

use crate::server::session::{OwnQueries, RECHECK};
use crate::server::stream::StreamError;
use crate::server::watch::Watch;

/// The limit is more than `sql_select_limit`, which holds without it.
const QUERY: &str = "\
SELECT LOWER(TABLE_NAME) FROM information_schema.TABLES
WHERE TABLE_TYPE = 'VIEW' AND TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
LIMIT 1000000";

/// The names of the views that the user may read.
#[derive(Default)]
pub(super) struct Views {
    names: Vec<String>,
    /// When the server is asked again, as an owner may make a view at any time.
    asked_again: Option<Instant>,
}

impl Views {
    /// Returns whether the server must be asked again.
    pub(super) fn is_old(&self) -> bool {
        self.asked_again.is_none_or(|at| Instant::now() >= at)
    }

    /// Returns whether a text may name one of the views.
    pub(super) fn are_in(&self, statement: &str) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let lower = statement.to_lowercase();
        // In quotes a name may hold doubled ones.
        lower.contains("``") || self.names.iter().any(|name| lower.contains(name))
    }
}

/// Asks the server.
pub(super) fn find(session: &mut impl OwnQueries, watch: &Watch<'_>) -> Result<Views, StreamError> {
    let begun = Instant::now();
    let names = session.ask(QUERY, watch)?.into_iter().flatten().collect();
    let now = Instant::now();
    // The question takes at most a hundredth of the time.
    Ok(Views { names, asked_again: now.checked_add(RECHECK.max((now - begun) * 100)) })
}
