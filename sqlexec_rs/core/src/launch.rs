//! The launch of a job: each of its runs is found in the cache, joined where it is in flight, or queued.

use std::path::Path;
use std::sync::Arc;

use crate::cache::{Flight, Found, Handle, Key, Waiter};
use crate::dbfile::{FileIdentity, Inode};
use crate::error::Fault;
use crate::groups::Groups;
use crate::job::{JobState, Work};
use crate::outcome::Outcome;
use crate::plan::{Plan, PlannedRun};
use crate::pool::{Job, Shared};
use crate::queue::Task;
use crate::request::Limits;

/// Runs that are looked up and queued at once: threads begin with the first while the next are looked up.
const PORTION: usize = 256;

/// What is the same for all runs of a job.
struct Launch<'a> {
    state: &'a Arc<JobState>,
    limits: &'a Arc<Limits>,
    limits_number: u32,
    databases: Vec<Database>,
    is_score: bool,
}

struct Database {
    path: Arc<Path>,
    /// The number of the file's state, and which file it is; or why it is none.
    file: Result<(u32, Inode), Arc<Outcome>>,
}

impl Shared {
    /// Launches a job; while the queue has no room `keep_waiting` is asked whether to go on.
    pub(crate) fn launch(
        self: &Arc<Self>,
        plan: Plan,
        limits: &Arc<Limits>,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Result<Job, Fault> {
        let Plan { databases, runs, work, n_pairs } = plan;
        // Room first: a run that others could join before it is queued would leave them waiting if this call gave up.
        let ticket = self.queue.reserve(runs.len(), keep_waiting)?;
        self.stats.requested(n_pairs as u64);
        self.stats.deduplicated((n_pairs - runs.len()) as u64);
        let is_score = matches!(work, Work::Score(_));
        let identities: Vec<_> = databases.iter().map(|path| FileIdentity::of(path)).collect();
        let state = Arc::new(JobState::new(runs.len(), work, Arc::clone(&self.stats)));
        let (databases, limits_number) = self.number(databases, identities, limits);
        let launch = Launch { state: &state, limits, limits_number, databases, is_score };
        let mut flights = Vec::with_capacity(runs.len());
        // By database, so that a thread stays with a connection and what it holds.
        let order = Groups::new(launch.databases.len(), runs.iter().map(|run| run.database).zip(0..));
        let is_open = order.all().chunks(PORTION).all(|portion| {
            let tasks = self.request(&launch, &runs, portion, &mut flights);
            self.queue.add(ticket, tasks.into_iter(), portion.len())
        });
        state.set_flights(flights);
        let job = Job { state, shared: Arc::clone(self) };
        if is_open {
            Ok(job)
        } else {
            job.cancel()?;
            Err(Fault::Closed)
        }
    }

    fn number(
        &self,
        paths: Vec<Arc<Path>>,
        identities: Vec<Result<FileIdentity, Box<Outcome>>>,
        limits: &Arc<Limits>,
    ) -> (Vec<Database>, u32) {
        let mut cache = self.cache();
        let number = |(path, identity): (_, Result<FileIdentity, Box<Outcome>>)| {
            let file = match identity {
                Ok(identity) => Ok((cache.number_database(&identity), identity.inode())),
                Err(outcome) => Err(Arc::from(outcome)),
            };
            Database { path, file }
        };
        let databases = paths.into_iter().zip(identities).map(number).collect();
        (databases, cache.number_limits(limits))
    }

    /// Finds, joins or starts some of a job's runs; returns what is to be queued.
    fn request(
        &self,
        launch: &Launch<'_>,
        runs: &[PlannedRun],
        portion: &[u32],
        flights: &mut Vec<Arc<Flight>>,
    ) -> Vec<Task> {
        let handle = Arc::new(Handle(Arc::clone(launch.state)));
        let mut tasks = Vec::with_capacity(portion.len());
        let mut here = Vec::new();
        let mut cache = self.cache();
        let keeps_candidates = cache.keeps_candidates();
        for slot in portion {
            let run = &runs[*slot as usize];
            let database = &launch.databases[run.database as usize];
            let (db, inode) = match &database.file {
                Ok(numbers) => *numbers,
                Err(outcome) => {
                    here.push((*slot, Arc::clone(outcome)));
                    continue;
                }
            };
            let key = Key { db, limits: launch.limits_number, sql: run.sql.clone() };
            let waiter = Waiter { job: Arc::clone(&handle), slot: *slot };
            let make_flight = |key| Flight {
                key,
                path: Arc::clone(&database.path),
                inode,
                limits: Arc::clone(launch.limits),
                cancel: Arc::default(),
                is_for_cache: run.is_gold || keeps_candidates,
            };
            match cache.request(key, run.is_gold, waiter, make_flight) {
                Found::Kept(outcome) => {
                    self.stats.hit(run.is_gold);
                    here.push((*slot, outcome));
                }
                Found::Joined(flight) => {
                    self.stats.joined();
                    flights.push(flight);
                }
                Found::New(flight) => {
                    flights.push(Arc::clone(&flight));
                    tasks.push(Task::Run(flight));
                }
            }
        }
        drop(cache);
        for (slot, outcome) in here {
            if launch.is_score && launch.state.would_compare(slot) {
                tasks.push(Task::Deliver(Arc::clone(launch.state), slot, outcome));
            } else {
                launch.state.deliver(slot, Ok(outcome));
            }
        }
        tasks
    }
}
