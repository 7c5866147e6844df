//! A session on a PostgreSQL server.
//!
//! A run is one round trip: `BEGIN` of a read-only transaction; `DECLARE c NO SCROLL CURSOR FOR` the query, whose
//! grammar accepts a single SELECT, VALUES, TABLE or WITH; `FETCH` of one row more than the limit; `ROLLBACK`, which
//! undoes settings; and `DISCARD ALL`, which undoes the rest, such as locks and prepared statements. Rows are
//! received as text, so that the server distinguishes all its types and none is decoded twice. A query that calls
//! only known side-effect-free functions, and reads no view or table that may call others, is sent without any of
//! these statements; the session's transactions are read-only by default. If other sessions of the role can read a
//! session's query, a comment before it fills all bytes that the server shows.
//!
//! Three clocks bound a run: the server's `statement_timeout`, a cancel request if the server does not answer in
//! time, and closing the connection. A function that checks none of these continues in the server
//! (`abandoned_sessions`).

mod abandoned;
mod errors;
mod functions;
mod hidden;
mod plain;
mod role;
mod search_path;
mod values;
mod wire;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use postgres_protocol::IsNull;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::backend::{DataRowBody, Message, RowDescriptionBody};
use postgres_protocol::message::frontend;

use crate::abandoned_sessions::AbandonedSession;
use crate::excess::Excess;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{ExecRequest, Limits, OutputKind, Parameters};
use crate::result::header::Header;
use crate::result::table::{CELL_BYTES, Table};
use crate::server::deadline::RunDeadline;
use crate::server::rows::push_row;
use crate::server::session::{CONNECT_WAIT, InternalQueries, Session, stop_outcome};
use crate::server::stream::StreamError;
use crate::server::url::Url;
use errors::ServerError;
use hidden::HiddenCallers;
use values::Kind;
use wire::Wire;

/// The oldest supported major version.
const OLDEST: u32 = 13;

/// Prefix of a query.
const DECLARE: &str = "DECLARE sqlexec NO SCROLL CURSOR FOR ";

/// Prefix of a query whose plan is requested, with the same length; after these options a text cannot add its own.
const EXPLAIN: &str = "EXPLAIN (ANALYZE FALSE)              ";

/// Undoes state that outlives a transaction: session locks, prepared statements, channels, cursors, settings.
const DISCARD: &str = "DISCARD ALL";

/// Marks an unknown statement timeout.
const UNKNOWN: u128 = u128::MAX;

/// How long the server may take to answer a cancel request before the connection is closed.
const CANCEL_GRACE: Duration = Duration::from_millis(60);

/// How long the discarded rest of a result is read before the connection is closed.
const DRAIN_GRACE: Duration = Duration::from_millis(100);

