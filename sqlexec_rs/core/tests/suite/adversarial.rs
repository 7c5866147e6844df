//! Queries that would hang, exhaust resources or write: each gets its expected status, and no file changes.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use sqlexec_core::{Config, Limits, Outcome, Pool, StatementLimits, Status, Stop};
use tempfile::TempDir;

mod cases;

/// Maximum excess over the limit of 250 ms before a run counts as hung; generous for a busy machine.
const HANG: Duration = Duration::from_secs(30);

/// Returns the contents of a folder, to compare before and after.
fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read(e.path()).unwrap())).collect()
}

struct Fixture {
    folder: TempDir,
    pool: Pool,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        cases::make_shop(&folder.path().join("shop.sqlite"));
        let log = Connection::open(folder.path().join("log.sqlite")).unwrap();
        log.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t(x); INSERT INTO t VALUES (1)").unwrap();
        drop(log);
        let pool = Pool::new(&Config { threads: Some(2), ..Config::default() }).unwrap();
        Self { folder, pool }
    }

    fn run(&self, file: &str, sql: &str, limits: &Limits) -> Arc<Outcome> {
        let path: Arc<Path> = self.folder.path().join(file).into();
        let job = self.pool.submit(&[(path, sql.into())], &Arc::new(limits.clone())).unwrap();
        assert!(job.wait(Duration::from_secs(60)).unwrap(), "hangs: {}", shown(sql));
        Arc::clone(&job.outcomes().unwrap()[0])
    }
}

fn shown(sql: &str) -> String {
    sql.chars().take(120).collect()
}

/// Stops endless runs after 250 ms; finite ones have time for a busy machine.
fn limits_for(status: Status) -> Limits {
    let timeout = if status == Status::Timeout { Duration::from_millis(250) } else { Duration::from_secs(60) };
    Limits { timeout: Some(timeout), ..Limits::default() }
}

fn check(cases: &[(Status, String)]) {
    let fixture = Fixture::new();
    let before = contents(fixture.folder.path());
    for (status, sql) in cases {
        let start_time = Instant::now();
        let outcome = fixture.run("shop.sqlite", sql, &limits_for(*status));
        assert_eq!(outcome.status, *status, "{:?}: {}", outcome.error, shown(sql));
        if *status == Status::Timeout {
            assert_eq!(outcome.stopped_by, Some(Stop::Wall), "{}", shown(sql));
            assert!(start_time.elapsed() < HANG, "{:?}: {}", start_time.elapsed(), shown(sql));
        }
    }
    // The connections still work, and nothing was written.
    assert_eq!(fixture.run("shop.sqlite", "SELECT count(*) FROM item", &Limits::default()).status, Status::Ok);
    assert_eq!(contents(fixture.folder.path()), before);
    drop(fixture.pool);
    assert_eq!(contents(fixture.folder.path()), before);
}

#[test]
fn nothing_writes() {
    check(&cases::writing());
}

#[test]
fn nothing_reaches_outside() {
    check(&cases::reaching_outside());
}

#[test]
fn texts_without_a_valid_statement_are_classified() {
    check(&cases::no_statements());
}

#[test]
fn endless_queries_are_stopped() {
    check(&cases::endless());
}

#[test]
fn long_single_calls_are_stopped_or_fast() {
    check(&cases::long_calls());
}

#[test]
fn growing_results_are_refused() {
    check(&cases::growing());
}

#[test]
fn slow_prepares_are_stopped_or_refused() {
    let fixture = Fixture::new();
    for sql in cases::slow_to_prepare() {
        let start_time = Instant::now();
        let outcome = fixture.run("shop.sqlite", &sql, &limits_for(Status::Timeout));
        assert!(start_time.elapsed() < HANG, "{:?}: {}", start_time.elapsed(), shown(&sql));
        let is_expected = matches!(outcome.status, Status::Ok | Status::Timeout | Status::TooLarge);
        assert!(is_expected, "{:?} {:?}: {}", outcome.status, outcome.error, shown(&sql));
    }
}

