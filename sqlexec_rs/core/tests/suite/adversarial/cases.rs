//! Queries that would hang, exhaust resources or write, grouped by attack, each with its expected status.

#![allow(clippy::unwrap_used, reason = "shared by a test and an example")]

use std::path::Path;

use rusqlite::Connection;
use sqlexec_core::Status;

type Cases = Vec<(Status, String)>;

/// Creates the database that the queries use.
pub fn make_shop(path: &Path) {
    let shop = Connection::open(path).unwrap();
    shop.execute_batch(
        "CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT COLLATE NOCASE, price REAL);
         CREATE INDEX by_name ON item(name);
         CREATE TABLE note(id INTEGER PRIMARY KEY, body TEXT);
         CREATE TABLE plain_node(x);
         CREATE TABLE wide(a, b, c, d, e, f, g, h);
         CREATE VIEW cheap AS SELECT * FROM item WHERE price < 3;
         CREATE VIEW slow AS SELECT id FROM note WHERE body LIKE '%aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab';
         CREATE VIRTUAL TABLE doc USING fts5(body);
         CREATE VIRTUAL TABLE area USING rtree(id, x0, x1);
         INSERT INTO doc VALUES ('some words'), ('other words');
         INSERT INTO area VALUES (1, 0, 1);
         WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 1000)
         INSERT INTO item SELECT i, 'name ' || i, i / 4.0 FROM r;
         WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 300)
         INSERT INTO note SELECT i, printf('%.*c', 60000, 'a') FROM r;
         CREATE TRIGGER t AFTER INSERT ON item BEGIN DELETE FROM item; END;",
    )
    .unwrap();
    // Each view joins the previous one with itself: 2^14 copies of the first.
    for (name, body) in [("joined", "SELECT x.v FROM {} x, {} y"), ("added", "SELECT v + v AS v FROM {}")] {
        shop.execute_batch(&format!("CREATE VIEW {name}0 AS SELECT id AS v FROM item")).unwrap();
        for i in 1..=14 {
            let body = body.replace("{}", &format!("{name}{}", i - 1));
            shop.execute_batch(&format!("CREATE VIEW {name}{i} AS {body}")).unwrap();
        }
    }
}

fn each(status: Status, sqls: &[&str]) -> Cases {
    sqls.iter().map(|sql| (status, (*sql).to_owned())).collect()
}

pub fn repeat(piece: &str, separator: &str, n: usize) -> String {
    vec![piece; n].join(separator)
}

/// Builds a chain of common table expressions, each based on the previous one, whose name replaces `{}`.
fn chain(first: &str, body: &str, n: usize) -> String {
    let link = |i: usize| format!(", c{i} AS ({})", body.replace("{}", &format!("c{}", i - 1)));
    format!("WITH c0 AS ({first}){} SELECT max(v) FROM c{n}", (1..=n).map(link).collect::<String>())
}

