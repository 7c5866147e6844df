//! The pool's side of the conversation with one worker: every wait has an end.
//!
//! A read or a write waits in short slices and looks in between at the deadline and at the flag by which the caller cancels.

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

/// How soon a cancellation is seen. Most runs are over within one slice.
const SLICE: Duration = Duration::from_millis(5);

/// Bytes read at once.
const BUFFER_BYTES: usize = 256 << 10;

/// A process that is not ready by then will not be; generous, for a machine that is busy with other things.
const START_WAIT: Duration = Duration::from_secs(30);

/// The ends of a process's patience.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBounds {
    pub(super) grace: Duration,
    pub(super) hang: Option<Duration>,
}

/// What a worker answered.
#[derive(Debug)]
pub(super) enum WorkerReply {
    Outcome(Outcome, ConnectionCounts),
    /// The same, and it was the worker's last.
    Last(Outcome, ConnectionCounts),
    /// Our code panicked there, with this message; the worker goes on.
    Panicked(String),
}

/// Why there was no answer; each but the first is the end of the process.
#[derive(Debug)]
pub(super) enum WorkerFailure {
    /// The caller cancelled.
    Cancelled,
    /// The run is beyond its wall time and its grace.
    OverTime,
    /// Nothing came for so long that it counts as hung.
    Hung,
    /// The socket closed in the middle: the process died.
    Died,
    /// The socket was closed before the request was sent.
    Gone,
    /// What came is no answer.
    Garbled(String),
    /// There is no memory here for the rows.
    NoMemory,
}

/// A socket to a worker.
#[derive(Debug)]
pub(super) struct WorkerChannel {
    input: BufReader<TimedSocket>,
}

/// The socket with its patience.
#[derive(Debug)]
struct TimedSocket {
    stream: UnixStream,
    /// A read ends by itself after a slice.
    has_slices: bool,
    deadline: Option<Instant>,
    /// Whether the deadline is a run's own and not the one for processes that hang.
    is_run: bool,
    /// A wait ends with the first slice in which nothing came.
    is_brief: bool,
    cancel: Arc<AtomicBool>,
}

