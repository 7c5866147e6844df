//! Finds queries that read the SQL of other sessions, such as a gold query or another answer to the same question.
//!
//! MariaDB shows each user the queries of its other sessions, and no setting changes that. If the server traces its
//! optimizer, a session sees its last query, which was another run. A query cannot compute the name of a table, so
//! every query that reads one contains its name.

use super::blank::skip_blank;

/// Names of the tables that contain queries, or parts of them.
const TABLES: [&[u8]; 2] = [b"processlist", b"optimizer_trace"];

/// The query of `servers check`, which counts sessions without reading their queries.
const COUNT: &str = "\
SELECT COUNT(*) FROM information_schema.processlist
WHERE id <> CONNECTION_ID() AND (command = 'Killed' OR (command IN ('Query', 'Execute') AND time > 60))";

/// Returns whether a text reads the queries of other sessions.
pub(super) fn shows_sessions(sql: &str) -> bool {
    (names_table(sql) && sql.trim() != COUNT) || explains_session(sql)
}

/// Returns whether the text contains the name of such a table, compared as the server does, which treats `İ` as `i`.
fn names_table(sql: &str) -> bool {
    if sql.is_ascii() {
        let bytes = sql.as_bytes();
        return TABLES.iter().any(|table| {
            memchr::memchr2_iter(table[0], table[0].to_ascii_uppercase(), bytes)
                .any(|at| bytes.get(at..at + table.len()).is_some_and(|part| part.eq_ignore_ascii_case(table)))
        });
    }
    let fold = |char: char| char.to_uppercase().next().and_then(|char| char.to_lowercase().next()).unwrap_or(char);
    let folded: String = sql.chars().map(fold).collect();
    TABLES.iter().any(|table| memchr::memmem::find(folded.as_bytes(), table).is_some())
}

/// Returns whether a text is `SHOW EXPLAIN`, `SHOW ANALYZE` or `EXPLAIN FOR CONNECTION`, with or without a format.
fn explains_session(sql: &str) -> bool {
    let mut at = 0;
    let mut next = || {
        let start = skip_blank(sql.as_bytes(), at);
        let word = sql.as_bytes()[start..].iter().take_while(|byte| byte.is_ascii_alphanumeric()).count();
        at = (start + word.max(1)).min(sql.len());
        sql.get(start..at).unwrap_or_default().to_ascii_lowercase()
    };
    let begin = next();
    match begin.as_str() {
        "show" => matches!(next().as_str(), "explain" | "analyze"),
        "explain" | "describe" | "desc" => match next().as_str() {
            "for" => true,
            "format" => next() == "=" && !next().is_empty() && next() == "for",
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::shows_sessions;

    #[test]
    fn finds_queries_that_read_other_sessions() {
        let cases = [
            "SELECT info FROM information_schema.processlist",
            "SELECT info FROM information_schema.`PROCESSLIST`",
            "SELECT info FROM information_schema.processlİst",
            "SELECT info FROM information_schema.proceſſlist",
            "SELECT 'é', info FROM information_schema.ProcessList",
            "SELECT p FROM sys.x$processlist",
            "SHOW PROCESSLIST",
            "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'SELECT a%'",
            "SELECT query FROM information_schema.Optimizer_Trace",
            "show/* full */full\nprocesslist",
            "SHOW EXPLAIN FOR 5",
            "show -- \n analyze FORMAT=JSON FOR 5",
            "EXPLAIN FOR CONNECTION 5",
            "DESC/**/FOR CONNECTION 5",
            "describe format = json for connection 5",
        ];
        assert_eq!(cases.iter().find(|sql| !shows_sessions(sql)), None);
    }

    #[test]
    fn other_queries_are_accepted() {
        let cases = [
            "SELECT process, list FROM item",
            "SELECT 'é' FROM process_list",
            "SHOW TABLES",
            "EXPLAIN SELECT * FROM item FOR UPDATE",
            "EXPLAIN FORMAT=JSON SELECT id AS format FROM item",
            super::COUNT,
            "SELECT p",
            "show",
            "explain format",
            "desc é",
            "",
        ];
        assert_eq!(cases.iter().find(|sql| shows_sessions(sql)), None);
    }
}
