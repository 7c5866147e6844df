//! A session on a MariaDB or MySQL server.
//!
//! A run is one round trip: `SET` of its bounds and of a read-only transaction, if not set yet, and the query. The
//! query starts with a reading keyword and is a single statement by our rules and by the server's. Around a query
//! that may leave state behind, or see another's, the connection is reset, which clears variables, settings and
//! locks. The next run reads the response to the reset.
//!
//! Three clocks bound a run: the server's `max_statement_time`, a `KILL` over a second connection if the server does
//! not answer in time, and closing the connection. A server that stops a function such as `benchmark()` sends a
//! partial result, so a late response is a timeout, and so is a warning about an interrupted run. A function that
//! checks none of these continues in the server (`abandoned_sessions`).

mod answer;
mod blank;
mod errors;
mod functions;
mod hidden;
mod login;
mod role;
mod sessions;
mod text;
mod values;
mod wire;

use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use mysql_common::constants::{CapabilityFlags, Command};
use mysql_common::io::ParseBuf;
use mysql_common::packets::{AuthPlugin, HandshakePacket, SslRequest};
use mysql_common::proto::{MyDeserialize, MySerialize};

use crate::abandoned_sessions::AbandonedSession;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{ExecRequest, Limits, OutputKind};
use crate::result::value::Value;

use crate::server::deadline::RunDeadline;
use crate::server::session::{CONNECT_WAIT, InternalQueries, Session, stop_outcome};
use crate::server::stream::{NO_TLS, StreamError};
use crate::server::url::Url;
use answer::{CachedHeader, RunResponse};
use errors::ServerError;
use hidden::ViewNames;
use wire::{CAPABILITIES, MAX_PACKET, Wire};

/// The number of the collation for sent texts.
const UTF8MB4: u8 = 45;

/// How long the server may take to end a run by its own clock before it is killed.
const SERVER_GRACE: Duration = Duration::from_millis(15);

/// How long the server may take to accept the kill before the connection is closed.
const KILL_GRACE: Duration = Duration::from_millis(100);

/// Maximum time for one check of an abandoned session.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the discarded rest of a result is read before the run is killed.
const DRAIN_GRACE: Duration = Duration::from_millis(100);

/// Bytes of server memory, and of an internal table on disk, that a run may use; MariaDB enforces both.
const SERVER_BYTES: [u64; 2] = [256 << 20, 1 << 30];

/// Bounds of a run at the server: its time, and one row more than the limit.
type ServerBounds = (Option<Duration>, u64);

/// A connection with a user that can only read.
pub(super) struct Mysql {
    wire: Wire,
    url: Url,
    /// The connection id on the server.
    id: u32,
    is_mariadb: bool,
    /// How the session reads texts. Each run uses the mode of the first login, because a reset restores the server's
    /// current one.
    sql_mode: String,
    /// Whether the session was reset and the response not read yet.
    is_reset: bool,
    /// The bounds of its runs; `None` if they must be set.
    bounds: Option<ServerBounds>,
    /// The columns of the last result.
    cached_header: CachedHeader,
    views: ViewNames,
    is_usable: bool,
}

impl Mysql {
    /// Connects; refuses a user that can do more than read.
    pub(super) fn connect(url: &Url, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        url.option("allow").map_or(Ok(()), functions::check_allowed)?;
        let mut session = Self::open(url, deadline)?;
        session.prepare(deadline).map(|()| session).map_err(StreamError::into_text)
    }

    fn prepare(&mut self, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        self.sql_mode = self
            .query_rows("SELECT @@sql_mode", deadline)?
            .into_iter()
            .flatten()
            .next()
            .ok_or_else(StreamError::unexpected)?;
        self.apply_bounds(deadline)?;
        role::check(self, &self.url.clone(), deadline)?;
        self.views = hidden::find(self, deadline)?;
        Ok(())
    }

    /// Sets the bounds for internal queries, replacing those of the last run.
    fn apply_bounds(&mut self, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let bounds = bounds(&Limits::default(), deadline);
        let settings = self.settings(bounds);
        self.query_rows(&settings, deadline)?;
        self.bounds = Some(bounds);
        Ok(())
    }

    fn open(url: &Url, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        let wire = Wire::connect(url, deadline)?;
        let mut session = Self {
            wire,
            url: url.clone(),
            id: 0,
            is_mariadb: false,
            sql_mode: String::new(),
            is_reset: false,
            bounds: None,
            cached_header: CachedHeader::default(),
            views: ViewNames::default(),
            is_usable: true,
        };
        session.start(deadline).map(|()| session).map_err(StreamError::into_text)
    }

