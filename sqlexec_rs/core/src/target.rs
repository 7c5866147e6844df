//! Databases: a SQLite file, a DuckDB file behind `duckdb:`, or a database on a server, given by URL.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use strum::IntoStaticStr;

use crate::outcome::{Outcome, Status};

/// A database engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum Engine {
    /// The bundled SQLite.
    Sqlite,
    /// A PostgreSQL server.
    Postgresql,
    /// A MariaDB or MySQL server.
    Mysql,
    /// DuckDB, loaded by a worker process.
    Duckdb,
}

/// Prefix of the path of a DuckDB file.
const DUCKDB: &str = "duckdb:";

impl Engine {
    /// Returns the engine of a database: chosen by the scheme of a URL; anything else is the path of a SQLite file.
    pub(crate) fn of(database: &Path) -> Result<Self, Box<Outcome>> {
        let Some(scheme) = scheme(database) else {
            return Ok(if duckdb_file(database).is_some() { Self::Duckdb } else { Self::Sqlite });
        };
        match scheme {
            "postgresql" | "postgres" => Ok(Self::Postgresql),
            "mysql" | "mariadb" => Ok(Self::Mysql),
            _ => {
                let error = format!("unknown scheme {scheme}://: use a path, duckdb:FILE, postgresql:// or mysql://");
                Err(Box::new(Outcome::failed(Status::DbError, error)))
            }
        }
    }

    /// Returns whether the engine is a server, whose databases have URLs.
    pub(crate) fn is_server(self) -> bool {
        matches!(self, Self::Postgresql | Self::Mysql)
    }

    /// Returns the file of a database that is stored in a file.
    pub(crate) fn file(self, database: &Path) -> &Path {
        if self == Self::Duckdb { duckdb_file(database).unwrap_or(database) } else { database }
    }

    /// Returns the name in Python.
    pub(crate) fn name(self) -> &'static str {
        self.into()
    }
}

/// Returns the query for a database setting, or for a SQLite PRAGMA. `None` if the name is not plain: letters, digits
/// and underscores, optionally qualified.
pub fn setting_query(database: &Path, name: &str) -> Option<String> {
    let is_word = |word: &str| {
        let is_begun = word.starts_with(|char: char| char.is_ascii_alphabetic() || char == '_');
        is_begun && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if name.split('.').count() > 2 || !name.split('.').all(is_word) {
        return None;
    }
    Some(match Engine::of(database) {
        Ok(Engine::Postgresql) => format!("SELECT pg_catalog.current_setting('{name}') AS \"{name}\""),
        Ok(Engine::Mysql) => format!("SELECT @@{name} AS `{name}`"),
        Ok(Engine::Duckdb) => format!("SELECT current_setting('{name}') AS \"{name}\""),
        Ok(Engine::Sqlite) | Err(_) => format!("PRAGMA {name}"),
    })
}

/// Returns the path behind `duckdb:`.
fn duckdb_file(database: &Path) -> Option<&Path> {
    let name = database.as_os_str().as_bytes().strip_prefix(DUCKDB.as_bytes())?;
    Some(Path::new(OsStr::from_bytes(name)))
}

/// Returns the scheme of a URL, if there is one.
fn scheme(database: &Path) -> Option<&str> {
    let bytes = database.as_os_str().as_encoded_bytes();
    let len = bytes.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte))?;
    let (scheme, rest) = bytes.split_at(len);
    let is_one = rest.starts_with(b"://") && scheme.first().is_some_and(u8::is_ascii_alphabetic);
    if is_one { std::str::from_utf8(scheme).ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setting_query_accepts_only_plain_names() {
        let query = |database: &str, name: &str| setting_query(Path::new(database), name);
        assert_eq!(query("shop.sqlite", "encoding").as_deref(), Some("PRAGMA encoding"));
        assert_eq!(query("mysql://h/d", "global.port").as_deref(), Some("SELECT @@global.port AS `global.port`"));
        for name in
            ["", ".", "a.", ".a", "a.b.c", "1a", "a b", "a;b", "a'b", "a`", "a=1", "a(1)", "é", "a\0", "a--", "@a"]
        {
            for database in ["shop.sqlite", "duckdb:shop.db", "mysql://h/d", "postgresql://h/d"] {
                assert_eq!(query(database, name), None, "{name:?}");
            }
        }
    }

    #[test]
    fn scheme_selects_the_engine() {
        let engine = |name: &str| Engine::of(Path::new(name)).map_err(|outcome| outcome.status);
        for path in ["shop.sqlite", "/a/b", "a:/b", "://", "1x://h/d", "", "C:\\a", "x y://h", ":memory:"] {
            assert_eq!(engine(path), Ok(Engine::Sqlite), "{path}");
        }
        for url in ["postgresql://h/d", "postgres://u:p@h:1/d?sslmode=disable"] {
            assert_eq!(engine(url), Ok(Engine::Postgresql), "{url}");
        }
        for url in ["mysql://h/d", "mariadb://u:p@h:1/d"] {
            assert_eq!(engine(url), Ok(Engine::Mysql), "{url}");
        }
        for name in ["duckdb:shop.db", "duckdb:/a/b", "duckdb:", "duckdb:a://b"] {
            assert_eq!(engine(name), Ok(Engine::Duckdb), "{name}");
            assert_eq!(Engine::Duckdb.file(Path::new(name)), Path::new(&name["duckdb:".len()..]));
        }
        assert_eq!(engine("duckdb"), Ok(Engine::Sqlite));
        assert_eq!(engine("oracle://u:secret@h/d"), Err(Status::DbError));
        let error = Engine::of(Path::new("oracle://u:secret@h/d")).unwrap_err().error.unwrap();
        assert!(error.contains("oracle") && !error.contains("secret"), "{error}");
    }
}
