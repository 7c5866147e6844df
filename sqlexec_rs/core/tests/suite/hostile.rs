//! Malformed and damaged files, malicious schemas, and random SQL: each gets a status, and nothing panics, blocks or
//! is written.

#![allow(clippy::unwrap_used, reason = "test code")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use rusqlite::Connection;
use sqlexec_core::{Access, Config, Limits, Outcome, Pool, Status};
use tempfile::TempDir;

/// Statements that together read the schema, tables, indexes, views and shadow tables.
const READS: [&str; 14] = [
    "SELECT * FROM t",
    "SELECT count(*) FROM t",
    "SELECT count(*), max(b) FROM t WHERE a > 1 ORDER BY b",
    "SELECT b FROM t WHERE b >= 'a' ORDER BY b DESC",
    "SELECT * FROM w ORDER BY k",
    "SELECT * FROM v",
    "SELECT d FROM g",
    "SELECT * FROM sqlite_schema",
    "SELECT count(*) FROM sqlite_schema, t",
    "SELECT body FROM f WHERE f MATCH 'word'",
    "SELECT snippet(f, 0, '[', ']', '', 5) FROM f WHERE f MATCH 'w*'",
    "SELECT id FROM r WHERE x0 > 1 AND x1 < 50",
    "PRAGMA table_list",
    "SELECT rowid, * FROM t WHERE rowid = 3",
];

struct Fixture {
    folder: TempDir,
    pool: Pool,
    /// Opens the same files as copies in memory, which SQLite reads through another code path.
    copying: Pool,
}

impl Fixture {
    fn new() -> Self {
        let config = Config { threads: Some(1), ..Config::default() };
        let access = Access { copy_up_to_bytes: 1 << 20, ..Access::default() };
        let copying = Pool::new(&Config { access, ..config.clone() }).unwrap();
        Self { folder: tempfile::tempdir().unwrap(), pool: Pool::new(&config).unwrap(), copying }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Runs on the file and on its copy in memory, whose statuses must agree. Returns the outcomes of the file.
    fn run(&self, path: &Path, sqls: &[&str]) -> Vec<Arc<Outcome>> {
        let outcomes = Self::run_in(&self.pool, path, sqls);
        for ((sql, outcome), copied) in sqls.iter().zip(&outcomes).zip(Self::run_in(&self.copying, path, sqls)) {
            // The progress of a run until its deadline depends on the machine.
            let is_late = [outcome.status, copied.status].contains(&Status::Timeout);
            assert!(is_late || outcome.status == copied.status, "{outcome:?}, but in memory {copied:?}: {sql}");
        }
        outcomes
    }

    fn run_in(pool: &Pool, path: &Path, sqls: &[&str]) -> Vec<Arc<Outcome>> {
        let limits = Limits {
            timeout: Some(Duration::from_millis(500)),
            max_rows: 10_000,
            heap_bytes: 64 << 20,
            ..Limits::default()
        };
        let pairs: Vec<(Arc<Path>, Arc<str>)> = sqls.iter().map(|sql| (path.into(), (*sql).into())).collect();
        let job = pool.submit(&pairs, &Arc::new(limits)).unwrap();
        assert!(job.wait(Duration::from_secs(60)).unwrap(), "{}: {sqls:?} hangs", path.display());
        job.outcomes().unwrap() // an executor error, such as a panic, fails here
    }

    fn statuses(&self, path: &Path, sqls: &[&str]) -> Vec<Status> {
        self.run(path, sqls).iter().map(|outcome| outcome.status).collect()
    }

    fn contents(&self) -> BTreeMap<String, Vec<u8>> {
        let files = fs::read_dir(self.folder.path()).unwrap().map(|entry| entry.unwrap());
        let files = files.filter(|entry| entry.file_type().unwrap().is_file());
        files.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
    }
}

/// Returns a small database with many features and small pages, so that there are many to damage.
fn valid() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("valid.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "PRAGMA page_size = 512;
             CREATE TABLE t(a INTEGER, b TEXT, c BLOB);
             CREATE INDEX i ON t(b, a);
             CREATE TABLE w(k TEXT PRIMARY KEY, x) WITHOUT ROWID;
             CREATE TABLE g(a, d AS (a * 2) STORED, CHECK (a < 100000));
             CREATE VIEW v AS SELECT t.b, w.x FROM t JOIN w ON w.k = t.b;
             CREATE VIRTUAL TABLE f USING fts5(body);
             CREATE VIRTUAL TABLE r USING rtree(id, x0, x1);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 120)
             INSERT INTO t SELECT i, 'name ' || i, zeroblob(i * 7) FROM n;
             INSERT INTO w SELECT b, a FROM t;
             INSERT INTO g(a) SELECT a FROM t;
             INSERT INTO f SELECT 'word ' || b FROM t;
             INSERT INTO r SELECT a, a, a + 1 FROM t;",
        )
        .unwrap();
    drop(connection);
    fs::read(path).unwrap()
}

