//! Runs one SQL text on one connection under limits.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rusqlite::types::ValueRef;
use rusqlite::{Statement, StatementStatus};

use crate::classify::{Phase, outcome_of};
use crate::deadline::Control;
use crate::hint;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::Limits;
use crate::sandbox::Sandbox;
use crate::scan::{Scan, scan};
use crate::table::Table;
use crate::value::Value;

/// Bytes of result after which the clocks are looked at between rows: such rows take few VM steps and much time.
const CHECK_EVERY_BYTES: usize = 64 << 10;

/// Answers what needs no database: no statement, several statements, a NUL.
pub(crate) fn refuse(sql: &str) -> Result<(&str, usize), Box<Outcome>> {
    let (status, error) = match scan(sql) {
        Scan::One(statement, offset) => return Ok((statement, offset)),
        Scan::Nothing => (Status::NoSql, "the text holds no SQL statement"),
        Scan::Several => (Status::Forbidden, "the text holds more than one SQL statement"),
        Scan::Nul => (Status::SyntaxError, "the text holds a NUL character"),
    };
    Err(Box::new(Outcome::failed(status, error)))
}

/// Runs `sql` on a sandboxed connection of this thread.
pub(crate) fn run(
    sandbox: &Sandbox,
    control: &Control,
    sql: &str,
    limits: &Limits,
    cancel: Option<Arc<AtomicBool>>,
) -> Outcome {
    let (statement, start) = match refuse(sql) {
        Ok(one) => one,
        Err(outcome) => return *outcome,
    };
    let begun = Instant::now();
    sandbox.seen.reset();
    control.arm(limits, cancel, begun);
    let mut outcome = prepare_and_fetch(sandbox, control, statement, limits);
    let stop = control.disarm();
    outcome.elapsed = begun.elapsed();
    outcome.is_volatile = sandbox.seen.is_volatile(statement);
    outcome.error_offset = outcome.error_offset.map(|offset| offset + start as u32);
    if outcome.status == Status::Forbidden && !sandbox.seen.has_denied() {
        outcome = Outcome::failed(Status::DbError, "a name in the schema is not valid UTF-8");
    }
    if outcome.status == Status::Timeout {
        explain_stop(&mut outcome, stop, limits);
    }
    if outcome.status == Status::SchemaError {
        outcome.hint = outcome.error.as_ref().and_then(|error| hint::hint(sandbox, control, statement, error));
    }
    outcome
}

fn prepare_and_fetch(sandbox: &Sandbox, control: &Control, sql: &str, limits: &Limits) -> Outcome {
    let mut statement = match sandbox.connection.prepare(sql) {
        Ok(statement) => statement,
        Err(error) => return outcome_of(error, Phase::Prepare),
    };
    if statement.parameter_count() > 0 {
        return Outcome::failed(Status::RuntimeError, "the statement has parameters, and nothing to bind them to");
    }
    // A name from a damaged schema may be no UTF-8, which rusqlite answers with a panic.
    let Ok(columns) = catch_unwind(AssertUnwindSafe(|| statement.column_names().map(str::to_owned).collect())) else {
        return Outcome::failed(Status::DbError, "a column name in the schema is not valid UTF-8");
    };
    let mut table = Table::new(columns);
    // The same of a declared type, but rows need none.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        statement.columns().for_each(|column| table.push_type(column.decl_type()));
    }));
    control.start_executing();
    let mut outcome = fetch(&mut statement, control, table, limits);
    outcome.vm_steps = u64::from(statement.get_status(StatementStatus::VmStep) as u32);
    outcome
}

fn fetch(statement: &mut Statement<'_>, control: &Control, mut table: Table, limits: &Limits) -> Outcome {
    let width = table.width();
    let max_bytes = usize::try_from(limits.max_bytes).unwrap_or(usize::MAX);
    let max_rows = usize::try_from(limits.max_rows).unwrap_or(usize::MAX);
    let mut next_check = CHECK_EVERY_BYTES;
    let mut rows = statement.raw_query();
    loop {
        let row = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => break,
            Err(error) => return outcome_of(error, Phase::Execute),
        };
        if table.n_rows() == max_rows {
            return Outcome::failed(Status::TooLarge, format!("more than {max_rows} rows"));
        }
        for column in 0..width {
            match row.get_ref(column) {
                Ok(value) => table.push(from_sqlite(value)),
                Err(error) => return outcome_of(error, Phase::Execute),
            }
        }
        table.end_row();
        let bytes = table.bytes();
        if bytes > max_bytes {
            return Outcome::failed(Status::TooLarge, format!("more than {max_bytes} bytes of result"));
        }
        if bytes >= next_check {
            next_check = bytes + CHECK_EVERY_BYTES;
            if control.must_stop_between_rows() {
                return Outcome::failed(Status::Timeout, "interrupted");
            }
        }
    }
    table.shrink();
    Outcome::ok(table)
}

#[inline]
fn from_sqlite(value: ValueRef<'_>) -> Value<'_> {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(i) => Value::Integer(i),
        ValueRef::Real(r) => Value::Real(r),
        ValueRef::Text(bytes) => Value::Text(bytes),
        ValueRef::Blob(bytes) => Value::Blob(bytes),
    }
}

/// Puts the bound that was met into words.
fn explain_stop(outcome: &mut Outcome, stop: Option<Stop>, limits: &Limits) {
    outcome.stopped_by = stop;
    outcome.error = Some(match stop {
        Some(Stop::Cancelled) => {
            outcome.status = Status::Cancelled;
            "cancelled".to_owned()
        }
        Some(Stop::Wall) => format!("over the time limit of {} ms", limits.timeout.unwrap_or_default().as_millis()),
        Some(Stop::Cpu) => format!("over the CPU time limit of {} ms", limits.cpu.unwrap_or_default().as_millis()),
        Some(Stop::VmSteps) => format!("over the budget of {} VM steps", limits.vm_steps.unwrap_or_default()),
        None => "interrupted".to_owned(),
    });
}
