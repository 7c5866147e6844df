//! What a role may do beside reading. One that may do more is refused, with what makes one that may not.

use super::Postgresql;
use crate::server::stream::Failure;
use crate::server::watch::Watch;

/// A line for each right that a reader has no need of; at most a few are shown.
const RIGHTS: &str = "\
WITH role AS (SELECT * FROM pg_catalog.pg_roles WHERE rolname = current_user),
     space AS (SELECT oid, nspname FROM pg_catalog.pg_namespace
               WHERE nspname !~ '^pg_(temp|toast)' AND nspname NOT IN ('pg_catalog', 'information_schema'))
(SELECT 'is a superuser' FROM role WHERE rolsuper)
UNION ALL (SELECT 'can create databases' FROM role WHERE rolcreatedb)
UNION ALL (SELECT 'can create roles' FROM role WHERE rolcreaterole)
UNION ALL (SELECT 'can replicate' FROM role WHERE rolreplication)
UNION ALL (SELECT 'is a member of ' || rolname FROM pg_catalog.pg_roles
           WHERE rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program',
                             'pg_write_all_data', 'pg_signal_backend', 'pg_checkpoint', 'pg_maintain')
             AND pg_catalog.pg_has_role(oid, 'member'))
UNION ALL (SELECT 'can create schemas in the database'
           WHERE pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'))
UNION ALL (SELECT 'can create tables in the schema ' || nspname FROM space
           WHERE pg_catalog.has_schema_privilege(oid, 'CREATE') LIMIT 3)
UNION ALL (SELECT 'can write to ' || nspname || '.' || relname
           FROM pg_catalog.pg_class JOIN space ON space.oid = relnamespace
           WHERE relkind IN ('r', 'p', 'v', 'm', 'f')
             AND pg_catalog.has_table_privilege(pg_class.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') LIMIT 3)
UNION ALL (SELECT 'can advance ' || nspname || '.' || relname
           FROM pg_catalog.pg_class JOIN space ON space.oid = relnamespace
           WHERE CASE WHEN relkind = 'S' THEN pg_catalog.has_sequence_privilege(pg_class.oid, 'USAGE, UPDATE') END LIMIT 3)
UNION ALL (SELECT 'can call ' || proname FROM pg_catalog.pg_proc
           WHERE proname ~ '^dblink' AND pg_catalog.has_function_privilege(oid, 'EXECUTE') LIMIT 1)";

/// Refuses the session's role if it can do more than read.
pub(super) fn check(session: &mut Postgresql, watch: &Watch<'_>) -> Result<(), Failure> {
    let rights = session.ask(RIGHTS, watch)?;
    if rights.is_empty() {
        return Ok(());
    }
    let rights: Vec<String> = rights.into_iter().flatten().collect();
    let (role, database) = (&session.url.user, &session.url.database);
    Err(Failure::Lost(format!(
        "the role {role} can do more than read: it {}. A role that only reads, made by an owner: {}",
        rights.join(", it "),
        remedy(database),
    )))
}

/// Returns the statements that make a role that can only read.
fn remedy(database: &str) -> String {
    let database = format!("\"{}\"", database.replace('"', "\"\""));
    format!(
        "CREATE ROLE reader LOGIN PASSWORD '…'; GRANT CONNECT ON DATABASE {database} TO reader; \
         GRANT USAGE ON SCHEMA public TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader; \
         REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    )
}
