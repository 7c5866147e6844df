//! What a pool's thread and its worker process say to each other, as bytes.
//!
//! Little-endian numbers, texts behind their length, tables as `cells` writes them. Both ends are of one build, which the
//! greeting checks. A reader believes nothing: memory grows with what arrives and not with what is announced, and what does
//! not fit is `InvalidData`.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::bytes::{
    MAX_TEXT, invalid, put, put_bytes, put_option, put_optional_text, take, take_array, take_byte, take_bytes,
    take_option, take_optional_text, take_text,
};
use super::cells::{read_table, write_table};
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{Caps, Limits};
use crate::sqlite::in_memory_dbs::Access;

/// What a worker says first; another build, with another SQLite or another form of the bytes, says something else.
pub(crate) fn greeting() -> String {
    let sources = [
        include_str!("bytes.rs"),
        include_str!("wire.rs"),
        include_str!("cells.rs"),
        include_str!("../outcome.rs"),
        include_str!("../request.rs"),
    ];
    let form = sources.iter().fold(0, |seed, source| xxh3_64_with_seed(source.as_bytes(), seed));
    format!("sqlexec-worker {} {form:016x} on SQLite {}\n", env!("CARGO_PKG_VERSION"), rusqlite::version())
}

/// A query, as the worker reads it.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) path: PathBuf,
    /// The number of the file's state: with another one it is opened anew.
    pub(crate) state: u32,
    pub(crate) limits: Limits,
    pub(crate) sql: String,
}

/// What an answer is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    /// The database is being opened: the run's clock stands.
    Opening = 1,
    /// It is open: the run begins.
    Opened,
    /// An outcome follows.
    Outcome,
    /// The message of a panic follows.
    Panic,
}

/// Returns the arguments by which a worker is told how to open files.
pub(crate) fn access_arguments(access: Access) -> [String; 3] {
    let Access { immutable, copy_up_to_bytes, copies_bytes } = access;
    [u64::from(immutable), copy_up_to_bytes, copies_bytes].map(|number| number.to_string())
}

/// Returns what these arguments say.
pub(crate) fn access_of([immutable, copy_up_to_bytes, copies_bytes]: [u64; 3]) -> Access {
    Access { immutable: immutable != 0, copy_up_to_bytes, copies_bytes }
}

/// Connections that the worker opened since it began, and has open; databases that it copied, and the bytes of its copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionCounts {
    pub(crate) opened: u64,
    pub(crate) open: u64,
    pub(crate) copied: u64,
    pub(crate) copied_bytes: u64,
}

pub(crate) fn write_request(
    out: &mut impl Write,
    path: &Path,
    state: u32,
    limits: &Limits,
    sql: &str,
) -> io::Result<()> {
    // Comparisons are not the worker's.
    let Limits { timeout, cpu, vm_steps, max_rows, max_bytes, heap_bytes, temp_bytes, compare_steps: _, caps } = limits;
    let nanos = |duration: &Duration| u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    put_bytes(out, path.as_os_str().as_bytes())?;
    put(out, u64::from(state))?;
    put_option(out, timeout.as_ref().map(nanos))?;
    put_option(out, cpu.as_ref().map(nanos))?;
    put_option(out, *vm_steps)?;
    for number in [*max_rows, *max_bytes, *heap_bytes, *temp_bytes] {
        put(out, number)?;
    }
    for cap in numbers_of(caps) {
        put(out, u64::from(cap))?;
    }
    put_bytes(out, sql.as_bytes())
}

/// Reads a request; `None` when the other end has closed.
pub(crate) fn read_request(input: &mut impl BufRead) -> io::Result<Option<Request>> {
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let path = PathBuf::from(OsString::from_vec(take_bytes(input, MAX_TEXT)?));
    let state = u32::try_from(take(input)?).map_err(|_| invalid("no number of a state"))?;
    let limits = Limits {
        timeout: take_option(input)?.map(Duration::from_nanos),
        cpu: take_option(input)?.map(Duration::from_nanos),
        vm_steps: take_option(input)?,
        max_rows: take(input)?,
        max_bytes: take(input)?,
        heap_bytes: take(input)?,
        temp_bytes: take(input)?,
        caps: take_caps(input)?,
        ..Limits::default()
    };
    let sql = take_text(input, u64::MAX)?;
    Ok(Some(Request { path, state, limits, sql }))
}

fn numbers_of(caps: &Caps) -> [u32; 7] {
    let Caps { max_length, max_sql_length, max_like_pattern, max_expr_depth, max_compound, max_vdbe_ops, max_columns } =
        *caps;
    [max_length, max_sql_length, max_like_pattern, max_expr_depth, max_compound, max_vdbe_ops, max_columns]
}

