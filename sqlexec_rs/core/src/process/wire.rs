//! The messages between a pool thread and its worker process, as bytes.
//!
//! A message is its length and its postcard encoding; the cells of a table follow in the format of `cells`. Both ends
//! are from the same build, which the greeting verifies. A reader trusts nothing: memory grows with received and not
//! with announced bytes, and malformed data is an `InvalidData` error.

use std::ffi::OsString;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::cells::{invalid, read_exactly, read_rows, write_cells};
use crate::error::PoolError;
use crate::memory::grow;
use crate::outcome::{Outcome, Status};
use crate::request::{Limits, OutputKind, Parameters};
use crate::result::table::Table;
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::in_memory_dbs::Access;

/// Maximum bytes of a worker's message, without the cells of a table.
const MAX_MESSAGE: u64 = 1 << 28;

/// Bytes that most messages do not exceed.
const USUAL_BYTES: usize = 512;

/// Maximum number of columns of a table: more than SQLite can return.
const MAX_COLUMNS: usize = 1 << 16;

/// Returns the first message of a worker. It differs in another build, with another SQLite or another encoding.
pub(crate) fn greeting() -> String {
    let sources = [
        include_str!("wire.rs"),
        include_str!("cells.rs"),
        include_str!("../outcome.rs"),
        include_str!("../request.rs"),
    ];
    let form = sources.iter().fold(0, |seed, source| xxh3_64_with_seed(source.as_bytes(), seed));
    format!("sqlexec-worker {} {form:016x} on SQLite {}\n", env!("CARGO_PKG_VERSION"), rusqlite::version())
}

/// A query.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request<'a> {
    /// The bytes of the path, which may not be UTF-8.
    pub(crate) path: &'a [u8],
    /// The number of the file's state; a different number reopens the file.
    pub(crate) state: u32,
    /// Whether other requests wait for the same thread, so that keeping a transaction is worthwhile.
    pub(crate) has_successors: bool,
    pub(crate) limits: Limits,
    pub(crate) sql: &'a str,
    pub(crate) parameters: Option<Parameters>,
    pub(crate) output: OutputKind,
}

/// The messages of a worker about a query.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message<'a> {
    /// The database is being opened; the run's clock has not started.
    Opening,
    /// The database is open; the run starts.
    Opened,
    /// The process accepts no further requests; the outcome follows.
    Leaving,
    /// How the run ended; the cells of its table follow.
    Outcome(Outcome, ConnectionCounts, #[serde(borrow)] Option<TableHeader<'a>>),
    /// Our code panicked, with this message.
    Panic(String),
}

/// The names and declared types of a table's columns, and the number of rows.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TableHeader<'a> {
    #[serde(borrow)]
    columns: Vec<(&'a str, Option<&'a str>)>,
    n_rows: u64,
}

/// Returns the arguments that configure how a worker opens files.
pub(crate) fn access_arguments(access: Access) -> [String; 6] {
    let Access { immutable, copy_up_to_bytes, copies_bytes, like_blobs, checks_cells, sqlite_version } = access;
    let [immutable, like_blobs, checks_cells] = [immutable, like_blobs, checks_cells].map(u64::from);
    [immutable, copy_up_to_bytes, copies_bytes, like_blobs, checks_cells, u64::from(sqlite_version)]
        .map(|number| number.to_string())
}

/// Parses these arguments.
pub(crate) fn access_of(
    [immutable, copy_up_to_bytes, copies_bytes, like_blobs, checks_cells, sqlite_version]: [u64; 6],
) -> Access {
    let [immutable, like_blobs, checks_cells] = [immutable, like_blobs, checks_cells].map(|number| number != 0);
    let sqlite_version = u32::try_from(sqlite_version).unwrap_or(u32::MAX);
    Access { immutable, copy_up_to_bytes, copies_bytes, like_blobs, checks_cells, sqlite_version }
}

