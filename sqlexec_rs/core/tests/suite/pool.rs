//! The pool with real files, threads and worker processes.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rusqlite::Connection;
use sqlexec_core::{
    Config, GoldSource, Job, Limits, Options, Outcome, Pool, Rule, ScoreItem, Status, Stop, Table, Value, WorkerConfig,
};
use tempfile::TempDir;

const ENDLESS: &str = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r";

/// Generates each test twice: with the pool's threads, and with worker processes.
macro_rules! on_both {
    ($($test:ident),* $(,)?) => {
        mod thread {
            $(#[test] fn $test() { super::$test(&super::Config::default()); })*
        }
        mod process {
            $(#[test] fn $test() { super::$test(&super::on_processes()); })*
        }
    };
}

on_both!(
    rows_are_typed_and_ordered,
    equal_pairs_run_once_within_and_across_batches,
    batch_joins_the_run_of_another,
    each_deadline_stops_the_run_and_is_reported,
    caps_refuse_and_never_cut,
    endless_query_blocks_one_thread_only,
    cancelling_a_job_keeps_a_shared_run,
    best_gold_counts,
    golds_may_be_tables_and_items_may_have_several_databases,
    large_job_is_built_in_batches_and_deduplicated_as_a_whole,
    dropping_a_builder_cancels_its_runs,
    changed_file_is_detected,
    verdict_in_a_burst_is_the_same_as_alone,
    many_databases_fit_few_descriptors,
    closing_ends_every_thread_and_refuses_work,
    candidate_cache_respects_its_budget,
    wait_ends_at_its_timeout,
    outcomes_of_outdated_states_and_unused_limits_are_dropped,
    callback_cannot_close_its_pool
);

fn on_processes() -> Config {
    Config { worker: Some(WorkerConfig::new(env!("CARGO_BIN_EXE_sqlexec-worker").into())), ..Config::default() }
}

struct Fixture {
    folder: TempDir,
    pool: Pool,
}

impl Fixture {
    fn new(base: &Config, threads: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let connection = Connection::open(folder.path().join("shop.sqlite")).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL);
                 INSERT INTO item VALUES (1, 'nail', 0.5), (2, 'saw', 12.0), (3, NULL, 12.0);",
            )
            .unwrap();
        let pool = Pool::new(&Config { threads: Some(threads), ..base.clone() }).unwrap();
        Self { folder, pool }
    }

    /// Waits until the file no longer counts as recently changed, because then its identity changes and its cached
    /// outcomes are lost.
    fn settled(base: &Config, threads: usize) -> Self {
        let fixture = Self::new(base, threads);
        std::thread::sleep(Duration::from_millis(2_100));
        fixture
    }

    fn path(&self) -> Arc<Path> {
        self.folder.path().join("shop.sqlite").into()
    }

    fn submit(&self, sqls: &[&str], limits: &Limits) -> Job {
        let pairs: Vec<_> = sqls.iter().map(|sql| (self.path(), Arc::from(*sql))).collect();
        self.pool.submit(&pairs, &Arc::new(limits.clone())).unwrap()
    }

    fn run(&self, sqls: &[&str]) -> Vec<Arc<Outcome>> {
        finish(&self.submit(sqls, &Limits::default())).outcomes().unwrap()
    }

    fn stats(&self) -> HashMap<&'static str, u64> {
        self.pool.stats().unwrap().into_iter().collect()
    }

    fn item(&self, predicted: &str, golds: &[&str]) -> ScoreItem {
        ScoreItem {
            databases: [self.path()].into(),
            predicted: predicted.into(),
            golds: golds.iter().map(|gold| GoldSource::Sql((*gold).into())).collect(),
            options: Arc::new(Options::default()),
        }
    }
}

fn finish(job: &Job) -> &Job {
    assert!(job.wait(Duration::from_secs(60)).unwrap());
    job
}

