//! A socket to a server that never blocks longer than a [`RunDeadline`] allows.
//!
//! Connections to other machines are encrypted, and the server must authenticate itself (TLS 1.2 or 1.3);
//! `sslmode=disable` in the URL disables encryption. `sslrootcert=FILE` replaces this machine's certificate
//! authorities.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::deadline::RunDeadline;
use super::url::Url;
use crate::excess::Excess;
use crate::memory::{OutOfMemory, check_room_for};

/// Bytes per read.
const READ_BYTES: usize = 64 << 10;

/// Message for a server on another machine that does not support encryption.
pub(super) const NO_TLS: &str =
    "the server has no TLS: set sslmode=disable in the URL to send everything unencrypted, or use a tunnel";

/// Message for a connection that the server closed.
pub(super) const CLOSED: &str = "the server closed the connection";

/// Message for an unexpected answer.
const UNEXPECTED: &str = "the server sent an unexpected message";

/// Why no message was received.
#[derive(Debug)]
pub(super) enum StreamError {
    /// The deadline requires the run to end.
    Stopped,
    /// A row exceeds the maximum bytes of a result.
    TooLarge,
    /// Not enough memory for the next message.
    NoMemory,
    /// The connection is lost, or the received bytes are not a valid message.
    Lost(String),
}

impl From<OutOfMemory> for StreamError {
    fn from(_: OutOfMemory) -> Self {
        Self::NoMemory
    }
}

impl From<io::Error> for StreamError {
    fn from(error: io::Error) -> Self {
        // TLS reports a connection that ends without a close message in this way, for example after a server crash.
        let is_end = error.kind() == ErrorKind::UnexpectedEof;
        Self::Lost(if is_end { CLOSED.to_owned() } else { error.to_string() })
    }
}

impl StreamError {
    /// Creates the error for an unexpected message.
    pub(super) fn unexpected() -> Self {
        Self::Lost(UNEXPECTED.to_owned())
    }

    /// Returns the reason for not reading a row to its end.
    pub(super) fn excess(&self) -> Excess {
        if matches!(self, Self::NoMemory) { Excess::Memory } else { Excess::Bytes }
    }

    /// Returns the error message of a failed connection.
    pub(super) fn into_text(self) -> String {
        match self {
            Self::Stopped => "no answer in time".to_owned(),
            Self::NoMemory => OutOfMemory.to_string(),
            Self::TooLarge => UNEXPECTED.to_owned(),
            Self::Lost(reason) => reason,
        }
    }
}

enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<StreamOwned<ClientConnection, TcpStream>>),
    /// Placeholder while the transport is replaced.
    None,
}

/// A connection.
pub(super) struct Stream {
    socket: Socket,
    chunk: Box<[u8]>,
    wait: Duration,
}

impl Stream {
    /// Connects to the server of a URL: to its port or, if its host is a folder, to the socket of that name in it.
    pub(super) fn connect(url: &Url, port: u16, socket: &str, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        let socket = if url.host.starts_with('/') {
            let path = Path::new(&url.host).join(socket);
            Socket::Unix(UnixStream::connect(path).map_err(|error| error.to_string())?)
        } else {
            Socket::Tcp(connect_tcp(&url.host, port, deadline)?)
        };
        let stream = Self { socket, chunk: vec![0; READ_BYTES].into(), wait: Duration::ZERO };
        let time = deadline.left().map(|left| left.max(Duration::from_millis(1)));
        let set = match &stream.socket {
            Socket::Tcp(socket) => socket.set_write_timeout(time),
            Socket::Unix(socket) => socket.set_write_timeout(time),
            Socket::Tls(_) | Socket::None => Ok(()),
        };
        set.map(|()| stream).map_err(|error| error.to_string())
    }

    /// Returns whether the connection must be encrypted.
    pub(super) fn requires_tls(&self, url: &Url) -> Result<bool, String> {
        let Socket::Tcp(socket) = &self.socket else { return Ok(false) };
        let is_near = socket.peer_addr().is_ok_and(|address| address.ip().is_loopback());
        match url.option("sslmode") {
            None => Ok(!is_near || url.option("sslrootcert").is_some()),
            Some("disable") => Ok(false),
            Some("require" | "verify-ca" | "verify-full") => Ok(true),
            Some(other) => Err(format!("sslmode={other}: it must be verify-full or disable")),
        }
    }

