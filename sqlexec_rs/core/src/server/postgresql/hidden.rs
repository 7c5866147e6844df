//! Hidden callers: objects that call functions which a query's text does not name, such as views, policies and rules,
//! and user-defined functions and operators that share a built-in name. A query of such objects runs in a transaction
//! of its own.

use std::time::Instant;

use super::plain::is_known;
use crate::server::deadline::RunDeadline;
use crate::server::session::{InternalQueries, RECHECK};
use crate::server::stream::StreamError;

/// Returns the kinds and names of objects that may call functions. Ids from 16384 are user-defined; languages 12 and
/// 13 are internal and C. A function with one row argument can be read like a column, without parentheses.
const QUERY: &str = "\
SELECT 'name', relname FROM pg_catalog.pg_class
WHERE oid >= 16384 AND (relkind IN ('v', 'f') OR relrowsecurity OR (relhasrules AND relkind <> 'm'))
UNION ALL
SELECT 'name', typname FROM pg_catalog.pg_type WHERE oid >= 16384 AND typtype = 'd'
UNION ALL
SELECT CASE WHEN t.typtype IN ('c', 'p') THEN 'name' ELSE 'function' END, proname
FROM pg_catalog.pg_proc AS p LEFT JOIN pg_catalog.pg_type AS t ON t.oid = p.proargtypes[0] WHERE p.oid >= 16384
UNION ALL
(SELECT 'all', '' WHERE EXISTS (
   SELECT 1 FROM pg_catalog.pg_proc AS p
   WHERE p.oid >= 16384 AND (p.provolatile = 'v' OR p.prolang NOT IN (12, 13))
     AND (EXISTS (SELECT 1 FROM pg_catalog.pg_operator WHERE oprcode = p.oid)
          OR EXISTS (SELECT 1 FROM pg_catalog.pg_cast WHERE castfunc = p.oid))))
UNION ALL
(SELECT 'lasting', '' WHERE EXISTS (
   SELECT 1 FROM pg_catalog.pg_proc JOIN pg_catalog.pg_language AS l ON l.oid = prolang
   WHERE lanname NOT IN ('internal', 'c', 'sql', 'plpgsql') AND pg_proc.oid >= 16384
   UNION ALL SELECT 1 FROM pg_catalog.pg_extension WHERE extname = 'dblink'))";

/// The hidden callers of a database.
#[derive(Default)]
pub(super) struct HiddenCallers {
    /// Names in lower case; a query with one of them is not plain.
    names: Vec<String>,
    /// Whether no query is plain.
    is_everywhere: bool,
    /// Whether a function may keep state that outlives `DISCARD ALL`, so that a session must end with its run.
    pub(super) is_lasting: bool,
    /// Time of the next refresh.
    asked_again: Option<Instant>,
}

impl HiddenCallers {
    /// Returns whether the list must be refreshed.
    pub(super) fn is_old(&self) -> bool {
        self.asked_again.is_none_or(|at| Instant::now() >= at)
    }

    /// Returns whether a query may name one of the objects.
    pub(super) fn is_in(&self, sql: &str) -> bool {
        if self.is_everywhere {
            return true;
        }
        if self.names.is_empty() {
            return false;
        }
        let lower = sql.to_lowercase();
        // A name in `U&"…"` may be spelled in code points, and a quoted name may contain doubled quotes.
        lower.contains("u&\"") || lower.contains("\"\"") || self.names.iter().any(|name| lower.contains(name))
    }
}

/// Queries the database for its hidden callers. `time` is the statement timeout in milliseconds, because that of the
/// last run does not apply.
pub(super) fn find(
    session: &mut impl InternalQueries,
    time: u128,
    deadline: &RunDeadline<'_>,
) -> Result<HiddenCallers, StreamError> {
    let start_time = Instant::now();
    let mut hidden = HiddenCallers::default();
    let rows = session.query_rows(&format!("SET statement_timeout = {time}; {QUERY}"), deadline)?;
    for row in rows {
        match row.as_slice() {
            [kind, _] if kind == "all" => hidden.is_everywhere = true,
            [kind, _] if kind == "lasting" => hidden.is_lasting = true,
            [kind, name] if kind == "function" && !is_known(&name.to_lowercase()) => {} // its calls are not plain
            [_, name] => hidden.names.push(name.to_lowercase()),
            _ => {}
        }
    }
    let now = Instant::now();
    // Refreshing takes at most a hundredth of the time.
    hidden.asked_again = now.checked_add(RECHECK.max((now - start_time) * 100));
    Ok(hidden)
}
