//! The worker process of an engine that is a library in another language. The library runs the SQL; confinement,
//! result limits and the protocol with the pool are the same as for SQLite.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::wire::{self, ConnectionCounts, Message, Request};
use super::{restrictions, worker};
use crate::error::panic_message;
use crate::excess::Excess;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{Limits, OutputKind, Parameters};
use crate::result::table::Table;
use crate::result::value::Value;

/// Bytes per read or write.
const BUFFER_BYTES: usize = 64 << 10;

/// How long databases stay open without requests; their locks block writers.
const IDLE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// Maximum number of open databases; each has a separate cache.
const MAX_OPEN: usize = 8;

/// Eighths of the memory limit above which a process is replaced. Allocators keep address space, and one run may take
/// three eighths.
const USED_UP: u64 = 5;

/// Returns the bytes of address space of this process, if the kernel reports them.
fn address_space() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').next()?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}

/// A library that runs SQL.
pub trait ForeignEngine {
    /// Loads the library. Failures are reported when a database is opened.
    fn load(&mut self);

    /// Opens a database read-only.
    fn open(&mut self, file: &Path) -> Result<(), Box<Outcome>>;

    /// Closes a database if it is open.
    fn close(&mut self, file: &Path);

    /// Runs or plans a text on an open database, until there are enough rows or the time is over.
    fn run(
        &mut self,
        file: &Path,
        sql: &str,
        parameters: Option<&Parameters>,
        output: OutputKind,
        time: Option<Duration>,
        rows: &mut Rows<'_>,
    ) -> Result<(), Box<Outcome>>;
}

/// The rows of a result, within the limits.
pub struct Rows<'a> {
    table: Table,
    limits: &'a Limits,
    excess: Option<Excess>,
}

impl<'a> Rows<'a> {
    fn new(limits: &'a Limits) -> Self {
        Self { table: Table::default(), limits, excess: None }
    }

    /// Sets the names and types of the columns.
    pub fn begin(&mut self, names: Vec<String>, types: Vec<Option<String>>) {
        self.table = Table::new(names).with_types(types);
    }

    /// Starts a row; returns false if there are enough rows.
    pub fn begin_row(&mut self) -> bool {
        if self.table.n_rows() as u64 == self.limits.max_rows {
            self.excess = Some(Excess::Rows);
        }
        self.excess.is_none()
    }

    /// Appends a value to the row, if there is memory for it.
    pub fn push(&mut self, value: Value<'_>) {
        if self.excess.is_none() && self.table.try_push(value).is_err() {
            self.excess = Some(Excess::Memory);
        }
    }

    /// Ends the row; returns false if the result has become too large.
    pub fn end_row(&mut self) -> bool {
        if self.excess.is_some() {
            return false;
        }
        if self.table.bytes() as u64 > self.limits.max_bytes {
            self.table.abandon_row();
            self.excess = Some(Excess::Bytes);
            return false;
        }
        self.table.end_row();
        true
    }

    fn outcome(self) -> Outcome {
        match self.excess {
            None => Outcome::ok(self.table),
            Some(excess) => excess.outcome(Some(self.table), self.limits),
        }
    }
}

/// Runs a worker process: confines it, loads the library, and serves requests on its standard input until it closes.
///
/// `memory_bytes` limits the address space. The process may not write files.
pub fn serve_foreign(engine: &mut dyn ForeignEngine, memory_bytes: u64, cap: usize) -> io::Result<()> {
    worker::close_inherited();
    worker::confine(memory_bytes)?;
    let _ = setrlimit(Resource::Fsize, Rlimit { current: Some(0), maximum: Some(0) });
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    restrictions::forbid_writes(&[]);
    engine.load();
    restrictions::forbid_calls();
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, stream.try_clone()?);
    let mut input = BufReader::with_capacity(BUFFER_BYTES, stream);
    let cap = cap.clamp(1, MAX_OPEN);
    let mut open =
        OpenDatabases { engine, cap, memory_bytes, states: HashMap::new(), clock: 0, opened: 0, is_used_up: false };
    out.write_all(wire::greeting().as_bytes())?;
    out.flush()?;
    loop {
        if input.buffer().is_empty() && poll(&mut [PollFd::new(input.get_ref(), PollFlags::IN)], Some(&IDLE)) == Ok(0) {
            open.close_except(None);
            continue;
        }
        let Some(request) = wire::read_request(&mut input)? else { return Ok(()) };
        let request: Request<'_> = wire::parse(&request)?;
        match catch_unwind(AssertUnwindSafe(|| open.answer(&request, &mut out))) {
            Ok(outcome) => {
                let outcome = outcome?;
                if open.is_used_up {
                    wire::write(&mut out, &Message::Leaving)?;
                }
                wire::write_outcome(&mut out, outcome, open.counts())?;
            }
            Err(panic) => {
                open.close_except(None);
                wire::write(&mut out, &Message::Panic(panic_message(panic.as_ref())))?;
            }
        }
        out.flush()?;
    }
}

