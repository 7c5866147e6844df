//! The baseline of `scripts/bench_executor.py`: a minimal loop that runs the same queries on the same SQLite.
//!
//! `bare_loop WORKLOAD THREADS REPEATS [DEADLINE_MS] [unguarded]`: each line of the workload is a database path, a
//! tab and a SQL text. Threads take lines in turn, use one kept read-only connection per thread and database, and
//! fetch and discard every value. The program prints a line per repeat: seconds, and the numbers of successful,
//! failed and late queries. With `unguarded` there is neither authorizer nor progress handler, so no deadline.

use std::collections::HashMap;
use std::error::Error;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use rusqlite::config::DbConfig;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use sqlexec_core::deadline::STEP_PERIOD;

type Problem = Box<dyn Error + Send + Sync>;

/// The run settings, the same for all threads.
struct Settings {
    deadline: Duration,
    is_guarded: bool,
    started: Instant,
}

/// State that a thread keeps between repeats.
#[derive(Default)]
struct ThreadState<'a> {
    connections: HashMap<&'a str, Connection>,
    /// The deadline of the current query, in nanoseconds since the start of the program.
    ends_at: Arc<AtomicU64>,
}

/// Numbers of successful, failed and late queries.
type Counts = [usize; 3];

fn main() -> Result<(), Problem> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [workload, threads, repeats, rest @ ..] = arguments.as_slice() else {
        return Err("bare_loop WORKLOAD THREADS REPEATS [DEADLINE_MS] [unguarded]".into());
    };
    let deadline = rest.iter().find(|word| *word != "unguarded").map_or(Ok(30_000), |word| word.parse())?;
    let settings = Settings {
        deadline: Duration::from_millis(deadline),
        is_guarded: !rest.iter().any(|word| word == "unguarded"),
        started: Instant::now(),
    };
    let text = fs::read_to_string(workload)?;
    let queries = text
        .lines()
        .map(|line| line.split_once('\t').ok_or_else(|| format!("no tab in the line {line:?}")))
        .collect::<Result<Vec<_>, _>>()?;
    run_all(&queries, threads.parse()?, repeats.parse()?, &settings)
}

/// Runs every query once per repeat on persistent threads; new threads would start on one core and migrate later.
fn run_all(queries: &[(&str, &str)], n_threads: usize, repeats: usize, settings: &Settings) -> Result<(), Problem> {
    thread::scope(|scope| {
        let (answer, answers) = channel();
        let starts: Vec<_> = (0..n_threads)
            .map(|_| {
                let (start, started) = channel::<Arc<AtomicUsize>>();
                let answer = answer.clone();
                scope.spawn(move || {
                    let mut state = ThreadState::default();
                    for next in started {
                        if answer.send(run_share(queries, &next, &mut state, settings)).is_err() {
                            return;
                        }
                    }
                });
                start
            })
            .collect();
        for _ in 0..repeats {
            let next = Arc::new(AtomicUsize::new(0));
            let start_time = Instant::now();
            for start in &starts {
                start.send(Arc::clone(&next))?;
            }
            let mut total = Counts::default();
            for _ in &starts {
                for (sum, count) in total.iter_mut().zip(answers.recv()??) {
                    *sum += count;
                }
            }
            let [ok, failed, late] = total;
            println!("{:.9} {ok} {failed} {late}", start_time.elapsed().as_secs_f64());
        }
        Ok(())
    })
}

/// Takes queries until none is left.
fn run_share<'a>(
    queries: &[(&'a str, &'a str)],
    next: &AtomicUsize,
    state: &mut ThreadState<'a>,
    settings: &Settings,
) -> Result<Counts, Problem> {
    let mut counts = Counts::default();
    while let Some((path, sql)) = queries.get(next.fetch_add(1, Ordering::Relaxed)) {
        if !state.connections.contains_key(path) {
            state.connections.insert(path, open(path, &state.ends_at, settings)?);
        }
        let connection = state.connections.get(path).ok_or("the connection is gone")?;
        let ends = settings.started.elapsed() + settings.deadline;
        state.ends_at.store(ends.as_nanos() as u64, Ordering::Relaxed);
        counts[match fetch(connection, sql) {
            Ok(()) => 0,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::OperationInterrupted) => 2,
            Err(_) => 1,
        }] += 1;
    }
    Ok(counts)
}

/// Opens a database like the executor's sandbox, without the restrictions that cost no time.
fn open(path: &str, ends_at: &Arc<AtomicU64>, settings: &Settings) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    if settings.is_guarded {
        connection.authorizer(Some(|context: AuthContext<'_>| match context.action {
            AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive | AuthAction::Function { .. } => {
                Authorization::Allow
            }
            _ => Authorization::Deny,
        }))?;
        let (ends_at, started) = (Arc::clone(ends_at), settings.started);
        let is_late = move || started.elapsed().as_nanos() as u64 >= ends_at.load(Ordering::Relaxed);
        connection.progress_handler(STEP_PERIOD as i32, Some(is_late))?;
    }
    Ok(connection)
}

fn fetch(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    let mut statement = connection.prepare(sql)?;
    let width = statement.column_count();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        for column in 0..width {
            black_box(row.get_ref(column)?);
        }
    }
    Ok(())
}
