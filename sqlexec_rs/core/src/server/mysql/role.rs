//! Checks the rights of a user. A user that can do more than read is refused, with the statements that create a
//! read-only one.

use crate::server::deadline::RunDeadline;
use crate::server::session::InternalQueries;
use crate::server::stream::StreamError;
use crate::server::url::Url;

/// Privileges that a reader needs.
const READING: [&str; 4] = ["USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES"];

/// The right to grant a role.
const ADMIN: &str = "ADMIN OPTION on";

/// Tables that contain other sessions' queries. [`LOGS`] finds where the server writes them.
const TEXTS: [(&str, &str); 5] = [
    ("performance_schema", "performance_schema.threads"),
    ("performance_schema", "performance_schema.events_statements_current"),
    ("performance_schema", "performance_schema.events_statements_history"),
    ("general_log", "mysql.general_log"),
    ("slow_query_log", "mysql.slow_log"),
];

/// Returns a row for each place where the server currently logs the queries of all sessions.
const LOGS: &str = "\
SELECT 'performance_schema' FROM (SELECT 1) a WHERE @@performance_schema
UNION ALL SELECT 'general_log' FROM (SELECT 1) a WHERE @@general_log AND @@log_output LIKE '%TABLE%'
UNION ALL SELECT 'slow_query_log' FROM (SELECT 1) a WHERE @@slow_query_log AND @@log_output LIKE '%TABLE%'";

/// Refuses the session's user if it, or a role that it can assume, can do more than read or can read others' queries.
pub(super) fn check(
    session: &mut impl InternalQueries,
    url: &Url,
    deadline: &RunDeadline<'_>,
) -> Result<(), StreamError> {
    let grants: Vec<String> = session.query_rows("SHOW GRANTS", deadline)?.into_iter().flatten().collect();
    let roles: Vec<&str> = grants.iter().filter_map(|grant| role_of(grant)).collect();
    let mut rights: Vec<String> = grants.iter().flat_map(|grant| rights(grant)).collect();
    rights.sort_by_key(|right| right.starts_with(ADMIN)); // the creator of a role can grant it
    if rights.is_empty() {
        rights.extend(rights_of_roles(session, &roles, deadline)?);
    }
    let mut known = std::collections::HashSet::new();
    rights.retain(|right| known.insert(right.clone()));
    rights.truncate(6);
    if rights.is_empty() {
        rights = texts_of_others(session, deadline)?;
    }
    if rights.is_empty() {
        return Ok(());
    }
    let (user, database) = (&url.user, &url.database);
    let database = format!("`{}`", database.replace('`', "``"));
    Err(StreamError::Lost(format!(
        "the user {user} can do more than read: it has {}. \
         A user with CREATE USER and GRANT OPTION can create a read-only user: \
         CREATE USER reader IDENTIFIED BY '…'; GRANT SELECT ON {database}.* TO reader",
        rights.join(", "),
    )))
}

/// Returns the rights of each role of the user, active or not, and restores the initial role.
fn rights_of_roles(
    session: &mut impl InternalQueries,
    roles: &[&str],
    deadline: &RunDeadline<'_>,
) -> Result<Vec<String>, StreamError> {
    let active =
        session.query_rows("SELECT CURRENT_ROLE()", deadline)?.into_iter().flatten().next().unwrap_or_default();
    let mut all = Vec::new();
    for role in roles {
        session.query_rows(&format!("SET ROLE {role}"), deadline)?;
        let grants = session.query_rows("SHOW GRANTS", deadline)?.into_iter().flatten();
        all.extend(grants.flat_map(|grant| rights(&grant)).map(|right| format!("{right} as the role {role}")));
    }
    let first = match active.as_str() {
        "" | "NONE" => "NONE".to_owned(),
        name if name.starts_with('`') => name.to_owned(),
        name => format!("`{}`", name.replace('`', "``")),
    };
    session.query_rows(&format!("SET ROLE {first}"), deadline)?;
    Ok(all)
}

