//! Results beyond rows: hints, declared types, and items in completion order.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rusqlite::Connection;
use sqlexec_core::{
    Config, GoldSource, Job, Limits, NextItem, Options, Outcome, OutputKind, Pool, PoolError, Query, Rule, ScoreItem,
    Status,
};
use tempfile::TempDir;

const ENDLESS: &str = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r";
const LONG: Duration = Duration::from_secs(60);

struct Fixture {
    folder: TempDir,
    pool: Pool,
}

impl Fixture {
    fn new(threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("concert.sqlite")).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE singer(Singer_ID INTEGER PRIMARY KEY, name VARCHAR(20), \"Song Name\", age INT);
                 CREATE TABLE stadium(stadium_id INTEGER, capacity, location TEXT, stadium_name TEXT);
                 CREATE TABLE concert(concert_id INTEGER, name TEXT, stadium_id INTEGER);
                 CREATE VIEW elders AS SELECT name AS elder_name FROM singer WHERE age > 60;
                 INSERT INTO singer VALUES (1, 'Ella', 'x', 70);",
            )
            .unwrap();
        let pool = Pool::new(&Config { threads: Some(threads), ..Config::default() }).unwrap();
        Self { folder, pool }
    }

    fn path(&self) -> Arc<Path> {
        self.folder.path().join("concert.sqlite").into()
    }

    fn submit(&self, sqls: &[&str]) -> Job {
        let pairs: Vec<_> = sqls.iter().map(|sql| (self.path(), Arc::from(*sql))).collect();
        self.pool.submit(&pairs, &Arc::new(Limits { timeout: None, ..Limits::default() })).unwrap()
    }

    fn run(&self, sql: &str) -> Arc<Outcome> {
        let job = self.submit(&[sql]);
        assert!(job.wait(LONG).unwrap());
        job.outcomes().unwrap().remove(0)
    }
}

#[test]
fn missing_name_has_a_hint() {
    let fixture = Fixture::new(1);
    let cases = [
        ("SELECT nmae FROM singer", Some("Did you mean singer.name?")),
        ("SELECT T1.nmae FROM singer AS T1", Some("Did you mean T1.name?")),
        ("SELECT singer.name FROM singer AS T1", Some("Did you mean T1.name?")),
        ("SELECT stadium.capacity FROM singer", Some("stadium is not in the FROM clause.")),
        ("SELECT capacity FROM singer", Some("Did you mean stadium.capacity?")),
        ("SELECT songname FROM singer s", Some("Did you mean s.\"Song Name\"?")),
        ("SELECT location FROM stadium ORDER BY stadium_nam", Some("Did you mean stadium.stadium_name?")),
        ("SELECT T2.name FROM concert T1 JOIN stadium AS T2", Some("Did you mean T1.name?")),
        ("SELECT T2.location_name FROM concert T1 JOIN stadium T2", Some("Did you mean T2.location?")),
        ("SELECT * FROM Singers", Some("Did you mean singer?")),
        ("SELECT * FROM main.stadum", Some("Did you mean stadium?")),
        ("SELECT * FROM elder", Some("Did you mean elders?")),
        ("SELECT name FROM singer s, concert", Some("Did you mean s.name or concert.name?")),
        ("SELECT zzzzzzzzzz FROM singer", None),
        ("SELECT * FROM zzzzzzzzzz", None),
        ("SELECT missing_function(name) FROM singer", None),
    ];
    for (sql, hint) in cases {
        let outcome = fixture.run(sql);
        assert_eq!((outcome.status, outcome.hint.as_deref()), (Status::SchemaError, hint), "{sql}");
    }
    assert_eq!(fixture.run("SELECT name FROM singer").hint, None);
    assert_eq!(fixture.run("SELEC name FROM singer").hint, None);
}

#[test]
fn hints_follow_the_schema() {
    let fixture = Fixture::new(1);
    assert_eq!(fixture.run("SELECT * FROM viollin").hint, None);
    let writer = Connection::open(fixture.path()).unwrap();
    writer.execute_batch("CREATE TABLE violin(x)").unwrap();
    drop(writer);
    assert_eq!(fixture.run("SELECT * FROM viollin").hint.as_deref(), Some("Did you mean violin?"));
}

