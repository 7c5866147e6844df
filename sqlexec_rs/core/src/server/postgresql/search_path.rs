//! The search path of sessions: that of the role, then the other schemas with tables that it can read. A prompt names
//! tables without their schema, and queries may name them with or without it.

use crate::server::deadline::RunDeadline;
use crate::server::session::InternalQueries;
use crate::server::stream::StreamError;

/// Returns the role's search path with the missing schemas appended; no row if none is missing.
/// `jaxrl_sql/databases/engines/postgresql.py` has the same condition and order.
const QUERY: &str = "\
SELECT pg_catalog.concat_ws(', ', nullif(pg_catalog.current_setting('search_path'), ''),
                            pg_catalog.string_agg(pg_catalog.quote_ident(nspname), ', ' ORDER BY nspname))
FROM pg_catalog.pg_namespace AS n
WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' AND nspname <> ALL (pg_catalog.current_schemas(false))
  AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
  AND EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE relnamespace = n.oid AND relkind IN ('r', 'p', 'f', 'v', 'm')
                AND pg_catalog.has_any_column_privilege(c.oid, 'SELECT'))
HAVING pg_catalog.count(*) > 0";

/// Returns the search path for a session; "" if that of the role has all schemas.
pub(super) fn find(session: &mut impl InternalQueries, deadline: &RunDeadline<'_>) -> Result<String, StreamError> {
    Ok(session.query_rows(QUERY, deadline)?.concat().concat())
}
