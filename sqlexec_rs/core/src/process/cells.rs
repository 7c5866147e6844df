//! Serializes the cells of a table row by row: each is a kind, a number and possibly bytes.

use std::io::{self, BufRead, Read, Write};

use crate::memory::{OutOfMemory, check_room_for};
use crate::request::Limits;
use crate::result::table::{CELL_BYTES, Table};
use crate::result::value::Value;

/// Bytes of a table that are written at once.
const CHUNK_BYTES: usize = 64 << 10;

/// Length of a cell's header: its kind and a number, which is the value or the length of the bytes that follow.
const CELL_HEAD: usize = 9;
const NULL: u8 = 0;
const INTEGER: u8 = 1;
const REAL: u8 = 2;
const TEXT: u8 = 3;
const BLOB: u8 = 4;

pub(super) fn write_cells(out: &mut impl Write, table: &Table) -> io::Result<()> {
    let mut chunk = Vec::with_capacity((table.n_rows() * table.width() * CELL_HEAD).min(2 * CHUNK_BYTES));
    for row in 0..table.n_rows() {
        for value in table.row(row) {
            add_head(&mut chunk, value);
            let (Value::Text(bytes) | Value::Blob(bytes)) = value else { continue };
            if bytes.len() < CHUNK_BYTES {
                chunk.extend_from_slice(bytes);
            } else {
                out.write_all(&chunk)?;
                out.write_all(bytes)?;
                chunk.clear();
            }
        }
        if chunk.len() >= CHUNK_BYTES {
            out.write_all(&chunk)?;
            chunk.clear();
        }
    }
    out.write_all(&chunk)
}

#[inline]
fn add_head(chunk: &mut Vec<u8>, value: Value<'_>) {
    let (kind, payload) = match value {
        Value::Null => (NULL, 0),
        Value::Integer(i) => (INTEGER, i as u64),
        Value::Real(r) => (REAL, r.to_bits()),
        Value::Text(bytes) => (TEXT, bytes.len() as u64),
        Value::Blob(bytes) => (BLOB, bytes.len() as u64),
    };
    let mut cell = [kind; CELL_HEAD];
    cell[1..].copy_from_slice(&payload.to_le_bytes());
    chunk.extend_from_slice(&cell);
}

/// Reads the rows of an empty table; rejects more than `limits` allow.
pub(super) fn read_rows(input: &mut impl BufRead, mut table: Table, n_rows: u64, limits: &Limits) -> io::Result<Table> {
    let width = table.width() as u64;
    if n_rows > limits.max_rows.min(1 << 40) || (n_rows > 0 && width == 0) {
        return Err(invalid("rows without columns"));
    }
    table.reserve(n_rows.saturating_mul(width).min(limits.max_bytes / CELL_BYTES as u64) as usize);
    let mut column = 0;
    while (table.n_rows() as u64) < n_rows {
        if !read_cells(input, &mut table, n_rows, &mut column, limits.max_bytes)? {
            let mut cell = read_exactly(input, CELL_HEAD as u64)?;
            let head = *cell.first_chunk().ok_or_else(|| invalid("no value"))?;
            let len = text_len(&head, limits.max_bytes)?;
            check_room_for(usize::try_from(len).unwrap_or(usize::MAX))?;
            read_into(input, &mut cell, len)?;
            add_parsed(&mut table, &cell, &mut column)?;
        }
    }
    if table.bytes() as u64 > limits.max_bytes {
        return Err(invalid("too many bytes"));
    }
    table.settle(true);
    Ok(table)
}

/// Reads the cells that are complete in the input's buffer; returns false without a complete cell.
fn read_cells(
    input: &mut impl BufRead,
    table: &mut Table,
    n_rows: u64,
    column: &mut usize,
    max_bytes: u64,
) -> io::Result<bool> {
    let buffer = input.fill_buf()?;
    let mut rest = buffer;
    while let Some(head) = rest.first_chunk::<CELL_HEAD>() {
        let size = CELL_HEAD + text_len(head, max_bytes)? as usize;
        let Some((cell, after)) = rest.split_at_checked(size) else { break };
        rest = after;
        add_parsed(table, cell, column)?;
        if *column == 0 {
            if table.bytes() as u64 > max_bytes {
                return Err(invalid("too many bytes"));
            }
            if table.n_rows() as u64 == n_rows {
                break;
            }
        }
    }
    let used = buffer.len() - rest.len();
    input.consume(used);
    Ok(used > 0)
}

/// Returns the number of bytes that follow a cell's header.
#[inline]
fn text_len(head: &[u8; CELL_HEAD], max_bytes: u64) -> io::Result<u64> {
    match (head[0], payload(head)) {
        (NULL | INTEGER | REAL, _) => Ok(0),
        (TEXT | BLOB, len) if len <= max_bytes.min(u64::from(u32::MAX)) => Ok(len),
        _ => Err(invalid("no value")),
    }
}

/// Adds a cell with a validated header, and ends the row after its last cell.
#[inline]
fn add_parsed(table: &mut Table, cell: &[u8], column: &mut usize) -> Result<(), OutOfMemory> {
    let Some((head, bytes)) = cell.split_first_chunk::<CELL_HEAD>() else { return Ok(()) };
    table.try_push(match head[0] {
        NULL => Value::Null,
        INTEGER => Value::Integer(payload(head) as i64),
        REAL => Value::Real(f64::from_bits(payload(head))),
        TEXT => Value::Text(bytes),
        _ => Value::Blob(bytes),
    })?;
    *column += 1;
    if *column == table.width() {
        *column = 0;
        table.end_row();
    }
    Ok(())
}

#[inline]
fn payload(head: &[u8; CELL_HEAD]) -> u64 {
    let [_, payload @ ..] = *head;
    u64::from_le_bytes(payload)
}

/// Reads `len` bytes, growing the buffer as they arrive.
pub(super) fn read_exactly(input: &mut impl Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    read_into(input, &mut bytes, len)?;
    Ok(bytes)
}

/// Appends `len` bytes. Fails with an out-of-memory error if memory is short.
fn read_into(input: &mut impl Read, bytes: &mut Vec<u8>, len: u64) -> io::Result<()> {
    let n = input.take(len).read_to_end(bytes)?;
    if n as u64 == len { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Creates the error for malformed data.
pub(super) fn invalid(message: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