pub fn writing() -> Cases {
    each(
        Status::Forbidden,
        &[
            "INSERT INTO item VALUES (9999, 'x', 1)",
            "INSERT OR REPLACE INTO item SELECT * FROM item",
            "WITH n AS (SELECT 1) INSERT INTO item(name) SELECT 'x' FROM n RETURNING id",
            "UPDATE item SET price = price + 1 WHERE id IN (SELECT id FROM item)",
            "UPDATE sqlite_schema SET sql = ''",
            "DELETE FROM item RETURNING *",
            "DELETE FROM sqlite_schema",
            "CREATE TABLE t(x)",
            "CREATE TABLE t AS SELECT * FROM item",
            "CREATE TEMP TABLE t(x)",
            "CREATE TEMP VIEW v AS SELECT 1",
            "CREATE TEMP TRIGGER g AFTER INSERT ON item BEGIN SELECT 1; END",
            "CREATE INDEX i ON item(price)",
            "CREATE VIRTUAL TABLE temp.f USING fts5(x)",
            "DROP TABLE item",
            "DROP VIEW cheap",
            "ALTER TABLE item ADD COLUMN x",
            "ALTER TABLE item RENAME COLUMN name TO label",
            "INSERT INTO doc(doc) VALUES ('optimize')",
            "INSERT INTO area VALUES (2, 0, 1)",
            "INSERT INTO area_node VALUES (9, x'00')",
            "DELETE FROM area_rowid",
            "INSERT INTO plain_node VALUES (1)",
            "UPDATE plain_node SET x = 2 RETURNING x",
            "WITH n AS (SELECT id FROM area) DELETE FROM plain_node WHERE x IN (SELECT id FROM n)",
            "ATTACH DATABASE 'other.sqlite' AS other",
            "ATTACH 'file:other.sqlite?mode=rwc' AS other",
            "DETACH DATABASE main",
            "VACUUM",
            "VACUUM INTO 'copy.sqlite'",
            "VACUUM main INTO '/dev/full'",
            "REINDEX",
            "ANALYZE",
            "BEGIN EXCLUSIVE",
            "COMMIT",
            "ROLLBACK",
            "SAVEPOINT s",
            "RELEASE s",
            "PRAGMA journal_mode = DELETE",
            "PRAGMA journal_mode = WAL",
            "PRAGMA writable_schema = RESET",
            "PRAGMA user_version = 7",
            "PRAGMA page_size = 512",
            "PRAGMA auto_vacuum = FULL",
            "PRAGMA temp_store_directory = '/tmp'",
            "PRAGMA locking_mode = EXCLUSIVE",
            "PRAGMA wal_checkpoint(TRUNCATE)",
            "PRAGMA incremental_vacuum",
            "PRAGMA optimize",
            "PRAGMA integrity_check",
            "PRAGMA mmap_size = 1000000",
            "PRAGMA cache_size = 1000000",
            "PRAGMA hard_heap_limit = 0",
            "PRAGMA trusted_schema = ON",
            "PRAGMA query_only = OFF",
            "PRAGMA case_sensitive_like = ON",
            "SELECT * FROM pragma_integrity_check",
            "SELECT load_extension('libm.so')",
            "SELECT fts3_tokenizer('simple', x'0000000000000000')",
            "SELECT json_patch('{}', '{}')",
            "EXPLAIN INSERT INTO item VALUES (1, 2, 3)",
            "EXPLAIN QUERY PLAN DELETE FROM item",
            "SELECT 1; DELETE FROM item",
            "SELECT 1; SELECT 2",
            "-- x\nSELECT ';'; -- y\nDROP TABLE item",
        ],
    )
}

pub fn reaching_outside() -> Cases {
    // Not compiled in or missing, so the names are unknown; and modules that would read files.
    each(
        Status::SchemaError,
        &[
            "SELECT readfile('/etc/passwd')",
            "SELECT writefile('x', 'y')",
            "SELECT edit('x', 'vi')",
            "SELECT * FROM dbstat",
            "SELECT * FROM sqlite_dbpage",
            "SELECT * FROM fsdir('/')",
            "SELECT * FROM generate_series(1, 1000000000)",
            "SELECT * FROM other.sqlite_schema",
        ],
    )
}

pub fn no_statements() -> Cases {
    let mut all = each(Status::NoSql, &["", ";;;", "-- only", "/* only", "\u{feff}"]);
    all.extend(each(
        Status::SyntaxError,
        &[
            "SELECT 1\0",
            "SELECT 1 -- \0 x",
            "SELECT 'open",
            "SELECT \"open",
            "SELECT [open",
            "SELECT x'0",
            "SELECT 1 FROM",
            "\u{1}\u{2}\u{3}",
            "SELECT 1 UNION SELECT 1, 2",
        ],
    ));
    all.push((Status::SyntaxError, format!("SELECT {}1", "(".repeat(100))));
    all.extend(each(Status::RuntimeError, &["SELECT ?", "SELECT :a, @b, $c", "SELECT ?1 LIMIT ?2"]));
    all.extend(each(
        Status::Ok,
        &[
            "EXPLAIN SELECT * FROM item",
            "EXPLAIN QUERY PLAN SELECT * FROM item",
            "SELECT 1 /* open",
            "SELECT 1 -- \u{1}",
        ],
    ));
    all
}

