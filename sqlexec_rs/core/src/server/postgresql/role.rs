//! Checks the rights of a role. A role that can do more than read is refused, with the statements that create a
//! read-only one.

use crate::server::deadline::RunDeadline;
use crate::server::session::InternalQueries;
use crate::server::stream::StreamError;
use crate::server::url::Url;

/// Returns the version, the number of bytes of a query that other sessions of the role can read (if any), and whether
/// queries of earlier runs can be read.
const FACTS: &str = "\
WITH reach AS (SELECT oid FROM pg_catalog.pg_roles WHERE pg_catalog.pg_has_role(session_user, oid, 'member')),
     executable AS (SELECT pg_proc.oid, proname FROM pg_catalog.pg_proc
                    WHERE proname IN ('pg_stat_get_activity', 'pg_stat_get_backend_activity', 'pg_stat_statements',
                                      'pg_stat_monitor', 'pg_stat_monitor_internal', 'pg_store_plans')
                      AND EXISTS (SELECT FROM reach
                                  WHERE pg_catalog.has_function_privilege(reach.oid, pg_proc.oid, 'EXECUTE')))
SELECT pg_catalog.current_setting('server_version_num'),
       CASE WHEN pg_catalog.current_setting('track_activities')::bool
                 AND EXISTS (SELECT FROM executable WHERE proname ~ '^pg_stat_get_')
            THEN pg_catalog.pg_size_bytes(pg_catalog.current_setting('track_activity_query_size')) ELSE 0 END,
       coalesce((SELECT min(oid::regprocedure::text) FROM executable WHERE proname !~ '^pg_stat_get_'), '')";

/// Returns a row for each right that a reader does not need; only a few are shown. Covers every role that the session
/// can assume, whether it inherits that role's rights or not, and the rights of PUBLIC.
const RIGHTS: &str = "\
WITH session_role AS (SELECT * FROM pg_catalog.pg_roles WHERE rolname = session_user),
     reach AS (SELECT pg_roles.*, CASE WHEN rolname = session_user THEN ''
                                       ELSE 'is a member of ' || rolname || ', which ' END AS via
               FROM pg_catalog.pg_roles
               WHERE rolname = session_user
                  OR NOT (SELECT rolsuper FROM session_role) AND pg_catalog.pg_has_role(session_user, oid, 'member')),
     grantees AS (SELECT oid FROM reach UNION ALL SELECT 0),
     space AS (SELECT * FROM pg_catalog.pg_namespace WHERE nspname !~ '^pg_(temp|toast)'),
     relation_grant AS (
         SELECT nspname, relname, relkind, privilege_type FROM pg_catalog.pg_class JOIN space ON space.oid = relnamespace,
             pg_catalog.aclexplode(relacl)
         WHERE grantee IN (TABLE grantees) AND (nspname, relname) <> ('pg_catalog', 'pg_settings')
         UNION SELECT nspname, relname, relkind, privilege_type
         FROM pg_catalog.pg_attribute JOIN pg_catalog.pg_class ON pg_class.oid = attrelid
             JOIN space ON space.oid = relnamespace, pg_catalog.aclexplode(attacl)
         WHERE attacl IS NOT NULL AND grantee IN (TABLE grantees))
(SELECT via || 'is a superuser' FROM reach WHERE rolsuper)
UNION ALL (SELECT via || 'can create databases' FROM reach WHERE rolcreatedb)
UNION ALL (SELECT via || 'can create roles' FROM reach WHERE rolcreaterole)
UNION ALL (SELECT via || 'can replicate' FROM reach WHERE rolreplication)
UNION ALL (SELECT via || 'bypasses row security' FROM reach WHERE rolbypassrls AND NOT rolsuper)
UNION ALL (SELECT 'is a member of ' || rolname FROM reach
           WHERE rolname ~ '^pg_' AND rolname NOT IN ('pg_read_all_data', 'pg_use_reserved_connections'))
UNION ALL (SELECT DISTINCT 'owns the ' || pg_catalog.pg_describe_object(classid, objid, objsubid)
           FROM pg_catalog.pg_shdepend
           WHERE refclassid = 'pg_catalog.pg_authid'::regclass AND refobjid IN (SELECT oid FROM reach) AND deptype = 'o'
             AND dbid IN (0, (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())) LIMIT 3)
