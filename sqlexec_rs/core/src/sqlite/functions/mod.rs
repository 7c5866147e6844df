//! SQL functions that replace SQLite's own, because those work for long in one call and ask nobody, or read too far.
//!
//! Each gives exactly SQLite's results, NULLs, types, blobs and broken UTF-8 included (`functions/tests.rs` compares them on
//! random input), charges its work to the run's bounds, and fails as interrupted when one is met. Here is what speaks C;
//! what they compute is in the safe modules beside. One differs: SQLite's `concat` and `concat_ws` copy as many bytes of a
//! blob's text as the blob has, which in a database of UTF-16 may be more than the text has.

#![allow(unsafe_code, reason = "SQLite calls functions through C; each block says why it is sound")]

mod collate;
mod like;
mod text;
mod utf8;
mod work;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::{Connection, ffi};

use crate::sqlite::classify::check_code;
use crate::sqlite::deadline::RunGuard;
use text::TrimSet;
use work::{RunStopped, WorkMeter};

/// The number of arguments of a function that takes any.
const ANY_NUMBER: c_int = -1;

type Function = unsafe extern "C" fn(*mut ffi::sqlite3_context, c_int, *mut *mut ffi::sqlite3_value);

const TEXT: [(&CStr, c_int, Function); 11] = [
    (c"instr", 2, instr),
    (c"replace", 3, replace),
    (c"trim", 1, trim),
    (c"trim", 2, trim),
    (c"ltrim", 1, ltrim),
    (c"ltrim", 2, ltrim),
    (c"rtrim", 1, rtrim),
    (c"rtrim", 2, rtrim),
    (c"unhex", 2, unhex),
    (c"concat", ANY_NUMBER, concat),
    (c"concat_ws", ANY_NUMBER, concat_ws),
];
const PATTERNS: [(&CStr, c_int, Function); 3] =
    [(c"like", 2, like::<true>), (c"like", 3, like::<true>), (c"glob", 2, glob::<true>)];
const PATTERNS_OF_TEXTS: [(&CStr, c_int, Function); 3] =
    [(c"like", 2, like::<false>), (c"like", 3, like::<false>), (c"glob", 2, glob::<false>)];

type Collation = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, c_int, *const c_void) -> c_int;

const COLLATIONS: [(&CStr, Collation); 2] = [(c"NOCASE", compare_texts::<true>), (c"RTRIM", compare_texts::<false>)];

/// Replaces the functions on texts, and the collations but for BINARY.
pub(crate) fn register_text(connection: &Connection, guard: &Arc<RunGuard>) -> rusqlite::Result<()> {
    COLLATIONS.iter().try_for_each(|collation| register_collation(connection, guard, *collation))?;
    TEXT.iter().try_for_each(|function| register(connection, guard, *function))
}

fn register_collation(
    connection: &Connection,
    guard: &Arc<RunGuard>,
    (name, compare): (&CStr, Collation),
) -> rusqlite::Result<()> {
    let data = Arc::into_raw(Arc::clone(guard)).cast_mut().cast::<c_void>();
    // SAFETY: the connection is open; the data is a reference to the guard, which SQLite hands to `forget_guard` when the
    // collation is replaced or the connection closed, and which is taken back here where SQLite refuses the collation.
    unsafe {
        let (db, encoding) = (connection.handle(), ffi::SQLITE_UTF8);
        let code =
            ffi::sqlite3_create_collation_v2(db, name.as_ptr(), encoding, data, Some(compare), Some(forget_guard));
        if code != ffi::SQLITE_OK {
            forget_guard(data);
        }
        check_code(code)
    }
}

/// Compares in the order of NOCASE, or of RTRIM.
unsafe extern "C" fn compare_texts<const NOCASE: bool>(
    guard: *mut c_void,
    n_first: c_int,
    first: *const c_void,
    n_second: c_int,
    second: *const c_void,
) -> c_int {
    // SAFETY: SQLite passes the guard that the collation was registered with, and two texts of so many bytes.
    let (guard, first, second) = unsafe {
        (&*guard.cast_const().cast::<RunGuard>(), slice(first.cast(), n_first), slice(second.cast(), n_second))
    };
    let mut work = WorkMeter::new(guard);
    let found = if NOCASE {
        collate::without_case(first, second, &mut work)
    } else {
        collate::without_end_spaces(first, second, &mut work)
    };
    found.and_then(|order| work.finish().map(|()| order as c_int)).unwrap_or(0)
}

