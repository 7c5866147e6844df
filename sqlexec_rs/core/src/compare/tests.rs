//! Checks that every rule respects its bounds: steps, the clock, and cancellation.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::*;
use crate::budget::{ComparisonBounds, ExceededBound, within};
use crate::result::value::Value;

/// Returns rows of numbers that share no row with another `salt`.
fn numbers(n_rows: i64, width: i64, salt: f64) -> Table {
    let mut table = Table::new((0..width).map(|column| column.to_string()).collect());
    for row in 0..n_rows {
        (0..width).for_each(|column| table.push(Value::Real((row * width + column) as f64 + salt)));
        table.end_row();
    }
    table
}

fn side(table: &Table) -> QueryResult<'_> {
    QueryResult { table, sql: None }
}

#[test]
fn every_rule_respects_its_step_budget() {
    let (predicted, gold) = (numbers(403, 20, 0.25), numbers(400, 20, 0.75));
    let bounds = |steps| ComparisonBounds { steps, deadline: None, cancels: Default::default() };
    let options = Options::default();
    for rule in Rule::ALL.iter().copied() {
        let run = |steps| within(&bounds(steps), || compare(rule, side(&predicted), side(&gold), &options));
        assert_eq!(run(16_059), Err(ExceededBound::Steps), "{}: fewer steps than cells", rule.name());
        assert!(run(4_000_000).is_ok(), "{}: {:?}", rule.name(), run(4_000_000));
    }
}

/// With quadratic work this would exceed its budget.
#[test]
fn work_is_not_quadratic_in_the_rows() {
    let (predicted, gold) = (numbers(20_001, 3, 0.0), numbers(20_000, 3, 0.001));
    let bounds = ComparisonBounds { steps: 20_000_000, deadline: None, cancels: Default::default() };
    for rule in Rule::ALL.iter().copied() {
        let run = || compare(rule, side(&predicted), side(&gold), &Options::default());
        assert!(within(&bounds, run).is_ok(), "{}", rule.name());
    }
}

/// Tables on which a rule works for long: a name, rows, columns, and the length of the cells' texts, or `None` for
/// numbers.
const SHAPES: [(&str, usize, usize, Option<usize>); 4] = [
    ("many rows of numbers", 1_000_000, 3, None),
    ("many rows of texts", 40_000, 5, Some(200)),
    ("many columns", 300, 1_000, Some(20)),
    ("a row of long texts", 1, 1_500, Some(20_000)),
];

/// Generous for a busy machine, and a small part of the time that the slowest rule takes without a bound.
const SLACK: Duration = Duration::from_millis(400);

/// Returns a table whose rows start with number `first`. Its texts have equal lengths and differ only at their ends.
fn shaped((_, n_rows, width, text): (&str, usize, usize, Option<usize>), first: usize) -> Table {
    let mut table = Table::new((0..width).map(|column| format!("c{column}")).collect());
    for row in (0..n_rows).map(|row| (row + first) % n_rows) {
        for column in 0..width {
            let number = row * width + (column + first) % width;
            match text {
                None => table.push(Value::Real(number as f64 + 0.25)),
                Some(len) => table.push(Value::Text(format!("{number:0len$}").as_bytes())),
            }
        }
        table.end_row();
    }
    table
}

/// Runs a comparison; returns its result and duration.
fn timed(rule: Rule, tables: (&Table, &Table), bounds: &ComparisonBounds) -> (Result<f64, ExceededBound>, Duration) {
    let start_time = Instant::now();
    let result = within(bounds, || compare(rule, side(tables.0), side(tables.1), &Options::default()));
    (result, start_time.elapsed())
}

#[test]
fn every_rule_stops_at_the_deadline_on_cancellation_and_at_its_budget() {
    const TIME: Duration = Duration::from_millis(10);
    let unbounded = || ComparisonBounds { steps: u64::MAX, deadline: None, cancels: Default::default() };
    for shape in SHAPES {
        let n_cells = 2 * shape.1 as u64 * shape.2 as u64;
        for rule in Rule::ALL.iter().copied() {
            // New tables, because a table caches hashes that a rule computes.
            let (predicted, gold) = (shaped(shape, 1), shaped(shape, 0));
            let case = format!("{} on {}", rule.name(), shape.0);

            let bounds = ComparisonBounds { deadline: Some(Instant::now() + TIME), ..unbounded() };
            let (result, elapsed) = timed(rule, (&predicted, &gold), &bounds);
            assert!(matches!(result, Ok(_) | Err(ExceededBound::Wall)), "{case}: {result:?}");
            assert!(elapsed < TIME + SLACK, "{case}: {elapsed:?} under a deadline");

            let bounds = unbounded();
            let (result, elapsed) = std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(TIME);
                    bounds.cancels[0].store(true, Ordering::Relaxed);
                });
                timed(rule, (&predicted, &gold), &bounds)
            });
            assert!(matches!(result, Ok(_) | Err(ExceededBound::Cancelled)), "{case}: {result:?}");
            assert!(elapsed < TIME + SLACK, "{case}: {elapsed:?} under a cancellation");

            let (result, elapsed) =
                timed(rule, (&predicted, &gold), &ComparisonBounds { steps: n_cells / 2, ..unbounded() });
            assert_eq!(result, Err(ExceededBound::Steps), "{case}");
            assert!(elapsed < SLACK, "{case}: {elapsed:?} beyond the budget");
        }
    }
}

/// Formatting a value must be charged, not only its cell.
#[test]
fn ehrsql_charges_steps_for_texts() {
    let table = numbers(10_000, 2, 0.5);
    let bounds = ComparisonBounds { steps: 100_000, deadline: None, cancels: Default::default() };
    assert_eq!(timed(Rule::Ehrsql, (&table, &table), &bounds).0, Err(ExceededBound::Steps));
    assert!(timed(Rule::Bird, (&table, &table), &bounds).0.is_ok());
}