pub fn endless() -> Cases {
    each(
        Status::Timeout,
        &[
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT count(*) FROM r",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION SELECT (x * 7919 + 1) % 1000000007 FROM r) SELECT max(x) FROM r",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x FROM r) SELECT x FROM r WHERE x > 1",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x FROM r ORDER BY x % 1000",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r ORDER BY 1 DESC) SELECT sum(x) FROM r",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT 1 WHERE 0 IN (SELECT x FROM r)",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT EXISTS (SELECT 1 FROM r WHERE x = 0)",
            "SELECT count(*) FROM item a, item b, item c, item d",
            "SELECT count(*) FROM item a, item b, item c WHERE a.price + b.price + c.price < 0",
            "SELECT DISTINCT a.id + b.id * c.id FROM item a, item b, item c WHERE a.name > b.name || c.name LIMIT 1 OFFSET 900000000",
            "SELECT sum(x) OVER (ORDER BY x ROWS UNBOUNDED PRECEDING) FROM (SELECT a.id AS x FROM item a, item b, item c)",
            "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) \
             SELECT count(*) FROM (SELECT row_number() OVER () AS n FROM r) WHERE n < 0",
            "SELECT max(y) FROM (SELECT group_concat(x) OVER (ORDER BY x ROWS 2000 PRECEDING) AS y \
             FROM (SELECT a.id AS x FROM item a, item b))",
            "SELECT a.id, count(*) FROM item a, item b, item c GROUP BY a.id % 7, b.id % 11 ORDER BY 2",
            "SELECT count(*) FROM json_each('[' || replace(hex(zeroblob(500000)), '00', '1,') || '1]') a, item, item b",
            "SELECT count(*) FROM note a, note b, note c WHERE instr(a.body || c.id, b.body || 'b')",
            "SELECT count(*) FROM note a, item WHERE replace(body, printf('%.*c', 30000, 'a') || name, 'x') = ''",
            "SELECT count(*) FROM note a, item b WHERE trim(body, 'xyza' || b.name) <> ''",
            "SELECT count(*) FROM note a, note b WHERE a.body LIKE '%aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'",
            "SELECT count(*) FROM note a, note b WHERE a.body GLOB '*[a-z]a?aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'",
            "SELECT count(*) FROM note a, note b WHERE a.body LIKE 'aaa%' AND a.body LIKE 'a%aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab'",
            "SELECT count(*) FROM note a, note b WHERE upper(a.body) = lower(b.body)",
            "SELECT count(*) FROM note a, note b WHERE length(hex(a.body)) + length(quote(b.body)) = 0",
            "SELECT count(*) FROM slow a, slow b, note c, note d",
            "SELECT count(*) FROM note a, slow b WHERE a.body LIKE 'aa%'",
        ],
    )
}

pub fn long_calls() -> Cases {
    let text = "printf('%.*c', 4000000, 'a')";
    let set = "(WITH RECURSIVE r(i) AS (SELECT 200 UNION ALL SELECT i + 1 FROM r WHERE i < 50000) \
               SELECT group_concat(char(i), '') FROM r)";
    let mut all: Cases = vec![
        (Status::Ok, format!("SELECT instr({text}, printf('%.*c', 2000000, 'a') || 'b')")),
        (Status::Ok, format!("SELECT length(replace({text}, printf('%.*c', 2000000, 'a') || 'b', ''))")),
        (Status::Ok, format!("SELECT length(trim({text}, {set} || 'a'))")),
        (Status::Timeout, format!("SELECT trim(replace(substr({text}, 1, 1200000), 'a', char(49999)), {set})")),
        (Status::Timeout, format!("SELECT {text} LIKE '%' || printf('%.*c', 990, 'a') || 'b'")),
        (Status::Timeout, format!("SELECT {text} LIKE '%a' || printf('%.*c', 990, '_') || 'b'")),
        (Status::Timeout, format!("SELECT {text} GLOB '*a' || printf('%.*c', 990, '?') || 'b'")),
        (Status::Timeout, format!("SELECT {text} GLOB '*' || replace(printf('%.*c', 198, 'a'), 'a', '[a-z]') || 'b'")),
        (Status::Ok, format!("SELECT {text} LIKE {:?}", "%a".repeat(490) + "b").replace('"', "'")),
    ];
    // Each call is bounded, but there are many in one instruction.
    let many = |call: &str| {
        let x = "SELECT printf('%.*c', 4000000 - id, 'a') AS x FROM item LIMIT 1";
        format!("SELECT {} FROM ({x})", repeat(call, " + ", 490))
    };
    all.push((Status::Timeout, many("length(upper(x))")));
    all.push((Status::Timeout, many("length(hex(substr(x, 1, 1000000)))")));
    all.push((Status::Timeout, many("length(json_quote(x))")));
    all
}

