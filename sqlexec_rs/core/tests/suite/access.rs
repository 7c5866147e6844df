//! How files are opened: normally, as immutable, or as copies in memory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use sqlexec_core::{Access, Config, Limits, Outcome, Pool, Status, Value, WorkerConfig};
use tempfile::TempDir;

const COPIES: Access = Access {
    immutable: false,
    copy_up_to_bytes: 1 << 20,
    copies_bytes: 1 << 20,
    like_blobs: true,
    checks_cells: false,
    sqlite_version: u32::MAX,
};

struct Fixture {
    folder: TempDir,
    pool: Pool,
}

impl Fixture {
    fn new(access: Access, on_processes: bool) -> Self {
        let worker = on_processes.then(|| WorkerConfig::new(env!("CARGO_BIN_EXE_sqlexec-worker").into()));
        let pool =
            Pool::new(&Config { threads: Some(1), cache_bytes: 0, access, worker, ..Config::default() }).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), pool }
    }

    /// Creates a database with a table that contains this number.
    fn make(&self, name: &str, number: i64) -> Connection {
        let connection = Connection::open(self.path(name)).unwrap();
        connection.execute_batch(&format!("CREATE TABLE t AS SELECT {number} AS x")).unwrap();
        connection
    }

    fn path(&self, name: &str) -> Arc<Path> {
        self.folder.path().join(name).into()
    }

    fn run(&self, name: &str, sql: &str) -> Arc<Outcome> {
        self.run_under(name, sql, Limits::default())
    }

    fn run_under(&self, name: &str, sql: &str, limits: Limits) -> Arc<Outcome> {
        let job = self.pool.submit(&[(self.path(name), sql.into())], &Arc::new(limits)).unwrap();
        assert!(job.wait(Duration::from_secs(60)).unwrap());
        job.outcomes().unwrap().remove(0)
    }

    fn number(&self, name: &str) -> i64 {
        let outcome = self.run(name, "SELECT sum(x) FROM t");
        match outcome.table.as_ref().map(|table| table.value(0, 0)) {
            Some(Value::Integer(number)) => number,
            other => panic!("{other:?}: {:?}", outcome.error),
        }
    }

    fn stats(&self) -> HashMap<&'static str, u64> {
        self.pool.stats().unwrap().into_iter().collect()
    }

    /// Returns how many databases were copied, and the bytes of the current copies.
    fn copied(&self) -> (u64, u64) {
        let stats = self.stats();
        (stats["databases_copied"], stats["copied_bytes"])
    }
}

fn on_both(test: impl Fn(bool)) {
    test(false);
    test(true);
}