/// The open databases.
struct OpenDatabases<'a> {
    engine: &'a mut dyn ForeignEngine,
    cap: usize,
    memory_bytes: u64,
    /// The state number and the time of last use of each.
    states: HashMap<PathBuf, (u32, u64)>,
    clock: u64,
    opened: u64,
    /// Whether too little memory is left for the next run.
    is_used_up: bool,
}

impl OpenDatabases<'_> {
    fn counts(&self) -> ConnectionCounts {
        ConnectionCounts { opened: self.opened, open: self.states.len() as u64, ..ConnectionCounts::default() }
    }

    fn answer(&mut self, request: &Request<'_>, out: &mut impl Write) -> io::Result<Outcome> {
        let file = Path::new(std::ffi::OsStr::from_bytes(request.path));
        self.clock += 1;
        if self.states.get(file).is_none_or(|known| known.0 != request.state) {
            wire::write(out, &Message::Opening)?;
            out.flush()?;
            let opened = self.open(file, request.state);
            wire::write(out, &Message::Opened)?;
            out.flush()?;
            if let Err(outcome) = opened {
                return Ok(*outcome);
            }
        }
        if let Some(known) = self.states.get_mut(file) {
            known.1 = self.clock;
        }
        let start_time = Instant::now();
        let mut outcome = self.run(file, request, start_time);
        // The caches of other databases count as used memory too.
        if self.is_used_up && self.states.len() > 1 {
            self.is_used_up = false;
            self.close_except(Some(file));
            outcome = self.run(file, request, start_time);
        }
        self.is_used_up |= address_space().is_some_and(|bytes| bytes > self.memory_bytes / 8 * USED_UP);
        if outcome.status == Status::DbError {
            self.close_except(None);
        }
        outcome.elapsed = start_time.elapsed();
        Ok(outcome)
    }

    fn run(&mut self, file: &Path, request: &Request<'_>, start_time: Instant) -> Outcome {
        let limits = &request.limits;
        let mut rows = Rows::new(limits);
        let left = limits.timeout.map(|timeout| timeout.saturating_sub(start_time.elapsed()));
        match self.engine.run(file, request.sql, request.parameters.as_ref(), request.output, left, &mut rows) {
            Ok(()) => rows.outcome(),
            Err(outcome) if outcome.status == Status::Timeout => {
                let time = limits.timeout.unwrap_or_default().as_millis();
                let error = format!("over the time limit of {time} ms");
                Outcome { stopped_by: Some(Stop::Wall), ..Outcome::failed(Status::Timeout, error) }
            }
            Err(outcome) => {
                self.is_used_up = outcome.status == Status::TooLarge;
                *outcome
            }
        }
    }

    fn open(&mut self, file: &Path, state: u32) -> Result<(), Box<Outcome>> {
        self.close(file);
        if self.states.len() >= self.cap {
            let oldest = self.states.iter().min_by_key(|(_, known)| known.1).map(|(file, _)| file.clone());
            if let Some(oldest) = oldest {
                self.close(&oldest);
            }
        }
        self.engine.open(file)?;
        self.opened += 1;
        self.states.insert(file.to_owned(), (state, self.clock));
        Ok(())
    }

    fn close(&mut self, file: &Path) {
        if self.states.remove(file).is_some() {
            self.engine.close(file);
        }
    }

    /// Closes all databases, or all but one.
    fn close_except(&mut self, exception: Option<&Path>) {
        let files: Vec<PathBuf> =
            self.states.keys().filter(|file| Some(file.as_path()) != exception).cloned().collect();
        for file in &files {
            self.close(file);
        }
    }
}
