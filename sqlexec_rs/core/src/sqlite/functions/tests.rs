//! Compares the functions with SQLite's own on random values: the same result, type and error, byte for byte.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, ToSql};

use super::{register_patterns, register_text};
use crate::request::Limits;
use crate::sqlite::deadline::RunGuard;

/// A text of arbitrary bytes, as SQLite stores them.
#[derive(Clone, Debug)]
struct Text(Vec<u8>);

impl ToSql for Text {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

#[derive(Clone, Debug)]
enum Argument {
    Text(Text),
    Other(Value),
}

impl ToSql for Argument {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        match self {
            Argument::Text(text) => text.to_sql(),
            Argument::Other(value) => value.to_sql(),
        }
    }
}

struct Pair {
    ours: Connection,
    sqlites: Connection,
}

impl Pair {
    fn new(encoding: &str) -> Self {
        let open = || {
            let connection = Connection::open_in_memory().unwrap();
            connection.execute_batch(&format!("PRAGMA encoding = '{encoding}'; CREATE TABLE t(x)")).unwrap();
            connection
        };
        let ours = open();
        let guard = Arc::default();
        register_text(&ours, &guard).unwrap();
        register_patterns(&ours, &guard, true).unwrap();
        Self { ours, sqlites: open() }
    }

    fn compare(&self, sql: &str, arguments: &[Argument]) -> Result<(), TestCaseError> {
        let result = |connection: &Connection| -> Result<(String, Vec<u8>), String> {
            let mut statement = connection.prepare(sql).unwrap();
            let parameters: Vec<&dyn ToSql> = arguments.iter().map(|argument| argument as &dyn ToSql).collect();
            let mut rows = statement.query(&parameters[..]).unwrap();
            let row = rows.next().map_err(|error| error.to_string())?.unwrap();
            Ok(shown(row.get_ref(0).unwrap()))
        };
        prop_assert_eq!(result(&self.ours), result(&self.sqlites), "{} of {:?}", sql, arguments);
        Ok(())
    }
}

fn shown(value: ValueRef<'_>) -> (String, Vec<u8>) {
    let bytes = match value {
        ValueRef::Null => Vec::new(),
        ValueRef::Integer(i) => i.to_le_bytes().to_vec(),
        ValueRef::Real(r) => r.to_le_bytes().to_vec(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
    };
    (value.data_type().to_string(), bytes)
}

/// Frequent fragments: letters in both cases, wildcards, digits, complete and broken characters of one to four bytes,
/// NUL.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        12 => prop::sample::select(vec!["a", "b", "A", "é", "€", "1", "f"]).prop_map(|s| s.as_bytes().to_vec()),
        6 => prop::sample::select(vec!["%", "_", "*", "?", "[", "]", "^", "-", "\\", " ", "aa", "[a-c]", "[^b]"])
            .prop_map(|s| s.as_bytes().to_vec()),
        2 => prop::sample::select(vec![0x80_u8, 0xc3, 0xe2, 0xf0, 0xff, 0xfe, 0xed, 0xa0]).prop_map(|b| vec![b]),
        1 => Just(vec![0]),
        1 => any::<u8>().prop_map(|b| vec![b]),
    ];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn argument() -> impl Strategy<Value = Argument> {
    prop_oneof![
        14 => bytes().prop_map(|bytes| Argument::Text(Text(bytes))),
        3 => bytes().prop_map(|bytes| Argument::Other(Value::Blob(bytes))),
        1 => prop_oneof![Just(0), Just(1), -20_i64..200, any::<i64>()].prop_map(|i| Argument::Other(Value::Integer(i))),
        1 => prop_oneof![Just(0.0), Just(1.5), Just(1e300), Just(-0.1), any::<f64>()]
            .prop_map(|r| Argument::Other(Value::Real(r))),
        1 => Just(Argument::Other(Value::Null)),
    ]
}