/// A small random number generator, reproducible on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn malformed_file_is_a_db_error() {
    let fixture = Fixture::new();
    let whole = valid();
    fs::create_dir(fixture.path("folder")).unwrap();
    let is_made = std::process::Command::new("mkfifo").arg(fixture.path("pipe")).status().unwrap();
    assert!(is_made.success());
    std::os::unix::fs::symlink(fixture.path("nowhere"), fixture.path("dangling")).unwrap();
    std::os::unix::fs::symlink("loop", fixture.path("loop")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(fixture.path("socket")).unwrap();
    fixture.write("text", &b"no database, but long enough to have a header. ".repeat(50));
    let with_header = |name: &str, at: usize, bytes: &[u8]| {
        let mut changed = whole.clone();
        changed[at..at + bytes.len()].copy_from_slice(bytes);
        fixture.write(name, &changed);
    };
    with_header("magic", 0, b"SQLite format 4\0");
    with_header("version", 18, &[9, 9]);
    with_header("cookie", 44, &[0, 0, 0, 99]);
    with_header("page size 3", 16, &[0, 3]);
    with_header("reserved", 20, &[255]);
    with_header("schema", 100, &[0xff; 300]);
    let before = fixture.contents();
    for name in [
        "missing",
        "folder",
        "pipe",
        "dangling",
        "loop",
        "socket",
        "text",
        "magic",
        "version",
        "encoding",
        "cookie",
        "page size 3",
        "reserved",
        "schema",
    ] {
        for outcome in fixture.run(&fixture.path(name), &READS[..3]) {
            assert_eq!(outcome.status, Status::DbError, "{name}: {:?}", outcome.error);
            assert!(outcome.error.is_some());
        }
    }
    for path in ["", ":memory:", "/dev/null", "/dev/zero", "/proc/self/mem", "file::memory:?mode=memory"] {
        assert_eq!(fixture.statuses(Path::new(path), &["SELECT 1"]), [Status::DbError], "{path}");
    }
    assert_eq!(fixture.contents(), before);
}

#[test]
fn empty_file_is_an_empty_database() {
    let fixture = Fixture::new();
    let empty = fixture.write("empty", b"");
    assert_eq!(fixture.statuses(&empty, &["SELECT 1", "SELECT * FROM t"]), [Status::Ok, Status::SchemaError]);
    assert_eq!(fixture.contents()["empty"], b"");
}

#[test]
fn truncated_file_gets_a_status() {
    let fixture = Fixture::new();
    let whole = valid();
    for (number, len) in (0..60).map(|i| (i, whole.len() * i / 60)).chain([(60, 1), (61, 99), (62, 101)]) {
        let path = fixture.write(&format!("cut{number}"), &whole[..len]);
        fixture.run(&path, &READS);
    }
    let huge = [&whole[..16], &[0, 1], &whole[18..]].concat(); // the header claims pages of 65,536 bytes
    fixture.run(&fixture.write("huge pages", &huge), &READS);
}

