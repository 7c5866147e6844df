//! The executor without Python, for `scripts/bench_executor.py`: scores the queries that `bare_loop` only runs.
//!
//! `core_loop WORKLOAD THREADS REPEATS [DEADLINE_MS]`: like `bare_loop`. Each query is compared by the rule `bird`
//! with a gold of the same text plus a comment, which prevents sharing a run. The first repeat runs the golds; later
//! ones use the cache.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, fs};

use sqlexec_core::{Config, GoldSource, Limits, Options, Pool, Rule, ScoreItem, Status};

type Problem = Box<dyn std::error::Error>;

/// Exceeds any run time.
const LONG: Duration = Duration::from_secs(3_600);

fn main() -> Result<(), Problem> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [workload, threads, repeats, rest @ ..] = arguments.as_slice() else {
        return Err("core_loop WORKLOAD THREADS REPEATS [DEADLINE_MS]".into());
    };
    let deadline = rest.first().map_or(Ok(30_000), |word| word.parse())?;
    let limits = Arc::new(Limits { timeout: Some(Duration::from_millis(deadline)), ..Limits::default() });
    let items = read_items(&fs::read_to_string(workload)?)?;
    let pool = Pool::new(&Config { threads: Some(threads.parse()?), cache_bytes: 0, ..Config::default() })?;
    for _ in 0..repeats.parse()? {
        let start_time = Instant::now();
        let job = pool.submit_score(&items, &[Rule::Bird], &limits)?;
        job.wait(LONG)?;
        let scores = job.scores()?;
        let seconds = start_time.elapsed().as_secs_f64();
        let count =
            |has_status: fn(Status) -> bool| scores.iter().filter(|score| has_status(score.pred_status)).count();
        let (ok, late) = (count(|status| status == Status::Ok), count(|status| status == Status::Timeout));
        println!("{seconds:.9} {ok} {} {late}", scores.len() - ok - late);
    }
    Ok(())
}

/// Creates an item from each line.
fn read_items(text: &str) -> Result<Vec<ScoreItem>, Problem> {
    let mut databases: HashMap<&str, Arc<[Arc<Path>]>> = HashMap::new();
    let options = Arc::new(Options::default());
    let item = |line| {
        let (path, sql) = str::split_once(line, '\t').ok_or_else(|| format!("no tab in the line {line:?}"))?;
        let database = databases.entry(path).or_insert_with(|| [Path::new(path).into()].into());
        Ok(ScoreItem {
            databases: Arc::clone(database),
            predicted: sql.into(),
            golds: [GoldSource::Sql(format!("{sql} -- gold").into())].into(),
            options: Arc::clone(&options),
        })
    };
    text.lines().map(item).collect()
}
