//! The worker process: reads requests from its standard input, runs them, and writes replies to the same socket.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, Thread};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::prefetch::QUICK;
use super::restrictions;
use super::wire::{self, ConnectionCounts, Message, Request};
use crate::error::panic_message;
use crate::locks::lock;
use crate::outcome::Outcome;
use crate::request::ExecRequest;
use crate::sqlite::hidden::HiddenColumn;
use crate::sqlite::hooks;
use crate::sqlite::in_memory_dbs::{Access, InMemoryDbs};
use crate::sqlite::local::{LocalRunner, STACK_BYTES};
use crate::stats::Stats;

/// Bytes per write: the pool's thread reads a large result while the rest is written.
const BUFFER_BYTES: usize = 64 << 10;

/// Maximum time for which the reply to a quick run is buffered if others follow.
const MAX_BUFFERED_TIME: Duration = Duration::from_millis(2);

/// Number of consecutive checks without a buffered reply before the sender sleeps until there is one.
const IDLE_CHECKS: u32 = 50;

/// Stack size of the thread that sends buffered replies.
const SENDER_STACK_BYTES: usize = 128 << 10;

/// Runs the program `sqlexec-worker`. A pool starts it with the maximum address space and number of connections, how
/// it opens files, the hidden columns, and a socket as its standard input.
pub fn worker_main() -> ! {
    let mut arguments = env::args_os().skip(1);
    let numbers: Vec<Option<u64>> =
        arguments.by_ref().take(8).map(|argument| argument.to_str()?.parse().ok()).collect();
    let (
        [
            Some(memory_bytes),
            Some(cap),
            Some(immutable),
            Some(copy_up_to),
            Some(copies),
            Some(blobs),
            Some(cells),
            Some(version),
        ],
        Some(hidden),
    ) = (&numbers[..], wire::hidden_of(arguments))
    else {
        eprintln!("sqlexec-worker is started by sqlexec_rs, which communicates over its standard input");
        process::exit(2);
    };
    let access = wire::access_of([*immutable, *copy_up_to, *copies, *blobs, *cells, *version]);
    process::exit(code_of(&work(*memory_bytes, *cap as usize, access, hidden)))
}

fn work(memory_bytes: u64, cap: usize, access: Access, hidden: Arc<[HiddenColumn]>) -> io::Result<()> {
    close_inherited();
    confine(memory_bytes)?;
    hooks::install().map_err(|error| io::Error::other(error.to_string()))?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let answers = Arc::new(ReplyWriter::new(stream.try_clone()?));
    restrictions::forbid_writes(&restrictions::temporary_folders());
    let writer = Arc::clone(&answers);
    let send_kept = move || {
        restrictions::forbid_calls();
        writer.flush_in_time()
    };
    let sender = thread::Builder::new().stack_size(SENDER_STACK_BYTES).spawn(send_kept)?;
    let serve = move || {
        restrictions::forbid_calls();
        process::exit(code_of(&serve(stream, &answers, sender.thread(), cap, access, &hidden)))
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(serve)?;
    restrictions::forbid_calls();
    // The process ends with the pool, even during a query. No event is requested, so this returns when the other end
    // hangs up.
    while poll(&mut [PollFd::new(&io::stdin(), PollFlags::empty())], None).is_err() {}
    Ok(())
}

/// Returns the exit code. Messages would not be seen here, but the pool reads the code if it is still running.
fn code_of(result: &io::Result<()>) -> i32 {
    i32::from(result.is_err())
}

/// Restricts this process to what its queries need. Restrictions that the kernel does not support are skipped, except
/// for memory.
pub(super) fn confine(memory_bytes: u64) -> io::Result<()> {
    let lower = |resource, bytes: u64| {
        let bytes = getrlimit(resource).maximum.map_or(bytes, |maximum| maximum.min(bytes));
        setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })
    };
    lower(Resource::As, memory_bytes)?;
    let _ = lower(Resource::Core, 0);
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Also works if another process holds a copy of the pool's socket, such as a fork of the caller.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = rustix::thread::set_no_new_privs(true);
        // When memory runs out, the kernel kills this process rather than its parent.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    Ok(())
}

/// Bytes by which a temporary file may exceed the limit of a run's files together, so that the run's limit applies
/// first.
const FILE_SLACK: u64 = 1 << 20;

/// Limits the size of files that this process writes. Exceeding it ends the process.
fn limit_files(temp_bytes: u64) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let bytes = temp_bytes.saturating_add(FILE_SLACK);
    let current = Some(maximum.map_or(bytes, |maximum| maximum.min(bytes)));
    let _ = setrlimit(Resource::Fsize, Rlimit { current, maximum });
}

