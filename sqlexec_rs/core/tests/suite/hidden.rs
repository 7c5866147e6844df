//! Hidden columns: every way to read their values is refused, and everything else is read as before.

#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use sqlexec_core::{
    Access, Config, HiddenColumn, Limits, Outcome, OutputKind, Pool, PoolError, Status, Value, WorkerConfig,
};
use tempfile::TempDir;

const SCHEMA: &str = "
    CREATE TABLE users(id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT DEFAULT 'x', Email TEXT,
                       domain TEXT AS (substr(email, instr(email, '@'))), host TEXT AS (upper(domain)), n AS (length(name)));
    INSERT INTO users(name, email) VALUES ('Ann', 'ann@secret.org'), ('Bob', 'bob@secret.org');
    CREATE TABLE orders(id INTEGER PRIMARY KEY, user_id INTEGER REFERENCES users, email TEXT);
    INSERT INTO orders VALUES (1, 2, 'shop@example.org');
    CREATE TABLE \"odd \"\"name\"(\"a.b\" TEXT, c);
    INSERT INTO \"odd \"\"name\" VALUES ('secret', 1);
    CREATE TABLE keys(secret_key INTEGER PRIMARY KEY, label);
    INSERT INTO keys VALUES (987654, 'l');
    CREATE VIEW shown AS SELECT name, email AS address FROM users;
    CREATE VIEW names AS SELECT id, name FROM users;
    CREATE VIEW joined AS SELECT o.id FROM orders AS o NATURAL JOIN (SELECT 2 AS id) JOIN users USING (email);
    CREATE VIEW ones AS SELECT 1 AS x FROM users;
    CREATE VIEW twos AS SELECT 2 AS x FROM ones;
    CREATE INDEX by_email ON users(lower(email));
    CREATE VIRTUAL TABLE found USING fts5(name, email, content='users', content_rowid='id');
    INSERT INTO found(found) VALUES ('rebuild');
    CREATE VIRTUAL TABLE terms USING fts5vocab('found', 'row');
    CREATE VIRTUAL TABLE notes USING fts5(body);
    INSERT INTO notes VALUES ('plain');
    ANALYZE;
";

fn hidden(pairs: &[(&str, Option<&str>)]) -> Arc<[HiddenColumn]> {
    let hidden_column = |(table, column): &(&str, Option<&str>)| HiddenColumn {
        table: (*table).to_owned(),
        column: column.map(str::to_owned),
    };
    pairs.iter().map(hidden_column).collect()
}

struct Fixture {
    _folder: TempDir,
    path: Arc<Path>,
    pool: Pool,
}

impl Fixture {
    fn new(schema: &str, pairs: &[(&str, Option<&str>)], config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path: Arc<Path> = folder.path().join("d.sqlite").into();
        Connection::open(&path).unwrap().execute_batch(schema).unwrap();
        let pool = Pool::new(&Config { threads: Some(1), hidden: hidden(pairs), ..config }).unwrap();
        Self { _folder: folder, path, pool }
    }

    fn run(&self, sql: &str) -> Arc<Outcome> {
        let job = self.pool.submit(&[(Arc::clone(&self.path), sql.into())], &Arc::new(Limits::default())).unwrap();
        assert!(job.wait(Duration::from_secs(60)).unwrap());
        job.outcomes().unwrap().remove(0)
    }

    fn refuses(&self, sql: &str, name: &str) {
        let outcome = self.run(sql);
        let error = outcome.error.clone().unwrap_or_default();
        assert_eq!(outcome.status, Status::Forbidden, "{sql}: {error}");
        assert_eq!(error, format!("access to {name} is prohibited: it is hidden"), "{sql}");
        assert!(outcome.table.is_none() && outcome.hint.is_none(), "{sql}");
    }

    fn allows(&self, sql: &str) {
        let outcome = self.run(sql);
        assert_eq!(outcome.status, Status::Ok, "{sql}: {:?}", outcome.error);
    }
}

fn on_processes() -> Config {
    Config { worker: Some(WorkerConfig::new(env!("CARGO_BIN_EXE_sqlexec-worker").into())), ..Config::default() }
}

fn configs() -> [Config; 3] {
    let access = Access { copy_up_to_bytes: 1 << 20, ..Access::default() };
    [Config::default(), Config { access, ..Config::default() }, on_processes()]
}