/// Returns the arguments that name hidden columns: a table, and `=` with a column or nothing.
pub(crate) fn hidden_arguments(hidden: &[HiddenColumn]) -> impl Iterator<Item = String> {
    let column = |entry: &HiddenColumn| entry.column.as_ref().map_or_else(String::new, |column| format!("={column}"));
    hidden.iter().flat_map(move |entry| [entry.table.clone(), column(entry)])
}

/// Parses the arguments that name hidden columns; `None` if they are malformed.
pub(crate) fn hidden_of(arguments: impl Iterator<Item = OsString>) -> Option<Arc<[HiddenColumn]>> {
    let texts: Vec<String> = arguments.map(OsString::into_string).collect::<Result<_, _>>().ok()?;
    let pair = |pair: &[String]| {
        let [table, column] = pair else { return None };
        let column = if column.is_empty() { None } else { Some(column.strip_prefix('=')?.to_owned()) };
        Some(HiddenColumn { table: table.clone(), column })
    };
    texts.chunks(2).map(pair).collect()
}

/// Connections that the worker opened and has open; databases that it copied, and the bytes of its copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConnectionCounts {
    pub(crate) opened: u64,
    pub(crate) open: u64,
    pub(crate) copied: u64,
    pub(crate) copied_bytes: u64,
}

/// Writes a request or a message.
pub(crate) fn write(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_extend(message, Vec::with_capacity(USUAL_BYTES)).map_err(invalid)?;
    out.write_all(&(bytes.len() as u64).to_le_bytes())?;
    out.write_all(&bytes)
}

/// Writes the message with an outcome, and its rows.
pub(crate) fn write_outcome(out: &mut impl Write, mut outcome: Outcome, counts: ConnectionCounts) -> io::Result<()> {
    let table = outcome.table.take();
    let header = table.as_ref().map(|table| {
        let types = (0..).map(|column| table.column_type(column));
        TableHeader {
            columns: table.columns().iter().map(String::as_str).zip(types).collect(),
            n_rows: table.n_rows() as u64,
        }
    });
    write(out, &Message::Outcome(outcome, counts, header))?;
    table.map_or(Ok(()), |table| write_cells(out, &table))
}

/// Reads the bytes of a request; `None` if the other end has closed.
pub(crate) fn read_request(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let len = read_len(input)?;
    read_exactly(input, len).map(Some)
}

/// Reads the length of the next message.
pub(crate) fn read_len(input: &mut impl Read) -> io::Result<u64> {
    let mut len = [0; 8];
    input.read_exact(&mut len)?;
    Ok(u64::from_le_bytes(len))
}

/// Reads the bytes of a worker's message.
pub(crate) fn read_message(input: &mut impl Read, len: u64) -> io::Result<Vec<u8>> {
    if len > MAX_MESSAGE { Err(invalid("the message is too long")) } else { read_exactly(input, len) }
}

/// Decodes a request or a message.
pub(crate) fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> io::Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(invalid("trailing bytes after a message")),
        Err(error) => Err(invalid(error)),
    }
}

/// Reads the rows of an outcome; rejects a table that exceeds `limits`.
pub(crate) fn read_rows_of(
    input: &mut impl BufRead,
    mut outcome: Outcome,
    header: Option<TableHeader<'_>>,
    limits: &Limits,
) -> io::Result<Outcome> {
    if header.is_some() != (outcome.status == Status::Ok) {
        return Err(invalid("rows require the status ok"));
    }
    if let Some(TableHeader { columns, n_rows }) = header {
        if columns.len() > MAX_COLUMNS {
            return Err(invalid("too many columns"));
        }
        let (names, types) = columns.into_iter().map(|(name, kind)| (name.to_owned(), kind.map(str::to_owned))).unzip();
        outcome.table = Some(Arc::new(read_rows(input, Table::new(names).with_types(types), n_rows, limits)?));
    }
    Ok(outcome)
}

