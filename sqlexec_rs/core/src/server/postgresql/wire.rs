//! Messages of the PostgreSQL protocol.

use bytes::BytesMut;
use postgres_protocol::message::backend::{Header, Message};
use postgres_protocol::message::frontend;

use crate::memory::check_room_for;
use crate::server::deadline::RunDeadline;
use crate::server::stream::{NO_TLS, Stream, StreamError};
use crate::server::url::Url;

/// Maximum bytes of a message other than a row.
const MAX_MESSAGE: usize = 16 << 20;

/// Bytes before a message's body.
const HEAD_BYTES: usize = 5;

/// A connection.
pub(super) struct Wire {
    stream: Stream,
    received: BytesMut,
}

impl Wire {
    /// Connects to the server of a URL.
    pub(super) fn connect(url: &Url, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        let port = url.port();
        let stream = Stream::connect(url, port, &format!(".s.PGSQL.{port}"), deadline)?;
        let mut wire = Self { stream, received: BytesMut::new() };
        if wire.stream.requires_tls(url)? {
            wire.secure(url, deadline).map_err(StreamError::into_text)?;
        }
        Ok(wire)
    }

    /// Requests encryption and enables it.
    fn secure(&mut self, url: &Url, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        self.stream.send(&request)?;
        self.stream.receive(&mut self.received, deadline)?;
        // After the one-letter response, no byte may precede the encryption: an attacker could have injected it.
        match &self.received[..] {
            b"S" => self.received.clear(),
            b"N" => return Err(StreamError::Lost(NO_TLS.to_owned())),
            _ => return Err(StreamError::unexpected()),
        }
        self.stream.secure(url, deadline)
    }

    /// Sends messages.
    pub(super) fn send(&mut self, messages: &[u8]) -> Result<(), StreamError> {
        self.stream.send(messages)
    }

    /// Returns the next message; a row may have at most `max_row` bytes.
    pub(super) fn next(&mut self, deadline: &RunDeadline<'_>, max_row: usize) -> Result<Message, StreamError> {
        loop {
            if let Some(header) = Header::parse(&self.received)? {
                let bytes = usize::try_from(header.len()).unwrap_or(usize::MAX);
                if header.tag() == b'D' && bytes > max_row {
                    return Err(StreamError::TooLarge);
                }
                if header.tag() != b'D' && bytes > MAX_MESSAGE {
                    return Err(StreamError::Lost("the server sent a malformed message".to_owned()));
                }
                check_room_for(2 * bytes.min(max_row.max(MAX_MESSAGE)))?; // received, and a blob is decoded from it
                if self.received.len() > bytes
                    && let Some(message) = Message::parse(&mut self.received)?
                {
                    return Ok(message);
                }
                self.received
                    .reserve((bytes + HEAD_BYTES).saturating_sub(self.received.len()).min(max_row.max(MAX_MESSAGE)));
            }
            self.stream.receive(&mut self.received, deadline)?;
        }
    }

    /// Waits until the server has closed the connection; returns false after a timeout.
    pub(super) fn is_closed_in_time(&mut self, deadline: &RunDeadline<'_>) -> bool {
        loop {
            match self.stream.receive(&mut self.received, deadline) {
                Ok(()) => self.received.clear(),
                Err(StreamError::Lost(_)) => return true,
                Err(_) => return false,
            }
        }
    }
}

impl Drop for Wire {
    /// Closes the session explicitly; the server would notice only later.
    fn drop(&mut self) {
        let mut bye = BytesMut::new();
        frontend::terminate(&mut bye);
        let _ = self.send(&bye);
    }
}