fn take_caps(input: &mut impl Read) -> io::Result<Caps> {
    let mut next = || u32::try_from(take(input)?).map_err(|_| invalid("too large a cap"));
    Ok(Caps {
        max_length: next()?,
        max_sql_length: next()?,
        max_like_pattern: next()?,
        max_expr_depth: next()?,
        max_compound: next()?,
        max_vdbe_ops: next()?,
        max_columns: next()?,
    })
}

pub(crate) fn write_tag(out: &mut impl Write, tag: Tag) -> io::Result<()> {
    out.write_all(&[tag as u8])
}

pub(crate) fn read_tag(input: &mut impl Read) -> io::Result<Tag> {
    let byte = take_byte(input)?;
    let tags = [Tag::Opening, Tag::Opened, Tag::Outcome, Tag::Panic];
    tags.into_iter().find(|tag| *tag as u8 == byte).ok_or_else(|| invalid("no tag"))
}

pub(crate) fn write_panic(out: &mut impl Write, message: &str) -> io::Result<()> {
    write_tag(out, Tag::Panic)?;
    put_bytes(out, message.as_bytes())
}

/// Reads what follows [`Tag::Panic`].
pub(crate) fn read_panic(input: &mut impl Read) -> io::Result<String> {
    take_text(input, MAX_TEXT)
}

pub(crate) fn write_outcome(out: &mut impl Write, outcome: &Outcome, counts: ConnectionCounts) -> io::Result<()> {
    let Outcome { status, table, error, error_offset, hint, stopped_by, elapsed, vm_steps, is_volatile } = outcome;
    write_tag(out, Tag::Outcome)?;
    out.write_all(&[*status as u8, stopped_by.map_or(0, |stop| stop as u8), u8::from(*is_volatile)])?;
    put(out, elapsed.as_nanos() as u64)?;
    put(out, *vm_steps)?;
    put_option(out, error_offset.map(u64::from))?;
    for number in [counts.opened, counts.open, counts.copied, counts.copied_bytes] {
        put(out, number)?;
    }
    put_optional_text(out, error.as_deref())?;
    put_optional_text(out, hint.as_deref())?;
    match table {
        None => out.write_all(&[0]),
        Some(table) => {
            out.write_all(&[1])?;
            write_table(out, table)
        }
    }
}

