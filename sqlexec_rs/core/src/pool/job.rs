//! A batch in flight: its distinct runs (slots), its results (units), and its waiters.
//!
//! Equal (database, SQL) pairs share a slot, and equal score items share a unit. So a group of samples with the same
//! answer costs one run and one comparison. The thread that delivers a unit's last outcome does the comparison.
//!
//! Runs start while the rest of the batch is still being planned. So a slot is filled as soon as its outcome arrives,
//! and counted for its units once these are known.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use crate::budget::ComparisonBounds;
use crate::compare::score::{GoldSource, ReadyGold, Score, ScoreItem, score};
use crate::compare::{Options, Rule};
use crate::error::PoolError;
use crate::locks::lock;
use crate::outcome::Outcome;
use crate::pool::completion_log::CompletionLog;
use crate::pool::csr_groups::CsrGroups;
use crate::request::{InFlightQuery, Limits};
use crate::stats::Stats;

type Delivery = Result<Arc<Outcome>, PoolError>;

/// The part of a job that is shared between threads.
#[derive(Debug)]
pub(crate) struct JobState {
    /// At least as many slots as there are distinct runs.
    slots: Vec<RunSlot>,
    planned: OnceLock<PlannedJob>,
    queries: OnceLock<Vec<Arc<InFlightQuery>>>,
    control: ComparisonControl,
    /// The finished units: scores of a score job, slots of an execute job.
    pub(crate) completions: CompletionLog,
    stats: Arc<Stats>,
}

/// The bounds and cancellation flags of comparisons.
#[derive(Debug, Default)]
pub(crate) struct ComparisonControl {
    pub(crate) limits: Arc<Limits>,
    pub(crate) is_cancelled: Arc<AtomicBool>,
    /// Whether the pool is closed.
    pub(crate) is_closed: Arc<AtomicBool>,
}

impl ComparisonControl {
    /// Returns the bounds of comparisons that start now.
    fn bounds(&self) -> ComparisonBounds {
        ComparisonBounds {
            steps: self.limits.compare_steps,
            deadline: self.limits.timeout.and_then(|timeout| Instant::now().checked_add(timeout)),
            cancels: [Arc::clone(&self.is_cancelled), Arc::clone(&self.is_closed)],
        }
    }
}

/// The part of a job that is set once every item has been planned.
#[derive(Debug)]
struct PlannedJob {
    n_slots: usize,
    /// The units that need each slot, with repetitions.
    units_of: CsrGroups,
    work: JobKind,
}

#[derive(Debug)]
struct RunSlot {
    content: Mutex<SlotContent>,
    /// Number of pending reads by units.
    readers: AtomicU32,
}

#[derive(Debug)]
enum SlotContent {
    Pending,
    /// The outcome arrived before the plan was complete, so it is not counted for its units yet.
    Early(Delivery),
    Ready(Delivery),
    /// Every unit that needed it is finished, so the rows have been released.
    Released,
}

/// How a job's results are made from outcomes.
#[derive(Debug)]
pub(crate) enum JobKind {
    /// Outcomes; the slot of each item.
    Execute { slot_of: Vec<u32> },
    /// Scores; one per item.
    Score(Scores),
}

/// The comparisons of a score job.
#[derive(Debug)]
pub(crate) struct Scores {
    pub(crate) units: Vec<Comparison>,
    /// The slots that units need, concatenated.
    pub(crate) needs: Vec<u32>,
    pub(crate) unit_of: Vec<u32>,
    pub(crate) rules: Vec<Rule>,
}

/// A distinct score item.
#[derive(Debug)]
pub(crate) struct Comparison {
    /// Range of its slots in `needs`: one per database for the prediction, then those of each gold that is SQL.
    needs: Range<u32>,
    n_databases: u32,
    predicted: Arc<str>,
    golds: Arc<[GoldSource]>,
    options: Arc<Options>,
    /// Number of slots that have not arrived.
    waiting: AtomicU32,
    score: OnceLock<Result<Score, PoolError>>,
}

impl Comparison {
    pub(crate) fn new(item: ScoreItem, needs: Range<u32>) -> Self {
        Self {
            waiting: AtomicU32::new(needs.len() as u32),
            needs,
            n_databases: item.databases.len() as u32,
            predicted: item.predicted,
            golds: item.golds,
            options: item.options,
            score: OnceLock::new(),
        }
    }