/// SQLite calls the handler only at jumps. Long work in between is charged, so that a step budget ends it too.
#[test]
fn work_between_handler_calls_is_charged() {
    let fixture = Fixture::new();
    for sql in cases::straight_line() {
        let start_time = Instant::now();
        let outcome = fixture.run("shop.sqlite", &sql, &limits_for(Status::Timeout));
        assert_eq!(outcome.stopped_by, Some(Stop::Wall), "{:?} {:?}: {}", outcome.status, outcome.error, shown(&sql));
        assert!(start_time.elapsed() < HANG, "{:?}: {}", start_time.elapsed(), shown(&sql));
        let steps = Limits { timeout: None, vm_steps: Some(2_000_000), ..Limits::default() };
        let taken: Vec<u64> = (0..2)
            .map(|i| {
                let start_time = Instant::now();
                let outcome = fixture.run("shop.sqlite", &format!("{sql} -- {i}"), &steps);
                assert_eq!(outcome.stopped_by, Some(Stop::VmSteps), "{:?}: {}", outcome.status, shown(&sql));
                assert!(start_time.elapsed() < HANG, "{:?}: {}", start_time.elapsed(), shown(&sql));
                outcome.vm_steps
            })
            .collect();
        assert_eq!(taken[0], taken[1], "{}", shown(&sql));
    }
}

#[test]
fn snippet_of_a_row_with_many_matches_is_refused() {
    let fixture = Fixture::new();
    for (n_matches, status, sql) in cases::snippets() {
        let name = format!("hits{n_matches}.sqlite");
        let hits = Connection::open(fixture.folder.path().join(&name)).unwrap();
        hits.execute_batch("CREATE VIRTUAL TABLE IF NOT EXISTS hits USING fts5(body); DELETE FROM hits").unwrap();
        hits.execute("INSERT INTO hits VALUES (?1)", ["a ".repeat(n_matches)]).unwrap();
        drop(hits);
        let outcome = fixture.run(&name, sql, &Limits { timeout: None, ..Limits::default() });
        assert_eq!(outcome.status, status, "{n_matches} {:?}: {sql}", outcome.error);
    }
}

#[test]
fn ordinary_use_of_bounded_functions_succeeds() {
    check(&cases::ordinary());
}

#[test]
fn each_limit_is_enforced_and_named() {
    let fixture = Fixture::new();
    let caps = |caps: StatementLimits| Limits { caps, ..Limits::default() };
    let standard = StatementLimits::default();
    let sorted = "SELECT id FROM note ORDER BY body || id LIMIT -1 OFFSET 299";
    for (limits, sql, message) in [
        (
            caps(StatementLimits { max_length: 1_000, ..standard }),
            "SELECT hex(zeroblob(501))",
            "string or blob too big",
        ),
        (caps(StatementLimits { max_sql_length: 20, ..standard }), "SELECT 1234567890123456", "statement too long"),
        (
            caps(StatementLimits { max_like_pattern: 4, ..standard }),
            "SELECT 'a' LIKE '12345'",
            "LIKE or GLOB pattern too complex",
        ),
        (
            caps(StatementLimits { max_expr_depth: 5, ..standard }),
            "SELECT 1+2+3+4+5+6+7",
            "Expression tree is too large (maximum depth 5)",
        ),
        (
            caps(StatementLimits { max_compound: 2, ..standard }),
            "VALUES (1) UNION SELECT 2 UNION SELECT 3",
            "too many terms in compound SELECT",
        ),
        (caps(StatementLimits { max_vdbe_ops: 5, ..standard }), "SELECT * FROM item", "out of memory"),
        (caps(StatementLimits { max_columns: 2, ..standard }), "SELECT 1, 2, 3", "too many columns in result set"),
        (
            Limits { heap_bytes: 3_000_000, ..Limits::default() },
            "SELECT hex(zeroblob(2000000))",
            "over the limit of 3000000 bytes of memory",
        ),
        (
            Limits { temp_bytes: 1_000_000, ..Limits::default() },
            sorted,
            "over the limit of 1000000 bytes of temporary files",
        ),
    ] {
        let outcome = fixture.run("shop.sqlite", sql, &limits);
        assert_eq!((outcome.status, outcome.error.as_deref()), (Status::TooLarge, Some(message)), "{sql}");
        let outcome = fixture.run("shop.sqlite", sql, &Limits::default());
        assert_eq!(outcome.status, Status::Ok, "{:?}: {sql}", outcome.error);
    }
}