/// Why a wait ended without what it waited for.
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
    /// Begins over a connected socket.
    pub(super) fn new(stream: UnixStream) -> Self {
        let has_slices = stream.set_read_timeout(Some(SLICE)).is_ok();
        let socket =
            TimedSocket { stream, has_slices, deadline: None, is_run: false, is_brief: false, cancel: Arc::default() };
        Self { input: BufReader::with_capacity(BUFFER_BYTES, socket) }
    }

    /// Waits for the greeting of a process that was just started.
    pub(super) fn greet(&mut self, cancel: &Arc<AtomicBool>) -> Result<(), WorkerFailure> {
        self.socket().cancel = Arc::clone(cancel);
        self.socket().allow(Some(START_WAIT), false);
        let expected = wire::greeting();
        let mut greeting = vec![0; expected.len()];
        self.input.read_exact(&mut greeting)?;
        if greeting == expected.as_bytes() {
            Ok(())
        } else {
            Err(WorkerFailure::Garbled(format!("it is of another build: {:?}", String::from_utf8_lossy(&greeting))))
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
        Ok(self.socket().send(requests).map_err(gone)?)
    }

    /// Waits for a slice of time; true when an answer begins to arrive in it, or its end is known.
    pub(super) fn hears_soon(&mut self) -> bool {
        self.socket().is_brief = true;
        let heard = self.input.fill_buf().map(|_| ());
        self.socket().is_brief = false;
        !heard.is_err_and(|error| matches!(wait_error(&error), Some(WaitError::Late)))
    }

    /// Waits for the answer to the request that was sent the longest ago, whose run begins now; calls `late` once it is
    /// known not to come soon.
    pub(super) fn receive(
        &mut self,
        limits: &Limits,
        bounds: WaitBounds,
        cancel: &Arc<AtomicBool>,
        late: &mut dyn FnMut(),
    ) -> Result<WorkerReply, WorkerFailure> {
        self.socket().cancel = Arc::clone(cancel);
        self.socket().allow_run(limits, bounds);
        if !self.hears_soon() {
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
    /// Sets the deadline to so much from now; `None` is no deadline.
    fn allow(&mut self, time: Option<Duration>, is_run: bool) {
        self.deadline = time.and_then(|time| Instant::now().checked_add(time));
        self.is_run = is_run;
    }

    /// Sets the deadline of a run that begins now.
    fn allow_run(&mut self, limits: &Limits, bounds: WaitBounds) {
        match limits.timeout {
            Some(timeout) => self.allow(timeout.checked_add(bounds.grace), true),
            None => self.allow(bounds.hang, false),
        }
    }

    /// Waits until the socket is ready. What has arrived counts, even if it is seen late.
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
                let why = if self.is_run { WaitError::OverTime } else { WaitError::Hung };
                return Err(io::Error::other(why));
            }
        }
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        // A signal for a closed socket would end a caller that has not switched it off.
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
        // The socket itself waits for a slice, which is one call less, and most answers come within it.
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

/// Tells a socket that was closed before the request from one that closed during its run.
fn gone(error: io::Error) -> io::Error {
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
    /// Long enough for a busy machine to let a thread speak within the grace.
    const BOUNDS: WaitBounds = WaitBounds { grace: Duration::from_millis(400), hang: Some(Duration::from_millis(900)) };

    /// Asks a worker that, after its greeting, does what `worker` does with its socket.
    fn ask(
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
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                theirs.write_all(wire::greeting().as_bytes()).unwrap();
                theirs.read_exact(&mut [0; 3]).unwrap();
                worker(&mut theirs);
            });
            let mut channel = WorkerChannel::new(ours);
            channel.greet(&Arc::default())?;
            channel.send(b"SQL", BOUNDS, cancel)?;
            channel.receive(&Limits { timeout, ..Limits::default() }, BOUNDS, cancel, &mut || {})
        })
    }

    fn say(stream: &mut UnixStream, message: &Message<'_>) {
        wire::write(stream, message).unwrap();
    }

    fn say_outcome(stream: &mut UnixStream) {
        let outcome = Outcome::failed(Status::NoSql, "nothing");
        wire::write_outcome(stream, outcome, ConnectionCounts::default()).unwrap();
    }

    /// Waits until the pool's side has hung up.
    fn be_silent(stream: &mut UnixStream) {
        let _ = stream.read(&mut [0]);
    }

    #[test]
    fn an_answer_ends_the_wait() {
        let answer = ask(Some(Duration::from_secs(60)), say_outcome).unwrap();
        assert!(matches!(answer, WorkerReply::Outcome(outcome, _) if outcome.status == Status::NoSql));
        let answer = ask(None, |stream| say(stream, &Message::Panic("oh".to_owned()))).unwrap();
        assert!(matches!(answer, WorkerReply::Panicked(message) if message == "oh"));
    }

    #[test]
    fn the_clock_stands_while_a_database_is_opened() {
        let answer = ask(Some(Duration::ZERO), |stream| {
            say(stream, &Message::Opening);
            thread::sleep(BOUNDS.grace + SOON);
            say(stream, &Message::Opened);
            say_outcome(stream);
        });
        assert!(answer.is_ok(), "{answer:?}");
    }

    #[test]
    fn silence_ends_with_the_bound_that_holds() {
        let begun = Instant::now();
        assert!(matches!(ask(Some(SOON), be_silent), Err(WorkerFailure::OverTime)));
        assert!(begun.elapsed() >= SOON + BOUNDS.grace);
        assert!(matches!(ask(None, be_silent), Err(WorkerFailure::Hung)));
        let is_opening = |stream: &mut UnixStream| {
            say(stream, &Message::Opening);
            be_silent(stream);
        };
        assert!(matches!(ask(Some(Duration::ZERO), is_opening), Err(WorkerFailure::Hung)));
        let is_sending = |stream: &mut UnixStream| {
            stream.write_all(&9_u64.to_le_bytes()).unwrap();
            be_silent(stream);
        };
        assert!(matches!(ask(Some(Duration::ZERO), is_sending), Err(WorkerFailure::Hung)));
    }

    #[test]
    fn a_cancellation_ends_the_wait() {
        let cancel = Arc::new(AtomicBool::new(false));
        let answer = ask_and_cancel(Some(Duration::from_secs(60)), &cancel, |stream| {
            cancel.store(true, Ordering::Relaxed);
            be_silent(stream);
        });
        assert!(matches!(answer, Err(WorkerFailure::Cancelled)), "{answer:?}");
    }

    #[test]
    fn a_short_or_senseless_answer_is_no_answer() {
        assert!(matches!(ask(None, |_| {}), Err(WorkerFailure::Died)));
        let is_cut = |stream: &mut UnixStream| stream.write_all(&[9, 0, 0]).unwrap();
        assert!(matches!(ask(None, is_cut), Err(WorkerFailure::Died)));
        let is_noise = |stream: &mut UnixStream| stream.write_all(&[0xee; 100]).unwrap();
        assert!(matches!(ask(None, is_noise), Err(WorkerFailure::Garbled(_))));
    }

    #[test]
    fn a_worker_of_another_build_is_refused() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let other = wire::greeting().replace("sqlexec", "sqlother");
        theirs.write_all(other.as_bytes()).unwrap();
        assert!(
            matches!(WorkerChannel::new(ours).greet(&Arc::default()), Err(WorkerFailure::Garbled(why)) if why.contains("sqlother"))
        );
    }
}