    /// Returns the range of its slots in `needs`.
    pub(crate) fn needs_at(&self) -> Range<usize> {
        self.needs.start as usize..self.needs.end as usize
    }

    /// Returns whether an item has this unit's golds and options.
    pub(crate) fn is_for(&self, item: &ScoreItem) -> bool {
        let is_same = |pair: (&GoldSource, &GoldSource)| match pair {
            (GoldSource::Sql(a), GoldSource::Sql(b)) => a == b,
            (GoldSource::Table(a), GoldSource::Table(b)) => Arc::ptr_eq(a, b),
            _ => false,
        };
        let golds = (&self.golds, &item.golds);
        (Arc::ptr_eq(golds.0, golds.1)
            || (golds.0.len() == golds.1.len() && golds.0.iter().zip(golds.1.iter()).all(is_same)))
            && self.n_databases as usize == item.databases.len()
            && (Arc::ptr_eq(&self.options, &item.options) || self.options == item.options)
    }
}

impl Scores {
    fn needs(&self, unit: &Comparison) -> &[u32] {
        &self.needs[unit.needs_at()]
    }
}

impl JobState {
    /// Creates the state of a job with at most `max_slots` distinct runs, whose outcomes may be delivered from now
    /// on.
    pub(crate) fn new(max_slots: usize, control: ComparisonControl, stats: Arc<Stats>) -> Self {
        let slot = || RunSlot { content: Mutex::new(SlotContent::Pending), readers: AtomicU32::new(0) };
        let slots = std::iter::repeat_with(slot).take(max_slots).collect();
        Self {
            slots,
            planned: OnceLock::new(),
            queries: OnceLock::new(),
            control,
            completions: CompletionLog::new(),
            stats,
        }
    }

    /// Sets, once, the work for the first `n_slots` slots, and counts the outcomes that have arrived. Returns those
    /// that would trigger a comparison, to be delivered again.
    pub(crate) fn plan(&self, n_slots: usize, work: JobKind) -> Vec<(u32, Delivery)> {
        let (n_units, units_of) = match &work {
            JobKind::Execute { .. } => (n_slots, CsrGroups::new(n_slots, std::iter::empty())),
            JobKind::Score(scores) => {
                let needs = (0..)
                    .zip(&scores.units)
                    .flat_map(|(number, unit)| scores.needs(unit).iter().map(move |slot| (*slot, number)));
                (scores.units.len(), CsrGroups::new(n_slots, needs))
            }
        };
        for (number, slot) in self.slots[..n_slots].iter().enumerate() {
            slot.readers.store(units_of.of(number).len() as u32, Ordering::Relaxed);
        }
        self.completions.expect(n_units);
        let planned = self.planned.get_or_init(|| PlannedJob { n_slots, units_of, work });
        self.finish_units_without_needs(planned);
        (0..n_slots as u32).filter_map(|slot| self.count_early(slot, planned)).collect()
    }

    fn count_early(&self, number: u32, planned: &PlannedJob) -> Option<(u32, Delivery)> {
        {
            let mut content = lock(&self.slots[number as usize].content);
            match std::mem::replace(&mut *content, SlotContent::Pending) {
                SlotContent::Early(outcome) if planned.would_compare(number) => return Some((number, outcome)),
                SlotContent::Early(outcome) => *content = SlotContent::Ready(outcome),
                other => {
                    *content = other;
                    return None;
                }
            }
        }
        self.count(number, planned);
        None
    }

    fn finish_units_without_needs(&self, planned: &PlannedJob) {
        if let JobKind::Score(scores) = &planned.work {
            for (number, unit) in (0..).zip(&scores.units) {
                if unit.needs.is_empty() {
                    self.finish_unit(number, scores);
                }
            }
        }
    }

    /// Ends current and future comparisons.
    pub(crate) fn cancel_comparisons(&self) {
        self.control.is_cancelled.store(true, Ordering::Relaxed);
    }

    /// Sets the queries to abandon on cancellation.
    pub(crate) fn set_queries(&self, queries: Vec<Arc<InFlightQuery>>) {
        let _ = self.queries.set(queries); // set once, right after the job is created
    }