#[test]
fn no_query_reads_a_hidden_column() {
    for config in configs() {
        let fixture = Fixture::new(SCHEMA, &[("USERS", Some("eMAIL"))], config);
        for sql in [
            "SELECT email FROM users",
            "SELECT * FROM users",
            "SELECT \"EMAIL\" FROM main.users AS u",
            "SELECT [email] FROM `users`",
            "SELECT count(*) FROM users WHERE email LIKE 'a%'",
            "SELECT name FROM users ORDER BY email",
            "SELECT count(DISTINCT email) FROM users",
            "SELECT max(name) FROM users GROUP BY email",
            "SELECT name FROM users AS u WHERE EXISTS (SELECT 1 FROM orders AS o WHERE o.email = u.email)",
            "SELECT lower(email) FROM users INDEXED BY by_email",
            "SELECT value FROM users, json_each(json_array(email))",
            "WITH u AS (SELECT * FROM users) SELECT name FROM u",
            "SELECT name FROM shown",
            "SELECT 'a' IN shown FROM orders",
            "EXPLAIN QUERY PLAN SELECT email FROM users",
        ] {
            fixture.refuses(sql, "users.Email");
        }
        for (sql, name) in [
            ("SELECT domain FROM users", "users.domain"),
            ("SELECT host FROM users", "users.host"),
            ("SELECT seq FROM sqlite_sequence", "sqlite_sequence.seq"),
            ("SELECT sql FROM sqlite_master", "sqlite_master.sql"),
            ("SELECT * FROM main.sqlite_schema", "sqlite_master.sql"),
            ("SELECT name FROM found", "found"),
            ("SELECT highlight(found, 1, '', '') FROM found('ann')", "found"),
            ("SELECT block FROM found_data", "found"),
            ("SELECT term FROM terms", "terms"),
            ("SELECT count(*) FROM joined", "joined"),
        ] {
            fixture.refuses(sql, name);
        }
        for sql in [
            "SELECT count(*) FROM users",
            "SELECT id, name, n, rowid, oid FROM users ORDER BY _rowid_",
            "SELECT email FROM orders",
            "SELECT users.name, orders.email FROM users JOIN orders ON orders.user_id = users.id",
            "SELECT name, orders.id FROM users JOIN (SELECT user_id AS id FROM orders) AS orders USING (id)",
            "SELECT name FROM names",
            "WITH users AS (SELECT 1 AS email) SELECT email FROM users",
            "SELECT name FROM sqlite_master",
            "SELECT name FROM pragma_table_info('users')",
            "SELECT * FROM notes WHERE notes MATCH 'plain'",
            "SELECT stat FROM sqlite_stat1",
        ] {
            fixture.allows(sql);
        }
        let outcome = fixture.run("SELECT emial FROM users");
        assert_eq!((outcome.status, outcome.hint.as_deref()), (Status::SchemaError, None));
    }
}

#[test]
fn joins_without_authorizer_calls_are_refused_by_their_text() {
    let fixture = Fixture::new(SCHEMA, &[("users", Some("email"))], Config::default());
    for sql in [
        "SELECT email FROM (SELECT 1 AS email) RIGHT JOIN users USING (email)",
        "SELECT * FROM (SELECT 1 AS email) NATURAL FULL JOIN (SELECT 2 AS email) NATURAL FULL JOIN users",
        "SELECT count(*) FROM orders JOIN users USING (user_id, \"Email\")",
        "SELECT count(*) FROM (SELECT 'ann@secret.org' AS email) natural/**/JOIN [USERS]",
        "SELECT 1 FROM orders NATURAL JOIN 'users'",
    ] {
        fixture.refuses(sql, "users.Email");
    }
    for sql in ["SELECT o.id FROM orders AS o NATURAL JOIN names", "SELECT 'natural', 'using (email)' FROM users"] {
        fixture.allows(sql);
    }
}

#[test]
fn parameters_and_unusual_spaces_conceal_no_join() {
    let fixture = Fixture::new(SCHEMA, &[("users", Some("email"))], Config::default());
    let start = "SELECT count(*) FROM (SELECT 1 AS x) AS a JOIN (SELECT 'ann@secret.org' AS email) AS b";
    for end in [
        "ON ?1NATURAL JOIN users",
        "ON ?NATURAL JOIN users",
        "ON $a(')NATURAL JOIN users",
        "ON @a::b(--) NATURAL JOIN users",
        "ON :a(/*) NATURAL JOIN users",
        "ON #a([) NATURAL JOIN users",
        "JOIN users USING \n\x0b(email)",
        "JOIN \n\x0busers USING (email)",
    ] {
        fixture.refuses(&format!("{start} {end}"), "users.Email");
    }
}