/// Replaces LIKE and GLOB; with `like_blobs` they match blobs as SQLite's own do, without they match none, as SQLite's do
/// that was compiled with `SQLITE_LIKE_DOESNT_MATCH_BLOBS`.
pub(crate) fn register_patterns(
    connection: &Connection,
    guard: &Arc<RunGuard>,
    like_blobs: bool,
) -> rusqlite::Result<()> {
    (if like_blobs { PATTERNS } else { PATTERNS_OF_TEXTS })
        .iter()
        .try_for_each(|function| register(connection, guard, *function))
}

fn register(
    connection: &Connection,
    guard: &Arc<RunGuard>,
    (name, n_args, function): (&CStr, c_int, Function),
) -> rusqlite::Result<()> {
    let flags = ffi::SQLITE_UTF8 | ffi::SQLITE_DETERMINISTIC | ffi::SQLITE_INNOCUOUS;
    let guard = Arc::into_raw(Arc::clone(guard)).cast_mut().cast::<c_void>();
    // SAFETY: the connection is open; the function's data is a reference of its own to the guard, which SQLite hands to
    // `forget_guard` when the function is replaced or the connection closed, or at once if this fails.
    check_code(unsafe {
        ffi::sqlite3_create_function_v2(
            connection.handle(),
            name.as_ptr(),
            n_args,
            flags,
            guard,
            Some(function),
            None,
            None,
            Some(forget_guard),
        )
    })
}

unsafe extern "C" fn forget_guard(guard: *mut c_void) {
    // SAFETY: made by `Arc::into_raw` in `register`, given back once.
    drop(unsafe { Arc::from_raw(guard.cast_const().cast::<RunGuard>()) });
}

/// Why a call has no result.
enum CallError {
    RunStopped,
    TooBig,
    NoMemory,
    Message(&'static CStr),
}

impl From<RunStopped> for CallError {
    fn from(_: RunStopped) -> Self {
        CallError::RunStopped
    }
}

/// One call of a function.
struct Call<'a> {
    context: *mut ffi::sqlite3_context,
    args: &'a [*mut ffi::sqlite3_value],
}

impl<'a> Call<'a> {
    /// Runs a function's body, and reports what it returns or panics with.
    ///
    /// # Safety
    /// The arguments must be those that SQLite called a function of this module with.
    unsafe fn run(
        context: *mut ffi::sqlite3_context,
        n_args: c_int,
        args: *mut *mut ffi::sqlite3_value,
        body: impl FnOnce(&Call<'_>, &mut WorkMeter<'_>) -> Result<(), CallError>,
    ) {
        // SAFETY: SQLite passes `n_args` values that live during the call, and the data that `register` gave.
        let (call, guard) = unsafe {
            let args = std::slice::from_raw_parts(args, usize::try_from(n_args).unwrap_or(0));
            (Call { context, args }, &*ffi::sqlite3_user_data(context).cast_const().cast::<RunGuard>())
        };
        let result = catch_unwind(AssertUnwindSafe(|| {
            let mut work = WorkMeter::new(guard);
            body(&call, &mut work)?;
            work.finish().map_err(CallError::from)
        }));
        match result.unwrap_or(Err(CallError::Message(c"a function panicked"))) {
            Ok(()) => {}
            Err(failure) => call.fail(&failure),
        }
    }

    fn kind(&self, arg: usize) -> c_int {
        // SAFETY: a value of this call.
        unsafe { ffi::sqlite3_value_type(self.args[arg]) }
    }