/// Returns calls of FTS5's `snippet`, each with the number of matches per row and the expected status.
#[allow(dead_code, reason = "not used by the example")]
pub fn snippets() -> Vec<(usize, Status, &'static str)> {
    let single = "SELECT length(snippet(hits, 0, '<', '>', '...', 60)) FROM hits WHERE hits MATCH 'a'";
    let two =
        "SELECT snippet(hits, 0, '<', '>', '', 9), snippet(hits, 0, '', '', '', 9) FROM hits WHERE hits MATCH 'a'";
    let other = "SELECT length(highlight(hits, 0, '<', '>')), bm25(hits) FROM hits WHERE hits MATCH 'a'";
    vec![
        (1_000, Status::Ok, single),
        (100_000, Status::TooLarge, single),
        (1_000, Status::Ok, two),
        (1_100, Status::TooLarge, two),
        (20_000, Status::Ok, other),
    ]
}

/// Returns queries with consecutive calls and comparisons of long values, without a loop.
#[allow(dead_code, reason = "not used by the example")]
pub fn straight_line() -> Vec<String> {
    let texts =
        "SELECT printf('%.*c', 4000000 - id, 'a') AS x, printf('%.*c', 4000000 - id, 'A') AS y FROM item LIMIT 1";
    let array = "SELECT '[' || replace(hex(zeroblob(450000 - id)), '00', '1,') || '1]' AS x FROM item LIMIT 1";
    let largest = |collation: &str, other: &str| {
        let call = format!("max(x COLLATE {collation}, {})", repeat(other, ", ", 40));
        format!("SELECT length({call}{}) FROM ({texts})", format!(" = {call}").repeat(60))
    };
    let paths: Vec<String> = (0..120).map(|i| format!("'$[{}]'", 440_000 + i)).collect();
    let extracts = (0..60).map(|_| format!("json_extract(x, {})", paths.join(", "))).collect::<Vec<_>>().join(", ");
    vec![largest("NOCASE", "y"), largest("RTRIM", "x"), format!("SELECT {extracts} FROM ({array})")]
}

pub fn growing() -> Cases {
    let mut all = each(
        Status::TooLarge,
        &[
            // Values.
            "SELECT hex(zeroblob(100000000))",
            "SELECT zeroblob(2000000000)",
            "SELECT length(randomblob(1000000000))",
            "SELECT printf('%*d', 1000000000, 1)",
            "SELECT printf('%.*c', 1000000000, 'x')",
            "SELECT format('%0500000000d', 1)",
            "SELECT replace(hex(zeroblob(1000000)), '0', 'aaaaaaaaaaaaaaaaaaaa')",
            "SELECT quote(zeroblob(3000000))",
            "SELECT group_concat(a.name || b.name) FROM item a, item b",
            "SELECT 'a' || zeroblob(4194304)",
            "WITH RECURSIVE r(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM r) SELECT max(length(x)) FROM r",
            "WITH RECURSIVE r(x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM r) SELECT x FROM r",
            "SELECT a.body LIKE b.body FROM note a, note b",
            // Memory.
            "SELECT json_group_array(body) FROM note, (SELECT 1 FROM item LIMIT 30)",
            "SELECT json_group_object(id, body) FROM (SELECT a.id, b.body FROM item a, note b)",
            "SELECT length(json_group_array(printf('%.*c', 3000000, 'x'))) FROM item",
            // Results.
            "SELECT zeroblob(4000000) FROM item",
            "SELECT a.* FROM item a, item b, item c",
            "SELECT body, body, body, body, body FROM note, item",
        ],
    );
    all.push((Status::TooLarge, format!("SELECT {}", repeat("zeroblob(4000000)", ", ", 1_000))));
    all.push((Status::TooLarge, format!("SELECT {}", repeat("printf('%.*c', 4000000, 'x')", ", ", 100))));
    // Statements.
    let terms =
        |n: usize| (0..n).map(|i| format!("{}price+{i}", repeat("name||", "", 10))).collect::<Vec<_>>().join(",");
    let ordered = format!("SELECT {} FROM item ORDER BY {}", terms(1_900), terms(1_900));
    all.push((Status::TooLarge, ordered.clone()));
    all.push((Status::TooLarge, ordered.replace("ORDER", "GROUP")));
    all.push((Status::TooLarge, format!("SELECT 1 WHERE 1 IN ({})", repeat("1", ",", 40_000))));
    all.push((Status::TooLarge, format!("SELECT {}1{}", "abs(".repeat(600), ")".repeat(600))));
    all.push((Status::TooLarge, format!("SELECT {}1{}", "(".repeat(3_000), ")".repeat(3_000))));
    all.push((Status::TooLarge, format!("SELECT {}", repeat("1", " + ", 3_000))));
    all.push((Status::TooLarge, format!("SELECT {}1", "NOT ".repeat(3_000))));
    all.push((Status::TooLarge, format!("SELECT {}1{}", "CASE WHEN 1 THEN ".repeat(600), " END".repeat(600))));
    all.push((Status::TooLarge, repeat("SELECT 1", " UNION ALL ", 300)));
    all.push((Status::TooLarge, format!("SELECT {}", repeat("1", ", ", 2_001))));
    all.push((Status::TooLarge, format!("SELECT max({})", repeat("1", ", ", 500))));
    all.push((Status::TooLarge, format!("SELECT 1 FROM {}", repeat("item", ", ", 65))));
    all.push((Status::TooLarge, format!("SELECT {}", repeat("*", ", ", 600)) + " FROM wide"));
    all.push((Status::TooLarge, format!("SELECT '{}'", "x".repeat(1 << 20))));
    all.push((Status::TooLarge, format!("SELECT 1 WHERE 1 IN ({})", repeat("1", ",", 600_000))));
    all.push((Status::TooLarge, chain("SELECT 1 AS v", "SELECT x.v FROM {} x, {} y", 14)));
    all.push((Status::TooLarge, chain("SELECT 1 AS v", "SELECT v FROM {} UNION ALL SELECT v FROM {}", 16)));
    all.push((Status::TooLarge, chain("SELECT 1 AS v", "SELECT (SELECT v FROM {}) + (SELECT v FROM {}) AS v", 14)));
    all.push((
        Status::TooLarge,
        chain("SELECT id AS v FROM item", &format!("SELECT {} AS v FROM {{}}", repeat("v", "+", 400)), 3),
    ));
    all
}