/// Reads what follows [`Tag::Outcome`]; a table over the caps of `limits` is not one that was asked for.
pub(crate) fn read_outcome(input: &mut impl BufRead, limits: &Limits) -> io::Result<(Outcome, ConnectionCounts)> {
    let [status, stop, is_volatile] = take_array(input)?;
    let status = *Status::ALL.get(usize::from(status)).ok_or_else(|| invalid("no status"))?;
    let stopped_by = match stop {
        0 => None,
        stop => Some(*Stop::ALL.iter().find(|s| **s as u8 == stop).ok_or_else(|| invalid("no stop"))?),
    };
    let elapsed = Duration::from_nanos(take(input)?);
    let vm_steps = take(input)?;
    let error_offset = take_option(input)?.map(|offset| offset as u32);
    let [opened, open, copied, copied_bytes] = [take(input)?, take(input)?, take(input)?, take(input)?];
    let counts = ConnectionCounts { opened, open, copied, copied_bytes };
    let error = take_optional_text(input)?;
    let hint = take_optional_text(input)?;
    let table = match take_byte(input)? {
        0 => None,
        _ => Some(Arc::new(read_table(input, limits)?)),
    };
    if table.is_some() != (status == Status::Ok) {
        return Err(invalid("rows go with the status ok, and with no other"));
    }
    let is_volatile = is_volatile != 0;
    Ok((Outcome { status, table, error, error_offset, hint, stopped_by, elapsed, vm_steps, is_volatile }, counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::table::Table;
    use crate::result::value::Value;

    const COUNTS: ConnectionCounts = ConnectionCounts { opened: 7, open: 3, copied: 2, copied_bytes: 1 << 40 };

    fn outcome() -> Outcome {
        let names = vec!["a".to_owned(), "é".to_owned()];
        let mut table = Table::new(names).with_types(vec![Some("REAL".to_owned()), None]);
        let long = [b'x'; 5_000];
        let rows = [
            [Value::Null, Value::Integer(i64::MIN)],
            [Value::Real(-0.0), Value::Text(b"h\xff\x00i")],
            [Value::Blob(b""), Value::Blob(&long)],
        ];
        for row in rows {
            for value in row {
                table.push(value);
            }
            table.end_row();
        }
        let elapsed = Duration::from_micros(1_234);
        Outcome { elapsed, vm_steps: 99, is_volatile: true, ..Outcome::ok(table) }
    }

    fn encode(outcome: &Outcome) -> Vec<u8> {
        let mut bytes = Vec::new();
        write_outcome(&mut bytes, outcome, COUNTS).unwrap();
        bytes
    }

    fn decode(bytes: &[u8]) -> io::Result<(Outcome, ConnectionCounts)> {
        decode_through(1 << 20, bytes)
    }

    /// Decodes what arrives through a buffer of so many bytes.
    fn decode_through(capacity: usize, bytes: &[u8]) -> io::Result<(Outcome, ConnectionCounts)> {
        let mut input = io::BufReader::with_capacity(capacity, bytes);
        match read_tag(&mut input)? {
            Tag::Outcome => read_outcome(&mut input, &Limits::default()),
            _ => Err(invalid("another tag")),
        }
    }

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        let failed = Outcome {
            error_offset: Some(20),
            hint: Some("Did you mean b?".to_owned()),
            stopped_by: Some(Stop::VmSteps),
            ..Outcome::failed(Status::Timeout, "over the budget")
        };
        let whole = outcome();
        for (outcome, capacity) in [(&failed, 64), (&whole, 1), (&whole, 9), (&whole, 100), (&whole, 1 << 20)] {
            let outcome = outcome.clone();
            let (read, counts) = decode_through(capacity, &encode(&outcome)).unwrap();
            assert_eq!(counts, COUNTS);
            assert_eq!(
                (read.status, read.error, read.error_offset, read.hint),
                (outcome.status, outcome.error, outcome.error_offset, outcome.hint)
            );
            assert_eq!((read.stopped_by, read.elapsed), (outcome.stopped_by, outcome.elapsed));
            assert_eq!((read.vm_steps, read.is_volatile), (outcome.vm_steps, outcome.is_volatile));
            assert_eq!(read.table.is_some(), outcome.table.is_some());
            let Some((read, written)) = read.table.zip(outcome.table) else { continue };
            assert_eq!((read.columns(), read.n_rows()), (written.columns(), written.n_rows()));
            assert_eq!((read.column_type(0), read.column_type(1)), (Some("REAL"), None));
            for row in 0..read.n_rows() {
                assert!(read.row(row).zip(written.row(row)).all(|(a, b)| a.is_identical(b)));
            }
        }
    }

    #[test]
    fn a_request_is_read_as_it_was_written() {
        let caps = Caps { max_length: 8, max_columns: 9, ..Caps::default() };
        let limits = Limits { timeout: None, cpu: Some(Duration::MAX), vm_steps: Some(5), caps, ..Limits::default() };
        let mut bytes = Vec::new();
        write_request(&mut bytes, Path::new("/a b"), 7, &limits, "SELECT 'é'").unwrap();
        let mut input = bytes.as_slice();
        let read = read_request(&mut input).unwrap().unwrap();
        assert_eq!((read.path.as_path(), read.state, read.sql.as_str()), (Path::new("/a b"), 7, "SELECT 'é'"));
        assert_eq!((read.limits.timeout, read.limits.vm_steps, read.limits.caps), (None, Some(5), caps));
        assert!(read.limits.cpu > Some(Duration::from_secs(1 << 32)), "the longest time is cut, not wrapped");
        assert!(read_request(&mut input).unwrap().is_none());
    }

    #[test]
    fn a_short_frame_is_an_error_at_every_length() {
        let bytes = encode(&outcome());
        assert!((0..bytes.len()).all(|n| decode(&bytes[..n]).is_err() && decode_through(50, &bytes[..n]).is_err()));
    }

    #[test]
    fn a_corrupted_frame_is_an_error_or_a_table_within_the_caps() {
        let bytes = encode(&outcome());
        for place in (0..150).chain(bytes.len() - 20..bytes.len()) {
            for wrong in [0, 1, 2, 5, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[place] = wrong;
                if let Ok((Outcome { table: Some(table), .. }, _)) = decode(&bytes) {
                    assert!(table.bytes() < 6_000);
                }
            }
        }
    }

    #[test]
    fn a_length_that_lies_takes_no_memory() {
        let mut bytes = Vec::new();
        put(&mut bytes, MAX_TEXT).unwrap();
        bytes.extend_from_slice(b"short");
        assert_eq!(take_bytes(&mut bytes.as_slice(), MAX_TEXT).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(take_bytes(&mut bytes.as_slice(), 10).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