/// Closes descriptors that the caller's libraries left open across exec (Rust and Python leave none).
pub(super) fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/dev/fd") else { return };
    let numbers: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        #[allow(unsafe_code, reason = "no safe function closes a descriptor that nobody in this process owns")]
        // SAFETY: the program runs this first. It has opened only the listing, which is closed already, and closing a
        // number that is not open is an error without effect.
        let _ = unsafe { rustix::io::try_close(number) };
    }
}

/// Serves requests until the input is closed.
fn serve(
    stream: UnixStream,
    answers: &ReplyWriter,
    sender: &Thread,
    cap: usize,
    access: Access,
    hidden: &Arc<[HiddenColumn]>,
) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, stream);
    let stats = Arc::new(Stats::default());
    let mut local = LocalRunner::new(cap, &Arc::new(InMemoryDbs::new(access, &stats)), hidden, &stats);
    answers.send(|out| out.write_all(wire::greeting().as_bytes()))?;
    let mut temp_bytes = None;
    loop {
        // A transaction is kept only while the next request is expected.
        if let Some(left) = local.hold_left()
            && !is_ready(&input, left)
        {
            local.release();
        }
        let Some(request) = wire::read_request(&mut input)? else { return Ok(()) };
        let request: Request<'_> = wire::parse(&request)?;
        if temp_bytes.replace(request.limits.temp_bytes) != Some(request.limits.temp_bytes) {
            limit_files(request.limits.temp_bytes);
        }
        match catch_unwind(AssertUnwindSafe(|| answer(&mut local, &request, answers))) {
            Ok(outcome) => {
                let outcome = outcome?;
                let ((opened, open), (copied, copied_bytes)) = (stats.connections(), stats.copies());
                let counts = ConnectionCounts { opened, open, copied, copied_bytes };
                let is_kept = outcome.elapsed <= QUICK && !input.buffer().is_empty();
                let write = |out: &mut SocketWriter| wire::write_outcome(out, outcome, counts);
                if is_kept { answers.buffer_reply(write, sender)? } else { answers.send(write)? }
            }
            Err(panic) => {
                local.recover();
                answers.send(|out| wire::write(out, &Message::Panic(panic_message(panic.as_ref()))))?;
            }
        }
    }
}

/// Writes replies to the pool. The reply to a quick run is buffered briefly if the next request is already here, so
/// that one call sends several.
struct ReplyWriter {
    out: Mutex<SocketWriter>,
    /// Whether replies are buffered, for which the sender is responsible.
    is_buffering: AtomicBool,
}

type SocketWriter = BufWriter<UnixStream>;

impl ReplyWriter {
    fn new(stream: UnixStream) -> Self {
        Self { out: Mutex::new(BufWriter::with_capacity(BUFFER_BYTES, stream)), is_buffering: AtomicBool::new(false) }
    }

    /// Writes and sends a reply together with the buffered ones.
    fn send(&self, write: impl FnOnce(&mut SocketWriter) -> io::Result<()>) -> io::Result<()> {
        let mut out = self.lock();
        write(&mut out)?;
        out.flush()
    }

    /// Writes a reply that the next one or the sender will send.
    fn buffer_reply(&self, write: impl FnOnce(&mut SocketWriter) -> io::Result<()>, sender: &Thread) -> io::Result<()> {
        write(&mut self.lock())?;
        if !self.is_buffering.swap(true, Ordering::AcqRel) {
            sender.unpark();
        }
        Ok(())
    }

    /// Sends replies that have been buffered for some time, even during a run.
    fn flush_in_time(&self) -> ! {
        let mut n_idle = 0;
        loop {
            if n_idle < IDLE_CHECKS {
                thread::sleep(MAX_BUFFERED_TIME);
            } else if !self.is_buffering.swap(false, Ordering::AcqRel) {
                thread::park();
            }
            let mut out = self.lock();
            n_idle = if out.buffer().is_empty() { n_idle + 1 } else { 0 };
            let _ = out.flush(); // the next writer gets the error
        }
    }

    fn lock(&self) -> MutexGuard<'_, SocketWriter> {
        lock(&self.out)
    }
}

/// Waits at most `time` for a request; returns false on timeout.
fn is_ready(input: &BufReader<UnixStream>, time: Duration) -> bool {
    let timeout = Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    !input.buffer().is_empty() || poll(&mut [PollFd::new(input.get_ref(), PollFlags::IN)], Some(&timeout)) != Ok(0)
}

fn answer(local: &mut LocalRunner, request: &Request<'_>, answers: &ReplyWriter) -> io::Result<Outcome> {
    let Request { path, state, has_successors, limits, sql, parameters, output } = request;
    let path = Path::new(OsStr::from_bytes(path));
    if !local.holds(path, *state) {
        answers.send(|out| wire::write(out, &Message::Opening))?;
        local.open(path, *state);
        answers.send(|out| wire::write(out, &Message::Opened))?;
    }
    let request = ExecRequest { sql, parameters: parameters.as_ref(), output: *output, limits };
    Ok(local.run_in_burst(path, *state, &request, None, *has_successors))
}