    /// Returns an argument as text in SQLite's way; `None` is NULL. (It may also be a lack of memory, which SQLite notes.)
    fn text(&self, arg: usize) -> Option<&'a [u8]> {
        // SAFETY: a value of this call; the text stays until the value is converted again, which nothing here does.
        unsafe { text_of(self.args[arg]) }
    }

    /// Returns the number of a blob's or a text's bytes, without converting a blob.
    fn n_bytes(&self, arg: usize) -> usize {
        // SAFETY: a value of this call.
        usize::try_from(unsafe { ffi::sqlite3_value_bytes(self.args[arg]) }).unwrap_or(0)
    }

    /// Returns a blob's bytes.
    fn blob(&self, arg: usize) -> &'a [u8] {
        // SAFETY: as for `text`; SQLite returns null for no bytes.
        unsafe {
            let start = ffi::sqlite3_value_blob(self.args[arg]);
            slice(start.cast(), ffi::sqlite3_value_bytes(self.args[arg]))
        }
    }

    /// Returns the limit on a value's length, or on a pattern's.
    fn limit(&self, limit: c_int) -> usize {
        // SAFETY: the connection of this call; a negative value reads the limit.
        let value = unsafe { ffi::sqlite3_limit(ffi::sqlite3_context_db_handle(self.context), limit, -1) };
        usize::try_from(value).unwrap_or(0)
    }

    fn return_integer(&self, value: i64) {
        // SAFETY: the context of this call.
        unsafe { ffi::sqlite3_result_int64(self.context, value) };
    }

    /// Returns a text, which SQLite copies.
    fn return_text(&self, text: &[u8]) {
        // SAFETY: the bytes live until SQLite has copied them.
        unsafe {
            let start = text.as_ptr().cast::<c_char>();
            let encoding = ffi::SQLITE_UTF8 as u8;
            ffi::sqlite3_result_text64(self.context, start, text.len() as u64, ffi::SQLITE_TRANSIENT(), encoding);
        }
    }

    /// Returns a text of a known length that `fill` writes.
    fn return_filled(
        &self,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), RunStopped>,
    ) -> Result<(), CallError> {
        // SAFETY: the memory is SQLite's, written before it is read, and handed back to be freed, or freed here. A panic of
        // `fill` would leak it, no more.
        unsafe {
            let start = ffi::sqlite3_malloc64(bytes as u64 + 1).cast::<u8>();
            if start.is_null() {
                return Err(CallError::NoMemory);
            }
            start.write_bytes(0, bytes + 1);
            if let Err(stopped) = fill(std::slice::from_raw_parts_mut(start, bytes)) {
                ffi::sqlite3_free(start.cast());
                return Err(stopped.into());
            }
            let encoding = ffi::SQLITE_UTF8 as u8;
            let free = Some(ffi::sqlite3_free as unsafe extern "C" fn(*mut c_void));
            ffi::sqlite3_result_text64(self.context, start.cast::<c_char>(), bytes as u64, free, encoding);
        }
        Ok(())
    }

    fn return_blob(&self, blob: &[u8]) {
        // SAFETY: the bytes live until SQLite has copied them.
        unsafe {
            let start = blob.as_ptr().cast::<c_void>();
            ffi::sqlite3_result_blob64(self.context, start, blob.len() as u64, ffi::SQLITE_TRANSIENT());
        }
    }

    fn fail(&self, failure: &CallError) {
        // SAFETY: the context of this call; SQLite copies messages.
        unsafe {
            match failure {
                CallError::RunStopped => ffi::sqlite3_result_error_code(self.context, ffi::SQLITE_INTERRUPT),
                CallError::TooBig => ffi::sqlite3_result_error_toobig(self.context),
                CallError::NoMemory => ffi::sqlite3_result_error_nomem(self.context),
                CallError::Message(message) => ffi::sqlite3_result_error(self.context, message.as_ptr(), -1),
            }
        }
    }
}

/// # Safety
/// The value must be alive, and must not be converted while the text is used.
unsafe fn text_of<'a>(value: *mut ffi::sqlite3_value) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise; the bytes are counted after the conversion, as SQLite asks.
    unsafe {
        let start = ffi::sqlite3_value_text(value);
        (!start.is_null()).then(|| slice(start, ffi::sqlite3_value_bytes(value)))
    }
}

