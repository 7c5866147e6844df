//! Packets of the MariaDB and MySQL protocol.

use std::io;

use bytes::{Buf, BytesMut};
use mysql_common::constants::{CapabilityFlags, Command};
use mysql_common::proto::codec::error::PacketCodecError;
use mysql_common::proto::codec::{ChunkDecoder, ChunkInfo, packet_to_chunks};

use crate::memory::check_room_for;
use crate::server::deadline::RunDeadline;
use crate::server::stream::{Stream, StreamError};
use crate::server::url::Url;

/// The capabilities of this client: no multiple statements per text and no local files.
pub(super) const CAPABILITIES: CapabilityFlags = CapabilityFlags::CLIENT_PROTOCOL_41
    .union(CapabilityFlags::CLIENT_LONG_FLAG)
    .union(CapabilityFlags::CLIENT_TRANSACTIONS)
    .union(CapabilityFlags::CLIENT_SECURE_CONNECTION)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH)
    .union(CapabilityFlags::CLIENT_PLUGIN_AUTH_LENENC_CLIENT_DATA)
    .union(CapabilityFlags::CLIENT_DEPRECATE_EOF);

/// Maximum bytes of a packet other than a row.
pub(super) const MAX_PACKET: usize = 16 << 20;

/// A connection.
pub(super) struct Wire {
    stream: Stream,
    received: BytesMut,
    /// The packet being assembled for sending.
    chunks: BytesMut,
    decoder: ChunkDecoder,
    /// The sequence number of the next packet; each command restarts it.
    number: u8,
    packet: Vec<u8>,
}

impl Wire {
    /// Connects to the server of a URL.
    pub(super) fn connect(url: &Url, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        Ok(Self {
            stream: Stream::connect(url, url.port(), "mysqld.sock", deadline)?,
            received: BytesMut::new(),
            chunks: BytesMut::new(),
            decoder: ChunkDecoder::Idle,
            number: 0,
            packet: Vec::new(),
        })
    }

    /// Returns whether the server is reached by a local socket.
    pub(super) fn is_unix(&self) -> bool {
        self.stream.is_unix()
    }

    /// Returns whether the connection is encrypted.
    pub(super) fn is_tls(&self) -> bool {
        self.stream.is_tls()
    }

    /// Returns whether the connection must be encrypted.
    pub(super) fn requires_tls(&self, url: &Url) -> Result<bool, String> {
        self.stream.requires_tls(url)
    }

    /// Encrypts the connection; the server has already been asked to.
    pub(super) fn secure(&mut self, url: &Url, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        self.stream.secure(url, deadline)
    }

    /// Sends a packet in response to the server's last one.
    pub(super) fn answer(&mut self, body: &[u8]) -> Result<(), StreamError> {
        let mut chunks = BytesMut::new();
        self.number = packet_to_chunks(self.number, &mut &body[..], &mut chunks);
        self.stream.send(&chunks)
    }

    /// Sends commands; their responses arrive in the same order.
    pub(super) fn send(&mut self, commands: &[(Command, &[u8])]) -> Result<(), StreamError> {
        self.chunks.clear();
        for (command, body) in commands {
            packet_to_chunks(0, &mut [*command as u8].as_slice().chain(*body), &mut self.chunks);
        }
        self.stream.send(&self.chunks)
    }

    /// Starts reading the response to the next command.
    pub(super) fn begin_answer(&mut self) {
        self.number = 1;
    }

    /// Returns the next packet of at most `max_bytes` bytes.
    pub(super) fn next(&mut self, deadline: &RunDeadline<'_>, max_bytes: usize) -> Result<&[u8], StreamError> {
        self.packet.clear();
        loop {
            check_room_for(self.received.len() + self.packet.len())?;
            match self.decoder.decode(&mut self.received, &mut self.packet, max_bytes) {
                Ok(Some(chunk)) => {
                    let (ChunkInfo::Last(number) | ChunkInfo::Middle(number)) = chunk;
                    if number != self.number {
                        return Err(StreamError::Lost("the server's packets are out of order".to_owned()));
                    }
                    self.number = number.wrapping_add(1);
                    if matches!(chunk, ChunkInfo::Last(_)) {
                        return Ok(&self.packet);
                    }
                }
                Ok(None) => self.stream.receive(&mut self.received, deadline)?,
                Err(PacketCodecError::PacketTooLarge) => return Err(StreamError::TooLarge),
                Err(error) => return Err(io::Error::other(error).into()),
            }
        }
    }
}

impl Drop for Wire {
    /// Closes the session explicitly; the server would notice only later.
    fn drop(&mut self) {
        let _ = self.send(&[(Command::COM_QUIT, &[])]);
    }
}
