//! From what was asked to what must run: distinct (database, SQL) pairs, and distinct comparisons.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use hashbrown::HashTable;

use crate::compare::Rule;
use crate::job::{Scores, Unit, Work};
use crate::scan::strip_distinct;
use crate::score::{GoldSource, ScoreItem};
use crate::texts::{Hashed, NumberMap};
use crate::value::combine;

/// A run that a job needs.
#[derive(Debug)]
pub(crate) struct PlannedRun {
    pub(crate) database: u32,
    pub(crate) sql: Hashed<Arc<str>>,
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
    let slot_of = pairs.iter().map(|(path, sql)| slots.slot(path, &Hashed::new(Arc::clone(sql)), false)).collect();
    slots.into_plan(Work::Execute { slot_of }, pairs.len())
}

/// Plans the scoring of items.
pub(crate) fn plan_score(items: &[ScoreItem], rules: &[Rule]) -> Plan {
    let mut slots = Slots::default();
    // Most items are distinct and need two runs of their own: what grew step by step would be copied as often.
    slots.runs.reserve(2 * items.len());
    slots.run_numbers.reserve(2 * items.len(), |_| 0); // of an empty table no hash is asked for
    let mut numbers = HashTable::with_capacity(items.len());
    let (mut units, mut needs) = (Vec::new(), Vec::with_capacity(2 * items.len()));
    let mut first_items: Vec<&ScoreItem> = Vec::new(); // of each unit
    let mut n_pairs = 0;
    let mut unit_of = Vec::with_capacity(items.len());
    for item in items {
        let n_gold_sql = item.golds.iter().filter(|gold| matches!(gold, GoldSource::Sql(_))).count();
        n_pairs += item.databases.len() * (1 + n_gold_sql);
        let predicted = Hashed::new(&item.predicted);
        let next = units.len() as u32;
        let is_it = |unit: &u32| is_same(first_items[*unit as usize], item);
        let hash_of = |unit: &u32| {
            let item = first_items[*unit as usize];
            hash_of_item(item, &Hashed::new(&item.predicted))
        };
        let number = *numbers.entry(hash_of_item(item, &predicted), is_it, hash_of).or_insert(next).get();
        if number == next {
            let start = needs.len() as u32;
            slots.add_needs(item, &predicted, &mut needs);
            units.push(Unit::new(item, start..needs.len() as u32));
            first_items.push(item);
        }
        unit_of.push(number);
    }
    slots.into_plan(Work::Score(Scores { units, needs, unit_of, rules: rules.to_vec() }), n_pairs)
}

/// Tells whether two items are equal; lists that the caller shares between items are equal by address.
fn is_same(a: &ScoreItem, b: &ScoreItem) -> bool {
    Arc::ptr_eq(&a.databases, &b.databases)
        && Arc::ptr_eq(&a.golds, &b.golds)
        && Arc::ptr_eq(&a.options, &b.options)
        && a.predicted == b.predicted
}

fn hash_of_item(item: &ScoreItem, predicted: &Hashed<&Arc<str>>) -> u64 {
    let lists = combine(item.golds.as_ptr().addr() as u64, item.databases.as_ptr().addr() as u64);
    combine(predicted.hash(), lists)
}

/// Gives every distinct pair a number.
#[derive(Default)]
struct Slots {
    databases: Vec<Arc<Path>>,
    database_numbers: HashMap<Arc<Path>, u32>,
    /// The numbers of paths by address: most items share theirs.
    numbers_by_address: NumberMap<usize, u32>,
    runs: Vec<PlannedRun>,
    /// The numbers of runs, found by hash; what they are is in `runs`, so that little memory is gone through.
    run_numbers: HashTable<u32>,
}

impl Slots {
    fn slot(&mut self, path: &Arc<Path>, sql: &Hashed<Arc<str>>, is_gold: bool) -> u32 {
        let database = self.database(path);
        let next = self.runs.len() as u32;
        let runs = &self.runs;
        let is_it = |slot: &u32| runs[*slot as usize].database == database && runs[*slot as usize].sql.is(sql);
        let hash_of = |slot: &u32| hash_of_run(runs[*slot as usize].database, &runs[*slot as usize].sql);
        let slot = *self.run_numbers.entry(hash_of_run(database, sql), is_it, hash_of).or_insert(next).get();
        if slot == next {
            self.runs.push(PlannedRun { database, sql: sql.clone(), is_gold });
        }
        self.runs[slot as usize].is_gold |= is_gold;
        slot
    }

    fn database(&mut self, path: &Arc<Path>) -> u32 {
        // What is asked for is not freed while it is planned, so no address becomes another path's.
        *self.numbers_by_address.entry(Arc::as_ptr(path).addr()).or_insert_with(|| {
            *self.database_numbers.entry(Arc::clone(path)).or_insert_with(|| {
                self.databases.push(Arc::clone(path));
                self.databases.len() as u32 - 1
            })
        })
    }

    /// Adds the slots that an item needs, in the order that a [`Unit`] expects.
    fn add_needs(&mut self, item: &ScoreItem, predicted: &Hashed<&Arc<str>>, needs: &mut Vec<u32>) {
        let strips = item.options.strip_distinct;
        let mut add = |sql: &Hashed<&Arc<str>>, is_gold: bool| {
            let sql =
                if strips { Hashed::new(strip_distinct(sql.text).into()) } else { sql.with(Arc::clone(sql.text)) };
            needs.extend(item.databases.iter().map(|path| self.slot(path, &sql, is_gold)));
        };
        add(predicted, false);
        for gold in item.golds.iter() {
            if let GoldSource::Sql(sql) = gold {
                add(&Hashed::new(sql), true);
            }
        }
    }

    fn into_plan(self, work: Work, n_pairs: usize) -> Plan {
        Plan { databases: self.databases, runs: self.runs, work, n_pairs }
    }
}

fn hash_of_run(database: u32, sql: &Hashed<Arc<str>>) -> u64 {
    combine(sql.hash(), u64::from(database))
}