/// # Safety
/// `start` must lead to that many bytes, or be null.
unsafe fn slice<'a>(start: *const u8, bytes: c_int) -> &'a [u8] {
    match usize::try_from(bytes) {
        // SAFETY: the caller's promise.
        Ok(bytes) if !start.is_null() => unsafe { std::slice::from_raw_parts(start, bytes) },
        _ => &[],
    }
}

/// A copy of a value, whose conversion leaves the value as it is.
struct ValueCopy(*mut ffi::sqlite3_value);

impl ValueCopy {
    fn of(value: *mut ffi::sqlite3_value) -> Self {
        // SAFETY: a value of the call under way; null when there is no memory.
        Self(unsafe { ffi::sqlite3_value_dup(value) })
    }

    fn text(&self) -> Result<&[u8], CallError> {
        if self.0.is_null() {
            return Err(CallError::NoMemory);
        }
        // SAFETY: this copy is alive and converted here only.
        unsafe { text_of(self.0) }.ok_or(CallError::NoMemory)
    }
}

impl Drop for ValueCopy {
    fn drop(&mut self) {
        // SAFETY: freed once; null is allowed.
        unsafe { ffi::sqlite3_value_free(self.0) };
    }
}

unsafe extern "C" fn instr(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    let body = |call: &Call<'_>, work: &mut WorkMeter<'_>| -> Result<(), CallError> {
        let is_blob = |arg| call.kind(arg) == ffi::SQLITE_BLOB;
        if call.kind(0) == ffi::SQLITE_NULL || call.kind(1) == ffi::SQLITE_NULL {
            return Ok(());
        }
        let place = match (is_blob(0), is_blob(1)) {
            (true, true) if call.blob(1).is_empty() => 1,
            (true, true) => text::instr_blob(call.blob(0), call.blob(1), work)?,
            (false, false) => {
                let (haystack, needle) =
                    (call.text(0).ok_or(CallError::NoMemory)?, call.text(1).ok_or(CallError::NoMemory)?);
                text::instr_text(haystack, needle, work)?
            }
            _ if call.n_bytes(1) == 0 => 1,
            _ => {
                let (haystack, needle) = (ValueCopy::of(call.args[0]), ValueCopy::of(call.args[1]));
                match (haystack.text()?, needle.text()?) {
                    (haystack, []) => text::instr_vanished(haystack),
                    (haystack, needle) => text::instr_text(haystack, needle, work)?,
                }
            }
        };
        call.return_integer(place);
        Ok(())
    };
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, body) }
}

unsafe extern "C" fn replace(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    let body = |call: &Call<'_>, work: &mut WorkMeter<'_>| -> Result<(), CallError> {
        let (Some(text), Some(pattern)) = (call.text(0), call.text(1)) else { return Ok(()) };
        // An empty pattern is one that begins with NUL, too, and does not need the third argument.
        if pattern.first().is_none_or(|first| *first == 0) {
            call.return_text(text);
            return Ok(());
        }
        let Some(replacement) = call.text(2) else { return Ok(()) };
        let limit = call.limit(ffi::SQLITE_LIMIT_LENGTH);
        let n_matches = text::count_matches(text, pattern, work)?;
        let bytes = text.len() - n_matches * pattern.len() + n_matches.saturating_mul(replacement.len());
        if text.len() >= limit || bytes > limit {
            return Err(CallError::TooBig);
        }
        call.return_filled(bytes, |out| text::replace_into(out, text, pattern, replacement, work))
    };
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, body) }
}

unsafe extern "C" fn trim(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, |call, work| trim_sides(call, true, true, work)) }
}

unsafe extern "C" fn ltrim(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, |call, work| trim_sides(call, true, false, work)) }
}

unsafe extern "C" fn rtrim(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, |call, work| trim_sides(call, false, true, work)) }
}

