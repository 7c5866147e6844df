//! Measures how far runs exceed their deadline: endless queries in threads, and the whole adversarial list in
//! processes.
//!
//! `overshoot [WORKER]`: the worker program defaults to the one in the parent of this program's folder. The program
//! prints a line per mode: its name, the number of runs, the number of late ones, and the milliseconds between the
//! deadline and the outcome at the caller (median, 99th percentile, maximum; 0 for a run that ended in time). The
//! latest runs are listed on standard error.

#![allow(clippy::unwrap_used, reason = "a failed measurement has no result")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sqlexec_core::{Config, Limits, Pool, Status, WorkerConfig};

#[path = "../tests/suite/adversarial/cases.rs"]
mod cases;

/// The deadline, and the number of repeats of each list.
const TIMEOUT: Duration = Duration::from_millis(100);
const ROUNDS_IN_THREADS: usize = 8;
const ROUNDS_IN_PROCESSES: usize = 2;

/// Number of latest runs to list.
const N_NAMED: usize = 5;

/// Maximum time for a run before the program fails.
const PATIENCE: Duration = Duration::from_secs(120);

fn main() {
    let program = std::env::current_exe().unwrap();
    let sibling = program.ancestors().nth(2).unwrap().join("sqlexec-worker");
    let worker = std::env::args_os().nth(1).map_or(sibling, PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    let shop: Arc<Path> = folder.path().join("shop.sqlite").into();
    cases::make_shop(&shop);
    let endless: Vec<String> = cases::endless().into_iter().map(|(_, sql)| sql).collect();
    let lists = [
        cases::writing(),
        cases::reaching_outside(),
        cases::no_statements(),
        cases::endless(),
        cases::long_calls(),
        cases::growing(),
        cases::ordinary(),
    ];
    let listed = lists.into_iter().flatten().map(|(_, sql)| sql);
    let everything: Vec<String> = listed.chain(cases::slow_to_prepare()).collect();
    let threads = Config { threads: Some(1), cache_bytes: 0, ..Config::default() };
    let processes = Config { worker: Some(WorkerConfig::new(worker)), ..threads.clone() };
    report("threads", measure(&threads, &shop, &endless, ROUNDS_IN_THREADS));
    report("processes", measure(&processes, &shop, &everything, ROUNDS_IN_PROCESSES));
}

/// How far each run exceeded the deadline, with the number of its text, and the number of late runs.
struct Overshoots {
    beyond: Vec<(Duration, usize)>,
    n_late: usize,
}

fn measure(config: &Config, shop: &Arc<Path>, sqls: &[String], rounds: usize) -> Overshoots {
    let pool = Pool::new(config).unwrap();
    let run = |sql: String, timeout: Duration| {
        let limits = Arc::new(Limits { timeout: Some(timeout), ..Limits::default() });
        let start_time = Instant::now();
        let job = pool.submit(&[(Arc::clone(shop), sql.into())], &limits).unwrap();
        assert!(job.wait(PATIENCE).unwrap());
        (start_time.elapsed(), job.outcomes().unwrap()[0].status)
    };
    let mut measured = Overshoots { beyond: Vec::new(), n_late: 0 };
    for round in 0..rounds {
        for (number, sql) in sqls.iter().enumerate() {
            // Opening, and starting the worker if the last run killed it, does not belong to the measured run.
            run(format!("SELECT {round}, {number}"), PATIENCE);
            let (elapsed, status) = run(sql.clone(), TIMEOUT);
            measured.beyond.push((elapsed.saturating_sub(TIMEOUT), number));
            measured.n_late += usize::from(status == Status::Timeout);
        }
    }
    measured.beyond.sort_unstable();
    for (beyond, number) in measured.beyond.iter().rev().take(N_NAMED) {
        let sql: String = sqls[*number].chars().take(160).collect();
        eprintln!("{:6.2} ms beyond: {sql}", beyond.as_secs_f64() * 1e3);
    }
    measured
}

fn report(name: &str, Overshoots { beyond, n_late }: Overshoots) {
    let at = |share: f64| beyond[((beyond.len() - 1) as f64 * share).round() as usize].0.as_secs_f64() * 1e3;
    println!("{name} {} {n_late} {:.3} {:.3} {:.3}", beyond.len(), at(0.5), at(0.99), at(1.0));
}
