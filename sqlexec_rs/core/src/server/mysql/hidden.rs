//! The views of a server: they may call functions that a query's text does not show, such as lock functions.

use std::time::Instant;

use crate::server::deadline::RunDeadline;
use crate::server::session::{InternalQueries, RECHECK};
use crate::server::stream::StreamError;

/// The limit exceeds `sql_select_limit`, which applies otherwise.
const QUERY: &str = "\
SELECT LOWER(TABLE_NAME) FROM information_schema.TABLES
WHERE TABLE_TYPE = 'VIEW' AND TABLE_SCHEMA NOT IN ('information_schema', 'mysql', 'performance_schema', 'sys')
LIMIT 1000000";

/// The names of the views that the user may read.
#[derive(Default)]
pub(super) struct ViewNames {
    names: Vec<String>,
    /// Time of the next refresh; owners may create views at any time.
    asked_again: Option<Instant>,
}

impl ViewNames {
    /// Returns whether the list must be refreshed.
    pub(super) fn is_old(&self) -> bool {
        self.asked_again.is_none_or(|at| Instant::now() >= at)
    }

    /// Returns whether a text may name one of the views.
    pub(super) fn are_in(&self, statement: &str) -> bool {
        if self.names.is_empty() {
            return false;
        }
        let lower = statement.to_lowercase();
        // A quoted name may contain doubled quotes.
        lower.contains("``") || self.names.iter().any(|name| lower.contains(name))
    }
}

/// Queries the server for its views.
pub(super) fn find(session: &mut impl InternalQueries, deadline: &RunDeadline<'_>) -> Result<ViewNames, StreamError> {
    let start_time = Instant::now();
    let names = session.query_rows(QUERY, deadline)?.into_iter().flatten().collect();
    let now = Instant::now();
    // Refreshing takes at most a hundredth of the time.
    Ok(ViewNames { names, asked_again: now.checked_add(RECHECK.max((now - start_time) * 100)) })
}