/// Waits until the files no longer count as recently changed, because such files are opened and closed to hash them.
fn settle() {
    std::thread::sleep(Duration::from_millis(2_100));
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn copy_returns_the_same_as_the_file_and_is_read_only() {
    on_both(|on_processes| {
        let fixture = Fixture::new(COPIES, on_processes);
        drop(fixture.make("a.sqlite", 7));
        let bytes = fs::read(fixture.path("a.sqlite")).unwrap();
        assert_eq!(fixture.number("a.sqlite"), 7);
        assert_eq!(fixture.copied(), (1, bytes.len() as u64));
        for sql in ["INSERT INTO t VALUES (1)", "CREATE TABLE u(x)", "ATTACH 'b.sqlite' AS b", "VACUUM INTO 'b.sqlite'"]
        {
            assert_eq!(fixture.run("a.sqlite", sql).status, Status::Forbidden, "{sql}");
        }
        // Patterns need the second connection to the same copy; a sort uses temporary files as usual.
        assert_eq!(fixture.run("a.sqlite", "SELECT x FROM t WHERE x || '%a' LIKE x || x").row_count(), 0);
        assert_eq!(fixture.number("a.sqlite"), 7);
        assert_eq!(fixture.copied(), (1, bytes.len() as u64));
        assert_eq!(fs::read(fixture.path("a.sqlite")).unwrap(), bytes);
        assert_eq!(fs::read_dir(fixture.folder.path()).unwrap().count(), 1);
    });
}

#[test]
fn changed_file_is_copied_again() {
    on_both(|on_processes| {
        let fixture = Fixture::new(COPIES, on_processes);
        let writer = fixture.make("a.sqlite", 1);
        assert_eq!(fixture.number("a.sqlite"), 1);
        for number in 2..7 {
            writer.execute("UPDATE t SET x = ?1", [number]).unwrap();
            assert_eq!(fixture.number("a.sqlite"), number);
        }
        assert!(fixture.copied().0 >= 6);
        assert_eq!(fixture.copied().1, size(&fixture.path("a.sqlite")));
        drop(writer);
        fs::remove_file(fixture.path("a.sqlite")).unwrap();
        drop(fixture.make("a.sqlite", 100));
        assert_eq!(fixture.number("a.sqlite"), 100);
        fs::remove_file(fixture.path("a.sqlite")).unwrap();
        assert_eq!(fixture.run("a.sqlite", "SELECT sum(x) FROM t").status, Status::DbError);
    });
}

#[test]
fn copies_respect_their_budget_and_only_small_databases_are_copied() {
    on_both(|on_processes| {
        let access = Access { copy_up_to_bytes: 10_000, copies_bytes: 3 * 8_192, ..COPIES };
        let fixture = Fixture::new(access, on_processes);
        for i in 0..8 {
            drop(fixture.make(&format!("{i}.sqlite"), i));
            assert_eq!(size(&fixture.path(&format!("{i}.sqlite"))), 8_192);
        }
        let large = fixture.make("large.sqlite", 9);
        large.execute_batch("CREATE TABLE u AS SELECT zeroblob(20000)").unwrap();
        for i in [0, 1, 2, 0, 3, 4, 5, 6, 7, 0] {
            assert_eq!(fixture.number(&format!("{i}.sqlite")), i);
            assert!(fixture.copied().1 <= 3 * 8_192);
        }
        assert_eq!(fixture.copied(), (9, 3 * 8_192));
        assert_eq!(fixture.number("large.sqlite"), 9);
        assert_eq!(fixture.copied(), (9, 3 * 8_192));
        assert_eq!(fixture.stats()["connections_open"], 4, "the connection of an evicted copy must be closed");
    });
}

#[test]
fn threads_share_a_copy() {
    let fixture = Fixture::new(COPIES, false);
    drop(fixture.make("a.sqlite", 7));
    let config = Config { threads: Some(2), cache_bytes: 0, access: COPIES, ..Config::default() };
    let pool = Pool::new(&config).unwrap();
    let endless = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT r.x + 1 FROM r, t) SELECT count(*) FROM r";
    let limits = Arc::new(Limits { timeout: None, ..Limits::default() });
    let endless_job = pool.submit(&[(fixture.path("a.sqlite"), endless.into())], &limits).unwrap();
    while pool.stats().unwrap().contains(&("databases_copied", 0)) {
        std::thread::yield_now();
    }
    let other = pool.submit(&[(fixture.path("a.sqlite"), "SELECT x FROM t".into())], &limits).unwrap();
    assert!(other.wait(Duration::from_secs(60)).unwrap());
    let stats: HashMap<_, _> = pool.stats().unwrap().into_iter().collect();
    assert_eq!((stats["connections_open"], stats["databases_copied"], stats["copied_bytes"]), (2, 1, 8_192));
    endless_job.cancel().unwrap();
    pool.begin_close().unwrap();
    assert!(pool.is_closed(Duration::from_secs(60)).unwrap());
    assert!(pool.stats().unwrap().contains(&("copied_bytes", 0)));
}

/// Cycling through more databases than may be open must reuse some connections, and must close unvisited databases.
#[test]
fn revisited_databases_stay_open() {
    on_both(|on_processes| {
        let folder = tempfile::tempdir().unwrap();
        let worker = on_processes.then(|| WorkerConfig::new(env!("CARGO_BIN_EXE_sqlexec-worker").into()));
        let config = Config { threads: Some(1), max_open: 40, cache_bytes: 0, worker, ..Config::default() };
        let pool = Pool::new(&config).unwrap();
        let first = folder.path().join("0.sqlite");
        Connection::open(&first).unwrap().execute_batch("CREATE TABLE t AS SELECT 1 AS x").unwrap();
        let paths: Vec<Arc<Path>> = (0..130).map(|i| folder.path().join(format!("{i}.sqlite")).into()).collect();
        for path in &paths[1..] {
            fs::copy(&first, path).unwrap();
        }
        settle();
        let opened_in_round = |paths: &[Arc<Path>], round: usize| {
            let before = pool.stats().unwrap();
            let sql: Arc<str> = format!("SELECT x FROM t -- {round}").into();
            let pairs: Vec<_> = paths.iter().map(|path| (Arc::clone(path), Arc::clone(&sql))).collect();
            let job = pool.submit(&pairs, &Arc::new(Limits::default())).unwrap();
            assert!(job.wait(Duration::from_secs(60)).unwrap());
            assert!(job.outcomes().unwrap().iter().all(|outcome| outcome.row_count() == 1));
            let after: HashMap<_, _> = pool.stats().unwrap().into_iter().collect();
            let before: HashMap<_, _> = before.into_iter().collect();
            assert!(after["connections_open"] <= 40);
            after["connections_opened"] - before["connections_opened"]
        };
        assert_eq!(opened_in_round(&paths[..100], 0), 100);
        let again: u64 = (1..6).map(|round| opened_in_round(&paths[..100], round)).sum();
        assert!(again < 400, "{again} of 500 databases were reopened");
        let others: Vec<u64> = (6..60).map(|round| opened_in_round(&paths[100..], round)).collect();
        assert_eq!((others[0], others[53]), (30, 0), "{others:?}");
    });
}

