//! The worker process of a thread: started on demand, killed when a run overruns, replaced when it died.

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::WorkerConfig;
use super::channel::{WaitBounds, WorkerChannel, WorkerFailure, WorkerReply};
use super::prefetch::{PrefetchedQueries, Source};
use super::wire::{self, ConnectionCounts, Request};
use crate::error::PoolError;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{InFlightQuery, Limits};
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::in_memory_dbs::Access;
use crate::stats::Stats;

/// Environment variables that are passed to workers; all others are removed.
const ENVIRONMENT: [&str; 3] = ["SQLITE_TMPDIR", "TMPDIR", "LD_LIBRARY_PATH"];

/// How long to wait for a killed process. It takes longer only if the kernel cannot end it, for example on a hanging
/// file system.
const REAP_WAIT: Duration = Duration::from_secs(2);

/// Time between two checks of a process that is ending.
const REAP_PERIOD: Duration = Duration::from_micros(200);

/// Maximum number of failed starts before a greeting; an external kill may hit one of them.
const MAX_STARTS: u32 = 3;

/// Signals sent from outside, including by the out-of-memory killer; the query is run again.
const SENT_SIGNALS: [i32; 5] =
    [Signal::HUP.as_raw(), Signal::INT.as_raw(), Signal::QUIT.as_raw(), Signal::KILL.as_raw(), Signal::TERM.as_raw()];

/// Runs queries in a worker process.
pub(crate) struct RemoteRunner {
    config: WorkerConfig,
    cap: usize,
    access: Access,
    hidden: Arc<[HiddenColumn]>,
    stats: Arc<Stats>,
    worker: Option<Worker>,
    prefetched: PrefetchedQueries,
    /// Killed processes that have not ended yet.
    ending: Vec<Child>,
}

/// How a worker ended.
struct WorkerEnd {
    text: String,
    /// Whether it was ended by a signal that no error in the process raises.
    is_sent: bool,
    /// Whether another program truncated a mapped file.
    is_cut_file: bool,
}

impl WorkerEnd {
    fn outcome(self) -> Outcome {
        let stopped_by = (self.is_sent || self.is_cut_file).then_some(Stop::Killed);
        Outcome { stopped_by, ..Outcome::failed(Status::Crashed, format!("its worker process died: {}", self.text)) }
    }
}

struct Worker {
    child: Child,
    channel: WorkerChannel,
    is_greeted: bool,
    counts: ConnectionCounts,
}

impl RemoteRunner {
    /// Locates the program without starting it.
    pub(crate) fn new(
        config: &WorkerConfig,
        cap: usize,
        access: Access,
        hidden: &Arc<[HiddenColumn]>,
        stats: &Arc<Stats>,
    ) -> Result<Self, PoolError> {
        let no_worker = |reason: &str| PoolError::NoWorker(format!("{}: {reason}", config.program.display()));
        // The caller may change its working directory before the first query.
        let program = path::absolute(&config.program).map_err(|error| no_worker(&error.to_string()))?;
        if !program.is_file() {
            return Err(no_worker("no such file"));
        }
        let config = WorkerConfig { program, ..config.clone() };
        Ok(Self {
            config,
            cap,
            access,
            hidden: Arc::clone(hidden),
            stats: Arc::clone(stats),
            worker: None,
            prefetched: PrefetchedQueries::default(),
            ending: Vec::new(),
        })
    }

    /// Returns the next query that was taken ahead of time, and whether the worker already has it.
    pub(crate) fn next(&mut self) -> Option<(Arc<InFlightQuery>, bool)> {
        self.prefetched.next()
    }

