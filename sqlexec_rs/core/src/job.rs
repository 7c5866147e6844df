//! A batch in flight: its distinct runs (slots), what is made of them (units), and who waits.
//!
//! Equal (database, SQL) pairs share a slot, and equal score items share a unit, so a group of samples that gave one answer
//! costs one run and one comparison. The thread that delivers a unit's last outcome does the comparison.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::arrivals::Arrivals;
use crate::cache::Flight;
use crate::compare::{Options, Rule};
use crate::error::Fault;
use crate::groups::Groups;
use crate::outcome::Outcome;
use crate::score::{GoldSource, ReadyGold, Score, ScoreItem, score};
use crate::stats::Stats;

type Delivered = Result<Arc<Outcome>, Fault>;

/// What the threads share of a job.
#[derive(Debug)]
pub(crate) struct JobState {
    slots: Vec<Slot>,
    /// The units that need a slot, as often as they do.
    units_of: Groups,
    work: Work,
    flights: OnceLock<Vec<Arc<Flight>>>,
    /// The units that have ended: scores of a score job, slots of an execute job.
    pub(crate) arrivals: Arrivals,
    stats: Arc<Stats>,
}

#[derive(Debug)]
struct Slot {
    content: Mutex<Content>,
    /// Units that have still to read it, as often as they need it.
    readers: AtomicU32,
}

#[derive(Debug)]
enum Content {
    Awaited,
    Here(Delivered),
    /// Every unit that needed it is done, so the rows are given back.
    Released,
}

/// What is made of the outcomes.
#[derive(Debug)]
pub(crate) enum Work {
    /// Outcomes, by item.
    Execute { slot_of: Vec<u32> },
    /// Scores, by item.
    Score(Scores),
}

/// The comparisons of a score job.
#[derive(Debug)]
pub(crate) struct Scores {
    pub(crate) units: Vec<Unit>,
    /// The slots that units need, end to end.
    pub(crate) needs: Vec<u32>,
    pub(crate) unit_of: Vec<u32>,
    pub(crate) rules: Vec<Rule>,
}

/// One distinct score item.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Where its slots are in `needs`: the prediction's, one a database, and then those of each gold that is SQL.
    needs: Range<u32>,
    n_databases: u32,
    golds: Arc<[GoldSource]>,
    options: Arc<Options>,
    /// Slots that are not here.
    waiting: AtomicU32,
    score: OnceLock<Result<Score, Fault>>,
}

impl Unit {
    pub(crate) fn new(item: &ScoreItem, needs: Range<u32>) -> Self {
        Self {
            waiting: AtomicU32::new(needs.len() as u32),
            needs,
            n_databases: item.databases.len() as u32,
            golds: Arc::clone(&item.golds),
            options: Arc::clone(&item.options),
            score: OnceLock::new(),
        }
    }
}

impl Scores {
    fn needs(&self, unit: &Unit) -> &[u32] {
        &self.needs[unit.needs.start as usize..unit.needs.end as usize]
    }
}

impl JobState {
    /// Makes the state of a job with `n_slots` distinct runs.
    pub(crate) fn new(n_slots: usize, work: Work, stats: Arc<Stats>) -> Self {
        let (n_units, units_of) = match &work {
            Work::Execute { .. } => (n_slots, Groups::new(n_slots, std::iter::empty())),
            Work::Score(scores) => {
                let needs = (0..)
                    .zip(&scores.units)
                    .flat_map(|(number, unit)| scores.needs(unit).iter().map(move |slot| (*slot, number)));
                (scores.units.len(), Groups::new(n_slots, needs))
            }
        };
        let slots = (0..n_slots).map(|slot| Slot {
            content: Mutex::new(Content::Awaited),
            readers: AtomicU32::new(units_of.of(slot).len() as u32),
        });
        let slots = slots.collect();
        let job = Self { slots, units_of, work, flights: OnceLock::new(), arrivals: Arrivals::new(n_units), stats };
        job.finish_units_without_needs();
        job
    }

    fn finish_units_without_needs(&self) {
        if let Work::Score(scores) = &self.work {
            for (number, unit) in (0..).zip(&scores.units) {
                if unit.needs.is_empty() {
                    self.finish_unit(number, scores);
                }
            }
        }
    }