/// Returns the readable tables in which the server stores other sessions' queries.
fn texts_of_others(session: &mut impl InternalQueries, deadline: &RunDeadline<'_>) -> Result<Vec<String>, StreamError> {
    let logs: Vec<String> = session.query_rows(LOGS, deadline)?.into_iter().flatten().collect();
    let mut readable = Vec::new();
    for (log, table) in TEXTS {
        if !logs.iter().any(|name| name == log) {
            continue;
        }
        match session.query_rows(&format!("SELECT 1 FROM {table} LIMIT 0"), deadline) {
            Ok(_) => readable.push(format!("SELECT on {table}, which contains the queries of other sessions")),
            Err(StreamError::Lost(_)) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(readable)
}

/// Returns the role that a line of SHOW GRANTS grants, quoted as in that line.
fn role_of(grant: &str) -> Option<&str> {
    let grant = grant.strip_prefix("GRANT ").filter(|grant| !grant.contains(" ON "))?;
    grant.split_once(" TO ").map(|(role, _)| role)
}

/// Returns the privileges in a line of SHOW GRANTS that a reader does not need.
fn rights(grant: &str) -> Vec<String> {
    let Some(grant) = grant.strip_prefix("GRANT ") else { return Vec::new() };
    // A grant of a role has no ON. Its rights have separate lines while the role is active.
    let Some((names, object)) = grant.split_once(" ON ") else {
        let role = grant.split_once(" TO ").map_or(grant, |(role, _)| role);
        let can_grant = grant.ends_with("WITH ADMIN OPTION");
        return if can_grant { vec![format!("{ADMIN} the role {role}")] } else { Vec::new() };
    };
    let object = object.split_once(" TO ").map_or(object, |(object, _)| object);
    let mut rights: Vec<String> = names_of(names)
        .into_iter()
        .filter(|name| !READING.contains(&name.as_str()))
        .map(|name| format!("{name} on {object}"))
        .collect();
    if grant.ends_with("WITH GRANT OPTION") {
        rights.push(format!("GRANT OPTION on {object}"));
    }
    rights
}

/// Splits a list of privileges, dropping their columns in parentheses.
fn names_of(list: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut without_columns = list.to_owned();
    without_columns.retain(|char| {
        depth += usize::from(char == '(');
        let is_kept = depth == 0;
        depth = depth.saturating_sub(usize::from(char == ')'));
        is_kept
    });
    without_columns.split(',').map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::{rights, role_of};

    #[test]
    fn finds_rights_beyond_reading() {
        let reads = [
            "GRANT USAGE ON *.* TO `r`@`%` IDENTIFIED BY PASSWORD '*0'",
            "GRANT SELECT, SHOW VIEW ON `a`.* TO `r`@`%`",
            "GRANT SELECT (`x, y`, `z`) ON `a`.`t` TO `r`@`%`",
            "GRANT `readers` TO `r`@`%`",
            "SET DEFAULT ROLE `readers` FOR `r`@`%`",
        ];
        assert!(reads.iter().all(|grant| rights(grant).is_empty()), "{:?}", reads.map(rights));
        let cases = [
            ("GRANT SELECT, INSERT ON `a`.* TO `r`@`%`", "INSERT on `a`.*"),
            ("GRANT SELECT (`x`), UPDATE (`x`, `y`) ON `a`.`t` TO `r`@`%`", "UPDATE on `a`.`t`"),
            ("GRANT ALL PRIVILEGES ON *.* TO `r`@`%`", "ALL PRIVILEGES on *.*"),
            ("GRANT FILE ON *.* TO `r`@`%`", "FILE on *.*"),
            ("GRANT EXECUTE ON FUNCTION `a`.`f` TO `r`@`%`", "EXECUTE on FUNCTION `a`.`f`"),
            ("GRANT SELECT ON `a`.* TO `r`@`%` WITH GRANT OPTION", "GRANT OPTION on `a`.*"),
            ("GRANT PROXY ON ''@'%' TO 'r'@'%'", "PROXY on ''@'%'"),
            ("GRANT `writers` TO `r`@`%` WITH ADMIN OPTION", "ADMIN OPTION on the role `writers`"),
        ];
        for (grant, expected) in cases {
            assert_eq!(rights(grant), [expected], "{grant}");
        }
    }
    #[test]
    fn role_names_keep_the_server_quotes() {
        assert_eq!(role_of("GRANT `wri``ters` TO `r`@`%`"), Some("`wri``ters`"));
        assert_eq!(role_of("GRANT `a`@`%`,`b`@`%` TO `r`@`%`"), Some("`a`@`%`,`b`@`%`"));
        assert_eq!(role_of("GRANT SELECT ON `a`.* TO `r`@`%`"), None);
        assert_eq!(role_of("SET DEFAULT ROLE `readers` FOR `r`@`%`"), None);
    }
}