/// Initial session settings: dates, times and numbers have one format, independent of the server and the role.
const SETTINGS: [(&str, &str); 10] = [
    ("client_encoding", "UTF8"),
    ("application_name", "sqlexec_rs"),
    ("default_transaction_read_only", "on"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("extra_float_digits", "1"),
    ("bytea_output", "hex"),
    // Texts are tokenized here by the same rules as on the server.
    ("standard_conforming_strings", "on"),
    // The whole result is fetched; by default a cursor is planned for a tenth of it.
    ("cursor_tuple_fraction", "1"),
];

/// A connection with a role that can only read.
pub(super) struct Postgresql {
    wire: Wire,
    url: Url,
    process: i32,
    secret: i32,
    messages: BytesMut,
    /// A comment before each query that fills the bytes shown to other sessions of the role.
    mask: String,
    /// The statement timeout in milliseconds, zero for none, or `UNKNOWN`.
    time: u128,
    hidden: HiddenCallers,
    ready_counts: ReadyCounts,
    is_usable: bool,
}

/// Positions in the response to a run, as counts of `ReadyForQuery` messages.
#[derive(Clone, Copy, Default)]
struct ReadyCounts {
    times_ready: u8,
    /// Count before the rows.
    rows_at: u8,
    /// Count before the last `ReadyForQuery`.
    end_at: u8,
    /// Characters before the query.
    prefix: usize,
    /// Whether everything was read and the server is idle.
    is_over: bool,
}

/// The response to the statements of one run.
#[derive(Default)]
struct RunResponse {
    table: Option<Table>,
    kinds: Vec<Kind>,
    error: Option<ServerError>,
}

impl Postgresql {
    /// Connects; refuses a role that can do more than read.
    ///
    /// If the role can read tables of schemas that are not in its search path, the session is opened again with them at
    /// the end of the path. As a setting of the login, the path survives `DISCARD ALL`.
    pub(super) fn connect(url: &Url, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        url.option("allow").map_or(Ok(()), functions::check_allowed)?;
        let mut session = Self::open(url, "", deadline)?;
        let path = search_path::find(&mut session, deadline).map_err(StreamError::into_text)?;
        if !path.is_empty() {
            drop(session); // the role may have a limit of connections
            session = Self::open(url, &path, deadline)?;
        }
        session.mask = role::check(&mut session, url, deadline).map_err(StreamError::into_text)?;
        session.find_hidden(deadline).map_err(StreamError::into_text)?;
        Ok(session)
    }

    /// Logs in with a search path; "" for that of the role.
    fn open(url: &Url, path: &str, deadline: &RunDeadline<'_>) -> Result<Self, String> {
        let wire = Wire::connect(url, deadline)?;
        let mut session = Self {
            wire,
            url: url.clone(),
            process: 0,
            secret: 0,
            messages: BytesMut::new(),
            mask: String::new(),
            time: UNKNOWN,
            hidden: HiddenCallers::default(),
            ready_counts: ReadyCounts::default(),
            is_usable: true,
        };
        session.start(path, deadline).map_err(StreamError::into_text)?;
        Ok(session)
    }

    /// Logs in and waits until the server is ready.
    fn start(&mut self, path: &str, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let url = self.url.clone();
        let login = [("user", url.user.as_str()), ("database", url.database.as_str())];
        let path = (!path.is_empty()).then_some(("search_path", path));
        frontend::startup_message(login.into_iter().chain(SETTINGS).chain(path), &mut self.messages)?;
        self.flush()?;
        let password = url.password.as_deref();
        let mut scram = None;
        loop {
            match self.wire.next(deadline, 0)? {
                Message::ParameterStatus(body) if body.name()? == "server_version" => check_version(body.value()?)?,
                Message::AuthenticationOk | Message::ParameterStatus(_) | Message::NoticeResponse(_) => {}
                Message::AuthenticationCleartextPassword => {
                    frontend::password_message(require_password(password)?.as_bytes(), &mut self.messages)?;
                    self.flush()?;
                }
                Message::AuthenticationMd5Password(body) => {
                    let hash = md5_hash(url.user.as_bytes(), require_password(password)?.as_bytes(), body.salt());
                    frontend::password_message(hash.as_bytes(), &mut self.messages)?;
                    self.flush()?;
                }
                Message::AuthenticationSasl(body) => {
                    if !body.mechanisms().any(|name| Ok(name == SCRAM_SHA_256))? {
                        return Err(StreamError::Lost(
                            "the server requires an unsupported authentication method".to_owned(),
                        ));
                    }
                    let start_time =
                        ScramSha256::new(require_password(password)?.as_bytes(), ChannelBinding::unsupported());
                    frontend::sasl_initial_response(SCRAM_SHA_256, start_time.message(), &mut self.messages)?;
                    scram = Some(start_time);
                    self.flush()?;
                }
                Message::AuthenticationSaslContinue(body) => {
                    let scram = scram.as_mut().ok_or_else(StreamError::unexpected)?;
                    scram.update(body.data())?;
                    frontend::sasl_response(scram.message(), &mut self.messages)?;
                    self.flush()?;
                }
                Message::AuthenticationSaslFinal(body) => {
                    scram.as_mut().ok_or_else(StreamError::unexpected)?.finish(body.data())?;
                }
                Message::BackendKeyData(body) => {
                    self.process = body.process_id();
                    self.secret = body.secret_key();
                }
                Message::ReadyForQuery(_) => return Ok(()),
                Message::ErrorResponse(body) => {
                    let error = ServerError::of(&body);
                    return Err(StreamError::Lost(format!("{} ({})", error.text(), error.code)));
                }
                _ => return Err(StreamError::unexpected()),
            }
        }
    }

    /// Refreshes the list of hidden callers.
    fn find_hidden(&mut self, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let time = CONNECT_WAIT.as_millis();
        self.hidden = hidden::find(self, time, deadline)?;
        self.time = time;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), StreamError> {
        let sent = self.wire.send(&self.messages);
        self.messages.clear();
        sent
    }

    /// Writes the messages of a run.
    fn write_run(&mut self, request: &ExecRequest<'_>, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        if request.output == OutputKind::Rows && plain::is_plain(request.sql) && !self.hidden.is_in(request.sql) {
            return self.write_plain_run(request, deadline);
        }
        self.time = UNKNOWN;
        // Zero means no bound; a run that is out of time ends here.
        let left = deadline.left().map_or(0, |left| left.as_millis().clamp(1, i32::MAX as u128));
        frontend::query(&format!("BEGIN READ ONLY; SET LOCAL statement_timeout = {left}"), &mut self.messages)?;
        let mask = &self.mask;
        let declare = format!("{mask}{DECLARE}{}", request.sql);
        write_statement(&declare, request.parameters, 0, &mut self.messages)?;
        // One extra row shows that there are too many. FETCH counts have 32 bits.
        let n_rows = n_rows(request.limits);
        if request.output == OutputKind::Plan {
            // The cursor's grammar has accepted the query, but nothing of it is run.
            let explain = format!("{mask}{EXPLAIN}{}", request.sql);
            write_statement(&explain, request.parameters, n_rows.unwrap_or(0), &mut self.messages)?;
        } else {
            let n_rows = n_rows.map_or("ALL".to_owned(), |n| n.to_string());
            write_statement(&format!("FETCH FORWARD {n_rows} FROM sqlexec"), None, 0, &mut self.messages)?;
        }
        frontend::sync(&mut self.messages);
        // The random seed survives `DISCARD ALL`, so a query must not choose the seed of the next one.
        let seed = f64::from(RandomState::new().hash_one(0_u8) as u32) / f64::from(u32::MAX);
        frontend::query(&format!("ROLLBACK; SELECT pg_catalog.setseed({seed})"), &mut self.messages)?;
        frontend::query(DISCARD, &mut self.messages)?;
        // After BEGIN, the run, ROLLBACK, and DISCARD.
        let prefix = self.mask.len() + DECLARE.len();
        self.ready_counts = ReadyCounts { rows_at: 1, end_at: 3, prefix, ..ReadyCounts::default() };
        Ok(())
    }

    /// Writes the messages of a run that leaves no state.
    fn write_plain_run(&mut self, request: &ExecRequest<'_>, deadline: &RunDeadline<'_>) -> Result<(), StreamError> {
        let left = deadline.left();
        // Uses the full time limit if almost all of it is left, so that it need not be set for each run.
        let whole =
            request.limits.timeout.filter(|time| left.is_some_and(|left| *time < left + Duration::from_millis(2)));
        let time = whole.or(left).map_or(0, |time| time.as_millis().clamp(1, i32::MAX as u128));
        let n_before = u8::from(time != self.time);
        if n_before > 0 {
            frontend::query(&format!("SET statement_timeout = {time}"), &mut self.messages)?;
            self.time = time;
        }
        let sql = format!("{}{}", self.mask, request.sql);
        write_statement(&sql, request.parameters, n_rows(request.limits).unwrap_or(0), &mut self.messages)?;
        frontend::sync(&mut self.messages);
        self.ready_counts =
            ReadyCounts { rows_at: n_before, end_at: n_before, prefix: self.mask.len(), ..ReadyCounts::default() };
        Ok(())
    }

    /// Reads the response to a run to its end.
    fn read_run(
        &mut self,
        received: &mut RunResponse,
        limits: &Limits,
        deadline: &RunDeadline<'_>,
    ) -> Result<Option<Excess>, StreamError> {
        let max_bytes = usize::try_from(limits.max_bytes).unwrap_or(usize::MAX);
        loop {
            let ReadyCounts { times_ready, rows_at, end_at, .. } = self.ready_counts;
            let max_row = max_bytes.saturating_add(CELL_BYTES * 1_664);
            match self.wire.next(deadline, max_row)? {
                Message::ReadyForQuery(_) if times_ready == end_at => {
                    self.ready_counts.is_over = true;
                    return Ok(None);
                }
                Message::ReadyForQuery(_) => self.ready_counts.times_ready += 1,
                Message::RowDescription(body) if times_ready == rows_at => received.describe(&body)?,
                Message::DataRow(body) if times_ready == rows_at => {
                    if let Some(excess) = received.push(&body, limits, max_bytes)? {
                        return Ok(Some(excess));
                    }
                }
                Message::ErrorResponse(body) => {
                    let error = ServerError::of(&body);
                    if error.is_fatal() || times_ready != rows_at {
                        return Err(StreamError::Lost(error.text()));
                    }
                    received.error = Some(error);
                }
                // A plain run changes no setting. A hidden caller did, so the session is not reused.
                Message::ParameterStatus(_) if rows_at == end_at => self.is_usable = false,
                _ => {}
            }
        }
    }
}

