//! The pool's end of the connection to a worker. Every wait is bounded.
//!
//! Reads and writes wait in short slices, checking the deadline and the caller's cancellation flag in between.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::wire::{self, ConnectionCounts, Message};
use crate::outcome::Outcome;
use crate::request::Limits;

/// Maximum delay until a cancellation is noticed. Most runs finish within one slice.
const SLICE: Duration = Duration::from_millis(5);

/// Bytes per read.
const BUFFER_BYTES: usize = 256 << 10;

/// Maximum time until a new process is ready; generous for a busy machine.
const START_WAIT: Duration = Duration::from_secs(30);

/// How long to wait for a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBounds {
    pub(super) grace: Duration,
    pub(super) hang: Option<Duration>,
}

/// The reply of a worker.
#[derive(Debug)]
pub(super) enum WorkerReply {
    Outcome(Outcome, ConnectionCounts),
    /// The outcome of a worker that accepts no further requests.
    Last(Outcome, ConnectionCounts),
    /// Our code panicked in the worker, with this message; the worker continues.
    Panicked(String),
}

/// Why there is no reply. Every reason except cancellation ends the process.
#[derive(Debug)]
pub(super) enum WorkerFailure {
    /// The caller cancelled the run.
    Cancelled,
    /// The run exceeded its wall time plus the grace period.
    OverTime,
    /// No data arrived within the hang limit.
    Hung,
    /// The socket was closed during the run: the process died.
    Died,
    /// The socket was closed before the request was sent.
    Gone,
    /// The received bytes are not a reply.
    Garbled(String),
    /// Not enough memory in this process for the rows.
    NoMemory,
}

/// A connection to a worker.
#[derive(Debug)]
pub(super) struct WorkerChannel {
    input: BufReader<TimedSocket>,
}

/// A socket with deadlines.
#[derive(Debug)]
struct TimedSocket {
    stream: UnixStream,
    /// Whether a read times out after one slice.
    has_slices: bool,
    deadline: Option<Instant>,
    /// Whether the deadline belongs to a run rather than to hang detection.
    is_run: bool,
    /// Whether a wait ends with the first slice without data.
    is_brief: bool,
    cancel: Arc<AtomicBool>,
}

/// Why a wait ended early.
#[derive(Debug, thiserror::Error)]
enum WaitError {
    #[error("cancelled")]
    Cancelled,
    #[error("over time")]
    OverTime,
    #[error("hung")]
    Hung,
    #[error("gone")]
    Gone,
    #[error("late")]
    Late,
}

impl WorkerChannel {
    /// Creates a channel over a connected socket.
    pub(super) fn new(stream: UnixStream) -> Self {
        let has_slices = stream.set_read_timeout(Some(SLICE)).is_ok();
        let socket =
            TimedSocket { stream, has_slices, deadline: None, is_run: false, is_brief: false, cancel: Arc::default() };
        Self { input: BufReader::with_capacity(BUFFER_BYTES, socket) }
    }

    /// Waits for the greeting of a new process.
    pub(super) fn greet(&mut self, cancel: &Arc<AtomicBool>) -> Result<(), WorkerFailure> {
        self.socket().cancel = Arc::clone(cancel);
        self.socket().allow(Some(START_WAIT), false);
        let expected = wire::greeting();
        let mut greeting = vec![0; expected.len()];
        self.input.read_exact(&mut greeting)?;
        if greeting == expected.as_bytes() {
            Ok(())
        } else {
            Err(WorkerFailure::Garbled(format!(
                "it belongs to another build: {:?}",
                String::from_utf8_lossy(&greeting)
            )))
        }
    }

    /// Sends requests.
    pub(super) fn send(
        &mut self,
        requests: &[u8],
        bounds: WaitBounds,
        cancel: &Arc<AtomicBool>,
    ) -> Result<(), WorkerFailure> {
        self.socket().cancel = Arc::clone(cancel);
        self.socket().allow(bounds.hang, false);
        Ok(self.socket().send(requests).map_err(closed_early)?)
    }

    /// Waits for one slice; returns whether a reply starts to arrive, or cannot arrive any more.
    pub(super) fn reply_starts_soon(&mut self) -> bool {
        self.socket().is_brief = true;
        let arrived = self.input.fill_buf().map(|_| ());
        self.socket().is_brief = false;
        !arrived.is_err_and(|error| matches!(wait_error(&error), Some(WaitError::Late)))
    }

