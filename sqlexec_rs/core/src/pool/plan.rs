//! Plans a job: reduces items to distinct (database, SQL) pairs and distinct comparisons.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::compare::Rule;
use crate::compare::score::{GoldSource, ScoreItem};
use crate::pool::job::{Comparison, JobKind, Scores};
use crate::request::{OutputKind, Parameters, Query};
use crate::result::hashed_str::Hashed;
use crate::result::row_hash::hash_one;
use crate::scan::strip_distinct;

/// Marks the absence of a unit.
const NONE: u32 = u32::MAX;

/// A run that a job needs.
#[derive(Debug)]
pub(crate) struct PlannedRun {
    pub(crate) database: u32,
    pub(crate) sql: Hashed<Arc<str>>,
    pub(crate) parameters: Option<Arc<Parameters>>,
    pub(crate) is_gold: bool,
}

/// The runs and results of a job, for the items added so far.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) databases: Vec<Arc<Path>>,
    database_numbers: HashMap<Arc<Path>, u32>,
    /// The numbers of paths by address; most items share theirs.
    numbers_by_address: hashbrown::HashMap<usize, u32, foldhash::fast::RandomState>,
    pub(crate) runs: Vec<PlannedRun>,
    /// The requested output of each run.
    pub(crate) output: OutputKind,
    /// The numbers of runs, found by hash. The runs themselves are in `runs`, so that a lookup touches little memory.
    run_numbers: HashTable<u32>,
    work: JobKind,
    /// For each first slot of units, the last such unit; for each unit, the previous one.
    last_unit_of: Vec<u32>,
    unit_before: Vec<u32>,
    /// Runs of golds that earlier batches added as other runs.
    pub(crate) late_golds: Vec<u32>,
}

impl Plan {
    /// Starts to plan the execution of `n_items` (database, SQL) pairs.
    pub(crate) fn execution(n_items: usize, output: OutputKind) -> Self {
        Self { output, ..Self::new(JobKind::Execute { slot_of: vec![0; n_items] }, n_items) }
    }

    /// Starts to plan the scoring of `n_items` items, most of which are expected to need two separate runs.
    pub(crate) fn scoring(n_items: usize, rules: &[Rule]) -> Self {
        let scores = Scores {
            units: Vec::with_capacity(n_items),
            needs: Vec::with_capacity(2 * n_items),
            unit_of: vec![0; n_items],
            rules: rules.to_vec(),
        };
        Self::new(JobKind::Score(scores), 2 * n_items)
    }

    fn new(work: JobKind, n_runs: usize) -> Self {
        Self {
            databases: Vec::new(),
            database_numbers: HashMap::new(),
            numbers_by_address: hashbrown::HashMap::default(),
            runs: Vec::with_capacity(n_runs),
            output: OutputKind::Rows,
            run_numbers: HashTable::with_capacity(n_runs),
            work,
            last_unit_of: Vec::new(),
            unit_before: Vec::new(),
            late_golds: Vec::new(),
        }
    }

    /// Returns the work of the job; nothing may be added afterwards.
    pub(crate) fn take_work(&mut self) -> JobKind {
        std::mem::replace(&mut self.work, JobKind::Execute { slot_of: Vec::new() })
    }

    /// Ends a batch: its items may be freed, so addresses may be reused.
    pub(crate) fn end_batch(&mut self) {
        self.numbers_by_address.clear();
        self.late_golds.clear();
    }

    /// Adds a query under its number.
    pub(crate) fn add_query(&mut self, number: u32, query: &Query) {
        let slot = self.slot(&query.database, &Hashed::new(&query.sql), query.parameters.as_ref(), None);
        if let JobKind::Execute { slot_of } = &mut self.work {
            slot_of[number as usize] = slot;
        }
    }

    /// Adds an item under its number; runs from `n_old` on belong to this batch.
    pub(crate) fn add_item(&mut self, number: u32, item: ScoreItem, n_old: usize) {
        let JobKind::Score(scores) = &mut self.work else { return };
        let mut needs = std::mem::take(&mut scores.needs);
        let start = needs.len();
        self.add_needs(&item, &mut needs, n_old);
        let unit = match self.find_unit(&item, &needs, start) {
            Some(unit) => {
                needs.truncate(start);
                unit
            }
            None => self.add_unit(item, &needs, start),
        };
        if let JobKind::Score(scores) = &mut self.work {
            scores.needs = needs;
            scores.unit_of[number as usize] = unit;
        }
    }