/// A statement with a long pattern uses a separate connection, which opens the file once more.
#[test]
fn open_files_count_towards_the_limit() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config { threads: Some(1), max_open: 6, cache_bytes: 0, ..Config::default() };
    let pool = Pool::new(&config).unwrap();
    let paths: Vec<Arc<Path>> = (0..6).map(|i| folder.path().join(format!("{i}.sqlite")).into()).collect();
    let open_files = || {
        let links = fs::read_dir("/dev/fd").unwrap().filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| paths.iter().any(|path| **path == **link)).count()
    };
    for path in &paths {
        Connection::open(path).unwrap().execute_batch("CREATE TABLE t AS SELECT 'abc' AS x").unwrap();
    }
    settle();
    for sql in ["SELECT x FROM t", "SELECT x FROM t WHERE x LIKE x || '%'", "SELECT x FROM t ORDER BY x"] {
        for path in paths.iter().chain(&paths[3..]) {
            let job = pool.submit(&[(Arc::clone(path), sql.into())], &Arc::new(Limits::default())).unwrap();
            assert!(job.wait(Duration::from_secs(60)).unwrap());
            assert_eq!(job.outcomes().unwrap()[0].row_count(), 1);
            assert!(open_files() <= 6, "{}", open_files());
        }
    }
    assert!(open_files() >= 4 || cfg!(not(target_os = "linux")));
}

/// In WAL mode the log holds the changes: while it exists, the file is not copied, and the immutable option is
/// ignored.
#[test]
fn existing_log_is_always_read() {
    on_both(|on_processes| {
        for access in [COPIES, Access { immutable: true, ..Access::default() }, Access { immutable: true, ..COPIES }] {
            let fixture = Fixture::new(access, on_processes);
            let writer = fixture.make("a.sqlite", 1);
            writer.execute_batch("PRAGMA journal_mode = WAL; UPDATE t SET x = 2").unwrap();
            assert_eq!(fixture.number("a.sqlite"), 2, "{access:?}");
            assert_eq!(fixture.copied(), (0, 0));
        }
        let fixture = Fixture::new(COPIES, on_processes);
        let writer = fixture.make("a.sqlite", 1);
        writer.execute_batch("PRAGMA journal_mode = WAL; UPDATE t SET x = 2").unwrap();
        drop(writer); // which deletes the log
        assert_eq!(fixture.number("a.sqlite"), 2);
        assert_eq!(fixture.copied().0, 1);
        let writer = Connection::open(fixture.path("a.sqlite")).unwrap();
        writer.execute_batch("UPDATE t SET x = 3").unwrap();
        assert_eq!(fixture.number("a.sqlite"), 3);
        assert_eq!(fixture.copied().1, 0);
    });
}

#[test]
fn immutable_file_is_read_without_locks() {
    on_both(|on_processes| {
        let locked_out = Fixture::new(Access::default(), on_processes);
        let fixture = Fixture::new(Access { immutable: true, ..Access::default() }, on_processes);
        for each in [&locked_out, &fixture] {
            drop(each.make("a ?#%.sqlite", 5));
        }
        settle(); // hashing the file would release this process's lock on it
        for each in [&locked_out, &fixture] {
            let writer = Connection::open(each.path("a ?#%.sqlite")).unwrap();
            writer.execute_batch("PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE").unwrap();
            // A lock is waited for until the deadline, or without one for half a second.
            let outcome =
                each.run_under("a ?#%.sqlite", "SELECT x FROM t", Limits { timeout: None, ..Limits::default() });
            let expected = if std::ptr::eq(each, &raw const fixture) { Status::Ok } else { Status::DbError };
            assert_eq!(outcome.status, expected, "{:?}", outcome.error);
        }
        assert_eq!(fixture.run("a ?#%.sqlite", "DELETE FROM t").status, Status::Forbidden);
        assert_eq!(fixture.copied(), (0, 0));
    });
}

/// Malformed or truncated databases have the same verdict in memory.
#[test]
fn damaged_file_is_a_db_error_on_disk_and_in_memory() {
    on_both(|on_processes| {
        let (file, copy) = (Fixture::new(Access::default(), on_processes), Fixture::new(COPIES, on_processes));
        for fixture in [&file, &copy] {
            drop(fixture.make("a.sqlite", 5));
            let whole = fs::read(fixture.path("a.sqlite")).unwrap();
            fs::write(fixture.path("cut.sqlite"), &whole[..4_000]).unwrap();
            fs::write(fixture.path("noise.sqlite"), vec![0xa5; 9_000]).unwrap();
            fs::write(fixture.path("empty.sqlite"), b"").unwrap();
        }
        for name in ["cut.sqlite", "noise.sqlite", "empty.sqlite", "missing.sqlite"] {
            let verdicts = [&file, &copy].map(|fixture| fixture.run(name, "SELECT x FROM t").status);
            assert_eq!(verdicts[0], verdicts[1], "{name}");
            assert_ne!(verdicts[0], Status::Ok, "{name}");
        }
    });
}
