//! Finished and in-flight runs: a table from (database file identity, SQL, limits) to an outcome or a query in
//! flight.
//!
//! A request finds a cached outcome, joins the run in flight, or starts a run. So equal requests run once, within a
//! batch and across batches. Outcomes of gold queries are cached for the executor's lifetime; others are evicted by
//! least recent use under a byte budget. Timeouts and database errors are never cached.

use std::collections::{HashMap, HashSet, hash_map};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hashbrown::hash_map::{Entry as MapEntry, EntryRef};

use crate::outcome::Outcome;
use crate::pool::job::JobState;
use crate::request::{InFlightQuery, Limits, RunKey};
use crate::sqlite::dbfile::FileIdentity;
use crate::sqlite::inode::Inode;

/// Used by the table to create an owned key only when it inserts one.
impl From<&RunKey> for RunKey {
    fn from(key: &RunKey) -> Self {
        key.clone()
    }
}

/// A slot of a job that waits for a query.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) job: Arc<JobHandle>,
    pub(crate) slot: u32,
}

/// A job, shared by some of its waiters. Threads that all counted references to the job itself would contend.
#[derive(Debug)]
pub(crate) struct JobHandle(pub(crate) Arc<JobState>);

/// The result of a lookup.
pub(crate) enum Lookup {
    /// A cached outcome, and whether it was requested as a gold.
    Cached(Arc<Outcome>),
    /// A query in flight that the waiter has joined.
    Joined(Arc<InFlightQuery>),
    /// A new query, to be queued.
    New(Arc<InFlightQuery>),
}

enum Entry {
    InFlight { query: Arc<InFlightQuery>, waiters: Waiters, is_gold: bool },
    Done { outcome: Arc<Outcome>, is_gold: bool, last_used: u64 },
}

/// The waiters of a query; rarely more than one.
#[derive(Default)]
pub(crate) struct Waiters {
    first: Option<Waiter>,
    others: Vec<Waiter>,
}

/// The table. The owner locks it.
pub(crate) struct Cache {
    entries: hashbrown::HashMap<RunKey, Entry, foldhash::fast::RandomState>,
    /// The current state of each file, and its number.
    databases: HashMap<Inode, (FileIdentity, u32)>,
    /// State numbers of server databases that are guaranteed not to change.
    servers: HashMap<Arc<Path>, u32>,
    n_states: u32,
    /// Numbers of outdated states whose outcomes may still be cached.
    old_states: HashSet<u32>,
    /// The number of each set of limits, and the time of its last use.
    limits: HashMap<Arc<Limits>, (u32, u64)>,
    limits_clock: u64,
    /// The number of the next set of limits; never reused.
    next_limits: u32,
    /// Bytes that were cached when outcomes of outdated states were last dropped.
    bytes_then: usize,
    budget: usize,
    bytes: usize,
    gold_bytes: usize,
    clock: u64,
}

/// Maximum number of outdated states before their outcomes are dropped, which visits every entry.
const MAX_OLD_STATES: usize = 32;

/// Maximum growth of the cache in bytes before they are dropped too.
const MAX_OLD_BYTES: usize = 16 << 20;

/// Maximum number of sets of limits before unused ones are dropped with their outcomes.
const MAX_LIMITS: usize = 256;

/// Bytes of an entry in addition to its table and text.
const ENTRY_BYTES: usize = 400;

impl Waiters {
    fn push(&mut self, waiter: Waiter) {
        self.others.push(waiter);
    }

    /// Removes the waiters of a job; returns false if no waiter is left.
    fn remove(&mut self, job: &Arc<JobState>) -> bool {
        let is_other = |waiter: &Waiter| !Arc::ptr_eq(&waiter.job.0, job);
        self.first = self.first.take().filter(is_other);
        self.others.retain(is_other);
        self.first.is_some() || !self.others.is_empty()
    }
}

impl IntoIterator for Waiters {
    type Item = Waiter;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Waiter>, std::vec::IntoIter<Waiter>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

impl Cache {
    /// Creates an empty cache; `budget` is in bytes, for outcomes other than golds'.
    pub(crate) fn new(budget: usize) -> Self {
        Self {
            entries: hashbrown::HashMap::default(),
            databases: HashMap::new(),
            servers: HashMap::new(),
            n_states: 0,
            old_states: HashSet::new(),
            limits: HashMap::new(),
            limits_clock: 0,
            next_limits: 0,
            bytes_then: 0,
            budget,
            bytes: 0,
            gold_bytes: 0,
            clock: 0,
        }
    }

