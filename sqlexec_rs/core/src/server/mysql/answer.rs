//! Reads the responses to the commands of a run, possibly in several steps.

use std::sync::Arc;

use mysql_common::constants::MAX_PAYLOAD_LEN;
use mysql_common::io::ParseBuf;
use mysql_common::packets::{Column, OkPacket, OkPacketDeserializer, ResultSetTerminator};
use mysql_common::proto::MyDeserialize;

use super::errors::ServerError;
use super::values::{self, Kind};
use super::wire::{CAPABILITIES, MAX_PACKET, Wire};
use crate::excess::Excess;
use crate::request::Limits;
use crate::result::header::Header;
use crate::result::table::{CELL_BYTES, Table};
use crate::server::deadline::RunDeadline;
use crate::server::rows::{DecodedValue, push_row};
use crate::server::stream::StreamError;

/// Maximum number of columns of a result; the server enforces it as well.
const MAX_COLUMNS: u64 = 65_535;

/// How far the responses have been read.
enum ResponseStage {
    /// Number of outstanding responses that only confirm a setting.
    Settings(u8),
    /// Next is the number of columns, or an error.
    Head,
    /// Number of outstanding column descriptions.
    Columns(u64),
    Rows,
    Done,
}

/// The columns of a result, cached because the next result often has the same ones.
#[derive(Default)]
pub(super) struct CachedHeader {
    /// The received descriptions, each prefixed with its length.
    packets: Vec<u8>,
    /// Number of these bytes that equal the last result's.
    n_known: usize,
    header: Arc<Header>,
    kinds: Vec<Kind>,
}

impl CachedHeader {
    fn add(&mut self, packet: &[u8]) {
        self.packets.extend_from_slice(&(packet.len() as u32).to_ne_bytes());
        self.packets.extend_from_slice(packet);
    }

    /// Parses the descriptions that were added.
    fn read(&mut self) -> Result<(), StreamError> {
        let (known, mut new) = self.packets.split_at(self.n_known);
        if known != new {
            let (mut names, mut types) = (Vec::new(), Vec::new());
            self.kinds.clear();
            while let Some((length, rest)) = new.split_first_chunk() {
                let (packet, rest) = rest.split_at(u32::from_ne_bytes(*length) as usize);
                let column = Column::deserialize((), &mut ParseBuf(packet))?;
                let (kind, name) = values::kind_of(&column);
                names.push(column.name_str().into_owned());
                types.push(name);
                self.kinds.push(kind);
                new = rest;
            }
            let mut header = Header::new(names);
            for name in types {
                header.push_type(name);
            }
            self.header = Arc::new(header);
        }
        self.packets.drain(..self.n_known);
        self.n_known = self.packets.len();
        Ok(())
    }
}

/// The response to a run.
pub(super) struct RunResponse {
    stage: ResponseStage,
    pub(super) cached_header: CachedHeader,
    pub(super) table: Option<Table>,
    pub(super) error: Option<ServerError>,
    pub(super) warnings: u16,
}

impl RunResponse {
    /// Starts before the responses to `n_settings` settings. `cached_header` belongs to the last result.
    pub(super) fn new(n_settings: u8, cached_header: CachedHeader) -> Self {
        let stage = if n_settings == 0 { ResponseStage::Head } else { ResponseStage::Settings(n_settings) };
        Self { stage, cached_header, table: None, error: None, warnings: 0 }
    }

    /// Reads to the end, or to the first row that exceeds a limit.
    pub(super) fn read(
        &mut self,
        wire: &mut Wire,
        limits: &Limits,
        deadline: &RunDeadline<'_>,
    ) -> Result<Option<Excess>, StreamError> {
        let max_bytes = usize::try_from(limits.max_bytes).unwrap_or(usize::MAX);
        while !matches!(self.stage, ResponseStage::Done) {
            let is_row = matches!(self.stage, ResponseStage::Rows);
            let max_packet =
                if is_row { max_bytes.saturating_add(CELL_BYTES * MAX_COLUMNS as usize) } else { MAX_PACKET };
            let packet = wire.next(deadline, max_packet)?;
            if let Some(error) = ServerError::of(packet) {
                if matches!(self.stage, ResponseStage::Settings(_)) {
                    return Err(StreamError::Lost(error.text()));
                }
                self.error = Some(error);
                self.stage = ResponseStage::Done;
                break;
            }
            let is_next = matches!(self.stage, ResponseStage::Settings(_));
            if let Some(excess) = self.take(packet, limits, max_bytes)? {
                return Ok(Some(excess));
            }
            if is_next {
                wire.begin_answer();
            }
        }
        Ok(None)
    }

    /// Handles a packet that is not an error.
    fn take(&mut self, packet: &[u8], limits: &Limits, max_bytes: usize) -> Result<Option<Excess>, StreamError> {
        match &mut self.stage {
            ResponseStage::Settings(1) => self.stage = ResponseStage::Head,
            ResponseStage::Settings(n) => *n -= 1,
            ResponseStage::Head => match packet {
                [0, ..] => self.stage = ResponseStage::Done,
                [0xfb, ..] => return Err(StreamError::unexpected()), // a request for a local file
                _ => {
                    let n = ParseBuf(packet).checked_eat_lenenc_int().filter(|n| (1..=MAX_COLUMNS).contains(n));
                    self.stage = ResponseStage::Columns(n.ok_or_else(StreamError::unexpected)?);
                    self.cached_header.packets.truncate(self.cached_header.n_known);
                }
            },
            ResponseStage::Columns(n) => {
                self.cached_header.add(packet);
                *n -= 1;
                if *n == 0 {
                    self.cached_header.read()?;
                    self.table = Some(Table::recycled(Arc::clone(&self.cached_header.header)));
                    self.stage = ResponseStage::Rows;
                }
            }
            ResponseStage::Rows if packet.first() == Some(&0xfe) && packet.len() < MAX_PAYLOAD_LEN => {
                let end =
                    OkPacketDeserializer::<ResultSetTerminator>::deserialize(CAPABILITIES, &mut ParseBuf(packet))?;
                self.warnings = OkPacket::from(end).warnings();
                self.stage = ResponseStage::Done;
            }
            // The discarded rest of a result has no table.
            ResponseStage::Rows => {
                if let Some(table) = self.table.as_mut() {
                    return push_row(table, limits, max_bytes, cells(packet, &self.cached_header.kinds));
                }
            }
            ResponseStage::Done => {}
        }
        Ok(None)
    }

    /// Discards the rest; returns false if that takes too long.
    pub(super) fn drain(&mut self, wire: &mut Wire, limits: &Limits, deadline: &RunDeadline<'_>) -> bool {
        loop {
            self.table = None;
            match self.read(wire, limits, deadline) {
                Ok(None) => return !self.error.as_ref().is_some_and(ServerError::is_fatal),
                Ok(Some(_)) => {}
                Err(_) => return false,
            }
        }
    }
}

/// Decodes the cells of a row.
fn cells<'a>(
    packet: &'a [u8],
    kinds: &'a [Kind],
) -> impl Iterator<Item = Result<Option<DecodedValue<'a>>, StreamError>> {
    let mut packet = ParseBuf(packet);
    kinds.iter().map(move |kind| {
        if packet.0.first() == Some(&0xfb) {
            packet.checked_eat(1);
            return Ok(None);
        }
        Ok(Some(values::read(*kind, packet.checked_eat_lenenc_str().ok_or_else(StreamError::unexpected)?)))
    })
}