UNION ALL (SELECT 'can create schemas in the database' FROM pg_catalog.pg_database, pg_catalog.aclexplode(datacl)
           WHERE datname = current_database() AND grantee IN (TABLE grantees) AND privilege_type = 'CREATE' LIMIT 1)
UNION ALL (SELECT DISTINCT 'can create tables in the schema ' || nspname FROM space, pg_catalog.aclexplode(nspacl)
           WHERE grantee IN (TABLE grantees) AND privilege_type = 'CREATE' LIMIT 3)
UNION ALL (SELECT DISTINCT 'can write to ' || nspname || '.' || relname FROM relation_grant
           WHERE relkind <> 'S' AND privilege_type IN ('INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') LIMIT 3)
UNION ALL (SELECT DISTINCT 'has ' || privilege_type || ' on ' || nspname || '.' || relname FROM relation_grant
           WHERE relkind <> 'S' AND privilege_type NOT IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE') LIMIT 3)
UNION ALL (SELECT DISTINCT 'can advance ' || nspname || '.' || relname FROM relation_grant
           WHERE relkind = 'S' AND privilege_type <> 'SELECT' LIMIT 3)
UNION ALL (SELECT DISTINCT 'will have ' || privilege_type || ' on future objects of ' || defaclrole::regrole
           FROM pg_catalog.pg_default_acl, pg_catalog.aclexplode(defaclacl)
           WHERE grantee IN (TABLE grantees) AND defaclobjtype <> 'f' AND privilege_type <> 'SELECT'
             AND NOT (defaclobjtype IN ('n', 'T') AND privilege_type = 'USAGE') LIMIT 3)
UNION ALL (SELECT 'can write to the large object ' || pg_largeobject_metadata.oid
           FROM pg_catalog.pg_largeobject_metadata, pg_catalog.aclexplode(lomacl)
           WHERE grantee IN (TABLE grantees) AND privilege_type = 'UPDATE' LIMIT 1)
UNION ALL (SELECT 'can write to all large objects (lo_compat_privileges)'
           WHERE current_setting('lo_compat_privileges')::bool)
UNION ALL (SELECT 'can use the foreign server ' || srvname FROM pg_catalog.pg_foreign_server, pg_catalog.aclexplode(srvacl)
           WHERE grantee IN (TABLE grantees) LIMIT 1)
UNION ALL (SELECT 'can use the foreign-data wrapper ' || fdwname
           FROM pg_catalog.pg_foreign_data_wrapper, pg_catalog.aclexplode(fdwacl)
           WHERE grantee IN (TABLE grantees) LIMIT 1)
UNION ALL (SELECT 'can create in the tablespace ' || spcname FROM pg_catalog.pg_tablespace, pg_catalog.aclexplode(spcacl)
           WHERE grantee IN (TABLE grantees) LIMIT 1)
UNION ALL (SELECT DISTINCT 'can use the language ' || lanname FROM pg_catalog.pg_language, pg_catalog.aclexplode(lanacl)
           WHERE NOT lanpltrusted AND grantee IN (TABLE grantees) LIMIT 1)
UNION ALL (SELECT DISTINCT 'can call ' || proname
           FROM pg_catalog.pg_proc JOIN pg_catalog.pg_init_privs ON objoid = pg_proc.oid AND classoid = 'pg_proc'::regclass,
               pg_catalog.aclexplode(proacl)
           WHERE grantee IN (TABLE grantees)
             AND grantee NOT IN (SELECT initial.grantee FROM pg_catalog.aclexplode(initprivs) AS initial)
             AND 0 NOT IN (SELECT initial.grantee FROM pg_catalog.aclexplode(initprivs) AS initial) LIMIT 3)
UNION ALL (SELECT 'can call ' || proname FROM pg_catalog.pg_proc
           WHERE proname ~ '^dblink' AND EXISTS (SELECT FROM reach WHERE pg_catalog.has_function_privilege(
               reach.oid, pg_proc.oid, 'EXECUTE')) LIMIT 1)";

/// Returns a row for each superuser setting that the role may change; such grants exist since PostgreSQL 15.
const PARAMETERS: &str = "
UNION ALL (SELECT DISTINCT 'has ' || privilege_type || ' on the parameter ' || parname
           FROM pg_catalog.pg_parameter_acl, pg_catalog.aclexplode(paracl) WHERE grantee IN (TABLE grantees) LIMIT 3)";

/// Returns the schemas that hold tables, quoted and in one text, and those in which PUBLIC may create tables.
const SCHEMAS: &str = "\
WITH space AS (SELECT oid, pg_catalog.quote_ident(nspname) AS name, nspacl FROM pg_catalog.pg_namespace
               WHERE nspname !~ '^pg_' AND nspname <> 'information_schema')