    /// Returns the job's queries.
    pub(crate) fn queries(&self) -> &[Arc<InFlightQuery>] {
        self.queries.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the number of distinct runs once they are planned.
    pub(crate) fn n_slots(&self) -> usize {
        self.planned.get().map_or(0, |planned| planned.n_slots)
    }

    /// Fills a slot once. A second delivery (a cancellation after a result, or the reverse) changes nothing.
    pub(crate) fn deliver(&self, number: u32, outcome: Delivery) {
        let planned = {
            let mut content = lock(&self.slots[number as usize].content);
            if !matches!(*content, SlotContent::Pending) {
                return;
            }
            // Read under the lock: the outcome is treated as early either here or in `plan`.
            let planned = self.planned.get();
            *content = if planned.is_some() { SlotContent::Ready(outcome) } else { SlotContent::Early(outcome) };
            planned
        };
        if let Some(planned) = planned {
            self.count(number, planned);
        }
    }

    /// Counts an arrived slot for the units that need it.
    fn count(&self, number: u32, planned: &PlannedJob) {
        match &planned.work {
            JobKind::Execute { .. } => self.completions.complete(number),
            JobKind::Score(scores) => {
                for unit in planned.units_of.of(number as usize) {
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
            .unwrap_or_else(|panic| Err(PoolError::of_panic(panic.as_ref())));
        let _ = unit.score.set(result); // only the last delivery reaches this
        self.stats.count_comparison();
        for slot in needs {
            let slot = &self.slots[*slot as usize];
            if slot.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
                *lock(&slot.content) = SlotContent::Released;
            }
        }
        self.completions.complete(number);
    }

    fn score_unit(&self, unit: &Comparison, needs: &[u32], rules: &[Rule]) -> Result<Score, PoolError> {
        let outcomes = needs.iter().map(|slot| self.outcome_at(*slot)).collect::<Result<Vec<_>, PoolError>>()?;
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
        Ok(score(&unit.predicted, predicted, &golds, rules, &unit.options, &self.control.bounds()))
    }

    fn outcome_at(&self, slot: u32) -> Delivery {
        match &*lock(&self.slots[slot as usize].content) {
            SlotContent::Ready(delivered) => delivered.clone(),
            SlotContent::Pending | SlotContent::Early(_) | SlotContent::Released => {
                Err(PoolError::Internal("an outcome was read before it arrived"))
            }
        }
    }

    /// Returns the unit of each item once they are planned.
    pub(crate) fn unit_of(&self) -> &[u32] {
        match self.planned.get().map(|planned| &planned.work) {
            Some(JobKind::Execute { slot_of }) => slot_of,
            Some(JobKind::Score(scores)) => &scores.unit_of,
            None => &[],
        }
    }

    /// Returns the outcome of an item of an execute job once its slot has arrived.
    pub(crate) fn outcome(&self, item: usize) -> Delivery {
        match self.planned.get().map(|planned| &planned.work) {
            Some(JobKind::Execute { slot_of }) => self.outcome_at(slot_of[item]),
            _ => Err(PoolError::Internal("a score job has scores, not outcomes")),
        }
    }

    /// Returns the score of an item of a score job once its unit is finished.
    pub(crate) fn score(&self, item: usize) -> Result<&Score, PoolError> {
        let Some(JobKind::Score(Scores { units, unit_of, .. })) = self.planned.get().map(|planned| &planned.work)
        else {
            return Err(PoolError::Internal("an execute job has outcomes, not scores"));
        };
        match units[unit_of[item] as usize].score.get() {
            Some(Ok(score)) => Ok(score),
            Some(Err(error)) => Err(error.clone()),
            None => Err(PoolError::Internal("a score was read before it arrived")),
        }
    }

    /// Returns the number of items.
    pub(crate) fn n_items(&self) -> usize {
        self.unit_of().len()
    }
}

impl PlannedJob {
    /// Returns whether the next delivery to the slot triggers a comparison.
    fn would_compare(&self, slot: u32) -> bool {
        let JobKind::Score(scores) = &self.work else { return false };
        let mut by_unit = self.units_of.of(slot as usize).chunk_by(|a, b| a == b);
        by_unit.any(|same| scores.units[same[0] as usize].waiting.load(Ordering::Acquire) as usize <= same.len())
    }
}