const CALLS: [(&str, usize); 15] = [
    ("SELECT instr(?1, ?2)", 2),
    ("SELECT replace(?1, ?2, ?3)", 3),
    ("SELECT trim(?1)", 1),
    ("SELECT ltrim(?1)", 1),
    ("SELECT rtrim(?1)", 1),
    ("SELECT trim(?1, ?2)", 2),
    ("SELECT ltrim(?1, ?2)", 2),
    ("SELECT rtrim(?1, ?2)", 2),
    ("SELECT unhex(?1, ?2)", 2),
    ("SELECT ?1 LIKE ?2", 2),
    ("SELECT ?1 LIKE ?2 ESCAPE ?3", 3),
    ("SELECT ?1 GLOB ?2", 2),
    ("SELECT (?1 COLLATE NOCASE < ?2) + 2 * (?1 COLLATE NOCASE = ?2)", 2),
    ("SELECT (?1 COLLATE RTRIM < ?2) + 2 * (?1 COLLATE RTRIM = ?2)", 2),
    ("SELECT max(?1 COLLATE NOCASE, ?2, ?3)", 3),
];

const CONCATENATIONS: [(&str, usize); 5] = [
    ("SELECT concat(?1)", 1),
    ("SELECT concat(?1, ?2, ?3)", 3),
    ("SELECT concat_ws(?1, ?2)", 2),
    ("SELECT concat_ws(?1, ?2, ?3)", 3),
    ("SELECT concat_ws(?1, ?2, NULL, ?3, '', ?1)", 3),
];

/// Runs several hundred cases of every call, which takes a second; `PROPTEST_CASES` raises the number.
fn config() -> ProptestConfig {
    let mut config = ProptestConfig::default(); // reads the environment
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = 1_500;
    }
    config.failure_persistence = None;
    config
}

#[test]
fn results_match_sqlite() {
    for encoding in ["UTF-8", "UTF-16le"] {
        let pair = Pair::new(encoding);
        proptest!(config(), |(arguments in [argument(), argument(), argument()])| {
            for (sql, n) in CALLS {
                pair.compare(sql, &arguments[..n])?;
            }
            // SQLite's own functions read beyond the text of a blob in UTF-16.
            let is_blob = |argument: &Argument| matches!(argument, Argument::Other(Value::Blob(_)));
            if encoding == "UTF-8" || !arguments.iter().any(is_blob) {
                for (sql, n) in CONCATENATIONS {
                    pair.compare(sql, &arguments[..n])?;
                }
            }
        });
    }
}

#[test]
fn results_match_sqlite_for_related_arguments() {
    let pair = Pair::new("UTF-8");
    // A part of the text makes the best needle, pattern and set.
    let related = (bytes(), any::<prop::sample::Index>(), any::<prop::sample::Index>(), bytes());
    proptest!(config(), |((text, from, len, other) in related)| {
        let from = from.index(text.len() + 1);
        let part = text[from..from + len.index(text.len() - from + 1)].to_vec();
        let as_text = |bytes: &[u8]| Argument::Text(Text(bytes.to_vec()));
        let as_pattern = |wildcard: &[u8]| as_text(&[wildcard, &part, wildcard].concat());
        for (sql, n) in CALLS {
            pair.compare(sql, &[as_text(&text), as_text(&part), as_text(&other)][..n])?;
            pair.compare(sql, &[as_text(&text), as_pattern(b"%"), as_text(b"\\")][..n])?;
            pair.compare(sql, &[as_text(&text), as_pattern(b"*"), as_text(b"%")][..n])?;
        }
    });
}

#[test]
fn length_limits_match_sqlite() {
    let pair = Pair::new("UTF-8");
    for connection in [&pair.ours, &pair.sqlites] {
        connection.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_LENGTH, 100).unwrap();
        connection.set_limit(rusqlite::limits::Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 20).unwrap();
    }
    for n in 0..=100 {
        for sql in [
            "SELECT replace(printf('%.*c', ?1, 'a'), 'a', 'bc')",
            "SELECT replace(printf('%.*c', ?1, 'a'), 'x', 'bc')",
            "SELECT replace(printf('%.*c', ?1, 'a'), 'aa', '')",
            "SELECT trim(printf('%.*c', ?1, 'a'), 'b')",
            "SELECT 'a' LIKE printf('%.*c', ?1, 'a')",
            "SELECT NULL GLOB printf('%.*c', ?1, 'a')",
            "SELECT 'a' LIKE zeroblob(?1)",
        ] {
            pair.compare(sql, &[Argument::Other(Value::Integer(n))]).unwrap();
        }
    }
}

