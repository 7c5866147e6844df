//! A thread's worker process: started when it is needed, killed when it overruns, replaced when it is gone.

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
use super::ahead::{QueriesAhead, Source};
use super::channel::{WaitBounds, WorkerChannel, WorkerFailure, WorkerReply};
use super::wire::{self, ConnectionCounts, Request};
use crate::error::Fault;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{InFlightQuery, Limits};
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::in_memory_dbs::Access;
use crate::stats::Stats;

/// Variables of the environment that a worker gets; the rest is none of its business.
const ENVIRONMENT: [&str; 3] = ["SQLITE_TMPDIR", "TMPDIR", "LD_LIBRARY_PATH"];

/// How long a killed process is waited for. It is longer only when the kernel cannot end it (a file system that hangs).
const REAP_WAIT: Duration = Duration::from_secs(2);

/// How long between two looks at a process that is ending.
const REAP_PERIOD: Duration = Duration::from_micros(200);

/// Starts that may fail before a worker says its greeting; one may fall to a killer from outside.
const MAX_STARTS: u32 = 3;

/// Signals that others send, the system's killer included: the query runs once more.
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
    ahead: QueriesAhead,
    /// Killed processes that have not ended yet.
    ending: Vec<Child>,
}

/// How a worker ended.
struct WorkerEnd {
    text: String,
    /// By a signal that no fault of a process raises.
    is_sent: bool,
    /// Another program has cut a file short that was mapped.
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
    /// Looks for the program, and starts nothing yet.
    pub(crate) fn new(
        config: &WorkerConfig,
        cap: usize,
        access: Access,
        hidden: &Arc<[HiddenColumn]>,
        stats: &Arc<Stats>,
    ) -> Result<Self, Fault> {
        let no_worker = |why: &str| Fault::NoWorker(format!("{}: {why}", config.program.display()));
        // The caller may change its folder before the first query.
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
            ahead: QueriesAhead::default(),
            ending: Vec::new(),
        })
    }

    /// Returns a query that was taken before its turn, which has come, and whether the worker has it.
    pub(crate) fn next(&mut self) -> Option<(Arc<InFlightQuery>, bool)> {
        self.ahead.next()
    }

    /// Runs a query, which the worker may have; only a worker that cannot start or that panics is a fault.
    ///
    /// `more_wait` tells that others are to follow. Where runs are quick, some of them are taken from the source and sent.
    pub(crate) fn run(
        &mut self,
        query: &InFlightQuery,
        mut is_sent: bool,
        more_wait: bool,
        source: &mut dyn Source,
    ) -> Result<Outcome, Fault> {
        let bounds = WaitBounds { grace: self.config.grace, hang: self.config.hang };
        let mut was_killed = false;
        loop {
            let Some(mut worker) = self.ready(&query.cancel)? else { return Ok(Outcome::cancelled()) };
            let mut bytes = Vec::new();
            let this = (!is_sent).then_some((query, more_wait));
            let later = self.ahead.take(query.key.db, source).map(|query| (&**query, true));
            let written =
                this.into_iter().chain(later).try_for_each(|(query, more)| write_request(&mut bytes, query, more));
            if let Err(fault) = written {
                self.kill(worker);
                return Err(fault);
            }
            let begun = Instant::now();
            let sent = if bytes.is_empty() { Ok(()) } else { worker.channel.send(&bytes, bounds, &query.cancel) };
            let answer = match sent {
                // The worker has answered this one, or died of it.
                Err(failure) if !(is_sent && matches!(failure, WorkerFailure::Gone)) => Err(failure),
                _ => {
                    if !self.skip(&mut worker, bounds) {
                        self.stats.worker_late();
                        self.kill(worker);
                        is_sent = false;
                        continue;
                    }
                    let late = &mut || self.ahead.give_back(source);
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
                        self.ahead.ran(outcome);
                    }
                    return answer;
                }
                // It may have run this one and kept the answer. Asked one by one, each is answered or is the culprit.
                Err(WorkerFailure::Died | WorkerFailure::Garbled(_)) if self.ahead.has_others() => {
                    self.stats.worker_crashed();
                    self.kill(worker);
                    is_sent = false;
                }
                // One that died between two queries is nobody's crash.
                Err(WorkerFailure::Gone) => {
                    self.stats.worker_crashed();
                    self.kill(worker);
                    is_sent = false;
                }
                Err(WorkerFailure::Died) => {
                    self.stats.worker_crashed();
                    let end = self.reap(worker);
                    // The system's killer or an administrator is not the query's fault, so it runs once more.
                    if end.is_sent && !was_killed {
                        (was_killed, is_sent) = (true, false);
                        continue;
                    }
                    return Ok(Outcome { elapsed: begun.elapsed(), ..end.outcome() });
                }
                Err(failure) => {
                    let mut outcome = self.give_up(worker, failure, query);
                    outcome.elapsed = begun.elapsed();
                    return Ok(outcome);
                }
            }
        }
    }

    /// Reads the answers that nobody wants any more; false when one of them does not come soon.
    fn skip(&mut self, worker: &mut Worker, bounds: WaitBounds) -> bool {
        while let Some(limits) = self.ahead.unwanted() {
            if !worker.channel.hears_soon() {
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

    /// Reaps what was killed, and starts the next worker so that the next query need not wait for it.
    pub(crate) fn prune(&mut self) {
        if self.worker.is_none() {
            self.worker = self.start().ok(); // a query will say why not
        }
        self.reap_all();
    }

    /// Has the worker do nothing any more, as there is no query at the moment.
    pub(crate) fn park(&mut self) {
        if let Some(mut worker) = self.worker.take() {
            let bounds = WaitBounds { grace: self.config.grace, hang: self.config.hang };
            if self.skip(&mut worker, bounds) {
                self.worker = Some(worker);
            } else {
                self.stats.worker_late();
                self.kill(worker);
            }
        }
    }

    /// Starts anew after a panic in the middle of a conversation.
    pub(crate) fn recover(&mut self) {
        self.ahead.lost();
        if let Some(worker) = self.worker.take() {
            self.kill(worker);
        }
    }

    /// Returns a worker that has said its greeting; `None` when the caller cancelled meanwhile.
    fn ready(&mut self, cancel: &Arc<AtomicBool>) -> Result<Option<Worker>, Fault> {
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
                    self.worker = Some(worker); // it has done nothing wrong, and may be greeted later
                    return Ok(None);
                }
                Err(failure) => {
                    self.stats.worker_crashed();
                    let end = self.reap(worker);
                    let why = match failure {
                        WorkerFailure::Garbled(why) => why,
                        WorkerFailure::Died => format!("it ended before it was ready: {}", end.text),
                        _ => "it is not ready in time".to_owned(),
                    };
                    if starts == MAX_STARTS {
                        return Err(Fault::NoWorker(format!("{}: {why}", self.config.program.display())));
                    }
                }
            }
        }
    }

    fn start(&self) -> Result<Worker, Fault> {
        let fault = |error: io::Error| Fault::NoWorker(format!("{}: {error}", self.config.program.display()));
        let (ours, theirs) = UnixStream::pair().map_err(fault)?;
        #[cfg(target_vendor = "apple")] // there a socket has a flag where others give one to each `send`
        rustix::net::sockopt::set_socket_nosigpipe(&ours, true).map_err(|error| fault(error.into()))?;
        let kept = ENVIRONMENT.iter().filter_map(|name| Some((name, env::var_os(name)?)));
        let child = Command::new(&self.config.program)
            .args(&self.config.arguments)
            .arg(self.config.memory_bytes.to_string())
            .arg(self.cap.to_string())
            .args(wire::access_arguments(self.access))
            .args(wire::hidden_arguments(&self.hidden))
            .env_clear()
            .envs(kept)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C at the terminal is for the caller
            .spawn()
            .map_err(fault)?;
        self.stats.worker_started();
        Ok(Worker { child, channel: WorkerChannel::new(ours), is_greeted: false, counts: ConnectionCounts::default() })
    }

    fn accept(&self, worker: &mut Worker, answer: WorkerReply) -> Result<Outcome, Fault> {
        match answer {
            WorkerReply::Outcome(outcome, counts) | WorkerReply::Last(outcome, counts) => {
                self.count_connections(worker, counts);
                Ok(outcome)
            }
            WorkerReply::Panicked(message) => Err(Fault::Panicked(message)),
        }
    }

    /// Ends the worker of a run without answer, and makes the outcome.
    fn give_up(&mut self, worker: Worker, failure: WorkerFailure, query: &InFlightQuery) -> Outcome {
        match failure {
            WorkerFailure::Cancelled => {
                self.kill_and_count(worker);
                Outcome::cancelled()
            }
            WorkerFailure::OverTime => {
                self.kill_and_count(worker);
                let limit = query.limits.timeout.unwrap_or_default().as_millis();
                over_time(format!("over the time limit of {limit} ms, and did not stop: its worker process was killed"))
            }
            WorkerFailure::Hung => {
                self.kill_and_count(worker);
                let limit = self.config.hang.unwrap_or_default().as_millis();
                over_time(format!("no answer for {limit} ms: its worker process was killed as hung"))
            }
            WorkerFailure::Died | WorkerFailure::Gone => {
                self.stats.worker_crashed();
                self.reap(worker).outcome()
            }
            WorkerFailure::NoMemory => {
                self.kill_and_count(worker);
                Outcome::out_of_memory()
            }
            WorkerFailure::Garbled(what) => {
                self.stats.worker_crashed();
                self.kill(worker);
                Outcome::failed(Status::Crashed, format!("its worker process sent what is no answer: {what}"))
            }
        }
    }

    fn kill_and_count(&mut self, worker: Worker) {
        self.stats.worker_killed();
        self.kill(worker);
    }

    /// Kills a worker, without waiting for its end.
    fn kill(&mut self, mut worker: Worker) {
        self.ahead.lost();
        self.count_connections(&mut worker, ConnectionCounts::default());
        let _ = worker.child.kill(); // an error says that it has ended
        self.ending.push(worker.child);
    }

    /// Waits for the end of a worker that closed its socket, and says how it ended.
    fn reap(&mut self, worker: Worker) -> WorkerEnd {
        self.kill(worker); // it is ending, and how is decided; this is for one that only closed the socket
        match self.ending.last_mut().map(|child| reap(child, REAP_WAIT)) {
            Some(Ok(Some(status))) => WorkerEnd {
                text: describe(status, self.config.memory_bytes),
                is_sent: status.signal().is_some_and(|signal| SENT_SIGNALS.contains(&signal)),
                is_cut_file: status.signal() == Some(Signal::BUS.as_raw()),
            },
            Some(Ok(None)) => {
                WorkerEnd { text: "it does not end, even when killed".to_owned(), is_sent: false, is_cut_file: false }
            }
            _ => WorkerEnd { text: "how is not known".to_owned(), is_sent: false, is_cut_file: false },
        }
    }

    fn reap_all(&mut self) {
        self.ending.retain_mut(|child| matches!(reap(child, REAP_WAIT), Ok(None)));
    }

    /// Carries a worker's counts over, believing no more of them than fits what it said before.
    fn count_connections(&self, worker: &mut Worker, counts: ConnectionCounts) {
        let opened = counts.opened.saturating_sub(worker.counts.opened);
        let most = worker.counts.open.saturating_add(opened);
        let open = counts.open.min(most);
        self.stats.opened(opened);
        self.stats.closed(most - open);
        let copied_bytes = counts.copied_bytes.min(self.access.copies_bytes);
        let copied = counts.copied.max(worker.counts.copied);
        self.stats.copies_elsewhere((worker.counts.copied, worker.counts.copied_bytes), (copied, copied_bytes));
        worker.counts = ConnectionCounts { open, copied, copied_bytes, ..counts };
    }
}

impl Drop for RemoteRunner {
    fn drop(&mut self) {
        self.recover();
        self.reap_all();
    }
}

fn write_request(bytes: &mut Vec<u8>, query: &InFlightQuery, more_wait: bool) -> Result<(), Fault> {
    // The worker's folder is the one in which it was started.
    let file = query.engine.file(&query.path);
    let absolute = if file.is_relative() { path::absolute(file).ok() } else { None };
    let path = absolute.as_deref().unwrap_or(file);
    let request = Request {
        path: path.as_os_str().as_bytes(),
        state: query.key.db,
        more_wait,
        limits: Limits::clone(&query.limits),
        sql: &query.key.sql.text,
        parameters: query.key.parameters.as_deref().cloned(),
        wanted: query.key.wanted,
    };
    wire::write(bytes, &request).map_err(|_| Fault::Internal("a buffer in memory refused bytes"))
}

fn over_time(message: String) -> Outcome {
    Outcome { stopped_by: Some(Stop::Wall), ..Outcome::failed(Status::Timeout, message) }
}

/// Waits for a process to end; `None` when it has not, an error when somebody else has taken its status.
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