#[test]
fn flipped_bits_get_a_status() {
    let fixture = Fixture::new();
    let whole = valid();
    let intact = fixture.write("intact", &whole);
    for (sql, status) in READS.iter().zip(fixture.statuses(&intact, &READS)) {
        assert_eq!(status, Status::Ok, "{sql}");
    }
    let mut random = Random(20_261_121);
    for round in 0..100 {
        let mut damaged = whole.clone();
        for _ in 0..=round / 10 {
            let at = random.below(damaged.len());
            damaged[at] ^= 1 << random.below(8);
        }
        let path = fixture.write("damaged", &damaged);
        fixture.run(&path, &READS);
        assert_eq!(fs::read(&path).unwrap(), damaged);
        fs::remove_file(path).unwrap();
    }
}

/// Every child of an interior page points to the same page one level down: an exponentially large table in a few
/// pages.
#[test]
fn table_with_repeatedly_shared_pages_is_stopped() {
    const LEVELS: usize = 12;
    const PAGE: usize = 4_096;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tree.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("CREATE TABLE t(a); INSERT INTO t VALUES (1), (2), (3)").unwrap();
    drop(connection);
    let mut file = fs::read(&path).unwrap();
    assert_eq!(file.len(), 2 * PAGE);
    let leaf = file.split_off(PAGE);
    for level in 1..=LEVELS {
        // Page 2 is the root. The children of each page are the next page, and the last page is the leaf.
        let child = (level as u32 + 2).to_be_bytes();
        let n_cells = 400_u16;
        let mut page = vec![0; PAGE];
        page[0] = 0x05;
        page[3..5].copy_from_slice(&n_cells.to_be_bytes());
        page[8..12].copy_from_slice(&child);
        let mut at = PAGE;
        for cell in 0..usize::from(n_cells) {
            at -= 5;
            page[at..at + 4].copy_from_slice(&child);
            page[at + 4] = 1; // the key
            page[12 + cell * 2..14 + cell * 2].copy_from_slice(&(at as u16).to_be_bytes());
        }
        page[5..7].copy_from_slice(&(at as u16).to_be_bytes());
        file.extend(page);
    }
    file.extend(leaf);
    let n_pages = ((file.len() / PAGE) as u32).to_be_bytes();
    file[28..32].copy_from_slice(&n_pages);
    let fixture = Fixture::new();
    let path = fixture.write("tree.sqlite", &file);
    for sql in ["SELECT count(*) FROM t", "SELECT count(*) FROM t, t AS u", "SELECT max(a) FROM t"] {
        assert_eq!(fixture.statuses(&path, &[sql]), [Status::Timeout], "{sql}");
    }
}

#[test]
fn malicious_schema_does_no_harm() {
    let fixture = Fixture::new();
    let path = fixture.path("schema.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "PRAGMA trusted_schema = ON;
             CREATE TABLE t(a, b TEXT DEFAULT (hex(randomblob(16))), c AS (hex(zeroblob(3000000))) VIRTUAL,
                            CHECK (a NOT LIKE '%x%'));
             INSERT INTO t(a) VALUES (1), (2);
             CREATE TABLE log(x);
             CREATE TRIGGER w AFTER INSERT ON t BEGIN INSERT INTO t(a) VALUES (new.a + 1); END;
             CREATE VIEW loads AS SELECT load_extension('libm.so');
             CREATE VIEW writes AS SELECT fts3_tokenizer('simple', x'41') FROM t;
             CREATE VIEW itself AS SELECT * FROM itself;
             CREATE VIEW one AS SELECT * FROM two;
             CREATE VIEW two AS SELECT * FROM one;
             CREATE VIEW endless AS WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r WHERE x < 0;
             CREATE VIEW gone AS SELECT * FROM missing;
             CREATE VIEW peeks AS SELECT * FROM pragma_database_list;
             CREATE VIEW file AS SELECT readfile('/etc/passwd');",
        )
        .unwrap();
    drop(connection);
    let before = fixture.contents();
    for (sql, status) in [
        ("SELECT a, length(b) FROM t", Status::Ok),
        ("SELECT c FROM t", Status::TooLarge),
        ("SELECT * FROM loads", Status::Forbidden),
        ("SELECT * FROM writes", Status::Forbidden),
        ("SELECT * FROM itself", Status::SyntaxError),
        ("SELECT * FROM one", Status::SyntaxError),
        ("SELECT * FROM endless", Status::Timeout),
        ("SELECT * FROM gone", Status::SchemaError),
        ("SELECT * FROM file", Status::SchemaError),
        ("SELECT * FROM peeks", Status::Forbidden),
        ("INSERT INTO t(a) VALUES (1)", Status::Forbidden),
    ] {
        let outcome = &fixture.run(&path, &[sql])[0];
        assert_eq!(outcome.status, status, "{sql}: {:?}", outcome.error);
    }
    assert_eq!(fixture.contents(), before);
}