    /// Logs in and waits until the server is ready.
    fn start(&mut self, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let packet = self.wire.next(deadline, MAX_PACKET)?;
        if let Some(error) = ServerError::of(packet) {
            return Err(StreamError::Lost(error.text()));
        }
        let hello = HandshakePacket::deserialize((), &mut ParseBuf(packet))?;
        self.id = hello.connection_id();
        self.is_mariadb = hello.maria_db_server_version_parsed().is_some();
        let version = hello.maria_db_server_version_parsed().or_else(|| hello.server_version_parsed());
        let oldest = if self.is_mariadb { (10, 5, 0) } else { (8, 0, 0) };
        if version.is_none_or(|version| version < oldest) || !hello.capabilities().contains(CAPABILITIES) {
            let version = hello.server_version_str();
            return Err(StreamError::Lost(format!(
                "the server is too old ({version}): MariaDB 10.5 or MySQL 8.0 is required"
            )));
        }
        let nonce = hello.nonce();
        let plugin = hello.auth_plugin().map_or(AuthPlugin::MysqlNativePassword, AuthPlugin::into_owned);
        let has_tls = hello.capabilities().contains(CapabilityFlags::CLIENT_SSL);
        if self.wire.requires_tls(&self.url).map_err(StreamError::Lost)? {
            if !has_tls {
                return Err(StreamError::Lost(NO_TLS.to_owned()));
            }
            let mut request = Vec::new();
            let flags = CAPABILITIES | CapabilityFlags::CLIENT_SSL;
            SslRequest::new(flags, MAX_PACKET as u32, UTF8MB4).serialize(&mut request);
            self.wire.answer(&request)?;
            self.wire.secure(&self.url, deadline)?;
        }
        login::prove(&mut self.wire, &self.url, plugin, nonce, deadline)
    }

    /// Returns the statement that sets the bounds of a run.
    fn settings(&self, (time, n_rows): ServerBounds) -> String {
        let [memory, disk] = SERVER_BYTES;
        let mode = &self.sql_mode; // names and commas
        if self.is_mariadb {
            let seconds = time.unwrap_or_default().as_secs_f64();
            format!(
                "SET NAMES utf8mb4, sql_mode='{mode}', time_zone='+00:00', tx_read_only=1, sql_select_limit={n_rows}, \
                 max_statement_time={seconds:.6}, max_session_mem_used={memory}, tmp_disk_table_size={disk}, \
                 max_recursive_iterations=4294967295"
            )
        } else {
            let millis = time.unwrap_or_default().as_millis().min(u128::from(u32::MAX));
            format!(
                "SET NAMES utf8mb4, sql_mode='{mode}', time_zone='+00:00', transaction_read_only=1, \
                 sql_select_limit={n_rows}, max_execution_time={millis}, cte_max_recursion_depth=4294967295"
            )
        }
    }

    /// Ends the running statement on the server and reads the rest of its response. If the server's own clock does
    /// not end it, the session is over.
    fn stop(&mut self, answer: &mut RunResponse, limits: &Limits, cancels_immediately: bool, is_plain: bool) {
        let never = AtomicBool::new(false);
        let is_done =
            !cancels_immediately && answer.drain(&mut self.wire, limits, &RunDeadline::grace(SERVER_GRACE, &never));
        if is_done {
            self.clear(is_plain);
        } else {
            self.kill(&RunDeadline::grace(KILL_GRACE, &never));
        }
    }

    /// Ends the connection on the server through another connection; nothing else stops its statement.
    fn kill(&mut self, deadline: &RunDeadline<'_>) {
        self.is_usable = false;
        if let Ok(mut other) = Self::open(&self.url, deadline) {
            let _ = other.query_rows(&format!("KILL {}", self.id), deadline); // it may have ended already
        }
    }

    /// Prepares for the next run: clears the state that the query may have left, without waiting for it.
    fn clear(&mut self, is_plain: bool) {
        if is_plain {
            self.is_usable = true;
        } else {
            self.reset();
        }
    }

    fn reset(&mut self) {
        self.bounds = None;
        self.is_reset = self.wire.send(&[(Command::COM_RESET_CONNECTION, &[])]).is_ok();
        self.is_usable = self.is_reset;
    }

