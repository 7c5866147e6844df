//! The worker process: reads requests from its standard input, runs them, writes the answers to the same socket.

use std::env;
use std::ffi::OsStr;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::process;
use std::sync::Arc;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::walls;
use super::wire::{self, ConnectionCounts, Message, Request};
use crate::error::panic_message;
use crate::outcome::Outcome;
use crate::sqlite::exec::Asked;
use crate::sqlite::hooks;
use crate::sqlite::in_memory_dbs::{Access, InMemoryDbs};
use crate::sqlite::local::{Local, STACK_BYTES};
use crate::stats::Stats;

/// Bytes written at once: larger results go out while the pool's thread reads what went before.
const BUFFER_BYTES: usize = 64 << 10;

/// Is the program `sqlexec-worker`: a pool starts it with the bytes of address space and the number of connections that it
/// may have, how it opens files, and a socket as its standard input.
pub fn worker_main() -> ! {
    let arguments: Vec<Option<u64>> = env::args_os().skip(1).map(|argument| argument.to_str()?.parse().ok()).collect();
    let [Some(memory_bytes), Some(cap), Some(immutable), Some(copy_up_to), Some(copies), Some(blobs)] = arguments[..]
    else {
        eprintln!("sqlexec-worker is started by sqlexec_rs, which speaks to it over its standard input");
        process::exit(2);
    };
    let access = wire::access_of([immutable, copy_up_to, copies, blobs]);
    process::exit(code_of(&work(memory_bytes, cap as usize, access)))
}

fn work(memory_bytes: u64, cap: usize, access: Access) -> io::Result<()> {
    close_inherited();
    confine(memory_bytes)?;
    hooks::install().map_err(|fault| io::Error::other(fault.to_string()))?;
    let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let answers = stream.try_clone()?;
    walls::forbid_writes(&walls::temporary_folders());
    let serve = move || {
        walls::forbid_calls();
        process::exit(code_of(&serve(stream, answers, cap, access)))
    };
    thread::Builder::new().stack_size(STACK_BYTES).spawn(serve)?;
    walls::forbid_calls();
    // The end of the pool is the end of this process, whatever the query under way: no event is asked for, so this returns
    // when the other end hangs up.
    while poll(&mut [PollFd::new(&io::stdin(), PollFlags::empty())], None).is_err() {}
    Ok(())
}

/// Nobody reads a message here: the pool sees the code, if it is still there.
fn code_of(result: &io::Result<()>) -> i32 {
    i32::from(result.is_err())
}

/// Takes from this process what its queries do not need. But for the memory, what a kernel refuses is left out.
fn confine(memory_bytes: u64) -> io::Result<()> {
    let lower = |resource, bytes: u64| {
        let bytes = getrlimit(resource).maximum.map_or(bytes, |maximum| maximum.min(bytes));
        setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) })
    };
    lower(Resource::As, memory_bytes)?;
    let _ = lower(Resource::Core, 0);
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        // Also when another process holds a copy of the pool's end of the socket, as a fork of the caller does.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = rustix::thread::set_no_new_privs(true);
        // Where memory runs out, the kernel takes this process and not the one that started it.
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    }
    Ok(())
}

/// Bytes that a temporary file may take beyond what a run's files may hold together: its own bound is to be met first.
const FILE_SLACK: u64 = 1 << 20;

/// Bounds the files that this process writes. What goes beyond ends it.
fn limit_files(temp_bytes: u64) {
    let maximum = getrlimit(Resource::Fsize).maximum;
    let bytes = temp_bytes.saturating_add(FILE_SLACK);
    let current = Some(maximum.map_or(bytes, |maximum| maximum.min(bytes)));
    let _ = setrlimit(Resource::Fsize, Rlimit { current, maximum });
}

/// Closes what the caller's libraries left open across the start of a program (Rust and Python leave nothing).
fn close_inherited() {
    let Ok(entries) = std::fs::read_dir("/dev/fd") else { return };
    let numbers: Vec<i32> = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        #[allow(unsafe_code, reason = "no safe function closes a descriptor that nobody in this process owns")]
        // SAFETY: this is the first thing that the program does; it has opened nothing itself but the listing, which is
        // closed again, and closing a number that is not open is an error that changes nothing.
        let _ = unsafe { rustix::io::try_close(number) };
    }
}

/// Answers requests until there are no more.
fn serve(stream: UnixStream, answers: UnixStream, cap: usize, access: Access) -> io::Result<()> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, stream);
    let mut out = BufWriter::with_capacity(BUFFER_BYTES, answers);
    let stats = Arc::new(Stats::default());
    let mut local = Local::new(cap, &Arc::new(InMemoryDbs::new(access, &stats)), &stats);
    out.write_all(wire::greeting().as_bytes())?;
    out.flush()?;
    let mut temp_bytes = None;
    while let Some(request) = wire::read_request(&mut input)? {
        let request: Request<'_> = wire::parse(&request)?;
        if temp_bytes.replace(request.limits.temp_bytes) != Some(request.limits.temp_bytes) {
            limit_files(request.limits.temp_bytes);
        }
        match catch_unwind(AssertUnwindSafe(|| answer(&mut local, &request, &mut out))) {
            Ok(outcome) => {
                let ((opened, open), (copied, copied_bytes)) = (stats.connections(), stats.copies());
                let counts = ConnectionCounts { opened, open, copied, copied_bytes };
                wire::write_outcome(&mut out, outcome?, counts)?;
            }
            Err(panic) => {
                local.recover();
                wire::write(&mut out, &Message::Panic(panic_message(panic.as_ref())))?;
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn answer(local: &mut Local, request: &Request<'_>, out: &mut impl Write) -> io::Result<Outcome> {
    let Request { path, state, limits, sql, parameters } = request;
    let path = Path::new(OsStr::from_bytes(path));
    if !local.holds(path, *state) {
        wire::write(out, &Message::Opening)?;
        out.flush()?;
        local.open(path, *state);
        wire::write(out, &Message::Opened)?;
        out.flush()?;
    }
    let asked = Asked { sql, parameters: parameters.as_ref(), limits };
    Ok(local.run(path, *state, &asked, None))
}