impl InternalQueries for Postgresql {
    fn query_rows(&mut self, sql: &str, deadline: &RunDeadline<'_>) -> Result<Vec<Vec<String>>, StreamError> {
        frontend::query(sql, &mut self.messages)?;
        self.flush()?;
        let mut rows = Vec::new();
        loop {
            match self.wire.next(deadline, 1 << 20)? {
                Message::DataRow(body) => {
                    let cell = |range: Option<std::ops::Range<usize>>| {
                        let text = range.map(|range| String::from_utf8_lossy(&body.buffer()[range]).into_owned());
                        Ok(text.unwrap_or_default())
                    };
                    rows.push(body.ranges().map(cell).collect()?);
                }
                Message::ErrorResponse(body) => return Err(StreamError::Lost(ServerError::of(&body).text())),
                Message::ReadyForQuery(_) => return Ok(rows),
                _ => {}
            }
        }
    }
}

impl Session for Postgresql {
    fn refresh(&mut self, cancel: &AtomicBool) -> Result<(), String> {
        if !self.hidden.is_old() {
            return Ok(());
        }
        let deadline = RunDeadline::new(Instant::now(), Some(CONNECT_WAIT), cancel);
        self.find_hidden(&deadline).map_err(StreamError::into_text)
    }

    fn run(&mut self, request: &ExecRequest<'_>, deadline: &RunDeadline<'_>) -> Result<Outcome, String> {
        if request.parameters.is_some_and(|parameters| !parameters.names.is_empty()) {
            return Ok(Outcome::failed(Status::RuntimeError, "PostgreSQL binds parameters by position: $1, $2"));
        }
        if let Some(outcome) = functions::refusal(request.sql, self.url.option("allow")) {
            return Ok(outcome);
        }
        let mut received = RunResponse::default();
        let sent = self.write_run(request, deadline).and_then(|()| self.flush());
        let read = sent.and_then(|()| self.read_run(&mut received, request.limits, deadline));
        // Some languages and extensions keep state that no statement discards.
        self.is_usable &= self.ready_counts.rows_at == self.ready_counts.end_at || !self.hidden.is_lasting;
        match read {
            Ok(None) => Ok(received.outcome(request, deadline, self.ready_counts.prefix)),
            Ok(Some(excess)) => {
                let never = AtomicBool::new(false);
                if !self.drain(&RunDeadline::grace(DRAIN_GRACE, &never)) {
                    self.stop(true);
                }
                Ok(excess.outcome(received.table, request.limits))
            }
            Err(failure @ (StreamError::TooLarge | StreamError::NoMemory)) => {
                let never = AtomicBool::new(false);
                self.cancel(&RunDeadline::grace(CANCEL_GRACE, &never)); // the server would continue to send
                self.is_usable = false;
                Ok(failure.excess().outcome(received.table, request.limits))
            }
            Err(StreamError::Stopped) => {
                let stop = deadline.stop().unwrap_or(Stop::Wall);
                self.stop(stop == Stop::Cancelled);
                Ok(stop_outcome(stop, request.limits))
            }
            Err(StreamError::Lost(reason)) => Err(reason),
        }
    }

