//! Numbers, texts and bytes as bytes of a stream.

use std::io::{self, Read, Write};

/// Bytes of a path, a name or a message.
pub(super) const MAX_TEXT: u64 = 1 << 26;

pub(super) fn put(out: &mut impl Write, number: u64) -> io::Result<()> {
    out.write_all(&number.to_le_bytes())
}

pub(super) fn put_option(out: &mut impl Write, number: Option<u64>) -> io::Result<()> {
    out.write_all(&[u8::from(number.is_some())])?;
    put(out, number.unwrap_or_default())
}

pub(super) fn put_bytes(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    put(out, bytes.len() as u64)?;
    out.write_all(bytes)
}

pub(super) fn put_optional_text(out: &mut impl Write, text: Option<&str>) -> io::Result<()> {
    put_option(out, text.map(|text| text.len() as u64))?;
    out.write_all(text.unwrap_or_default().as_bytes())
}

#[inline]
pub(super) fn take_array<const N: usize>(input: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    input.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[inline]
pub(super) fn take_byte(input: &mut impl Read) -> io::Result<u8> {
    take_array(input).map(|[byte]| byte)
}

#[inline]
pub(super) fn take(input: &mut impl Read) -> io::Result<u64> {
    take_array(input).map(u64::from_le_bytes)
}

pub(super) fn take_option(input: &mut impl Read) -> io::Result<Option<u64>> {
    let is_some = take_byte(input)? != 0;
    let number = take(input)?;
    Ok(is_some.then_some(number))
}

pub(super) fn take_bytes(input: &mut impl Read, max: u64) -> io::Result<Vec<u8>> {
    let len = take(input)?;
    if len > max { Err(invalid("too long a text")) } else { take_exactly(input, len) }
}

pub(super) fn take_text(input: &mut impl Read, max: u64) -> io::Result<String> {
    into_text(take_bytes(input, max)?)
}

pub(super) fn take_optional_text(input: &mut impl Read) -> io::Result<Option<String>> {
    match take_option(input)? {
        None => Ok(None),
        Some(len) if len <= MAX_TEXT => into_text(take_exactly(input, len)?).map(Some),
        Some(_) => Err(invalid("too long a text")),
    }
}

/// Reads `len` bytes; the buffer grows as they arrive.
pub(super) fn take_exactly(input: &mut impl Read, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let n = input.take(len).read_to_end(&mut bytes)?;
    if n as u64 == len { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

fn into_text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| invalid("text that is not UTF-8"))
}

pub(super) fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}