#[test]
fn schema_with_several_statements_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.write("two.sqlite", &valid());
    let other = fixture.path("other.sqlite");
    let connection = Connection::open(&path).unwrap();
    connection.execute_batch("PRAGMA writable_schema = ON").unwrap();
    let sql = format!("CREATE VIEW v AS SELECT 1 AS x; ATTACH '{}' AS other; CREATE TABLE other.t(x)", other.display());
    connection.execute("UPDATE sqlite_schema SET sql = ?1 WHERE name = 'v'", [sql]).unwrap();
    drop(connection);
    assert_eq!(fixture.statuses(&path, &["SELECT * FROM v", "SELECT 1 FROM t"]), [Status::DbError; 2]);
    assert!(!other.exists());
}

#[test]
fn inconsistent_schema_gets_a_status() {
    let lies = [
        "UPDATE sqlite_schema SET sql = replace(sql, 'WITHOUT ROWID', '') WHERE name = 'w'",
        "UPDATE sqlite_schema SET sql = 'CREATE TABLE t(a INTEGER PRIMARY KEY, b, c) WITHOUT ROWID' WHERE name = 't'",
        "UPDATE sqlite_schema SET rootpage = 3 - rootpage % 2 WHERE rootpage > 0",
        "UPDATE sqlite_schema SET rootpage = 1 WHERE name = 't'",
        "UPDATE sqlite_schema SET rootpage = 999999 WHERE name = 't'",
        "UPDATE sqlite_schema SET rootpage = 0 WHERE name = 'i'",
        "UPDATE sqlite_schema SET sql = 'CREATE TABLE t(' || substr(hex(zeroblob(2000)), 1, 3000) || ')' WHERE name = 't'",
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX i ON t(load_extension(b))' WHERE name = 'i'",
        "UPDATE sqlite_schema SET sql = 'CREATE INDEX i ON t(randomblob(1000000))' WHERE name = 'i'",
        "UPDATE sqlite_schema SET sql = 'SELECT 1' WHERE name = 'v'",
        "UPDATE sqlite_schema SET sql = 'CREATE VIRTUAL TABLE f USING missing(x)' WHERE name = 'f'",
        "UPDATE sqlite_schema SET type = 'table', name = x'ff00', tbl_name = 't' WHERE name = 'v'",
        "UPDATE sqlite_schema SET sql = CAST(replace(CAST(sql AS BLOB), 'b', x'ff') AS TEXT)",
        "UPDATE sqlite_schema SET sql = NULL",
        "DELETE FROM sqlite_schema WHERE name LIKE 'f_%'",
        "DELETE FROM f_data",
        "UPDATE f_data SET block = zeroblob(1000000)",
        "UPDATE f_data SET block = randomblob(length(block))",
        "UPDATE r_node SET data = zeroblob(length(data))",
        "UPDATE r_node SET data = randomblob(length(data))",
    ];
    let fixture = Fixture::new();
    let whole = valid();
    for (number, lie) in lies.iter().enumerate() {
        let path = fixture.write(&format!("lie{number}"), &whole);
        let connection = Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA writable_schema = ON").unwrap();
        let n_changed = connection.execute(lie, []).unwrap();
        assert!(n_changed > 0, "{lie}");
        drop(connection);
        let before = fs::read(&path).unwrap();
        fixture.run(&path, &READS);
        assert_eq!(fs::read(&path).unwrap(), before, "{lie}");
    }
}