    /// Returns the number of a file's state. A changed file gets a new number, so its old outcomes, including golds',
    /// are never found again and are eventually dropped.
    pub(crate) fn number_database(&mut self, identity: FileIdentity) -> u32 {
        let next = self.n_states;
        match self.databases.entry(identity.inode()) {
            hash_map::Entry::Occupied(known) if known.get().0 == identity => return known.get().1,
            hash_map::Entry::Occupied(mut known) => {
                let (_, old) = known.insert((identity, next));
                self.old_states.insert(old);
            }
            hash_map::Entry::Vacant(vacant) => {
                vacant.insert((identity, next));
            }
        }
        self.n_states += 1;
        if self.old_states.len() >= MAX_OLD_STATES {
            self.drop_old();
        }
        next
    }

    /// Returns the state number of a database that cannot be examined: constant if it is guaranteed not to change,
    /// otherwise new for each call.
    pub(crate) fn number_server(&mut self, name: &Arc<Path>, is_unchanging: bool) -> u32 {
        let next = self.n_states;
        if is_unchanging && let Some(known) = self.servers.get(name) {
            return *known;
        }
        if is_unchanging {
            self.servers.insert(Arc::clone(name), next);
        }
        self.n_states += 1;
        next
    }

    /// Drops the outcomes of outdated states. Outcomes in flight are cached when they finish, and dropped the next
    /// time.
    fn drop_old(&mut self) {
        let old = std::mem::take(&mut self.old_states);
        self.old_states = self.drop_done(|key| old.contains(&key.db)).iter().map(|key| key.db).collect();
        self.bytes_then = self.bytes + self.gold_bytes;
    }

    /// Drops the outcomes that satisfy `is_such`, and returns the keys of such queries in flight.
    fn drop_done(&mut self, is_such: impl Fn(&RunKey) -> bool) -> Vec<RunKey> {
        let (mut freed, mut freed_of_golds) = (0, 0);
        let mut in_flight = Vec::new();
        self.entries.retain(|key, entry| match entry {
            _ if !is_such(key) => true,
            Entry::InFlight { .. } => {
                in_flight.push(key.clone());
                true
            }
            Entry::Done { outcome, is_gold, .. } => {
                *(if *is_gold { &mut freed_of_golds } else { &mut freed }) += entry_bytes(key, outcome);
                false
            }
        });
        self.bytes -= freed;
        self.gold_bytes -= freed_of_golds;
        in_flight
    }

    /// Returns the number of a set of limits.
    pub(crate) fn number_limits(&mut self, limits: &Arc<Limits>) -> u32 {
        self.limits_clock += 1;
        if let Some((number, last_used)) = self.limits.get_mut(limits) {
            *last_used = self.limits_clock;
            return *number;
        }
        if self.limits.len() >= MAX_LIMITS {
            self.forget_limits();
        }
        let number = self.next_limits;
        self.next_limits += 1;
        self.limits.insert(Arc::clone(limits), (number, self.limits_clock));
        number
    }

    /// Drops the limits that nobody holds and that were not used recently, with their outcomes.
    fn forget_limits(&mut self) {
        let since = self.limits_clock.saturating_sub(MAX_LIMITS as u64 / 2);
        self.limits.retain(|limits, (_, last_used)| Arc::strong_count(limits) > 1 || *last_used > since);
        let known: HashSet<u32> = self.limits.values().map(|(number, _)| *number).collect();
        self.drop_done(|key| !known.contains(&key.limits));
    }

    /// Finds the outcome of `key`, joins its query, or starts one with `make_query`.
    pub(crate) fn request(
        &mut self,
        key: RunKey,
        is_gold: bool,
        waiter: Waiter,
        make_query: impl FnOnce(RunKey) -> InFlightQuery,
    ) -> Lookup {
        self.clock += 1;
        let mut map_entry = match self.entries.entry(key) {
            MapEntry::Occupied(map_entry) => map_entry,
            MapEntry::Vacant(map_entry) => {
                let query = Arc::new(make_query(map_entry.key().clone()));
                let waiters = Waiters { first: Some(waiter), others: Vec::new() };
                map_entry.insert(Entry::InFlight { query: Arc::clone(&query), waiters, is_gold });
                return Lookup::New(query);
            }
        };
        let (lookup, was_gold) = match map_entry.get_mut() {
            Entry::Done { outcome, is_gold, last_used } => {
                *last_used = self.clock;
                (Lookup::Cached(Arc::clone(outcome)), *is_gold)
            }
            Entry::InFlight { query, waiters, is_gold } => {
                waiters.push(waiter);
                (Lookup::Joined(Arc::clone(query)), *is_gold)
            }
        };
        if is_gold && !was_gold {
            let key = map_entry.key().clone();
            self.mark_gold(&key);
        }
        lookup
    }

