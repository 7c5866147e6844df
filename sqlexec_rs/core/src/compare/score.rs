//! Score items, and the conversion of outcomes to scores.

use std::path::Path;
use std::sync::Arc;

use crate::budget::{self, ComparisonBounds, ExceededBound};
use crate::compare::{Options, QueryResult, Rule, compare};
use crate::outcome::{Outcome, Status, Stop};
use crate::result::table::Table;

/// An accepted answer.
#[derive(Clone, Debug)]
pub enum GoldSource {
    /// SQL, run on each database of the item.
    Sql(Arc<str>),
    /// A table provided by the caller.
    Table(Arc<Table>),
}

/// One prediction to score.
#[derive(Clone, Debug)]
pub struct ScoreItem {
    /// The databases on which prediction and gold must agree; usually one.
    pub databases: Arc<[Arc<Path>]>,
    /// The predicted SQL.
    pub predicted: Arc<str>,
    /// The accepted answers; the best one counts.
    pub golds: Arc<[GoldSource]>,
    /// The options of the rules.
    pub options: Arc<Options>,
}

/// The score of one prediction.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// How the prediction ended: the first status other than `ok` among the databases; then the status of its
    /// comparison: `too_large` if it exceeded the step budget or the available memory, `timeout`, `cancelled`, or
    /// `ok`.
    pub pred_status: Status,
    /// How the gold ended: `ok` if any accepted answer ran on every database.
    pub gold_status: Status,
    /// The bound that stopped the prediction, if any.
    pub pred_stop: Option<Stop>,
    /// Rows of the prediction on the first database.
    pub pred_rows: u64,
    /// Rows of the gold on the first database.
    pub gold_rows: u64,
    /// Milliseconds of the prediction, summed over the databases.
    pub pred_ms: f64,
    /// Milliseconds of the gold, summed over the databases.
    pub gold_ms: f64,
    /// One value per rule: 0 unless both sides ran and the comparison finished within its bounds.
    pub values: Vec<f64>,
}

/// A gold with its results, ready to be compared on each database of the item.
#[derive(Clone, Copy)]
pub(crate) enum ReadyGold<'a> {
    Outcomes { outcomes: &'a [Arc<Outcome>], sql: &'a str },
    Table(&'a Table),
}

impl<'a> ReadyGold<'a> {
    fn status(&self) -> Status {
        match self {
            ReadyGold::Outcomes { outcomes, .. } => first_failure(outcomes),
            ReadyGold::Table(_) => Status::Ok,
        }
    }

    fn milliseconds(&self) -> f64 {
        match self {
            ReadyGold::Outcomes { outcomes, .. } => total_ms(outcomes),
            ReadyGold::Table(_) => 0.0,
        }
    }

    fn on(&self, database: usize) -> Option<QueryResult<'a>> {
        match self {
            ReadyGold::Outcomes { outcomes, sql } => {
                outcomes[database].table.as_ref().map(|table| QueryResult { table, sql: Some(sql) })
            }
            ReadyGold::Table(table) => Some(QueryResult { table, sql: None }),
        }
    }
}

/// Compares the outcomes of a prediction (one per database) with its golds.
pub(crate) fn score<'a>(
    sql: &str,
    predicted: &[Arc<Outcome>],
    golds: &(impl Iterator<Item = ReadyGold<'a>> + Clone),
    rules: &[Rule],
    options: &Options,
    bounds: &ComparisonBounds,
) -> Score {
    let mut pred_status = first_failure(predicted);
    let mut pred_stop = predicted.iter().find_map(|outcome| outcome.stopped_by);
    let chosen = golds.clone().find(|gold| gold.status() == Status::Ok).or_else(|| golds.clone().next());
    let best = |rule| golds.clone().map(|gold| agreement(rule, sql, predicted, gold, options)).fold(0.0, f64::max);
    let mut value = |rule: &Rule| {
        budget::within(bounds, || best(*rule)).unwrap_or_else(|overrun| {
            (pred_status, pred_stop) = match overrun {
                ExceededBound::Steps => (Status::TooLarge, None),
                ExceededBound::Memory => (Status::TooLarge, Some(Stop::Memory)),
                ExceededBound::Wall => (Status::Timeout, Some(Stop::Wall)),
                ExceededBound::Cancelled => (Status::Cancelled, Some(Stop::Cancelled)),
            };
            0.0
        })
    };
    let values = rules.iter().map(&mut value).collect();
    Score {
        pred_status,
        gold_status: chosen.map_or(Status::NoSql, |gold| gold.status()),
        pred_stop,
        pred_rows: predicted.first().map_or(0, |outcome| outcome.row_count() as u64),
        gold_rows: chosen.and_then(|gold| gold.on(0)).map_or(0, |gold| gold.table.n_rows() as u64),
        pred_ms: total_ms(predicted),
        gold_ms: chosen.map_or(0.0, |gold| gold.milliseconds()),
        values,
    }
}

/// Returns the minimum over the databases, because all must agree.
fn agreement(rule: Rule, sql: &str, predicted: &[Arc<Outcome>], gold: ReadyGold<'_>, options: &Options) -> f64 {
    let mut lowest = 1.0_f64;
    for (database, outcome) in predicted.iter().enumerate() {
        let (Some(table), Some(gold)) = (&outcome.table, gold.on(database)) else { return 0.0 };
        lowest = lowest.min(compare(rule, QueryResult { table, sql: Some(sql) }, gold, options));
        if lowest == 0.0 {
            break;
        }
    }
    lowest
}

fn first_failure(outcomes: &[Arc<Outcome>]) -> Status {
    outcomes.iter().map(|outcome| outcome.status).find(|status| *status != Status::Ok).unwrap_or(Status::Ok)
}

fn total_ms(outcomes: &[Arc<Outcome>]) -> f64 {
    outcomes.iter().map(|outcome| outcome.elapsed.as_secs_f64() * 1e3).sum()
}
