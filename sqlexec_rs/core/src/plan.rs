//! From what was asked to what must run: distinct (database, SQL) pairs, and distinct comparisons.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use crate::compare::Rule;
use crate::job::{PlannedGold, Unit, Work};
use crate::scan::strip_distinct;
use crate::score::{GoldSource, ScoreItem};

/// A run that a job needs.
#[derive(Debug)]
pub(crate) struct PlannedRun {
    pub(crate) database: u32,
    pub(crate) sql: Arc<str>,
    pub(crate) is_gold: bool,
}

/// A job before it is launched.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) databases: Vec<Arc<Path>>,
    pub(crate) runs: Vec<PlannedRun>,
    pub(crate) work: Work,
    /// (database, SQL) pairs that were asked for, duplicates included.
    pub(crate) n_pairs: usize,
}

/// Plans the execution of (database, SQL) pairs.
pub(crate) fn plan_execute(pairs: &[(Arc<Path>, Arc<str>)]) -> Plan {
    let mut slots = Slots::default();
    let slot_of = pairs.iter().map(|(path, sql)| slots.slot(path, sql, false)).collect();
    slots.into_plan(Work::Execute { slot_of }, pairs.len())
}

/// Plans the scoring of items.
pub(crate) fn plan_score(items: &[ScoreItem], rules: &[Rule]) -> Plan {
    let mut slots = Slots::default();
    let mut numbers: HashMap<UnitKey<'_>, u32> = HashMap::with_capacity(items.len());
    let mut units = Vec::new();
    let mut n_pairs = 0;
    let mut unit_of = Vec::with_capacity(items.len());
    for item in items {
        let n_gold_sql = item.golds.iter().filter(|gold| matches!(gold, GoldSource::Sql(_))).count();
        n_pairs += item.databases.len() * (1 + n_gold_sql);
        let number = *numbers.entry(UnitKey::of(item)).or_insert_with(|| {
            units.push(slots.unit(item));
            units.len() as u32 - 1
        });
        unit_of.push(number);
    }
    slots.into_plan(Work::Score { units, unit_of, rules: rules.to_vec() }, n_pairs)
}

/// What makes two items equal; lists that the caller shares between items are equal by address.
#[derive(PartialEq, Eq, Hash)]
struct UnitKey<'a> {
    databases: *const Arc<Path>,
    predicted: &'a str,
    golds: *const GoldSource,
    options: *const crate::compare::Options,
}

impl<'a> UnitKey<'a> {
    fn of(item: &'a ScoreItem) -> Self {
        Self {
            databases: item.databases.as_ptr(),
            predicted: &item.predicted,
            golds: item.golds.as_ptr(),
            options: Arc::as_ptr(&item.options),
        }
    }
}

/// Gives every distinct pair a number.
#[derive(Default)]
struct Slots {
    databases: Vec<Arc<Path>>,
    database_numbers: HashMap<Arc<Path>, u32>,
    runs: Vec<PlannedRun>,
    run_numbers: HashMap<(u32, Arc<str>), u32>,
}

impl Slots {
    fn slot(&mut self, path: &Arc<Path>, sql: &Arc<str>, is_gold: bool) -> u32 {
        let database = self.database(path);
        let next = self.runs.len() as u32;
        let slot = *self.run_numbers.entry((database, Arc::clone(sql))).or_insert(next);
        if slot == next {
            self.runs.push(PlannedRun { database, sql: Arc::clone(sql), is_gold });
        }
        self.runs[slot as usize].is_gold |= is_gold;
        slot
    }

    fn database(&mut self, path: &Arc<Path>) -> u32 {
        if let Some(number) = self.database_numbers.get(path) {
            return *number;
        }
        let number = self.databases.len() as u32;
        self.databases.push(Arc::clone(path));
        self.database_numbers.insert(Arc::clone(path), number);
        number
    }

    fn unit(&mut self, item: &ScoreItem) -> Unit {
        let mut slots_of = |sql: &Arc<str>, is_gold: bool| -> Vec<u32> {
            let sql = if item.options.strip_distinct { strip_distinct(sql).into() } else { Arc::clone(sql) };
            item.databases.iter().map(|path| self.slot(path, &sql, is_gold)).collect()
        };
        let golds = item.golds.iter().map(|gold| match gold {
            GoldSource::Sql(sql) => PlannedGold::Slots(slots_of(sql, true), Arc::clone(sql)),
            GoldSource::Table(table) => PlannedGold::Table(Arc::clone(table)),
        });
        let golds = golds.collect();
        Unit::new(slots_of(&item.predicted, false), golds, Arc::clone(&item.options))
    }

    fn into_plan(self, work: Work, n_pairs: usize) -> Plan {
        Plan { databases: self.databases, runs: self.runs, work, n_pairs }
    }
}
