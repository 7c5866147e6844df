//! SQLite's compile options. They affect verdicts, so unexpected options are refused.

use std::ffi::{CStr, c_int};

use rusqlite::ffi;

use crate::error::PoolError;

/// The options set by `.cargo/config.toml` and libsqlite3-sys.
const WANTED: &str = "DEFAULT_AUTOVACUUM DEFAULT_CACHE_SIZE=-2000 DEFAULT_FILE_FORMAT=4 DEFAULT_FOREIGN_KEYS \
    DEFAULT_JOURNAL_SIZE_LIMIT=-1 DEFAULT_PAGE_SIZE=4096 DEFAULT_PCACHE_INITSZ=20 DEFAULT_RECURSIVE_TRIGGERS \
    DEFAULT_SECTOR_SIZE=4096 DEFAULT_SYNCHRONOUS=2 DEFAULT_WAL_AUTOCHECKPOINT=1000 DEFAULT_WAL_SYNCHRONOUS=2 \
    DEFAULT_WORKER_THREADS=0 DIRECT_OVERFLOW_READ ENABLE_API_ARMOR ENABLE_COLUMN_METADATA ENABLE_DBSTAT_VTAB ENABLE_FTS3 \
    ENABLE_FTS3_PARENTHESIS ENABLE_FTS5 ENABLE_MATH_FUNCTIONS ENABLE_RTREE ENABLE_STAT4 MAX_ATTACHED=10 MAX_COLUMN=2000 \
    MAX_COMPOUND_SELECT=500 MAX_DEFAULT_PAGE_SIZE=8192 MAX_EXPR_DEPTH=1000 MAX_FUNCTION_ARG=1000 MAX_LENGTH=1000000000 \
    MAX_LIKE_PATTERN_LENGTH=50000 MAX_PAGE_COUNT=0xfffffffe MAX_PAGE_SIZE=65536 MAX_SCHEMA=10000000 \
    MAX_SQL_LENGTH=1000000000 MAX_TRIGGER_DEPTH=1000 MAX_VARIABLE_NUMBER=32766 MAX_VDBE_OP=250000000 \
    MAX_WORKER_THREADS=8 SOUNDEX TEMP_STORE=1 THREADSAFE=1 USE_URI";

/// Prefixes of options that depend on the compiler and the platform, or that debugging adds.
const IGNORED: [&str; 9] = [
    "ATOMIC_INTRINSICS",
    "COMPILER=",
    "DEBUG",
    "DEFAULT_MMAP_SIZE",
    "HAVE_",
    "MALLOC_SOFT_LIMIT",
    "MAX_MMAP_SIZE",
    "MUTEX_",
    "SYSTEM_MALLOC",
];

/// Returns the options that SQLite reports.
pub fn compile_options() -> Vec<String> {
    // SAFETY: SQLite returns for each number a static text, and null after the last; it need not be initialised.
    let option = |number: c_int| unsafe {
        let name = ffi::sqlite3_compileoption_get(number);
        (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned())
    };
    (0..).map_while(option).collect()
}

/// Checks that SQLite was compiled with the options that verdicts were tested with.
pub fn check_options() -> Result<(), PoolError> {
    match difference(&compile_options()) {
        None => Ok(()),
        Some(difference) => Err(PoolError::OtherOptions(format!(
            "{difference}; LIBSQLITE3_FLAGS of .cargo/config.toml did not reach its compiler"
        ))),
    }
}

/// Returns the unexpected and the missing options.
fn difference(options: &[String]) -> Option<String> {
    let wanted: Vec<&str> = WANTED.split_whitespace().collect();
    let is_ignored = |option: &str| IGNORED.iter().any(|start| option.starts_with(start));
    let others = options.iter().filter(|option| !is_ignored(option) && !wanted.contains(&option.as_str()));
    let missing = wanted.iter().filter(|wanted| !options.iter().any(|option| option == *wanted));
    let all: Vec<String> =
        others.map(|name| format!("with {name}")).chain(missing.map(|name| format!("without {name}"))).collect();
    (!all.is_empty()).then(|| all.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_has_the_expected_options_and_differences_are_reported() {
        let mut options = compile_options();
        assert_eq!(difference(&options), None);
        options.retain(|option| option != "ENABLE_MATH_FUNCTIONS");
        options.push("ENABLE_MEMORY_MANAGEMENT".to_owned());
        assert_eq!(difference(&options).unwrap(), "with ENABLE_MEMORY_MANAGEMENT, without ENABLE_MATH_FUNCTIONS");
    }
}