#[test]
fn order_of_long_texts_matches_sqlite() {
    let pair = Pair::new("UTF-8");
    let beginning = "aB\u{e9} ".repeat(3_000).into_bytes();
    let ends = [&b""[..], b"a", b"A", b"b", b" ", b"  ", b"\0a", b"\0bb", b"\0B", b"[", b"\xff"];
    let text = |end: &[u8]| Argument::Text(Text([&beginning, end].concat()));
    for (a, b) in ends.iter().flat_map(|a| ends.iter().map(move |b| (a, b))) {
        for (sql, n) in CALLS.iter().filter(|(sql, _)| sql.contains("COLLATE")) {
            pair.compare(sql, &[text(a), text(b), text(b"aa")][..*n]).unwrap();
        }
    }
}

#[test]
fn slow_calls_of_sqlite_are_fast_or_stop() {
    let ours = Connection::open_in_memory().unwrap();
    let guard: Arc<RunGuard> = Arc::default();
    register_text(&ours, &guard).unwrap();
    register_patterns(&ours, &guard, true).unwrap();
    let million = "printf('%.*c', 1000000, 'a')";
    let distinct = "(WITH RECURSIVE r(i) AS (SELECT 200 UNION ALL SELECT i + 1 FROM r WHERE i < 40000) \
                    SELECT group_concat(char(i), '') FROM r)";
    for sql in [
        format!("SELECT instr({million}, printf('%.*c', 500000, 'a') || 'b')"),
        format!("SELECT length(replace({million}, printf('%.*c', 500000, 'a') || 'b', 'x'))"),
        format!("SELECT length(trim(replace({million}, 'a', char(39999)), {distinct}))"),
        format!("SELECT unhex({million} || replace({million}, 'a', char(39999)), {distinct})"),
        format!("SELECT {million} LIKE '%' || printf('%.*c', 900, 'a') || 'b'"),
        format!("SELECT {million} GLOB '*' || replace(printf('%.*c', 100, 'a'), 'a', '[a-z]*') || 'b'"),
    ] {
        let limits = Limits { timeout: Some(Duration::from_millis(200)), ..Limits::default() };
        let start_time = Instant::now();
        guard.arm(&limits, None, start_time);
        let result = ours.query_row(&sql, [], |row| row.get::<_, Value>(0));
        assert_eq!(guard.disarm().is_some(), result.is_err(), "{sql}: {result:?}");
        // SQLite's own functions take seconds to days.
        assert!(start_time.elapsed() < Duration::from_secs(20), "{sql}");
    }
}

#[test]
fn blob_is_concatenated_as_its_text() {
    let pair = Pair::new("UTF-16le");
    proptest!(config(), |(bytes in bytes())| {
        let value = |connection: &Connection, sql: &str| {
            connection.query_row(sql, [&bytes], |row| Ok(shown(row.get_ref(0)?))).unwrap()
        };
        // For a text, SQLite's own functions read only its bytes.
        let text = value(&pair.sqlites, "SELECT concat(CAST(?1 AS TEXT))");
        prop_assert_eq!(&value(&pair.ours, "SELECT concat(?1)"), &text);
        prop_assert_eq!(&value(&pair.ours, "SELECT concat_ws('', ?1, NULL)"), &text);
    });
    for sql in ["SELECT concat()", "SELECT concat_ws()", "SELECT concat_ws('a')"] {
        let error = |connection: &Connection| connection.query_row(sql, [], |_| Ok(())).unwrap_err().to_string();
        assert_eq!(error(&pair.ours).split(" in ").next(), error(&pair.sqlites).split(" in ").next());
    }
}
