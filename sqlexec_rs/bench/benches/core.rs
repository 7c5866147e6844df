//! Benchmarks of the parts of a query: prepare, SQLite's steps, fetching rows, comparing them; and of scaling with
//! threads.
//!
//! Runs go through the pool, and their time is taken from their outcomes (`pool` alone measures the caller's time).
//! Each text is new to avoid the cache.

#![allow(clippy::unwrap_used, missing_docs, reason = "a failed measurement has no result")]

use std::path::Path;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use rusqlite::Connection;
use sqlexec_core::compare::{QueryResult, compare};
use sqlexec_core::{Config, Limits, Options, Outcome, Pool, Rule, Status, Table};
use tempfile::TempDir;

const N_ROWS: u64 = 10_000;
const N_LOOKUPS: u64 = 2_000;

struct Fixture {
    _folder: TempDir,
    path: Arc<Path>,
    limits: Arc<Limits>,
    n_texts: u64,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: Arc<Path> = folder.path().join("shop.sqlite").into();
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch(&format!(
                "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL, place INTEGER);
                 WITH RECURSIVE r(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM r WHERE i < {N_ROWS} - 1)
                 INSERT INTO item SELECT i, 'item ' || i, i / 8.0, i * 7919 % {N_ROWS} FROM r;"
            ))
            .unwrap();
        Self { _folder: folder, path, limits: Arc::default(), n_texts: 0 }
    }

    /// Makes a text unique.
    fn new_text(&mut self, sql: &str) -> (Arc<Path>, Arc<str>) {
        self.n_texts += 1;
        (Arc::clone(&self.path), format!("{sql} -- {}", self.n_texts).into())
    }

    fn run(&mut self, pool: &Pool, sql: &str) -> Arc<Outcome> {
        let pair = self.new_text(sql);
        let job = pool.submit(&[pair], &self.limits).unwrap();
        assert!(job.wait(Duration::from_secs(60)).unwrap());
        let outcome = job.outcomes().unwrap().remove(0);
        assert_eq!(outcome.status, Status::Ok, "{:?}", outcome.error);
        outcome
    }
}

fn pool(threads: usize) -> Pool {
    Pool::new(&Config { threads: Some(threads), cache_bytes: 0, ..Config::default() }).unwrap()
}

/// Queries that mostly measure prepare, steps, or fetching.
fn queries(criterion: &mut Criterion) {
    let mut fixture = Fixture::new();
    let pool = pool(1);
    let joins: Vec<_> = (1..12).map(|i| format!("JOIN item i{i} ON i{i}.id = i{}.place", i - 1)).collect();
    for (name, sql) in [
        ("prepare", format!("SELECT i0.name, i11.price FROM item i0 {} WHERE i0.id < 0", joins.join(" "))),
        ("step", "SELECT sum(a.price * b.place) FROM item a JOIN item b ON b.id = a.place".to_owned()),
        ("fetch", "SELECT id, name, price, place FROM item".to_owned()),
    ] {
        criterion.bench_function(name, |bencher| {
            bencher.iter_custom(|n| (0..n).map(|_| fixture.run(&pool, &sql).elapsed).sum());
        });
    }
}

fn side(table: &Table) -> QueryResult<'_> {
    QueryResult { table, sql: None }
}

/// Compares results of 10,000 rows. The gold is indexed once, as when many answers are compared with it.
fn comparing(criterion: &mut Criterion) {
    let mut fixture = Fixture::new();
    let pool = pool(1);
    let gold = fixture.run(&pool, "SELECT id, name, price FROM item");
    let same = fixture.run(&pool, "SELECT id, name, price FROM item ORDER BY id");
    let shuffled = fixture.run(&pool, "SELECT id, name, price FROM item ORDER BY place");
    let other = fixture.run(&pool, "SELECT id, name, price + (id = 5000) FROM item ORDER BY place");
    let options = Options::default();
    let mut group = criterion.benchmark_group("compare");
    group.throughput(Throughput::Elements(N_ROWS));
    for rule in [Rule::Bird, Rule::TestSuite] {
        for (name, predicted) in [("same order", &same), ("another order", &shuffled), ("another cell", &other)] {
            let (predicted, gold) = (predicted.table.as_ref().unwrap(), gold.table.as_ref().unwrap());
            group.bench_function(BenchmarkId::new(rule.name(), name), |bencher| {
                bencher.iter(|| compare(rule, side(predicted), side(gold), &options));
            });
        }
    }
    group.finish();
}

/// Lookups by key in a batch, on one thread and on more.
fn scaling(criterion: &mut Criterion) {
    let mut fixture = Fixture::new();
    let cores = available_parallelism().map_or(1, std::num::NonZero::get);
    let mut group = criterion.benchmark_group("pool");
    group.throughput(Throughput::Elements(N_LOOKUPS));
    for threads in (0..).map(|power| 1 << power).take_while(|threads| *threads <= cores) {
        let pool = pool(threads);
        group.bench_function(BenchmarkId::new("threads", threads), |bencher| {
            bencher.iter_custom(|n| {
                let mut time = Duration::ZERO;
                for _ in 0..n {
                    let pairs: Vec<_> = (0..N_LOOKUPS)
                        .map(|id| fixture.new_text(&format!("SELECT name, price FROM item WHERE id = {id}")))
                        .collect();
                    let start_time = Instant::now();
                    let job = pool.submit(&pairs, &fixture.limits).unwrap();
                    assert!(job.wait(Duration::from_secs(60)).unwrap());
                    time += start_time.elapsed();
                }
                time
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20);
    targets = queries, comparing, scaling
}
criterion_main!(benches);