    fn is_usable(&self) -> bool {
        self.is_usable
    }

    fn into_abandoned(self: Box<Self>) -> Option<Box<dyn AbandonedSession>> {
        if self.ready_counts.is_over { None } else { Some(self) }
    }
}

impl RunResponse {
    fn describe(&mut self, body: &RowDescriptionBody) -> Result<(), StreamError> {
        let (mut names, mut types) = (Vec::new(), Vec::new());
        let mut fields = body.fields();
        while let Some(field) = fields.next()? {
            names.push(field.name().to_owned());
            types.push(values::type_name(field.type_oid()));
            self.kinds.push(values::kind_of(field.type_oid()));
        }
        let mut header = Header::new(names);
        for name in types {
            header.push_type(name);
        }
        self.table = Some(Table::recycled(header.into()));
        Ok(())
    }

    /// Appends a row. Returns the excess if the table grows too large.
    fn push(&mut self, body: &DataRowBody, limits: &Limits, max_bytes: usize) -> Result<Option<Excess>, StreamError> {
        let Some(table) = self.table.as_mut() else { return Err(StreamError::unexpected()) };
        let cells = body
            .ranges()
            .iterator()
            .zip(&self.kinds)
            .map(|(range, kind)| Ok(range?.map(|range| values::read(*kind, &body.buffer()[range]))));
        push_row(table, limits, max_bytes, cells)
    }