#[test]
fn names_equal_to_a_hidden_table_are_readable_elsewhere() {
    let more = "CREATE TABLE sales(users, ones, id); CREATE VIEW totals AS SELECT sum(users) AS users FROM sales;";
    let fixture = Fixture::new(&format!("{SCHEMA}{more}"), &[("users", None)], Config::default());
    for sql in [
        "SELECT sum(ones) AS ones FROM sales",
        "SELECT 'ones' FROM sales WHERE id = 'ones' OR users = 1",
        "SELECT s.ones FROM sales AS s WHERE s.ones > 1 ORDER BY ones",
        "SELECT users FROM sales NATURAL JOIN (SELECT 1 AS id) WHERE users = 1",
        "SELECT users FROM totals",
    ] {
        fixture.allows(sql);
    }
    for sql in [
        "SELECT count(*) FROM ones",
        "SELECT count(*) FROM main . 'ones'",
        "SELECT count(*) FROM sales, \"ones\"",
        "SELECT count(*) FROM sales CROSS JOIN main.[ones]",
        "SELECT count(*) FROM (('ones') JOIN sales)",
        "SELECT count(*) FROM sales JOIN (main.ones)",
        "SELECT count(*) FROM sales, (/**/`ones`)",
        "SELECT 1 IN 'ones' FROM sales",
        "SELECT 1 NOT IN main.ones FROM sales",
    ] {
        fixture.refuses(sql, "ones");
    }
}

const SHOWN: &str = "
    CREATE TABLE users(id INTEGER PRIMARY KEY, name TEXT, email TEXT);
    INSERT INTO users VALUES (1, 'Ann', 'secretann');
    CREATE VIEW shown AS SELECT id, name, email AS address FROM users;
    CREATE VIEW further AS SELECT * FROM shown;
    CREATE VIRTUAL TABLE f5 USING fts5(name, address, content='shown', content_rowid='id');
    INSERT INTO f5(f5) VALUES ('rebuild');
    CREATE VIRTUAL TABLE f5terms USING fts5vocab('f5', 'row');
    CREATE VIRTUAL TABLE f4 USING fts4(name, address, content='shown');
    CREATE VIRTUAL TABLE g5 USING fts5(address, content='further', content_rowid='id');
    INSERT INTO g5(g5) VALUES ('rebuild');
    CREATE VIRTUAL TABLE notes USING fts5(body);
";

#[test]
fn full_text_table_over_a_view_of_a_hidden_column_is_refused() {
    for column in [Some("email"), None] {
        let fixture = Fixture::new(SHOWN, &[("users", column)], Config::default());
        for (sql, name) in [
            ("SELECT count(*) FROM f5 WHERE f5 MATCH 'secretann'", "f5"),
            ("SELECT name FROM f5", "f5"),
            ("SELECT term FROM f5terms", "f5terms"),
            ("SELECT hex(block) FROM f5_data", "f5"),
            ("SELECT count(*) FROM f4 WHERE f4 MATCH 'secretann'", "f4"),
            ("SELECT hex(root) FROM f4_segdir", "f4"),
            ("SELECT count(*) FROM g5 WHERE g5 MATCH 'secretann'", "g5"),
        ] {
            fixture.refuses(sql, name);
        }
        fixture.allows("SELECT body FROM notes");
    }
}

#[test]
fn hidden_key_is_not_readable_as_rowid() {
    let fixture = Fixture::new(SCHEMA, &[("keys", Some("secret_key"))], Config::default());
    for column in ["rowid", "oid", "_rowid_", "secret_key", "*", "keys.ROWID", "label, \"rowid\""] {
        fixture.refuses(&format!("SELECT {column} FROM keys"), "keys.secret_key");
    }
    fixture.allows("SELECT label FROM keys");
    fixture.allows("SELECT sql FROM sqlite_master");
}

#[test]
fn hidden_table_is_not_readable() {
    let fixture = Fixture::new(SCHEMA, &[("users", None)], Config::default());
    for sql in ["SELECT count(*) FROM users", "SELECT 1 FROM users", "SELECT id FROM users"] {
        fixture.refuses(sql, "users");
    }
    fixture.refuses("SELECT name FROM names", "names");
    for (sql, name) in [
        ("SELECT 1 FROM orders NATURAL JOIN users", "users"),
        ("SELECT count(*) FROM (SELECT 1 FROM users)", "users"),
        ("SELECT count(*) FROM (SELECT 1 FROM 'users') AS a, orders", "users"),
        ("WITH a AS (SELECT 1 FROM users) SELECT count(*) FROM a", "users"),
        ("SELECT EXISTS (SELECT 1 FROM users)", "users"),
        ("SELECT count(*) FROM ones", "ones"),
        ("SELECT count(*) FROM twos", "twos"),
    ] {
        fixture.refuses(sql, name);
    }
    fixture.refuses("SELECT * FROM pragma_table_info('users')", "the defaults of users");
    fixture.allows("SELECT * FROM orders");
}