fn rows_are_typed_and_ordered(base: &Config) {
    let fixture = Fixture::new(base, 2);
    let outcomes = fixture.run(&["SELECT * FROM item ORDER BY id", "SELECT x'00ff', \"quoted\", 'a' || x'ff'"]);
    let table = outcomes[0].table.as_ref().unwrap();
    assert_eq!((table.n_rows(), table.columns()), (3, &["id".to_owned(), "name".to_owned(), "price".to_owned()][..]));
    assert!(matches!(table.value(0, 0), Value::Integer(1)));
    assert!(matches!(table.value(2, 1), Value::Null));
    assert!(matches!(table.value(1, 2), Value::Real(r) if r == 12.0));
    let table = outcomes[1].table.as_ref().unwrap();
    assert!(matches!(table.value(0, 0), Value::Blob(b"\x00\xff")));
    assert!(matches!(table.value(0, 1), Value::Text(b"quoted")));
    assert!(matches!(table.value(0, 2), Value::Text(b"a\xff")));
}

fn equal_pairs_run_once_within_and_across_batches(base: &Config) {
    let fixture = Fixture::settled(base, 2);
    fixture.run(&["SELECT 1", "SELECT 1", "SELECT 2", "SELECT 1"]);
    fixture.run(&["SELECT 1", "SELECT 3"]);
    let stats = fixture.stats();
    assert_eq!((stats["requests"], stats["runs"], stats["duplicates"], stats["cache_hits"]), (6, 3, 2, 1));
    fixture.run(&["SELECT random()"]);
    fixture.run(&["SELECT random()"]);
    assert_eq!(fixture.stats()["runs"], 5, "outcomes with random numbers must not be cached");
}

fn batch_joins_the_run_of_another(base: &Config) {
    let fixture = Fixture::settled(base, 1);
    let limits = Limits { timeout: Some(Duration::from_secs(1)), ..Limits::default() };
    let first = fixture.submit(&[ENDLESS, "SELECT 5"], &limits);
    let second = fixture.submit(&["SELECT 5", ENDLESS], &limits);
    let statuses = |job: &Job| finish(job).outcomes().unwrap().iter().map(|o| o.status).collect::<Vec<_>>();
    assert_eq!(statuses(&first), [Status::Timeout, Status::Ok]);
    assert_eq!(statuses(&second), [Status::Ok, Status::Timeout]);
    assert_eq!((fixture.stats()["runs"], fixture.stats()["joined"]), (2, 2));
    fixture.submit(&[ENDLESS], &limits).wait(Duration::from_secs(60)).unwrap();
    assert_eq!(fixture.stats()["runs"], 3, "timeouts must not be cached");
}

fn each_deadline_stops_the_run_and_is_reported(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let free = Limits { timeout: None, ..Limits::default() };
    let cases = [
        (Limits { timeout: Some(Duration::from_millis(50)), ..free.clone() }, Stop::Wall),
        (Limits { cpu: Some(Duration::from_millis(50)), ..free.clone() }, Stop::Cpu),
        (Limits { vm_steps: Some(100_000), ..free }, Stop::VmSteps),
    ];
    for (limits, stop) in cases {
        let outcome = finish(&fixture.submit(&[ENDLESS], &limits)).outcomes().unwrap()[0].clone();
        assert_eq!((outcome.status, outcome.stopped_by), (Status::Timeout, Some(stop)));
        if stop == Stop::VmSteps {
            assert_eq!(outcome.vm_steps / 1_000, 100, "{}", outcome.vm_steps);
        }
    }
}

fn caps_refuse_and_never_cut(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let status = |limits: &Limits, sql: &str| finish(&fixture.submit(&[sql], limits)).outcomes().unwrap()[0].status;
    let rows = |max_rows| Limits { max_rows, ..Limits::default() };
    assert_eq!(status(&rows(3), "SELECT * FROM item"), Status::Ok);
    assert_eq!(status(&rows(2), "SELECT * FROM item"), Status::TooLarge);
    let bytes = |max_bytes| Limits { max_bytes, ..Limits::default() };
    assert_eq!(status(&bytes(16 + 100), "SELECT hex(zeroblob(50))"), Status::Ok);
    assert_eq!(status(&bytes(16 + 99), "SELECT hex(zeroblob(50))"), Status::TooLarge);
}

