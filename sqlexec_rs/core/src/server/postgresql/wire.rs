//! Messages to and from a PostgreSQL server.

use bytes::BytesMut;
use postgres_protocol::message::backend::{Header, Message};
use postgres_protocol::message::frontend;

use crate::memory::check_room_for;
use crate::server::stream::{NO_TLS, Stream, StreamError};
use crate::server::url::Url;
use crate::server::watch::Watch;

/// Bytes that a message may have that is no row.
const MAX_MESSAGE: usize = 16 << 20;

/// Bytes in front of a message's body.
const HEAD_BYTES: usize = 5;

/// A connection.
pub(super) struct Wire {
    stream: Stream,
    received: BytesMut,
}

impl Wire {
    /// Connects to the server of a URL.
    pub(super) fn connect(url: &Url, watch: &Watch<'_>) -> Result<Self, String> {
        let port = url.port();
        let stream = Stream::connect(url, port, &format!(".s.PGSQL.{port}"), watch)?;
        let mut wire = Self { stream, received: BytesMut::new() };
        if wire.stream.wants_tls(url)? {
            wire.secure(url, watch).map_err(StreamError::into_text)?;
        }
        Ok(wire)
    }

    /// Asks the server to encrypt, and has it.
    fn secure(&mut self, url: &Url, watch: &Watch<'_>) -> Result<(), StreamError> {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        self.stream.send(&request)?;
        self.stream.receive(&mut self.received, watch)?;
        // Behind its letter nothing may come before all is encrypted: it would be somebody else's.
        match &self.received[..] {
            b"S" => self.received.clear(),
            b"N" => return Err(StreamError::Lost(NO_TLS.to_owned())),
            _ => return Err(StreamError::unexpected()),
        }
        self.stream.secure(url, watch)
    }

    /// Sends messages.
    pub(super) fn send(&mut self, messages: &[u8]) -> Result<(), StreamError> {
        self.stream.send(messages)
    }

    /// Returns the next message; a row may have so many bytes.
    pub(super) fn next(&mut self, watch: &Watch<'_>, max_row: usize) -> Result<Message, StreamError> {
        loop {
            if let Some(header) = Header::parse(&self.received)? {
                let bytes = usize::try_from(header.len()).unwrap_or(usize::MAX);
                if header.tag() == b'D' && bytes > max_row {
                    return Err(StreamError::TooLarge);
                }
                if header.tag() != b'D' && bytes > MAX_MESSAGE {
                    return Err(StreamError::Lost("the server sent what is no message".to_owned()));
                }
                check_room_for(2 * bytes.min(max_row.max(MAX_MESSAGE)))?; // it is received, and a blob is read from it
                if self.received.len() > bytes
                    && let Some(message) = Message::parse(&mut self.received)?
                {
                    return Ok(message);
                }
                self.received
                    .reserve((bytes + HEAD_BYTES).saturating_sub(self.received.len()).min(max_row.max(MAX_MESSAGE)));
            }
            self.stream.receive(&mut self.received, watch)?;
        }
    }

    /// Waits until the server has closed the connection; false when it has not in time.
    pub(super) fn is_closed_in_time(&mut self, watch: &Watch<'_>) -> bool {
        loop {
            match self.stream.receive(&mut self.received, watch) {
                Ok(()) => self.received.clear(),
                Err(StreamError::Lost(_)) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Wire {
    /// Tells the server that nobody reads any more, which it would find out later.
    fn drop(&mut self) {
        let mut bye = BytesMut::new();
        frontend::terminate(&mut bye);
        let _ = self.send(&bye);
    }
}