    /// Returns the outcome of a run that was read to its end.
    fn outcome(self, request: &ExecRequest<'_>, deadline: &RunDeadline<'_>, prefix: usize) -> Outcome {
        match (self.error, self.table) {
            (Some(error), _) if error.is_cancellation() => {
                // Another user may cancel the query too.
                let stop = deadline.stop().or_else(|| request.limits.timeout.map(|_| Stop::Wall));
                stop.map_or_else(
                    || Outcome::failed(Status::DbError, error.text()),
                    |stop| stop_outcome(stop, request.limits),
                )
            }
            (Some(error), _) => error.outcome(request.sql, prefix),
            (None, Some(table)) => Outcome::ok(table),
            (None, None) => Outcome::failed(Status::DbError, "the server sent no rows and no error"),
        }
    }
}

/// Refuses a server that is too old.
fn check_version(version: &str) -> Result<(), StreamError> {
    let digits = version.bytes().take_while(u8::is_ascii_digit).count();
    match version[..digits].parse::<u32>() {
        Ok(major) if major < OLDEST => {
            Err(StreamError::Lost(format!("the server is too old ({version}): PostgreSQL {OLDEST} is required")))
        }
        _ => Ok(()),
    }
}

/// Returns the number of rows to fetch, one more than the limit; `None` fetches all, as the protocol's counts have 32
/// bits.
fn n_rows(limits: &Limits) -> Option<i32> {
    i32::try_from(limits.max_rows.saturating_add(1)).ok()
}

/// Writes the messages that run a statement and return up to `n_rows` rows as texts, or all for zero.
fn write_statement(
    sql: &str,
    parameters: Option<&Parameters>,
    n_rows: i32,
    messages: &mut BytesMut,
) -> Result<(), StreamError> {
    let bound: Vec<_> = parameters.iter().flat_map(|all| &all.values).map(values::encode_parameter).collect();
    frontend::parse("", sql, bound.iter().map(|(_, oid)| *oid), messages)?;
    let write = |(text, _): &(Option<std::borrow::Cow<'_, [u8]>>, u32), out: &mut BytesMut| {
        Ok(text.as_ref().map_or(IsNull::Yes, |text| {
            out.extend_from_slice(text);
            IsNull::No
        }))
    };
    let text = 0;
    frontend::bind("", "", [text], &bound, write, [text], messages)
        .map_err(|_| StreamError::Lost("a parameter is too large".to_owned()))?;
    frontend::describe(b'P', "", messages)?;
    frontend::execute("", n_rows, messages)?;
    Ok(())
}

fn require_password(password: Option<&str>) -> Result<&str, StreamError> {
    password.ok_or_else(|| StreamError::Lost("the server requires a password: postgresql://USER:PASSWORD@…".to_owned()))
}