SELECT coalesce((SELECT pg_catalog.string_agg(name, ', ' ORDER BY name) FROM space WHERE EXISTS (
                    SELECT FROM pg_catalog.pg_class WHERE relnamespace = space.oid AND relkind IN ('r', 'p', 'v', 'm', 'f'))
                ), 'public'),
       coalesce((SELECT pg_catalog.string_agg(name, ', ' ORDER BY name) FROM space WHERE EXISTS (
                    SELECT FROM pg_catalog.aclexplode(nspacl) WHERE grantee = 0 AND privilege_type = 'CREATE')), '')";

/// Refuses the session's role if it can do more than read, or can read earlier queries of the role. Returns the
/// comment that hides a query from other sessions of the role.
pub(super) fn check(
    session: &mut impl InternalQueries,
    url: &Url,
    deadline: &RunDeadline<'_>,
) -> Result<String, StreamError> {
    let facts: Vec<String> = session.query_rows(FACTS, deadline)?.into_iter().flatten().collect();
    let [version, n_shown, history] = facts.as_slice() else { return Err(StreamError::unexpected()) };
    let has_parameter_grants = version.parse().is_ok_and(|version: u32| version >= 150_000);
    let query = if has_parameter_grants { format!("{RIGHTS}{PARAMETERS}") } else { RIGHTS.to_owned() };
    let rights: Vec<String> = session.query_rows(&query, deadline)?.into_iter().flatten().take(8).collect();
    let (role, database) = (&url.user, &url.database);
    if !rights.is_empty() {
        let schemas: Vec<String> = session.query_rows(SCHEMAS, deadline)?.into_iter().flatten().collect();
        let [with_tables, of_public] = schemas.as_slice() else { return Err(StreamError::unexpected()) };
        return Err(StreamError::Lost(format!(
            "the role {role} can do more than read: it {}. {}",
            rights.join(", it "),
            remedy(database, with_tables, of_public),
        )));
    }
    if !history.is_empty() && !url.has_role_of_golds() {
        return Err(StreamError::Lost(format!(
            "the role {role} can read the queries of its other sessions, including golds, by {history}. \
             With ?roles=N in the URL (N of at least 2), golds have a separate role; an owner runs: {}",
            remedy_of_roles(role)
        )));
    }
    Ok(mask(n_shown.parse().unwrap_or_default()))
}

/// Returns a comment that fills all bytes of a query that the server shows.
fn mask(n_shown: usize) -> String {
    if n_shown == 0 { String::new() } else { format!("/*{:-<n_shown$}*/", "") }
}

/// Returns advice with the statements that create a read-only role. `schemas` hold the tables; PUBLIC may create tables
/// in the schemas `of_public`.
fn remedy(database: &str, schemas: &str, of_public: &str) -> String {
    let database = format!("\"{}\"", database.replace('"', "\"\""));
    let create = format!(
        "A superuser, or an owner of the tables with CREATEROLE, can create a read-only role: \
         CREATE ROLE reader LOGIN PASSWORD '…'; GRANT CONNECT ON DATABASE {database} TO reader; \
         GRANT USAGE ON SCHEMA {schemas} TO reader; GRANT SELECT ON ALL TABLES IN SCHEMA {schemas} TO reader"
    );
    if of_public.is_empty() {
        return create;
    }
    format!(
        "{create}. Every role may create tables in the schema {of_public}, which ends with: \
         REVOKE CREATE ON SCHEMA {of_public} FROM PUBLIC"
    )
}

/// Returns the statements that create the roles of `?roles=2`.
fn remedy_of_roles(role: &str) -> String {
    let quoted = |suffix: &str| format!("\"{}{suffix}\"", role.replace('"', "\"\""));
    let make = |suffix| format!("CREATE ROLE {} LOGIN PASSWORD '…' IN ROLE {}", quoted(suffix), quoted(""));
    format!("{}; {}", make("_1"), make("_2"))
}