    /// Runs a query, which the worker may already have. Returns an error only if the worker cannot start or panics.
    ///
    /// If `has_successors`, others follow. If runs are quick, some of these are taken from the source and sent ahead.
    pub(crate) fn run(
        &mut self,
        query: &InFlightQuery,
        mut is_sent: bool,
        has_successors: bool,
        source: &mut dyn Source,
    ) -> Result<Outcome, PoolError> {
        let bounds = WaitBounds { grace: self.config.grace, hang: self.config.hang };
        let mut was_killed = false;
        loop {
            let Some(mut worker) = self.ready(&query.cancel)? else { return Ok(Outcome::cancelled()) };
            let mut bytes = Vec::new();
            let this = (!is_sent).then_some((query, has_successors));
            let later = self.prefetched.take(query.key.db, source).map(|query| (&**query, true));
            let written =
                this.into_iter().chain(later).try_for_each(|(query, more)| write_request(&mut bytes, query, more));
            if let Err(error) = written {
                self.kill(worker);
                return Err(error);
            }
            let start_time = Instant::now();
            let sent = if bytes.is_empty() { Ok(()) } else { worker.channel.send(&bytes, bounds, &query.cancel) };
            let answer = match sent {
                // The worker has either answered the query or died of it.
                Err(failure) if !(is_sent && matches!(failure, WorkerFailure::Gone)) => Err(failure),
                _ => {
                    if !self.skip(&mut worker, bounds) {
                        self.stats.count_late_worker();
                        self.kill(worker);
                        is_sent = false;
                        continue;
                    }
                    let late = &mut || self.prefetched.return_queries(source);
                    worker.channel.receive(&query.limits, bounds, &query.cancel, late)
                }
            };
            match answer {
                Ok(answer) => {
                    let is_last = matches!(answer, WorkerReply::Last(..));
                    let answer = self.accept(&mut worker, answer);
                    if is_last {
                        self.kill(worker);
                    } else {
                        self.worker = Some(worker);
                    }
                    if let Ok(outcome) = &answer {
                        self.prefetched.record(outcome);
                    }
                    return answer;
                }
                // The worker may have run this query and kept the answer. Sent one at a time, each query is answered
                // or found to be the culprit.
                Err(WorkerFailure::Died | WorkerFailure::Garbled(_)) if self.prefetched.has_others() => {
                    self.stats.count_worker_crash();
                    self.kill(worker);
                    is_sent = false;
                }
                // A worker that died between two queries is no query's crash.
                Err(WorkerFailure::Gone) => {
                    self.stats.count_worker_crash();
                    self.kill(worker);
                    is_sent = false;
                }
                Err(WorkerFailure::Died) => {
                    self.stats.count_worker_crash();
                    let end = self.reap(worker);
                    // A kill from outside is not the query's fault, so the query is run again.
                    if end.is_sent && !was_killed {
                        (was_killed, is_sent) = (true, false);
                        continue;
                    }
                    return Ok(Outcome { elapsed: start_time.elapsed(), ..end.outcome() });
                }
                Err(failure) => {
                    let mut outcome = self.give_up(worker, failure, query);
                    outcome.elapsed = start_time.elapsed();
                    return Ok(outcome);
                }
            }
        }
    }