    /// Returns the status from warnings about an interrupted run or about a value that was dropped because it was too
    /// large.
    fn is_incomplete(&mut self, deadline: &RunDeadline<'_>) -> Result<Option<Status>, StreamError> {
        let codes = self.query_rows("SHOW WARNINGS", deadline)?;
        let has = |codes_of: &[&str]| {
            codes.iter().any(|row| row.get(1).is_some_and(|code| codes_of.contains(&code.as_str())))
        };
        Ok(if has(&["1317", "1969", "3024", "1028", "1931", "4013"]) {
            Some(Status::Timeout)
        } else if has(&["1301"]) {
            Some(Status::TooLarge)
        } else {
            None
        })
    }

    /// Returns the outcome of a run that was read to its end.
    fn outcome(
        &mut self,
        answer: RunResponse,
        sql: &str,
        limits: &Limits,
        deadline: &RunDeadline<'_>,
    ) -> Result<Outcome, StreamError> {
        let timeout = |stop: Option<Stop>| stop_outcome(stop.unwrap_or(Stop::Wall), limits);
        match (answer.error, answer.table) {
            (Some(error), _) if error.is_fatal() => Err(StreamError::Lost(error.text())),
            // Another user may end a run too.
            (Some(error), _) if error.is_cancellation() => Ok(match deadline.stop() {
                None if error.code != 1969 && error.code != 3024 => Outcome::failed(Status::DbError, error.text()),
                stop => timeout(stop),
            }),
            (Some(error), _) => Ok(error.outcome(sql)),
            _ if deadline.stop().is_some() => Ok(timeout(deadline.stop())),
            (None, None) => Ok(Outcome::failed(Status::Forbidden, "the statement returns no rows")),
            (None, Some(table)) if answer.warnings == 0 => Ok(Outcome::ok(table)),
            (None, Some(table)) => Ok(match self.is_incomplete(deadline)? {
                None => Outcome::ok(table),
                Some(Status::Timeout) => Outcome::failed(Status::DbError, "another user interrupted the run"),
                Some(status) => Outcome::failed(status, "a value has more bytes than max_allowed_packet"),
            }),
        }
    }
}

impl InternalQueries for Mysql {
    fn query_rows(&mut self, sql: &str, deadline: &RunDeadline<'_>) -> Result<Vec<Vec<String>>, StreamError> {
        self.wire.send(&[(Command::COM_QUERY, sql.as_bytes())])?;
        let mut answer = RunResponse::new(u8::from(std::mem::take(&mut self.is_reset)), CachedHeader::default());
        self.wire.begin_answer();
        if answer.read(&mut self.wire, &Limits::default(), deadline)?.is_some() {
            return Err(StreamError::TooLarge);
        }
        if let Some(error) = answer.error {
            return Err(StreamError::Lost(error.text()));
        }
        let Some(table) = answer.table else { return Ok(Vec::new()) };
        let text = |value: Value<'_>| match value {
            Value::Text(bytes) | Value::Blob(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Value::Integer(i) => i.to_string(),
            Value::Real(r) => r.to_string(),
            Value::Null => String::new(),
        };
        Ok((0..table.n_rows()).map(|row| table.row(row).map(text).collect()).collect())
    }
}

impl Session for Mysql {
    fn refresh(&mut self, cancel: &AtomicBool) -> Result<(), String> {
        if !self.views.is_old() {
            return Ok(());
        }
        let deadline = RunDeadline::new(Instant::now(), Some(CONNECT_WAIT), cancel);
        let views = self.apply_bounds(&deadline).and_then(|()| hidden::find(self, &deadline));
        self.views = views.map_err(StreamError::into_text)?;
        Ok(())
    }