fn endless_query_blocks_one_thread_only(base: &Config) {
    let fixture = Fixture::new(base, 2);
    let slow = fixture.submit(&[ENDLESS], &Limits { timeout: None, ..Limits::default() });
    let many: Vec<String> = (0..200).map(|i| format!("SELECT {i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(fixture.run(&many).iter().all(|outcome| outcome.status == Status::Ok));
    assert!(!slow.is_done().unwrap());
    slow.cancel().unwrap();
    assert_eq!(slow.outcomes().unwrap()[0].status, Status::Cancelled);
    fixture.run(&["SELECT 1000", "SELECT 1001"]); // ends only if both threads are free again
}

fn cancelling_a_job_keeps_a_shared_run(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let limits = Limits { timeout: None, ..Limits::default() };
    let first = fixture.submit(&[ENDLESS, "SELECT 7"], &limits);
    let second = fixture.submit(&["SELECT 7"], &limits);
    first.cancel().unwrap();
    assert!(first.outcomes().unwrap().iter().all(|outcome| outcome.status == Status::Cancelled));
    assert_eq!(finish(&second).outcomes().unwrap()[0].status, Status::Ok);
}

fn best_gold_counts(base: &Config) {
    let fixture = Fixture::settled(base, 2);
    let items = [
        fixture.item("SELECT price FROM item", &["SELECT DISTINCT price FROM item ORDER BY price DESC"]),
        fixture.item("SELECT name FROM item", &["SELECT price FROM item", "SELECT name FROM item"]),
        fixture.item("SELECT id FROM item", &["SELECT price FROM item"]),
        fixture.item("SELECT missing FROM item", &["SELECT price FROM item"]),
        fixture.item("SELECT price FROM item", &["SELECT missing FROM item"]),
        fixture.item("", &["SELECT 1"]),
    ];
    let limits = Arc::new(Limits::default());
    let job = fixture.pool.submit_score(&items, &[Rule::Bird], &limits).unwrap();
    let scores = finish(&job).scores().unwrap();
    assert_eq!(scores.iter().map(|score| score.values[0]).collect::<Vec<_>>(), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!((scores[0].pred_rows, scores[0].gold_rows), (3, 2));
    assert_eq!((scores[3].pred_status, scores[3].gold_status), (Status::SchemaError, Status::Ok));
    assert_eq!((scores[4].pred_status, scores[4].gold_status), (Status::Ok, Status::SchemaError));
    assert_eq!(scores[5].pred_status, Status::NoSql);
    let before = fixture.stats()["runs"];
    finish(&fixture.pool.submit_score(&items, &[Rule::Bird], &limits).unwrap());
    assert_eq!(fixture.stats()["runs"], before);
    assert!(fixture.stats()["gold_hits"] >= 4);
}

fn golds_may_be_tables_and_items_may_have_several_databases(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let other: Arc<Path> = fixture.folder.path().join("other.sqlite").into();
    std::fs::copy(fixture.path(), &other).unwrap();
    Connection::open(&other).unwrap().execute_batch("DELETE FROM item WHERE id = 3").unwrap();
    let mut table = Table::new(vec!["n".to_owned()]);
    table.push(Value::Real(3.0));
    table.end_row();
    let mut with_table = fixture.item("SELECT count(*) FROM item", &[]);
    with_table.golds = [GoldSource::Table(Arc::new(table))].into();
    let mut both = fixture.item("SELECT 12.0", &["SELECT max(price) FROM item"]);
    both.databases = [fixture.path(), Arc::clone(&other)].into();
    let mut differ = fixture.item("SELECT 3", &["SELECT count(*) FROM item"]);
    differ.databases = [fixture.path(), other].into();
    let job =
        fixture.pool.submit_score(&[with_table, both, differ], &[Rule::Bird], &Arc::new(Limits::default())).unwrap();
    let values: Vec<f64> = finish(&job).scores().unwrap().iter().map(|score| score.values[0]).collect();
    assert_eq!(values, [1.0, 1.0, 0.0]);
}

fn large_job_is_built_in_batches_and_deduplicated_as_a_whole(base: &Config) {
    let fixture = Fixture::settled(base, 2);
    let text = |n: usize| format!("SELECT {}", n % 2_000);
    // Each gold is the prediction of another item in any batch; every third gold is the item's own prediction.
    let gold = |n: usize| text(if n.is_multiple_of(3) { n } else { n + 1_001 });
    let items: Vec<_> = (0..3_000).map(|n| fixture.item(&text(n), &[&gold(n)])).collect();
    let job = fixture.pool.submit_score(&items, &[Rule::Bird], &Arc::new(Limits::default())).unwrap();
    let scores = finish(&job).scores().unwrap();
    assert!(scores.iter().enumerate().all(|(n, score)| score.values[0] == f64::from(n % 3 == 0)));
    let stats = fixture.stats();
    assert_eq!((stats["requests"], stats["runs"], stats["duplicates"]), (6_000, 2_000, 4_000));
    // Of the 1,000 items whose text repeats an earlier one, those with n % 3 == 2 repeat its gold too.
    assert_eq!(job.progress().unwrap(), (2_667, 2_667));
    let texts: Vec<_> = (0..3_000).map(text).collect();
    let outcomes = fixture.run(&texts.iter().map(String::as_str).collect::<Vec<_>>());
    let is_right = |(n, outcome): (usize, &Arc<Outcome>)| matches!(outcome.table.as_ref().unwrap().value(0, 0), Value::Integer(i) if i as usize == n % 2_000);
    assert!(outcomes.iter().enumerate().all(is_right));
    assert_eq!(fixture.stats()["runs"], 2_000, "all outcomes are cached");
}

fn dropping_a_builder_cancels_its_runs(base: &Config) {
    let fixture = Fixture::new(&Config { max_queued: 10, ..base.clone() }, 1);
    let limits = Arc::new(Limits { timeout: None, ..Limits::default() });
    let mut builder = fixture.pool.score_builder(5, 10, &[Rule::Bird], &limits).unwrap();
    let items = [(3, fixture.item(ENDLESS, &["SELECT 1"])), (0, fixture.item(ENDLESS, &[ENDLESS]))];
    builder.add(items, &mut || true).unwrap();
    drop(builder);
    assert_eq!(fixture.run(&["SELECT 2", "SELECT 3"])[1].status, Status::Ok);
    assert_eq!(fixture.stats()["queued"], 0);
}

fn verdict_in_a_burst_is_the_same_as_alone(base: &Config) {
    let refused = ["VACUUM", "BEGIN", "COMMIT", "SAVEPOINT a", "PRAGMA journal_mode = WAL"];
    let sqls: Vec<_> =
        (0..50).flat_map(|n| [format!("SELECT {n} FROM item"), format!("{} -- {n}", refused[n % 5])]).collect();
    let fixture = Fixture::new(base, 1);
    let outcomes = fixture.run(&sqls.iter().map(String::as_str).collect::<Vec<_>>());
    for (pair, sqls) in outcomes.chunks(2).zip(sqls.chunks(2)) {
        assert_eq!([pair[0].status, pair[1].status], [Status::Ok, Status::Forbidden], "{sqls:?}");
    }
}

fn changed_file_is_detected(base: &Config) {
    let fixture = Fixture::new(base, 2);
    let count = || match fixture.run(&["SELECT count(*) FROM item"])[0].table.as_ref().unwrap().value(0, 0) {
        Value::Integer(n) => n,
        other => panic!("{other:?}"),
    };
    assert_eq!(count(), 3);
    let connection = Connection::open(fixture.path()).unwrap();
    for n in 4..9 {
        connection.execute("INSERT INTO item(name) VALUES ('more')", []).unwrap();
        assert_eq!(count(), n);
    }
    std::fs::remove_file(fixture.path()).unwrap();
    Connection::open(fixture.path()).unwrap().execute_batch("CREATE TABLE item(x)").unwrap();
    assert_eq!(count(), 0);
}

fn many_databases_fit_few_descriptors(base: &Config) {
    let folder = tempfile::tempdir().unwrap();
    let pool = Pool::new(&Config { threads: Some(2), max_open: 4, ..base.clone() }).unwrap();
    let pairs: Vec<_> = (0..40)
        .map(|i| {
            let path = folder.path().join(format!("{i}.sqlite"));
            Connection::open(&path).unwrap().execute_batch(&format!("CREATE TABLE t AS SELECT {i} AS x")).unwrap();
            (Arc::from(path), Arc::from("SELECT x FROM t"))
        })
        .collect();
    let job = pool.submit(&pairs, &Arc::new(Limits::default())).unwrap();
    for (i, outcome) in finish(&job).outcomes().unwrap().iter().enumerate() {
        assert!(matches!(outcome.table.as_ref().unwrap().value(0, 0), Value::Integer(x) if x == i as i64));
    }
    let stats: HashMap<_, _> = pool.stats().unwrap().into_iter().collect();
    assert!(stats["connections_open"] <= 4 && stats["connections_opened"] == 40);
}

fn closing_ends_every_thread_and_refuses_work(base: &Config) {
    let fixture = Fixture::new(base, 2);
    let job = fixture.submit(&[ENDLESS, "SELECT 1"], &Limits { timeout: None, ..Limits::default() });
    fixture.pool.begin_close().unwrap();
    assert!(fixture.pool.is_closed(Duration::from_secs(60)).unwrap());
    assert!(job.is_done().unwrap());
    assert_eq!(job.outcomes().unwrap()[0].status, Status::Cancelled);
    assert!(fixture.pool.submit(&[(fixture.path(), "SELECT 1".into())], &Arc::new(Limits::default())).is_err());
}

fn candidate_cache_respects_its_budget(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let pool = Pool::new(&Config { threads: Some(1), cache_bytes: 100_000, ..base.clone() }).unwrap();
    let pairs: Vec<_> =
        (0..500).map(|i| (fixture.path(), Arc::from(format!("SELECT {i}, hex(zeroblob(500))")))).collect();
    finish(&pool.submit(&pairs, &Arc::new(Limits::default())).unwrap());
    let stats: HashMap<_, _> = pool.stats().unwrap().into_iter().collect();
    assert!(stats["cache_bytes"] <= 100_000 && stats["cache_bytes"] > 50_000, "{}", stats["cache_bytes"]);
}

fn wait_ends_at_its_timeout(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let job = fixture.submit(&[ENDLESS], &Limits { timeout: None, ..Limits::default() });
    let start_time = Instant::now();
    assert!(!job.wait(Duration::from_millis(20)).unwrap());
    assert!(start_time.elapsed() >= Duration::from_millis(20));
}

fn outcomes_of_outdated_states_and_unused_limits_are_dropped(base: &Config) {
    let fixture = Fixture::new(base, 1);
    let large = "SELECT hex(zeroblob(1000000)) || name FROM item";
    for _ in 0..30 {
        let job = fixture.pool.submit_score(&[fixture.item("SELECT 1", &[large])], &[Rule::Bird], &Arc::default());
        finish(&job.unwrap());
        Connection::open(fixture.path()).unwrap().execute_batch("UPDATE item SET price = price + 1").unwrap();
        File::open(fixture.path()).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    }
    let gold_bytes = fixture.stats()["gold_bytes"];
    assert!((4_000_000..30 << 20).contains(&gold_bytes), "{gold_bytes} bytes, of 4 MB in each of 30 states");

    let fixture = Fixture::settled(base, 1);
    for max_rows in 1_000..2_000 {
        let limits = Arc::new(Limits { max_rows, ..Limits::default() });
        let item = fixture.item("SELECT 1", &["SELECT hex(zeroblob(5000))"]);
        finish(&fixture.pool.submit_score(&[item], &[Rule::Bird], &limits).unwrap());
    }
    let gold_bytes = fixture.stats()["gold_bytes"];
    assert!((1_000_000..4_000_000).contains(&gold_bytes), "{gold_bytes} bytes, of 10 kB under each of 1,000 limits");
}

fn callback_cannot_close_its_pool(base: &Config) {
    let fixture = Arc::new(Fixture::new(base, 1));
    let (sender, receiver) = std::sync::mpsc::channel();
    let (ours, slow) = (Arc::clone(&fixture), "SELECT sum(a.id * b.id) FROM item a, item b");
    let job = fixture.submit(&[slow], &Limits::default());
    job.when_done(Box::new(move || sender.send(ours.pool.begin_close().map_err(|error| error.to_string())).unwrap()))
        .unwrap();
    finish(&job);
    match receiver.recv_timeout(Duration::from_secs(60)).unwrap() {
        Err(message) => assert!(message.contains("would deadlock"), "{message}"),
        Ok(()) => assert!(job.is_done().unwrap(), "only a callback on this thread may close the pool"),
    }
}