    /// Exempts an outcome from eviction, if it is cached or in flight.
    pub(crate) fn mark_gold(&mut self, key: &RunKey) {
        match self.entries.get_mut(key) {
            Some(Entry::Done { outcome, is_gold, .. }) if !*is_gold => {
                *is_gold = true;
                let size = entry_bytes(key, outcome);
                self.bytes -= size;
                self.gold_bytes += size;
            }
            Some(Entry::InFlight { is_gold, .. }) => *is_gold = true,
            _ => {}
        }
    }

    /// Finishes a query: caches its outcome if possible, and returns its waiters.
    pub(crate) fn complete(&mut self, query: &Arc<InFlightQuery>, outcome: Option<&Arc<Outcome>>) -> Waiters {
        let size = outcome.filter(|outcome| outcome.is_repeatable()).map(|outcome| entry_bytes(&query.key, outcome));
        let EntryRef::Occupied(mut entry) = self.entries.entry_ref(&query.key) else {
            return Waiters::default(); // every waiter cancelled
        };
        let Entry::InFlight { query: in_flight, waiters, is_gold } = entry.get_mut() else { return Waiters::default() };
        if !Arc::ptr_eq(in_flight, query) {
            return Waiters::default(); // every waiter cancelled, and another query started since
        }
        let (waiters, is_gold) = (std::mem::take(waiters), *is_gold);
        // A single huge result of a candidate would evict everything else.
        match (outcome, size.filter(|size| is_gold || *size <= self.budget / 4)) {
            (Some(outcome), Some(size)) => {
                self.clock += 1;
                entry.insert(Entry::Done { outcome: Arc::clone(outcome), is_gold, last_used: self.clock });
                *(if is_gold { &mut self.gold_bytes } else { &mut self.bytes }) += size;
                if !self.old_states.is_empty() && self.bytes + self.gold_bytes > self.bytes_then + MAX_OLD_BYTES {
                    self.drop_old();
                }
                if self.bytes > self.budget {
                    self.evict();
                }
            }
            _ => {
                entry.remove();
            }
        }
        waiters
    }

    /// Removes a job's waiters from the given queries. A query without waiters is cancelled.
    pub(crate) fn abandon(&mut self, job: &Arc<JobState>, queries: &[Arc<InFlightQuery>]) {
        for InFlightQuery { key, .. } in queries.iter().map(Arc::as_ref) {
            let Some(Entry::InFlight { query, waiters, .. }) = self.entries.get_mut(key) else { continue };
            if !waiters.remove(job) {
                query.cancel.store(true, Ordering::Relaxed);
                self.entries.remove(key);
            }
        }
    }

    /// Cancels every query and returns the waiters.
    pub(crate) fn cancel_all(&mut self) -> Vec<Waiter> {
        let mut all = Vec::new();
        self.entries.retain(|_, entry| match entry {
            Entry::Done { .. } => true,
            Entry::InFlight { query, waiters, .. } => {
                query.cancel.store(true, Ordering::Relaxed);
                all.extend(std::mem::take(waiters));
                false
            }
        });
        all
    }

    /// Returns whether outcomes other than golds' are cached.
    pub(crate) fn keeps_candidates(&self) -> bool {
        self.budget > 0
    }

    /// Returns the cached bytes of candidates and of golds.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.bytes, self.gold_bytes)
    }

    /// Drops the least recently used candidates until a quarter of the budget is free, so that eviction is rare.
    fn evict(&mut self) {
        let mut ages: Vec<(u64, usize)> =
            self.candidates().map(|(key, outcome, used)| (used, entry_bytes(key, outcome))).collect();
        ages.sort_unstable();
        let mut excess = self.bytes.saturating_sub(self.budget / 4 * 3);
        let mut newest_dropped = 0;
        for (last_used, size) in ages {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(size);
            newest_dropped = last_used;
        }
        let mut freed = 0;
        self.entries.retain(|key, entry| match entry {
            Entry::Done { outcome, is_gold: false, last_used } if *last_used <= newest_dropped => {
                freed += entry_bytes(key, outcome);
                false
            }
            _ => true,
        });
        self.bytes -= freed;
    }

    fn candidates(&self) -> impl Iterator<Item = (&RunKey, &Outcome, u64)> {
        self.entries.iter().filter_map(|(key, entry)| match entry {
            Entry::Done { outcome, is_gold: false, last_used } => Some((key, outcome.as_ref(), *last_used)),
            _ => None,
        })
    }
}

fn entry_bytes(key: &RunKey, outcome: &Outcome) -> usize {
    ENTRY_BYTES + key.sql.text.len() + outcome.table.as_ref().map_or(0, |table| table.bytes())
}