pub fn ordinary() -> Cases {
    let mut all = each(
        Status::Ok,
        &[
            "SELECT instr(name, '9'), replace(name, 'n', 'm'), trim(name), ltrim(name, 'n'), unhex('00-ff', '-') FROM item",
            "SELECT * FROM item WHERE name LIKE 'name 1%' OR name LIKE '%9_' OR name GLOB '*[0-9]'",
            "SELECT json_group_array(name), group_concat(name), length(hex(zeroblob(2000000))) FROM item",
            "SELECT body FROM doc WHERE doc MATCH 'other'",
            "SELECT id, x1 FROM area WHERE x0 >= 0 AND x1 < 5",
            "SELECT i.name FROM item i JOIN area a ON a.id = i.id WHERE a.x0 <= i.price",
            "SELECT * FROM json_each('[1, 2]'), pragma_table_info('item')",
            "SELECT * FROM cheap ORDER BY name",
            "SELECT v FROM added4 LIMIT 3",
        ],
    );
    all.push((Status::Ok, format!("SELECT id FROM item WHERE id IN ({})", repeat("1", ",", 20_000))));
    all.push((Status::Ok, chain("SELECT 1 AS v", "SELECT x.v FROM {} x, {} y", 6)));
    all
}

/// Returns statements that take long to prepare; their status depends on the machine.
pub fn slow_to_prepare() -> Vec<String> {
    let windows: Vec<String> = (0..1_900).map(|i| format!("sum(id) OVER (ORDER BY id + {i})")).collect();
    let sums: Vec<String> = (0..1_000)
        .map(|i| {
            format!("coalesce({})", (0..40).map(|j| format!("sum(id+{})", i * 40 + j)).collect::<Vec<_>>().join(","))
        })
        .collect();
    vec![
        "SELECT count(*) FROM joined14".to_owned(),
        "SELECT v FROM added14".to_owned(),
        format!("SELECT {} FROM item", windows.join(", ")),
        format!("SELECT {} FROM item", sums.join(", ")),
        format!("SELECT {} FROM item", repeat(&repeat("id", "+", 400), ", ", 800)),
        format!(
            "SELECT * FROM ({}) x WHERE {}",
            repeat("SELECT id FROM item", " UNION ALL ", 199),
            repeat("id > 1", " AND ", 400)
        ),
    ]
}
