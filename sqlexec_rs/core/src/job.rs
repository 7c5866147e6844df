//! A batch in flight: its distinct runs (slots), what is made of them (units), and who waits.
//!
//! Equal (database, SQL) pairs share a slot, and equal score items share a unit, so a group of samples that gave one answer
//! costs one run and one comparison. The thread that delivers a unit's last outcome does the comparison.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::arrivals::Arrivals;
use crate::cache::Key;
use crate::compare::{Options, Rule};
use crate::error::Fault;
use crate::outcome::Outcome;
use crate::score::{ReadyGold, Score, score};
use crate::stats::Stats;
use crate::table::Table;

type Delivered = Result<Arc<Outcome>, Fault>;

/// What the threads share of a job.
#[derive(Debug)]
pub(crate) struct JobState {
    slots: Vec<Slot>,
    work: Work,
    keys: OnceLock<Vec<Key>>,
    /// The units that have ended: scores of a score job, slots of an execute job.
    pub(crate) arrivals: Arrivals,
    stats: Arc<Stats>,
}

#[derive(Debug)]
struct Slot {
    content: Mutex<Content>,
    units: Vec<u32>,
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
    Score { units: Vec<Unit>, unit_of: Vec<u32>, rules: Vec<Rule> },
}

/// One distinct score item.
#[derive(Debug)]
pub(crate) struct Unit {
    pub(crate) predicted: Vec<u32>,
    pub(crate) golds: Vec<PlannedGold>,
    pub(crate) options: Arc<Options>,
    waiting: AtomicU32,
    score: OnceLock<Result<Score, Fault>>,
}

/// A gold of a unit: slots to come, or a table that is here.
#[derive(Debug)]
pub(crate) enum PlannedGold {
    Slots(Vec<u32>, Arc<str>),
    Table(Arc<Table>),
}

impl Unit {
    pub(crate) fn new(predicted: Vec<u32>, golds: Vec<PlannedGold>, options: Arc<Options>) -> Self {
        Self { predicted, golds, options, waiting: AtomicU32::new(0), score: OnceLock::new() }
    }

    /// Returns the slots that the unit needs, each once.
    fn needs(&self) -> Vec<u32> {
        let mut slots = self.predicted.clone();
        for gold in &self.golds {
            if let PlannedGold::Slots(more, _) = gold {
                slots.extend(more);
            }
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}

impl JobState {
    /// Makes the state of a job with `n_slots` distinct runs.
    pub(crate) fn new(n_slots: usize, mut work: Work, stats: Arc<Stats>) -> Self {
        let mut units_of: Vec<Vec<u32>> = vec![Vec::new(); n_slots];
        let n_units = match &mut work {
            Work::Execute { .. } => n_slots,
            Work::Score { units, .. } => {
                for (number, unit) in units.iter_mut().enumerate() {
                    let needs = unit.needs();
                    *unit.waiting.get_mut() = needs.len() as u32;
                    for slot in needs {
                        units_of[slot as usize].push(number as u32);
                    }
                }
                units.len()
            }
        };
        let slots = units_of.into_iter().map(|units| Slot {
            content: Mutex::new(Content::Awaited),
            readers: AtomicU32::new(units.len() as u32),
            units,
        });
        let job = Self { slots: slots.collect(), work, keys: OnceLock::new(), arrivals: Arrivals::new(n_units), stats };
        job.finish_units_without_needs();
        job
    }

    fn finish_units_without_needs(&self) {
        if let Work::Score { units, rules, .. } = &self.work {
            for (number, unit) in (0..).zip(units) {
                if unit.waiting.load(Ordering::Relaxed) == 0 {
                    self.finish_unit(number, unit, rules);
                }
            }
        }
    }

    /// Remembers which flights to abandon on cancellation.
    pub(crate) fn set_keys(&self, keys: Vec<Key>) {
        let _ = self.keys.set(keys); // set once, right after the job was made
    }

    /// Returns the keys of the job's flights.
    pub(crate) fn keys(&self) -> &[Key] {
        self.keys.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of slots.
    pub(crate) fn n_slots(&self) -> usize {
        self.slots.len()
    }

    /// Fills a slot, once; a second delivery (a cancellation after a result, or the reverse) changes nothing.
    pub(crate) fn deliver(&self, number: u32, outcome: Delivered) {
        let slot = &self.slots[number as usize];
        {
            let mut content = lock(&slot.content);
            if !matches!(*content, Content::Awaited) {
                return;
            }
            *content = Content::Here(outcome);
        }
        match &self.work {
            Work::Execute { .. } => self.arrivals.arrive(number),
            Work::Score { units, rules, .. } => {
                for number in &slot.units {
                    let unit = &units[*number as usize];
                    if unit.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
                        self.finish_unit(*number, unit, rules);
                    }
                }
            }
        }
    }

    fn finish_unit(&self, number: u32, unit: &Unit, rules: &[Rule]) {
        let result = catch_unwind(AssertUnwindSafe(|| self.score_unit(unit, rules)))
            .unwrap_or_else(|panic| Err(Fault::of_panic(panic.as_ref())));
        let _ = unit.score.set(result); // only the last delivery comes here
        self.stats.compared();
        for slot in unit.needs() {
            let slot = &self.slots[slot as usize];
            if slot.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
                *lock(&slot.content) = Content::Released;
            }
        }
        self.arrivals.arrive(number);
    }

    fn score_unit(&self, unit: &Unit, rules: &[Rule]) -> Result<Score, Fault> {
        let predicted = self.outcomes_at(&unit.predicted)?;
        let golds = unit.golds.iter().map(|gold| match gold {
            PlannedGold::Slots(slots, sql) => {
                Ok(ReadyGold::Outcomes { outcomes: self.outcomes_at(slots)?, sql: Arc::clone(sql) })
            }
            PlannedGold::Table(table) => Ok(ReadyGold::Table(Arc::clone(table))),
        });
        Ok(score(&predicted, &golds.collect::<Result<Vec<_>, Fault>>()?, rules, &unit.options))
    }

    fn outcomes_at(&self, slots: &[u32]) -> Result<Vec<Arc<Outcome>>, Fault> {
        slots.iter().map(|slot| self.outcome_at(*slot)).collect()
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
            Work::Score { unit_of, .. } => unit_of,
        }
    }

    /// Returns the outcome of one item of an execute job, once its slot is here.
    pub(crate) fn outcome(&self, item: usize) -> Delivered {
        match &self.work {
            Work::Execute { slot_of } => self.outcome_at(slot_of[item]),
            Work::Score { .. } => Err(Fault::Internal("a score job has scores, not outcomes")),
        }
    }

    /// Returns the score of one item of a score job, once its unit is here.
    pub(crate) fn score(&self, item: usize) -> Result<&Score, Fault> {
        let Work::Score { units, unit_of, .. } = &self.work else {
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