    fn add_unit(&mut self, item: ScoreItem, needs: &[u32], start: usize) -> u32 {
        let JobKind::Score(scores) = &mut self.work else { return NONE };
        let number = scores.units.len() as u32;
        scores.units.push(Comparison::new(item, start as u32..needs.len() as u32));
        self.last_unit_of.resize(self.runs.len(), NONE);
        let before =
            needs.get(start).map_or(NONE, |slot| std::mem::replace(&mut self.last_unit_of[*slot as usize], number));
        self.unit_before.push(before);
        number
    }

    /// Finds the unit of an equal item, whose runs are at the end of `needs`. Tables that the caller shares are equal
    /// by address.
    fn find_unit(&self, item: &ScoreItem, needs: &[u32], start: usize) -> Option<u32> {
        let JobKind::Score(scores) = &self.work else { return None };
        let mut number = *self.last_unit_of.get(*needs.get(start)? as usize)?;
        while number != NONE {
            let unit = &scores.units[number as usize];
            if needs[unit.needs_at()] == needs[start..] && unit.is_for(item) {
                return Some(number);
            }
            number = self.unit_before[number as usize];
        }
        None
    }

    /// Returns the number of a run. A gold's run may be one of an earlier batch, before `gold_after`.
    fn slot(
        &mut self,
        path: &Arc<Path>,
        sql: &Hashed<&Arc<str>>,
        parameters: Option<&Arc<Parameters>>,
        gold_after: Option<usize>,
    ) -> u32 {
        let is_gold = gold_after.is_some();
        let database = self.database(path);
        let next = self.runs.len() as u32;
        let runs = &self.runs;
        let is_equal = |slot: &u32| {
            let run = &runs[*slot as usize];
            run.database == database && run.sql.is(sql) && run.parameters.as_ref() == parameters
        };
        let hash_of = |slot: &u32| hash_of_run(runs[*slot as usize].database, &runs[*slot as usize].sql);
        let slot = *self.run_numbers.entry(hash_of_run(database, sql), is_equal, hash_of).or_insert(next).get();
        if slot == next {
            let (sql, parameters) = (sql.with(Arc::clone(sql.text)), parameters.cloned());
            self.runs.push(PlannedRun { database, sql, parameters, is_gold });
        } else if is_gold && !self.runs[slot as usize].is_gold {
            self.runs[slot as usize].is_gold = true;
            if gold_after.is_some_and(|n_old| (slot as usize) < n_old) {
                self.late_golds.push(slot);
            }
        }
        slot
    }

    fn database(&mut self, path: &Arc<Path>) -> u32 {
        // Paths are not freed while their batch is planned, so no address is reused.
        *self.numbers_by_address.entry(Arc::as_ptr(path).addr()).or_insert_with(|| {
            *self.database_numbers.entry(Arc::clone(path)).or_insert_with(|| {
                self.databases.push(Arc::clone(path));
                self.databases.len() as u32 - 1
            })
        })
    }

    /// Adds the slots that an item needs, in the order that [`Comparison`] expects.
    fn add_needs(&mut self, item: &ScoreItem, needs: &mut Vec<u32>, n_old: usize) {
        let strips = item.options.strip_distinct;
        let mut add = |sql: &Arc<str>, is_gold: bool| {
            let stripped: Option<Arc<str>> = strips.then(|| strip_distinct(sql).into());
            let sql = Hashed::new(stripped.as_ref().unwrap_or(sql));
            let gold_after = is_gold.then_some(n_old);
            needs.extend(item.databases.iter().map(|path| self.slot(path, &sql, None, gold_after)));
        };
        add(&item.predicted, false);
        for gold in item.golds.iter() {
            if let GoldSource::Sql(sql) = gold {
                add(sql, true);
            }
        }
    }
}

/// Returns the number of (database, SQL) pairs of an item.
pub(crate) fn n_pairs(item: &ScoreItem) -> usize {
    let n_gold_sql = item.golds.iter().filter(|gold| matches!(gold, GoldSource::Sql(_))).count();
    item.databases.len() * (1 + n_gold_sql)
}

fn hash_of_run<T: AsRef<str>>(database: u32, sql: &Hashed<T>) -> u64 {
    hash_one((sql.hash(), database))
}