#[test]
fn names_with_dots_and_quotes_are_hidden_too() {
    let fixture = Fixture::new(SCHEMA, &[("odd \"name", Some("a.b"))], on_processes());
    fixture.refuses("SELECT \"a.b\" FROM \"odd \"\"name\"", "odd \"name.a.b");
    fixture.refuses("SELECT 1 FROM (SELECT 1 AS \"a.b\") NATURAL JOIN \"odd \"\"name\"", "odd \"name.a.b");
    fixture.allows("SELECT c FROM \"odd \"\"name\"");
}

#[test]
fn definitions_with_possible_values_are_refused() {
    let base = "CREATE TABLE t(a DECIMAL(3, 2) NOT NULL, b INTEGER DEFAULT 7, c);";
    for (more, column, is_refused) in [
        ("", "a", false),
        ("", "b", true),
        ("CREATE INDEX i ON t(a, b)", "a", false),
        ("CREATE INDEX i ON t(b) WHERE c = 'ann'", "c", true),
        ("CREATE INDEX i ON t((c = 'ann'))", "c", true),
        ("CREATE INDEX i ON t(a, (c > .5))", "c", true),
        ("CREATE INDEX i ON t((c = \"ann\"))", "c", true),
        ("CREATE INDEX i ON t((c = 'ann'))", "a", false),
        ("CREATE INDEX \"i\" ON \"t\"(lower(\"c\") COLLATE NOCASE, \"a\" DESC)", "c", false),
        ("CREATE TABLE u(x, CHECK (x <> 'y'))", "c", false),
        ("CREATE VIEW v AS SELECT a FROM t WHERE c = 'ann'", "c", true),
        ("CREATE VIEW v AS SELECT a FROM t", "c", false),
    ] {
        let fixture = Fixture::new(&format!("{base}{more}"), &[("t", Some(column))], Config::default());
        if is_refused {
            fixture.refuses("SELECT sql FROM sqlite_master", "sqlite_master.sql");
        } else {
            fixture.allows("SELECT sql FROM sqlite_master");
        }
    }
    let fixture = Fixture::new(base, &[("t", Some("b"))], Config::default());
    fixture.refuses("PRAGMA table_info(t)", "the defaults of t");
    fixture.refuses("SELECT dflt_value FROM pragma_table_xinfo('T')", "the defaults of T");
}

#[test]
fn sampled_index_values_are_refused() {
    let fixture = Fixture::new(SCHEMA, &[("users", Some("email"))], Config::default());
    let outcome = fixture.run("SELECT sample FROM sqlite_stat4");
    assert!(matches!(outcome.status, Status::Forbidden | Status::SchemaError), "{:?}", outcome.error);
}

#[test]
fn database_without_the_column_is_unrestricted() {
    let fixture = Fixture::new(SCHEMA, &[("users", Some("iban")), ("people", Some("email"))], Config::default());
    fixture.allows("SELECT * FROM users");
    fixture.allows("SELECT sql FROM sqlite_master");
    fixture.allows("SELECT 1 FROM orders NATURAL JOIN users");
    assert!(matches!(fixture.run("SELECT email FROM users").table.as_ref().unwrap().value(0, 0), Value::Text(_)));
}

#[test]
fn generated_column_added_later_is_hidden_too() {
    let fixture =
        Fixture::new("CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 2)", &[("t", Some("a"))], on_processes());
    fixture.allows("SELECT b FROM t");
    let writer = Connection::open(&fixture.path).unwrap();
    writer.execute_batch("ALTER TABLE t ADD COLUMN g AS (a + 1)").unwrap();
    fixture.refuses("SELECT g FROM t", "t.g");
    fixture.allows("SELECT b FROM t");
}

#[test]
fn plans_and_other_engines_are_refused() {
    let fixture = Fixture::new(SCHEMA, &[("users", Some("email"))], Config::default());
    let query = |database: &str| sqlexec_core::Query {
        database: Path::new(database).into(),
        sql: "SELECT email FROM users".into(),
        parameters: None,
    };
    let limits = Arc::new(Limits::default());
    let database = fixture.path.to_str().unwrap().to_owned();
    let job = fixture.pool.submit_while(&[query(&database)], OutputKind::Plan, &limits, &mut || true).unwrap();
    assert!(job.wait(Duration::from_secs(60)).unwrap());
    assert_eq!(job.outcomes().unwrap()[0].status, Status::Forbidden);
    for name in ["postgresql://u@127.0.0.1:1/d", "mysql://u@127.0.0.1:1/d", "duckdb:/nowhere/d.duckdb", "duckdb:x"] {
        let result = fixture.pool.submit_while(&[query(name)], OutputKind::Rows, &limits, &mut || true);
        match result.map(|job| job.wait(Duration::from_secs(60)).unwrap()) {
            Err(PoolError::CannotHide(_)) => {}
            Ok(_) if name.starts_with("duckdb") => {} // the file is missing, which is a `db_error`
            other => panic!("{name}: {other:?}"),
        }
    }
}