    /// Waits for the reply to the oldest request, whose run starts now. Calls `late` once the reply is known to be
    /// slow.
    pub(super) fn receive(
        &mut self,
        limits: &Limits,
        bounds: WaitBounds,
        cancel: &Arc<AtomicBool>,
        late: &mut dyn FnMut(),
    ) -> Result<WorkerReply, WorkerFailure> {
        self.socket().cancel = Arc::clone(cancel);
        self.socket().allow_run(limits, bounds);
        if !self.reply_starts_soon() {
            late();
        }
        let mut is_last = false;
        loop {
            let len = wire::read_len(&mut self.input)?;
            self.socket().allow(bounds.hang, false);
            let bytes = wire::read_message(&mut self.input, len)?;
            match wire::parse(&bytes)? {
                Message::Opening => late(),
                Message::Opened => self.socket().allow_run(limits, bounds),
                Message::Leaving => is_last = true,
                Message::Outcome(outcome, counts, header) => {
                    let outcome = wire::read_rows_of(&mut self.input, outcome, header, limits)?;
                    let answer = if is_last { WorkerReply::Last } else { WorkerReply::Outcome };
                    return Ok(answer(outcome, counts));
                }
                Message::Panic(message) => return Ok(WorkerReply::Panicked(message)),
            }
        }
    }

    fn socket(&mut self) -> &mut TimedSocket {
        self.input.get_mut()
    }
}

impl TimedSocket {
    /// Sets the deadline to `time` from now; `None` for no deadline.
    fn allow(&mut self, time: Option<Duration>, is_run: bool) {
        self.deadline = time.and_then(|time| Instant::now().checked_add(time));
        self.is_run = is_run;
    }

    /// Sets the deadline of a run that starts now.
    fn allow_run(&mut self, limits: &Limits, bounds: WaitBounds) {
        match limits.timeout {
            Some(timeout) => self.allow(timeout.checked_add(bounds.grace), true),
            None => self.allow(bounds.hang, false),
        }
    }

    /// Waits until the socket is ready. Data that has arrived counts even if it is seen after the deadline.
    fn wait(&self, events: PollFlags) -> io::Result<()> {
        loop {
            let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let slice = left.map_or(SLICE, |left| left.min(SLICE));
            let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(slice.subsec_nanos()) };
            match poll(&mut [PollFd::new(&self.stream, events)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
            if self.is_brief {
                return Err(io::Error::other(WaitError::Late));
            }
            if self.cancel.load(Ordering::Relaxed) {
                return Err(io::Error::other(WaitError::Cancelled));
            }
            if left.is_some_and(|left| left.is_zero()) {
                let reason = if self.is_run { WaitError::OverTime } else { WaitError::Hung };
                return Err(io::Error::other(reason));
            }
        }
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        // A SIGPIPE for a closed socket would end a caller that does not ignore it.
        #[cfg(not(target_vendor = "apple"))]
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        #[cfg(target_vendor = "apple")]
        let flags = SendFlags::DONTWAIT;
        while !bytes.is_empty() {
            match send(&self.stream, bytes, flags) {
                Ok(n) => bytes = &bytes[n..],
                Err(Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Read for TimedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // The socket itself waits for one slice, which saves a call, and most replies arrive within it.
        let mut is_ready = self.has_slices && self.deadline.is_none_or(|end| end > Instant::now() + SLICE);
        loop {
            if !is_ready {
                self.wait(PollFlags::IN)?;
            }
            match self.stream.read(buffer) {
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    if self.is_brief && is_ready {
                        return Err(io::Error::other(WaitError::Late));
                    }
                    is_ready = false;
                }
                read => return read,
            }
        }
    }
}

/// Marks an error as one of a socket that was closed before the request.
fn closed_early(error: io::Error) -> io::Error {
    let is_closed = matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset);
    if is_closed { io::Error::other(WaitError::Gone) } else { error }
}

fn wait_error(error: &io::Error) -> Option<&WaitError> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

impl From<io::Error> for WorkerFailure {
    fn from(error: io::Error) -> Self {
        match wait_error(&error) {
            Some(WaitError::Cancelled) => Self::Cancelled,
            Some(WaitError::OverTime) => Self::OverTime,
            Some(WaitError::Hung | WaitError::Late) => Self::Hung,
            Some(WaitError::Gone) => Self::Gone,
            None if error.kind() == io::ErrorKind::InvalidData => Self::Garbled(error.to_string()),
            None if error.kind() == io::ErrorKind::OutOfMemory => Self::NoMemory,
            None => Self::Died,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use super::*;
    use crate::outcome::Status;

    const SOON: Duration = Duration::from_millis(60);
    /// Long enough for a thread on a busy machine to respond within the grace period.
    const BOUNDS: WaitBounds = WaitBounds { grace: Duration::from_millis(400), hang: Some(Duration::from_millis(900)) };

    /// Sends a request to a worker that greets and then runs `worker` on its socket.
    fn send_request(
        timeout: Option<Duration>,
        worker: impl FnOnce(&mut UnixStream) + Send,
    ) -> Result<WorkerReply, WorkerFailure> {
        ask_and_cancel(timeout, &Arc::default(), worker)
    }

    fn ask_and_cancel(
        timeout: Option<Duration>,
        cancel: &Arc<AtomicBool>,
        worker: impl FnOnce(&mut UnixStream) + Send,
    ) -> Result<WorkerReply, WorkerFailure> {
        let (pool_end, mut worker_end) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                worker_end.write_all(wire::greeting().as_bytes()).unwrap();
                worker_end.read_exact(&mut [0; 3]).unwrap();
                worker(&mut worker_end);
            });
            let mut channel = WorkerChannel::new(pool_end);
            channel.greet(&Arc::default())?;
            channel.send(b"SQL", BOUNDS, cancel)?;
            channel.receive(&Limits { timeout, ..Limits::default() }, BOUNDS, cancel, &mut || {})
        })
    }