    /// Reads the answers to discard; returns false if one of them is late.
    fn skip(&mut self, worker: &mut Worker, bounds: WaitBounds) -> bool {
        while let Some(limits) = self.prefetched.take_discarded() {
            if !worker.channel.reply_starts_soon() {
                return false;
            }
            match worker.channel.receive(&limits, bounds, &Arc::default(), &mut || {}) {
                Ok(WorkerReply::Outcome(_, counts) | WorkerReply::Last(_, counts)) => {
                    self.count_connections(worker, counts);
                }
                Ok(WorkerReply::Panicked(_)) => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Reaps killed processes, and starts the next worker so that the next query need not wait for it.
    pub(crate) fn prune(&mut self) {
        if self.worker.is_none() {
            self.worker = self.start().ok(); // the next query reports the error
        }
        self.reap_all();
    }

    /// Makes the worker idle because there is no query at the moment.
    pub(crate) fn park(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            let bounds = WaitBounds { grace: self.config.grace, hang: self.config.hang };
            if self.skip(&mut worker, bounds) {
                self.worker = Some(worker);
            } else {
                self.stats.count_late_worker();
                self.kill(worker);
            }
        }
    }

    /// Resets everything after a panic during an exchange.
    pub(crate) fn recover(&mut self) {
        self.prefetched.reset();
        if let Some(worker) = self.worker.take() {
            self.kill(worker);
        }
    }

    /// Returns a worker that has sent its greeting; `None` if the caller cancelled meanwhile.
    fn ready(&mut self, cancel: &Arc<AtomicBool>) -> Result<Option<Worker>, PoolError> {
        let mut starts = 0;
        loop {
            let mut worker = if let Some(worker) = self.worker.take() {
                worker
            } else {
                starts += 1;
                self.start()?
            };
            if worker.is_greeted {
                return Ok(Some(worker));
            }
            match worker.channel.greet(cancel) {
                Ok(()) => {
                    worker.is_greeted = true;
                    return Ok(Some(worker));
                }
                Err(WorkerFailure::Cancelled) => {
                    self.worker = Some(worker); // the worker is fine and may be greeted later
                    return Ok(None);
                }
                Err(failure) => {
                    self.stats.count_worker_crash();
                    let end = self.reap(worker);
                    let reason = match failure {
                        WorkerFailure::Garbled(reason) => reason,
                        WorkerFailure::Died => format!("it exited before it was ready: {}", end.text),
                        _ => "it was not ready in time".to_owned(),
                    };
                    if starts == MAX_STARTS {
                        return Err(PoolError::NoWorker(format!("{}: {reason}", self.config.program.display())));
                    }
                }
            }
        }
    }

    fn start(&self) -> Result<Worker, PoolError> {
        let error = |error: io::Error| PoolError::NoWorker(format!("{}: {error}", self.config.program.display()));
        let (pool_end, worker_end) = UnixStream::pair().map_err(error)?;
        #[cfg(target_vendor = "apple")] // on macOS this is a flag of the socket rather than of each `send`
        rustix::net::sockopt::set_socket_nosigpipe(&pool_end, true).map_err(|error| error(error.into()))?;
        let variables = ENVIRONMENT.iter().filter_map(|name| Some((name, env::var_os(name)?)));
        let child = Command::new(&self.config.program)
            .args(&self.config.arguments)
            .arg(self.config.memory_bytes.to_string())
            .arg(self.cap.to_string())
            .args(wire::access_arguments(self.access))
            .args(wire::hidden_arguments(&self.hidden))
            .env_clear()
            .envs(variables)
            .stdin(Stdio::from(OwnedFd::from(worker_end)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C at the terminal is for the caller
            .spawn()
            .map_err(error)?;
        self.stats.count_worker_start();
        Ok(Worker {
            child,
            channel: WorkerChannel::new(pool_end),
            is_greeted: false,
            counts: ConnectionCounts::default(),
        })
    }

    fn accept(&self, worker: &mut Worker, answer: WorkerReply) -> Result<Outcome, PoolError> {
        match answer {
            WorkerReply::Outcome(outcome, counts) | WorkerReply::Last(outcome, counts) => {
                self.count_connections(worker, counts);
                Ok(outcome)
            }
            WorkerReply::Panicked(message) => Err(PoolError::Panicked(message)),
        }
    }

    /// Ends the worker of a run without a reply, and returns the run's outcome.
    fn give_up(&mut self, worker: Worker, failure: WorkerFailure, query: &InFlightQuery) -> Outcome {
        match failure {
            WorkerFailure::Cancelled => {
                self.kill_and_count(worker);
                Outcome::cancelled()
            }
            WorkerFailure::OverTime => {
                self.kill_and_count(worker);
                let limit = query.limits.timeout.unwrap_or_default().as_millis();
                over_time(format!("over the time limit of {limit} ms and did not stop: its worker process was killed"))
            }
            WorkerFailure::Hung => {
                self.kill_and_count(worker);
                let limit = self.config.hang.unwrap_or_default().as_millis();
                over_time(format!("no answer for {limit} ms: its worker process was killed as hung"))
            }
            WorkerFailure::Died | WorkerFailure::Gone => {
                self.stats.count_worker_crash();
                self.reap(worker).outcome()
            }
            WorkerFailure::NoMemory => {
                self.kill_and_count(worker);
                Outcome::out_of_memory()
            }
            WorkerFailure::Garbled(fault_text) => {
                self.stats.count_worker_crash();
                self.kill(worker);
                Outcome::failed(Status::Crashed, format!("its worker process sent a malformed reply: {fault_text}"))
            }
        }
    }

    fn kill_and_count(&mut self, worker: Worker) {
        self.stats.count_worker_kill();
        self.kill(worker);
    }

    /// Kills a worker without waiting for its end.
    fn kill(&mut self, mut worker: Worker) {
        self.prefetched.reset();
        self.count_connections(&mut worker, ConnectionCounts::default());
        let _ = worker.child.kill(); // an error means that it has ended already
        self.ending.push(worker.child);
    }

    /// Waits for the end of a worker that closed its socket, and returns how it ended.
    fn reap(&mut self, worker: Worker) -> WorkerEnd {
        self.kill(worker); // only affects a worker that closed its socket without ending
        match self.ending.last_mut().map(|child| reap(child, REAP_WAIT)) {
            Some(Ok(Some(status))) => WorkerEnd {
                text: describe(status, self.config.memory_bytes),
                is_sent: status.signal().is_some_and(|signal| SENT_SIGNALS.contains(&signal)),
                is_cut_file: status.signal() == Some(Signal::BUS.as_raw()),
            },
            Some(Ok(None)) => {
                WorkerEnd { text: "it does not end, even when killed".to_owned(), is_sent: false, is_cut_file: false }
            }
            _ => WorkerEnd { text: "for an unknown reason".to_owned(), is_sent: false, is_cut_file: false },
        }
    }

    fn reap_all(&mut self) {
        self.ending.retain_mut(|child| matches!(reap(child, REAP_WAIT), Ok(None)));
    }

    /// Adds a worker's counts, limited to plausible increases over its previous counts.
    fn count_connections(&self, worker: &mut Worker, counts: ConnectionCounts) {
        let opened = counts.opened.saturating_sub(worker.counts.opened);
        let most = worker.counts.open.saturating_add(opened);
        let open = counts.open.min(most);
        self.stats.count_opened(opened);
        self.stats.count_closed(most - open);
        let copied_bytes = counts.copied_bytes.min(self.access.copies_bytes);
        let copied = counts.copied.max(worker.counts.copied);
        self.stats.add_worker_copies((worker.counts.copied, worker.counts.copied_bytes), (copied, copied_bytes));
        worker.counts = ConnectionCounts { open, copied, copied_bytes, ..counts };
    }
}

impl Drop for RemoteRunner {
    fn drop(&mut self) {
        self.recover();
        self.reap_all();
    }
}

fn write_request(bytes: &mut Vec<u8>, query: &InFlightQuery, has_successors: bool) -> Result<(), PoolError> {
    // The worker keeps the working directory in which it was started.
    let file = query.engine.file(&query.path);
    let absolute = if file.is_relative() { path::absolute(file).ok() } else { None };
    let path = absolute.as_deref().unwrap_or(file);
    let request = Request {
        path: path.as_os_str().as_bytes(),
        state: query.key.db,
        has_successors,
        limits: Limits::clone(&query.limits),
        sql: &query.key.sql.text,
        parameters: query.key.parameters.as_deref().cloned(),
        output: query.key.output,
    };
    wire::write(bytes, &request).map_err(|_| PoolError::Internal("a buffer in memory refused bytes"))
}

fn over_time(message: String) -> Outcome {
    Outcome { stopped_by: Some(Stop::Wall), ..Outcome::failed(Status::Timeout, message) }
}

/// Waits at most `patience` for a process to end; `None` if it has not. Fails if its status was already collected.
fn reap(child: &mut Child, patience: Duration) -> io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + patience;
    loop {
        match child.try_wait()? {
            None if Instant::now() < deadline => thread::sleep(REAP_PERIOD),
            ended => return Ok(ended),
        }
    }
}

fn describe(status: ExitStatus, memory_bytes: u64) -> String {
    match (status.signal(), status.code()) {
        (Some(6), _) => format!("signal 6 (aborted, as when its {memory_bytes} bytes of memory are used up)"),
        (Some(9), _) => "signal 9 (killed)".to_owned(),
        (Some(11), _) => "signal 11 (segmentation fault)".to_owned(),
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(code)) => format!("exit status {code}"),
        (None, None) => status.to_string(),
    }
}