#[test]
fn memory_is_counted_per_run() {
    let fixture = Fixture::new();
    let limits = Limits { heap_bytes: 40_000_000, ..Limits::default() };
    // Each run holds about 30 MB. Sequential and concurrent runs must not be charged for each other.
    let values = cases::repeat("printf('%.*c', 4000000 - id, 'x')", ", ", 7);
    let sqls: Vec<String> = (1..=12).map(|i| format!("SELECT {values} FROM item WHERE id = {i}")).collect();
    let path: Arc<Path> = fixture.folder.path().join("shop.sqlite").into();
    let pairs: Vec<_> = sqls.iter().map(|sql| (Arc::clone(&path), Arc::from(sql.as_str()))).collect();
    let job = fixture.pool.submit(&pairs, &Arc::new(limits)).unwrap();
    assert!(job.wait(Duration::from_secs(60)).unwrap());
    for outcome in job.outcomes().unwrap() {
        assert_eq!(outcome.status, Status::Ok, "{:?}", outcome.error);
    }
}

#[test]
fn pattern_with_a_fixed_prefix_uses_its_index() {
    let fixture = Fixture::new();
    let steps = |sql: &str| fixture.run("shop.sqlite", sql, &Limits::default()).vm_steps;
    for (pattern, is_indexed) in [("'name 77%'", true), ("'name_77%'", false), ("'%77%'", false)] {
        let sql = format!("SELECT id FROM item WHERE name LIKE {pattern}");
        assert_eq!(steps(&sql) < 1_000, is_indexed, "{sql}: {} steps", steps(&sql));
    }
}

#[test]
fn database_in_wal_mode_is_read_without_creating_a_log() {
    let fixture = Fixture::new();
    let before = contents(fixture.folder.path());
    let count = || {
        let outcome = fixture.run("log.sqlite", "SELECT count(*) FROM t", &Limits::default());
        format!("{:?}", outcome.table.as_ref().map(|table| format!("{:?}", table.value(0, 0))))
    };
    let first = count();
    assert!(first.contains('1'), "{first}");
    assert_eq!(contents(fixture.folder.path()), before);
    // After a writer changes the database and closes it, the next run sees the change.
    let writer = Connection::open(fixture.folder.path().join("log.sqlite")).unwrap();
    writer.execute_batch("INSERT INTO t VALUES (2)").unwrap();
    assert!(count().contains('2'));
    writer.execute_batch("INSERT INTO t VALUES (3)").unwrap();
    drop(writer);
    assert!(count().contains('3'));
}

#[test]
fn step_budget_verdict_is_independent_of_the_load() {
    let folder = tempfile::tempdir().unwrap();
    let path: Arc<Path> = folder.path().join("numbers.sqlite").into();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE t(x)").unwrap();
    let sqls: Vec<String> = (1..=12)
        .map(|i| {
            format!(
                "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r WHERE x < {}) \
                 SELECT sum(x), max(length(replace(printf('%.*c', x % 3000, 'a'), 'a', 'b'))) FROM r",
                i * 200
            )
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let run = |threads: usize, limits: Limits| {
        let pool = Pool::new(&Config { threads: Some(threads), cache_bytes: 0, ..Config::default() }).unwrap();
        // A comment makes the texts of each job unique; otherwise jobs would share runs.
        let pairs = |job: usize| -> Vec<(Arc<Path>, Arc<str>)> {
            sqls.iter().map(|sql| (Arc::clone(&path), format!("{sql} -- {job}").into())).collect()
        };
        let limits = Arc::new(limits);
        let jobs: Vec<_> = (0..threads.min(4)).map(|job| pool.submit(&pairs(job), &limits).unwrap()).collect();
        jobs.iter()
            .map(|job| {
                assert!(job.wait(Duration::from_secs(600)).unwrap());
                job.outcomes().unwrap().iter().map(|o| (o.status, o.stopped_by, o.vm_steps)).collect::<Vec<_>>()
            })
            .collect::<Vec<_>>()
    };
    let steps = Limits { timeout: None, vm_steps: Some(50_000), ..Limits::default() };
    let alone = run(1, steps.clone()).remove(0);
    let n_stopped = alone.iter().filter(|verdict| verdict.1 == Some(Stop::VmSteps)).count();
    assert!((3..=9).contains(&n_stopped), "{n_stopped} of {} were stopped", alone.len());
    for crowd in run(8 * cores, steps) {
        assert_eq!(crowd, alone);
    }
    // CPU time of other threads must not count either.
    let cpu = Limits { timeout: None, cpu: Some(Duration::from_secs(5)), ..Limits::default() };
    assert!(run(8 * cores, cpu).iter().flatten().all(|verdict| verdict.0 == Status::Ok));
}