fn config(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::default(); // reads the environment
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.failure_persistence = None;
    config
}

#[test]
fn mutated_files_get_a_status() {
    let fixture = Fixture::new();
    let whole = valid();
    let bytes = prop_oneof![any::<u8>(), Just(0), Just(0xff), Just(0x0d), Just(0x05)];
    let splice = (any::<prop::sample::Index>(), prop::collection::vec(bytes, 1..20), any::<bool>());
    proptest!(config(60), |(splices in prop::collection::vec(splice, 1..8))| {
        let mut damaged = whole.clone();
        for (at, bytes, inserts) in splices {
            let at = at.index(damaged.len() - bytes.len());
            let end = if inserts { at } else { at + bytes.len() };
            damaged.splice(at..end, bytes);
        }
        let path = fixture.write("mutated", &damaged);
        fixture.run(&path, &READS);
        prop_assert_eq!(fs::read(&path).unwrap(), damaged);
        fs::remove_file(path).unwrap();
    });
}

/// Generates SQL from meaningful words and from random bytes.
fn sql() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        20 => prop::sample::select(
            "SELECT * FROM t w g v f r WHERE a b c d AND OR NOT ( ) , = < > + - || / % 1 2.5 'x' x'ff' NULL GROUP ORDER BY \
             HAVING LIMIT OFFSET UNION ALL EXCEPT JOIN LEFT ON USING AS DISTINCT count(*) max(b) sum(a) OVER CASE WHEN THEN \
             ELSE END IN EXISTS LIKE GLOB '%a_' MATCH BETWEEN WITH RECURSIVE VALUES CAST COLLATE NOCASE IS DESC json_each(b) \
             replace(b,'a','bb') instr(b,'e') trim(b) printf('%d',a) hex(c) group_concat(b) PRAGMA EXPLAIN INSERT UPDATE \
             DELETE CREATE DROP ATTACH ; -- /* */ \" ` [ ] ? :x row_number() sqlite_schema INTO SET TABLE"
                .split_whitespace()
                .collect::<Vec<_>>()
        )
        .prop_map(str::to_owned),
        1 => ".{0,4}",
    ];
    let sentence = prop::collection::vec(word, 0..25).prop_map(|sentence| sentence.join(" "));
    let mutated = (prop::sample::select(READS.to_vec()), any::<prop::sample::Index>(), ".{0,6}").prop_map(
        |(sql, at, inserted)| {
            let at = at.index(sql.len() + 1);
            format!("{}{inserted}{}", &sql[..at], &sql[at..])
        },
    );
    prop_oneof![sentence.clone().prop_map(|sentence| format!("SELECT {sentence}")), sentence, mutated, any::<String>()]
}

#[test]
fn random_sql_gets_a_status_and_writes_nothing() {
    let fixture = Fixture::new();
    let path = fixture.write("valid.sqlite", &valid());
    let before = fixture.contents();
    proptest!(config(300), |(sqls in prop::collection::vec(sql(), 8))| {
        let sqls: Vec<&str> = sqls.iter().map(String::as_str).collect();
        let statuses = fixture.statuses(&path, &sqls);
        prop_assert!(!statuses.contains(&Status::DbError), "{:?}: {:?}", sqls, statuses);
        prop_assert_eq!(&fixture.contents(), &before);
    });
}