#[test]
fn columns_keep_their_declared_types() {
    let fixture = Fixture::new(1);
    let outcome = fixture.run("SELECT name, \"Song Name\", age + 1, age AS years FROM singer");
    let table = outcome.table.as_ref().unwrap();
    let types: Vec<_> = (0..4).map(|column| table.column_type(column)).collect();
    assert_eq!(types, [Some("VARCHAR(20)"), None, None, Some("INT")]);
}

#[test]
fn items_are_returned_in_completion_order() {
    let fixture = Fixture::new(2);
    let job = fixture.submit(&[ENDLESS, "SELECT 1", "SELECT 2", "SELECT 1"]);
    let mut items = job.items();
    let mut seen: Vec<NextItem> = (0..3).map(|_| items.next(LONG).unwrap()).collect();
    assert_eq!(items.next(Duration::ZERO).unwrap(), NextItem::TimedOut);
    job.cancel().unwrap();
    assert_eq!(items.next(LONG).unwrap(), NextItem::Item(0));
    assert_eq!(items.next(LONG).unwrap(), NextItem::End);
    assert_eq!(job.outcome(0).unwrap().status, Status::Cancelled);
    seen.sort_unstable_by_key(|item| if let NextItem::Item(number) = item { *number } else { 99 });
    assert_eq!(seen, [NextItem::Item(1), NextItem::Item(2), NextItem::Item(3)]);
    assert_eq!(job.outcome(3).unwrap().row_count(), 1);
}

#[test]
fn scores_are_returned_in_completion_order_and_callbacks_run_once() {
    let fixture = Fixture::new(2);
    let item = |predicted: &str| ScoreItem {
        databases: [fixture.path()].into(),
        predicted: predicted.into(),
        golds: [GoldSource::Sql("SELECT 1".into())].into(),
        options: Arc::new(Options::default()),
    };
    let limits = Arc::new(Limits { timeout: None, ..Limits::default() });
    let batch = [item(ENDLESS), item("SELECT 1"), item("SELECT 2")];
    let job = fixture.pool.submit_score(&batch, &[Rule::Bird], &limits).unwrap();
    let (sender, receiver) = channel();
    job.when_done(Box::new(move || sender.send(()).unwrap())).unwrap();
    let mut items = job.items();
    let mut values = [9.0; 3];
    for _ in 0..2 {
        let NextItem::Item(number) = items.next(LONG).unwrap() else { panic!("two items end") };
        values[number] = job.score(number).unwrap().values[0];
    }
    assert_eq!(values, [9.0, 1.0, 0.0]);
    assert!(receiver.try_recv().is_err());
    job.cancel().unwrap();
    receiver.recv_timeout(LONG).unwrap();
    assert!(receiver.recv_timeout(LONG).is_err(), "the callback was called once and dropped");
    assert_eq!(job.score(0).unwrap().pred_status, Status::Cancelled);
}

#[test]
fn batch_waits_while_the_queue_is_full() {
    let folder = Fixture::new(1);
    let pool = Pool::new(&Config { threads: Some(1), max_queued: 2, ..Config::default() }).unwrap();
    let limits = Arc::new(Limits { timeout: None, ..Limits::default() });
    let pairs = |sqls: &[&str]| sqls.iter().map(|sql| (folder.path(), Arc::from(*sql))).collect::<Vec<_>>();
    let blocker = pool.submit(&pairs(&[ENDLESS]), &limits).unwrap();
    while pool.stats().unwrap().contains(&("queued", 1)) {
        std::thread::yield_now();
    }
    let large = pool.submit(&pairs(&["SELECT 1", "SELECT 2", "SELECT 3"]), &limits).unwrap();
    let mut n_calls = 0;
    let query = Query { database: folder.path(), sql: "SELECT 4".into(), parameters: None };
    let refused = pool.submit_while(&[query], OutputKind::Rows, &limits, &mut || {
        n_calls += 1;
        n_calls < 3
    });
    assert!(matches!(refused.err(), Some(PoolError::Interrupted)));
    assert_eq!(n_calls, 3);
    assert!(pool.submit(&[], &limits).is_ok());
    blocker.cancel().unwrap();
    let last = pool.submit(&pairs(&["SELECT 4"]), &limits).unwrap();
    assert!(large.wait(LONG).unwrap() && last.wait(LONG).unwrap());
    assert_eq!(last.outcomes().unwrap()[0].row_count(), 1);
}