    fn send_message(stream: &mut UnixStream, message: &Message<'_>) {
        wire::write(stream, message).unwrap();
    }

    fn say_outcome(stream: &mut UnixStream) {
        let outcome = Outcome::failed(Status::NoSql, "nothing");
        wire::write_outcome(stream, outcome, ConnectionCounts::default()).unwrap();
    }

    /// Waits until the pool's end has closed.
    fn be_silent(stream: &mut UnixStream) {
        let _ = stream.read(&mut [0]);
    }

    #[test]
    fn reply_ends_the_wait() {
        let answer = send_request(Some(Duration::from_secs(60)), say_outcome).unwrap();
        assert!(matches!(answer, WorkerReply::Outcome(outcome, _) if outcome.status == Status::NoSql));
        let answer = send_request(None, |stream| send_message(stream, &Message::Panic("oh".to_owned()))).unwrap();
        assert!(matches!(answer, WorkerReply::Panicked(message) if message == "oh"));
    }

    #[test]
    fn deadline_pauses_while_a_database_is_opened() {
        let answer = send_request(Some(Duration::ZERO), |stream| {
            send_message(stream, &Message::Opening);
            thread::sleep(BOUNDS.grace + SOON);
            send_message(stream, &Message::Opened);
            say_outcome(stream);
        });
        assert!(answer.is_ok(), "{answer:?}");
    }

    #[test]
    fn silence_ends_at_the_applicable_bound() {
        let start_time = Instant::now();
        assert!(matches!(send_request(Some(SOON), be_silent), Err(WorkerFailure::OverTime)));
        assert!(start_time.elapsed() >= SOON + BOUNDS.grace);
        assert!(matches!(send_request(None, be_silent), Err(WorkerFailure::Hung)));
        let is_opening = |stream: &mut UnixStream| {
            send_message(stream, &Message::Opening);
            be_silent(stream);
        };
        assert!(matches!(send_request(Some(Duration::ZERO), is_opening), Err(WorkerFailure::Hung)));
        let is_sending = |stream: &mut UnixStream| {
            stream.write_all(&9_u64.to_le_bytes()).unwrap();
            be_silent(stream);
        };
        assert!(matches!(send_request(Some(Duration::ZERO), is_sending), Err(WorkerFailure::Hung)));
    }

    #[test]
    fn cancellation_ends_the_wait() {
        let cancel = Arc::new(AtomicBool::new(false));
        let answer = ask_and_cancel(Some(Duration::from_secs(60)), &cancel, |stream| {
            cancel.store(true, Ordering::Relaxed);
            be_silent(stream);
        });
        assert!(matches!(answer, Err(WorkerFailure::Cancelled)), "{answer:?}");
    }

    #[test]
    fn short_or_malformed_reply_is_an_error() {
        assert!(matches!(send_request(None, |_| {}), Err(WorkerFailure::Died)));
        let is_cut = |stream: &mut UnixStream| stream.write_all(&[9, 0, 0]).unwrap();
        assert!(matches!(send_request(None, is_cut), Err(WorkerFailure::Died)));
        let is_noise = |stream: &mut UnixStream| stream.write_all(&[0xee; 100]).unwrap();
        assert!(matches!(send_request(None, is_noise), Err(WorkerFailure::Garbled(_))));
    }

    #[test]
    fn worker_of_another_build_is_refused() {
        let (pool_end, mut worker_end) = UnixStream::pair().unwrap();
        let other = wire::greeting().replace("sqlexec", "sqlother");
        worker_end.write_all(other.as_bytes()).unwrap();
        assert!(
            matches!(WorkerChannel::new(pool_end).greet(&Arc::default()), Err(WorkerFailure::Garbled(text)) if text.contains("sqlother"))
        );
    }
}