    fn run(&mut self, request: &ExecRequest<'_>, deadline: &RunDeadline<'_>) -> Result<Outcome, String> {
        let statement = match text::statement(request.sql, request.output) {
            Ok(statement) => statement,
            Err(outcome) => return Ok(*outcome),
        };
        let escapes = text::Escapes::of_mode(&self.sql_mode);
        if let Some(outcome) = functions::refusal(statement, self.url.option("allow"), escapes) {
            return Ok(outcome);
        }
        let statement = match request.output {
            OutputKind::Rows => Cow::from(statement),
            OutputKind::Plan => format!("EXPLAIN {statement}").into(),
        };
        let sql = match request.parameters {
            None => Cow::from(&*statement),
            Some(all) if !all.names.is_empty() => {
                return Ok(Outcome::failed(Status::RuntimeError, "MariaDB binds parameters by position: ?"));
            }
            Some(_) if !self.is_mariadb => {
                return Ok(Outcome::failed(Status::RuntimeError, "parameters are bound on MariaDB, not on MySQL"));
            }
            Some(all) => values::with_parameters(&statement, &all.values).into(),
        };
        // A view may call functions that the text does not show.
        let is_plain = text::is_plain(&statement) && !self.views.are_in(&statement);
        let mut commands: Vec<(Command, &[u8])> = Vec::with_capacity(3);
        if !is_plain && self.bounds.take().is_some() {
            commands.push((Command::COM_RESET_CONNECTION, &[]));
        }
        let bounds = bounds(request.limits, deadline);
        let settings = if self.bounds == Some(bounds) { None } else { Some(self.settings(bounds)) };
        commands.extend(settings.iter().map(|settings| (Command::COM_QUERY, settings.as_bytes())));
        let n_settings = commands.len() as u8 + u8::from(self.is_reset);
        let mut answer = RunResponse::new(n_settings, std::mem::take(&mut self.cached_header));
        self.is_reset = false;
        self.is_usable = false;
        commands.push((Command::COM_QUERY, sql.as_bytes()));
        self.wire.send(&commands).map_err(StreamError::into_text)?;
        self.bounds = Some(bounds);
        self.wire.begin_answer();
        let read = answer.read(&mut self.wire, request.limits, deadline);
        let never = AtomicBool::new(false);
        match read {
            Ok(None) => {
                self.cached_header = std::mem::take(&mut answer.cached_header);
                let outcome = self.outcome(answer, request.sql, request.limits, deadline);
                self.clear(is_plain);
                match outcome {
                    Err(StreamError::Stopped) => {
                        self.is_usable = false;
                        Ok(stop_outcome(deadline.stop().unwrap_or(Stop::Wall), request.limits))
                    }
                    outcome => outcome.map_err(|failure| {
                        self.is_usable = false;
                        failure.into_text()
                    }),
                }
            }
            Ok(Some(excess)) => {
                let table = answer.table.take();
                if answer.drain(&mut self.wire, request.limits, &RunDeadline::grace(DRAIN_GRACE, &never)) {
                    self.clear(is_plain);
                } else {
                    self.kill(&RunDeadline::grace(KILL_GRACE, &never));
                }
                Ok(excess.outcome(table, request.limits))
            }
            Err(failure @ (StreamError::TooLarge | StreamError::NoMemory)) => {
                self.kill(&RunDeadline::grace(KILL_GRACE, &never)); // the server would continue to send
                Ok(failure.excess().outcome(answer.table, request.limits))
            }
            Err(StreamError::Stopped) => {
                let stop = deadline.stop().unwrap_or(Stop::Wall);
                self.stop(&mut answer, request.limits, stop == Stop::Cancelled, is_plain);
                Ok(stop_outcome(stop, request.limits))
            }
            Err(StreamError::Lost(reason)) => Err(reason),
        }
    }

    fn is_usable(&self) -> bool {
        self.is_usable
    }

    fn into_abandoned(self: Box<Self>) -> Option<Box<dyn AbandonedSession>> {
        Some(Box::new(KilledSession { url: self.url.clone(), id: self.id }))
    }
}

/// A session that was killed. The server closes its connection at once, but continues if a function does not stop.
struct KilledSession {
    url: Url,
    id: u32,
}

impl AbandonedSession for KilledSession {
    fn has_ended(&mut self) -> bool {
        let never = AtomicBool::new(false);
        let deadline = RunDeadline::grace(CHECK_TIMEOUT, &never);
        let Ok(mut session) = Mysql::open(&self.url, &deadline) else { return false };
        // After a restart another session may have its id; our sessions sleep between runs.
        let list = "information_schema.processlist";
        let sql = format!("SELECT 1 FROM {list} WHERE id = {} AND command <> 'Sleep'", self.id);
        session.query_rows(&sql, &deadline).is_ok_and(|rows| rows.is_empty())
    }
}

fn bounds(limits: &Limits, deadline: &RunDeadline<'_>) -> ServerBounds {
    // Zero means no bound; a run that is out of time ends here.
    let left = deadline.left().filter(|_| limits.timeout.is_some()).map(|left| left.max(Duration::from_millis(1)));
    // Uses the full time limit if almost all of it is left, so that it need not be set for each run.
    let time = left.map(|left| limits.timeout.filter(|time| *time < left + Duration::from_millis(2)).unwrap_or(left));
    // One extra row shows that there are too many.
    (time, limits.max_rows.saturating_add(1))
}