    /// Remembers which flights to abandon on cancellation.
    pub(crate) fn set_flights(&self, flights: Vec<Arc<Flight>>) {
        let _ = self.flights.set(flights); // set once, right after the job was made
    }

    /// Returns the job's flights.
    pub(crate) fn flights(&self) -> &[Arc<Flight>] {
        self.flights.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of slots.
    pub(crate) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Tells whether a delivery to the slot would be the last that a comparison waits for.
    pub(crate) fn would_compare(&self, slot: u32) -> bool {
        let Work::Score(scores) = &self.work else { return false };
        let mut by_unit = self.units_of.of(slot as usize).chunk_by(|a, b| a == b);
        by_unit.any(|same| scores.units[same[0] as usize].waiting.load(Ordering::Acquire) as usize <= same.len())
    }

    /// Fills a slot, once; a second delivery (a cancellation after a result, or the reverse) changes nothing.
    pub(crate) fn deliver(&self, number: u32, outcome: Delivered) {
        {
            let mut content = lock(&self.slots[number as usize].content);
            if !matches!(*content, Content::Awaited) {
                return;
            }
            *content = Content::Here(outcome);
        }
        match &self.work {
            Work::Execute { .. } => self.arrivals.arrive(number),
            Work::Score(scores) => {
                for unit in self.units_of.of(number as usize) {
                    if scores.units[*unit as usize].waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
                        self.finish_unit(*unit, scores);
                    }
                }
            }
        }
    }

    fn finish_unit(&self, number: u32, scores: &Scores) {
        let unit = &scores.units[number as usize];
        let needs = scores.needs(unit);
        let result = catch_unwind(AssertUnwindSafe(|| self.score_unit(unit, needs, &scores.rules)))
            .unwrap_or_else(|panic| Err(Fault::of_panic(panic.as_ref())));
        let _ = unit.score.set(result); // only the last delivery comes here
        self.stats.compared();
        for slot in needs {
            let slot = &self.slots[*slot as usize];
            if slot.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
                *lock(&slot.content) = Content::Released;
            }
        }
        self.arrivals.arrive(number);
    }

    fn score_unit(&self, unit: &Unit, needs: &[u32], rules: &[Rule]) -> Result<Score, Fault> {
        let outcomes = needs.iter().map(|slot| self.outcome_at(*slot)).collect::<Result<Vec<_>, Fault>>()?;
        let n_databases = unit.n_databases as usize;
        let (predicted, mut of_golds) = outcomes.split_at(n_databases);
        let golds = unit.golds.iter().map(move |gold| match gold {
            GoldSource::Sql(sql) => {
                let (outcomes, others) = of_golds.split_at(n_databases);
                of_golds = others;
                ReadyGold::Outcomes { outcomes, sql }
            }
            GoldSource::Table(table) => ReadyGold::Table(table),
        });
        Ok(score(predicted, &golds, rules, &unit.options))
    }

    fn outcome_at(&self, slot: u32) -> Delivered {
        match &*lock(&self.slots[slot as usize].content) {
            Content::Here(delivered) => delivered.clone(),
            Content::Awaited | Content::Released => Err(Fault::Internal("an outcome was read before it came")),
        }
    }

    /// Returns the unit of each item.
    pub(crate) fn unit_of(&self) -> &[u32] {
        match &self.work {
            Work::Execute { slot_of } => slot_of,
            Work::Score(scores) => &scores.unit_of,
        }
    }

    /// Returns the outcome of one item of an execute job, once its slot is here.
    pub(crate) fn outcome(&self, item: usize) -> Delivered {
        match &self.work {
            Work::Execute { slot_of } => self.outcome_at(slot_of[item]),
            Work::Score(_) => Err(Fault::Internal("a score job has scores, not outcomes")),
        }
    }

    /// Returns the score of one item of a score job, once its unit is here.
    pub(crate) fn score(&self, item: usize) -> Result<&Score, Fault> {
        let Work::Score(Scores { units, unit_of, .. }) = &self.work else {
            return Err(Fault::Internal("an execute job has outcomes, not scores"));
        };
        match units[unit_of[item] as usize].score.get() {
            Some(Ok(score)) => Ok(score),
            Some(Err(fault)) => Err(fault.clone()),
            None => Err(Fault::Internal("a score was read before it came")),
        }
    }

    /// Returns the number of items.
    pub(crate) fn n_items(&self) -> usize {
        self.unit_of().len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