/// A buffer that grows while there is memory.
struct GrowingBuffer(Vec<u8>);

impl Write for GrowingBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        grow(&mut self.0, bytes.len())?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Serializes an outcome; only this build can read it.
pub fn outcome_to_bytes(outcome: &Outcome) -> Result<Vec<u8>, PoolError> {
    let mut bytes = GrowingBuffer(greeting().into_bytes());
    let written = write_outcome(&mut bytes, outcome.clone(), ConnectionCounts::default());
    written.map(|()| bytes.0).map_err(|_| PoolError::OutOfMemory)
}

/// Deserializes the result of `outcome_to_bytes`; `None` if the bytes are malformed or from another build.
pub fn outcome_from_bytes(bytes: &[u8]) -> Result<Option<Outcome>, PoolError> {
    match parse_outcome(bytes) {
        Ok(outcome) => Ok(outcome),
        Err(error) if error.kind() == io::ErrorKind::OutOfMemory => Err(PoolError::OutOfMemory),
        Err(_) => Ok(None),
    }
}

fn parse_outcome(bytes: &[u8]) -> io::Result<Option<Outcome>> {
    let Some(mut input) = bytes.strip_prefix(greeting().as_bytes()) else { return Ok(None) };
    let len = read_len(&mut input)?;
    let message = read_message(&mut input, len)?;
    let Message::Outcome(outcome, _, header) = parse(&message)? else { return Ok(None) };
    let limits = Limits { max_rows: u64::MAX, max_bytes: u64::MAX, ..Limits::default() };
    read_rows_of(&mut input, outcome, header, &limits).map(Some)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::outcome::Stop;
    use crate::request::{ParameterValue, StatementLimits};
    use crate::result::table::CELL_BYTES;
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
        write_outcome(&mut bytes, outcome.clone(), COUNTS).unwrap();
        bytes
    }

    fn decode(bytes: &[u8]) -> io::Result<(Outcome, ConnectionCounts)> {
        decode_through(1 << 20, bytes)
    }

    /// Decodes a reply through a buffer of `capacity` bytes.
    fn decode_through(capacity: usize, bytes: &[u8]) -> io::Result<(Outcome, ConnectionCounts)> {
        let mut input = io::BufReader::with_capacity(capacity, bytes);
        let len = read_len(&mut input)?;
        let bytes = read_message(&mut input, len)?;
        let Message::Outcome(outcome, counts, header) = parse(&bytes)? else { return Err(invalid("another message")) };
        Ok((read_rows_of(&mut input, outcome, header, &Limits::default())?, counts))
    }

    #[test]
    fn outcome_round_trips_through_a_message() {
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
    fn outcome_round_trips_through_bytes() {
        let bytes = outcome_to_bytes(&outcome()).unwrap();
        let read = outcome_from_bytes(&bytes).unwrap().unwrap();
        assert_eq!((read.row_count(), read.vm_steps), (3, 99));
        assert!(
            [&bytes[1..], &bytes[..bytes.len() - 1]].iter().all(|bytes| outcome_from_bytes(bytes).unwrap().is_none())
        );
    }

    #[test]
    fn request_round_trips() {
        let caps = StatementLimits { max_length: 8, max_columns: 9, ..StatementLimits::default() };
        let limits = Limits { timeout: None, cpu: Some(Duration::MAX), vm_steps: Some(5), caps, ..Limits::default() };
        let mut bytes = Vec::new();
        let values = vec![
            ParameterValue::Null,
            ParameterValue::Integer(-1),
            ParameterValue::Real(0.5_f64.to_bits()),
            ParameterValue::Text(b"\xff".into()),
        ];
        let parameters = Some(Parameters { names: vec!["a".to_owned(); 4], values });
        let (path, sql) = (b"/a b\xff".as_slice(), "SELECT 'é'");
        let output = OutputKind::Plan;
        let request = Request {
            path,
            state: 7,
            has_successors: true,
            limits: limits.clone(),
            sql,
            parameters: parameters.clone(),
            output,
        };
        write(&mut bytes, &request).unwrap();
        let mut input = bytes.as_slice();
        let read = read_request(&mut input).unwrap().unwrap();
        let read: Request<'_> = parse(&read).unwrap();
        assert_eq!((read.path, read.state, read.sql, read.parameters, read.output), (path, 7, sql, parameters, output));
        assert_eq!(read.limits, limits);
        assert!(read_request(&mut input).unwrap().is_none());
    }

    #[test]
    fn truncated_frame_is_an_error_at_every_length() {
        let bytes = encode(&outcome());
        assert!((0..bytes.len()).all(|n| decode(&bytes[..n]).is_err() && decode_through(50, &bytes[..n]).is_err()));
    }

    #[test]
    fn corrupted_frame_is_an_error_or_a_table_within_limits() {
        let bytes = encode(&outcome());
        for index in (0..150).chain(bytes.len() - 20..bytes.len()) {
            for wrong in [0, 1, 2, 5, 0x7f, 0xff] {
                let mut bytes = bytes.clone();
                bytes[index] = wrong;
                if let Ok((Outcome { table: Some(table), .. }, _)) = decode(&bytes) {
                    assert!(table.bytes() < 6_000);
                }
            }
        }
    }

    /// Decodes bytes as each kind of message that either side reads; the decoded values must be small.
    fn read_as_all(bytes: &[u8], capacity: usize) -> Result<(), TestCaseError> {
        let framed = [&(bytes.len() as u64).to_le_bytes(), bytes].concat();
        for bytes in [bytes, &framed] {
            if let Ok((Outcome { table: Some(table), .. }, _)) = decode_through(capacity, bytes) {
                prop_assert!(table.n_rows() == 0 || table.bytes() < 10_000 + bytes.len() * CELL_BYTES);
            }
            let mut input = io::BufReader::with_capacity(capacity, bytes);
            while let Ok(Some(request)) = read_request(&mut input) {
                let _ = parse::<Request<'_>>(&request).map(|request| request.sql.len());
            }
        }
        Ok(())
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused() {
        let whole = encode(&outcome());
        let mut request = Vec::new();
        let limits = Limits::default();
        let (sql, output) = ("SELECT 1", OutputKind::Rows);
        write(
            &mut request,
            &Request { path: b"/a", state: 7, has_successors: true, limits, sql, parameters: None, output },
        )
        .unwrap();
        let position = any::<prop::sample::Index>();
        let splice = (position, prop::collection::vec(any::<u8>(), 0..12), 0..12_usize);
        let splices = prop::collection::vec(splice, 1..6);
        let mut config = ProptestConfig::default();
        config.failure_persistence = None;
        config.cases = config.cases.max(4_000);
        proptest!(config, |(bytes in prop::collection::vec(any::<u8>(), 0..300), capacity in 1..400_usize, splices in splices)| {
            read_as_all(&bytes, capacity)?;
            for mut frame in [whole.clone(), request.clone()] {
                for (position, bytes, n_taken) in &splices {
                    let from = position.index(frame.len().min(200));
                    frame.splice(from..(from + n_taken).min(frame.len()), bytes.iter().copied());
                }
                read_as_all(&frame, capacity)?;
            }
        });
    }

    #[test]
    fn false_length_allocates_no_memory() {
        let kind = |len| read_message(&mut b"short".as_slice(), len).unwrap_err().kind();
        assert_eq!(
            (kind(MAX_MESSAGE), kind(MAX_MESSAGE + 1)),
            (io::ErrorKind::UnexpectedEof, io::ErrorKind::InvalidData)
        );
        assert!(parse::<Message<'_>>(&[3, 0xff, 0xff, 0xff, 0xff, 0x0f, b'a']).is_err(), "a text");
        assert!(parse::<Message<'_>>(&[0, 0]).is_err(), "trailing bytes after a message");
    }
}