fn trim_sides(call: &Call<'_>, at_start: bool, at_end: bool, work: &mut WorkMeter<'_>) -> Result<(), CallError> {
    let Some(mut text) = call.text(0) else { return Ok(()) };
    let Some(set) = (if call.args.len() == 1 { Some(&b" "[..]) } else { call.text(1) }) else { return Ok(()) };
    let set = TrimSet::new(set, work)?;
    if at_start {
        text = set.trim_start(text, work)?;
    }
    if at_end {
        text = set.trim_end(text, work)?;
    }
    call.return_text(text);
    Ok(())
}

unsafe extern "C" fn unhex(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    let body = |call: &Call<'_>, work: &mut WorkMeter<'_>| -> Result<(), CallError> {
        let (Some(digits), Some(ignored)) = (call.text(0), call.text(1)) else { return Ok(()) };
        if let Some(blob) = text::unhex(digits, ignored, work)? {
            call.return_blob(&blob);
        }
        Ok(())
    };
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, body) }
}

unsafe extern "C" fn concat(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    let body = |call: &Call<'_>, work: &mut WorkMeter<'_>| {
        if call.args.is_empty() {
            return Err(CallError::Message(c"wrong number of arguments to function concat()"));
        }
        concatenate(call, 0, b"", work)
    };
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, body) }
}

unsafe extern "C" fn concat_ws(context: *mut ffi::sqlite3_context, n: c_int, args: *mut *mut ffi::sqlite3_value) {
    let body = |call: &Call<'_>, work: &mut WorkMeter<'_>| {
        if call.args.len() < 2 {
            return Err(CallError::Message(c"wrong number of arguments to function concat_ws()"));
        }
        let Some(separator) = call.text(0) else { return Ok(()) };
        concatenate(call, 1, separator, work)
    };
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, body) }
}

/// Returns the texts of the arguments from number `first` on, NULLs left out, with the separator between them.
fn concatenate(call: &Call<'_>, first: usize, separator: &[u8], work: &mut WorkMeter<'_>) -> Result<(), CallError> {
    let texts = || (first..call.args.len()).filter_map(|arg| call.text(arg));
    let n_separators = texts().count().saturating_sub(1);
    let bytes = texts().map(<[u8]>::len).sum::<usize>() + n_separators * separator.len();
    if bytes > call.limit(ffi::SQLITE_LIMIT_LENGTH) {
        return Err(CallError::TooBig);
    }
    call.return_filled(bytes, |out| text::join_into(out, texts(), separator, work))
}

unsafe extern "C" fn like<const BLOBS: bool>(
    context: *mut ffi::sqlite3_context,
    n: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, |call, work| match_pattern(call, like::LIKE, BLOBS, work)) }
}

unsafe extern "C" fn glob<const BLOBS: bool>(
    context: *mut ffi::sqlite3_context,
    n: c_int,
    args: *mut *mut ffi::sqlite3_value,
) {
    // SAFETY: SQLite's own arguments.
    unsafe { Call::run(context, n, args, |call, work| match_pattern(call, like::GLOB, BLOBS, work)) }
}

fn match_pattern(
    call: &Call<'_>,
    mut wildcards: like::Wildcards,
    matches_blobs: bool,
    work: &mut WorkMeter<'_>,
) -> Result<(), CallError> {
    if !matches_blobs && (call.kind(0) == ffi::SQLITE_BLOB || call.kind(1) == ffi::SQLITE_BLOB) {
        call.return_integer(0);
        return Ok(());
    }
    if call.n_bytes(0) > call.limit(ffi::SQLITE_LIMIT_LIKE_PATTERN_LENGTH) {
        return Err(CallError::Message(c"LIKE or GLOB pattern too complex"));
    }
    if call.args.len() == 3 {
        let Some(escape) = call.text(2) else { return Ok(()) };
        let escape = utf8::until_nul(escape);
        if escape.is_empty() || utf8::character_len(escape) != escape.len() {
            return Err(CallError::Message(c"ESCAPE expression must be a single character"));
        }
        wildcards = wildcards.with_escape(utf8::read(escape, 0).0);
    }
    let (Some(pattern), Some(text)) = (call.text(0), call.text(1)) else { return Ok(()) };
    call.return_integer(i64::from(wildcards.matches(pattern, text, work)?));
    Ok(())
}

#[cfg(test)]
mod tests;