    /// Encrypts the connection after verifying that the server is the URL's host.
    pub(super) fn secure(&mut self, url: &Url, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let Socket::Tcp(socket) = std::mem::replace(&mut self.socket, Socket::None) else {
            return Err(StreamError::Lost("there is no connection to encrypt".to_owned()));
        };
        let config = ClientConfig::builder().with_root_certificates(roots(url)?).with_no_client_auth();
        let name = ServerName::try_from(url.host.clone()).map_err(|error| StreamError::Lost(error.to_string()))?;
        let connection =
            ClientConnection::new(Arc::new(config), name).map_err(|error| StreamError::Lost(error.to_string()))?;
        let mut stream = StreamOwned::new(connection, socket);
        stream.sock.set_read_timeout(Some(deadline.wait()))?;
        while stream.conn.is_handshaking() {
            if deadline.stop().is_some() {
                return Err(StreamError::Stopped);
            }
            match stream.conn.complete_io(&mut stream.sock) {
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Err(error.into()),
                Err(error) => return Err(StreamError::Lost(format!("TLS: {error}"))),
            }
        }
        self.wait = Duration::ZERO;
        self.socket = Socket::Tls(Box::new(stream));
        Ok(())
    }

    /// Returns whether the connection is encrypted.
    pub(super) fn is_tls(&self) -> bool {
        matches!(self.socket, Socket::Tls(_))
    }

    /// Returns whether the server is on this machine, reached by a local socket.
    pub(super) fn is_unix(&self) -> bool {
        matches!(self.socket, Socket::Unix(_))
    }

    /// Sends messages.
    pub(super) fn send(&mut self, messages: &[u8]) -> Result<(), StreamError> {
        let sent = match &mut self.socket {
            Socket::Tcp(socket) => socket.write_all(messages),
            Socket::Unix(socket) => socket.write_all(messages),
            Socket::Tls(socket) => socket.write_all(messages).and_then(|()| socket.flush()),
            Socket::None => Err(closed_error()),
        };
        sent.map_err(StreamError::from)
    }

    /// Appends available bytes, waiting in short intervals.
    pub(super) fn receive(&mut self, received: &mut BytesMut, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        loop {
            if deadline.stop().is_some() {
                return Err(StreamError::Stopped);
            }
            let wait = deadline.wait();
            if wait != self.wait {
                self.wait = wait;
                match &self.socket {
                    Socket::Tcp(socket) => socket.set_read_timeout(Some(wait))?,
                    Socket::Unix(socket) => socket.set_read_timeout(Some(wait))?,
                    Socket::Tls(socket) => socket.sock.set_read_timeout(Some(wait))?,
                    Socket::None => {}
                }
            }
            let read = match &mut self.socket {
                Socket::Tcp(socket) => socket.read(&mut self.chunk),
                Socket::Unix(socket) => socket.read(&mut self.chunk),
                Socket::Tls(socket) => socket.read(&mut self.chunk),
                Socket::None => Err(closed_error()),
            };
            match read {
                Ok(0) => return Err(StreamError::Lost(CLOSED.to_owned())),
                Ok(n) => {
                    if received.capacity() - received.len() < n {
                        check_room_for(2 * received.capacity())?;
                    }
                    received.extend_from_slice(&self.chunk[..n]);
                    return Ok(());
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Returns whether an error is a timeout of the socket.
fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn closed_error() -> io::Error {
    io::Error::from(ErrorKind::NotConnected)
}

/// Returns the trusted certificate authorities.
fn roots(url: &Url) -> Result<RootCertStore, StreamError> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = url.option("sslrootcert") {
        let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let certificates = read.map_err(|error| StreamError::Lost(format!("sslrootcert={file}: {error}")))?;
        roots.add_parsable_certificates(certificates);
    } else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        let reason = "there is no trusted certificate authority: set sslrootcert=FILE in the URL";
        return Err(StreamError::Lost(reason.to_owned()));
    }
    Ok(roots)
}

/// Connects to each address of a host until one answers.
fn connect_tcp(host: &str, port: u16, deadline: &RunDeadline<'_>) -> Result<TcpStream, String> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut reason = "the host has no address".to_owned();
    for address in addresses {
        let left = deadline.left().unwrap_or(Duration::MAX).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                let _ = stream.set_nodelay(true); // failure only costs speed
                return Ok(stream);
            }
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}
