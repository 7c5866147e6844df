//! Runs one SQL text on one connection under limits.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Statement, StatementStatus};

use crate::excess::Excess;
use crate::hint;
use crate::memory::OutOfMemory;
use crate::outcome::{Outcome, Status, Stop};
use crate::request::{ExecRequest, Limits, OutputKind, Parameters};
use crate::result::table::Table;
use crate::result::value::Value;
use crate::scan::{Patterns, Scan, find_excess, n_json_paths, nul_error, patterns, scan};
use crate::sqlite::classify::{Phase, outcome_of};
use crate::sqlite::deadline::RunGuard;
use crate::sqlite::hooks;
use crate::sqlite::meter::{self, Refusal};
use crate::sqlite::sandbox::Sandbox;
use crate::sqlite::versions::{self, QuotedWords};

/// Bytes of result after which the clocks are checked between rows: large rows take few VM steps and much time.
const CHECK_EVERY_BYTES: usize = 64 << 10;

/// Prefix of a statement whose plan is requested. Its grammar accepts no second EXPLAIN after it.
const EXPLAIN: &str = "EXPLAIN QUERY PLAN ";

/// Handles texts that need no database: no statement, several statements, a NUL.
pub(crate) fn find_statement(sql: &str) -> Result<(&str, usize), Box<Outcome>> {
    let (status, error) = match scan(sql) {
        Scan::One(statement, offset) => return Ok((statement, offset)),
        Scan::Nothing => (Status::NoSql, "the text holds no SQL statement"),
        Scan::Several => (Status::Forbidden, "the text holds more than one SQL statement"),
        Scan::Nul => return Err(Box::new(Outcome::failed(Status::SyntaxError, nul_error(sql)))),
    };
    Err(Box::new(Outcome::failed(status, error)))
}

/// Runs a SQL text on a sandboxed connection of this thread. The transaction is left open if `keeps_lock` is set or
/// the database needs one. The clock of the run started at `start_time`.
pub(crate) fn run(
    sandbox: &Sandbox,
    request: &ExecRequest<'_>,
    cancel: Option<Arc<AtomicBool>>,
    start_time: Instant,
    keeps_lock: bool,
) -> Outcome {
    let (statement, start) = match find_statement(request.sql) {
        Ok(statement) => statement,
        Err(outcome) => return *outcome,
    };
    let limits = request.limits;
    if let Some(excess) = find_excess(statement) {
        return Outcome::failed(Status::TooLarge, excess);
    }
    let quoted = match sandbox.record().version() {
        u32::MAX => QuotedWords::default(),
        version => match versions::newer_syntax(statement, version) {
            Ok(quoted) => quoted,
            Err(refusal) => return Outcome::failed(Status::SyntaxError, refusal),
        },
    };
    let guard = sandbox.guard();
    guard.arm(limits, cancel, start_time);
    meter::arm(guard, limits, n_json_paths(statement));
    hooks::take_refused();
    hooks::take_clock_was_read();
    let request = &ExecRequest { sql: statement, ..*request };
    let mut outcome = prepare_and_fetch(sandbox, request, &quoted, patterns(statement), keeps_lock);
    let refusal = meter::disarm();
    outcome.vm_steps += guard.charged_steps();
    let stop = guard.disarm();
    outcome.elapsed = start_time.elapsed();
    outcome.is_volatile = sandbox.record().is_volatile() || hooks::take_clock_was_read();
    outcome.error_offset = outcome.error_offset.map(|offset| offset + start as u32);
    if outcome.status == Status::Ok && stop.is_some() {
        // A collation cannot fail, so its comparisons after the stop are invalid.
        outcome = outcome.replaced_by(Status::Timeout, String::new());
    }
    // `snippet` does not report a failed allocation.
    if outcome.status != Status::Ok || refusal == Some(Refusal::Snippet) {
        explain_refusal(&mut outcome, refusal, limits);
    }
    if outcome.status == Status::Timeout {
        explain_stop(&mut outcome, stop, limits);
    }
    if let Some(column) = sandbox.record().hiding().refused_column() {
        outcome = outcome.replaced_by(Status::Forbidden, hidden_error(&column));
    }
    if outcome.status == Status::DbError
        && let Some(refused) = hooks::take_refused()
    {
        outcome.error = Some(refused);
    }
    if outcome.status == Status::SchemaError {
        outcome.hint = outcome.error.as_ref().and_then(|error| find_hint(sandbox, statement, error));
    }
    outcome
}

fn prepare_and_fetch(
    sandbox: &Sandbox,
    request: &ExecRequest<'_>,
    quoted: &QuotedWords,
    patterns: Patterns,
    keeps_lock: bool,
) -> Outcome {
    let ExecRequest { sql, limits, parameters, output } = *request;
    let connection = match sandbox.connection(patterns, &limits.caps) {
        Ok(connection) => connection,
        Err(error) => {
            sandbox.record().reset(); // a refusal of the previous statement is not the reason
            return cannot_open(sandbox.path(), error);
        }
    };
    let has_transaction = keeps_lock || sandbox.is_read_alone();
    if has_transaction {
        sandbox.begin(connection);
    }
    sandbox.record().reset();
    if let Some(column) = sandbox.record().hiding().read_by_text(sql) {
        return Outcome::failed(Status::Forbidden, hidden_error(&column));
    }
    meter::start_preparing();
    if let Some(refusal) = refusal_of_quoted(sandbox, connection, quoted, sql) {
        return Outcome::failed(Status::SyntaxError, refusal);
    }
    let explained = (output == OutputKind::Plan).then(|| format!("{EXPLAIN}{sql}"));
    let mut statement = match connection.prepare(explained.as_deref().unwrap_or(sql)) {
        Ok(statement) => statement,
        Err(error) => {
            let outcome = outcome_of(error, Phase::Prepare);
            if let Some((name, since)) = sandbox.record().take_newer() {
                let reason = versions::newer_message(
                    &format!("no such function: {name}(), which"),
                    since,
                    sandbox.record().version(),
                );
                return Outcome::failed(Status::SchemaError, reason);
            }
            let n_before = if explained.is_some() { EXPLAIN.len() as u32 } else { 0 };
            let error_offset = outcome.error_offset.and_then(|offset| offset.checked_sub(n_before));
            return Outcome { error_offset, ..outcome };
        }
    };
    if patterns == Patterns::Short && sandbox.record().has_patterns_in_view() {
        drop(statement);
        return prepare_and_fetch(sandbox, request, quoted, Patterns::Any, keeps_lock);
    }
    if (parameters.is_some() || statement.parameter_count() > 0)
        && let Err(outcome) = bind(&mut statement, parameters)
    {
        return *outcome;
    }
    // VACUUM, which the authorizer refuses only at run time, and writes that look like an r-tree's own.
    if !statement.readonly() {
        return Outcome::failed(Status::Forbidden, "not authorized");
    }
    let Some(header) = sandbox.header(&statement) else {
        return Outcome::failed(Status::DbError, "a column name in the schema is not valid UTF-8");
    };
    let table = Table::recycled(header);
    let guard = sandbox.guard();
    guard.start_executing();
    meter::start_executing(sandbox.record().n_snippets());
    let mut outcome = fetch_rows(&mut statement, guard, table, limits);
    outcome.vm_steps = guard.whole_steps(statement.get_status(StatementStatus::VmStep).cast_unsigned());
    outcome
}

/// Returns why an earlier SQLite refuses a double-quoted identifier that SQLite now reads as a text.
fn refusal_of_quoted(sandbox: &Sandbox, connection: &Connection, quoted: &QuotedWords, sql: &str) -> Option<String> {
    if quoted.is_empty() {
        return None;
    }
    let error = connection.prepare(&quoted.as_names(sql)).err();
    let refusal = error.as_ref().and_then(|error| quoted.refusal(error)).map(str::to_owned);
    if refusal.is_none() {
        sandbox.record().reset(); // the statement itself is prepared next
    }
    refusal
}

fn hidden_error(column: &str) -> String {
    format!("access to {column} is prohibited: it is hidden")
}

/// Binds values to the parameters of a statement.
fn bind(statement: &mut Statement<'_>, parameters: Option<&Parameters>) -> Result<(), Box<Outcome>> {
    let failed = |error: String| Box::new(Outcome::failed(Status::RuntimeError, error));
    let n_wanted = statement.parameter_count();
    let Some(Parameters { names, values }) = parameters else {
        return Err(failed("the statement has parameters, but no values are given".to_owned()));
    };
    if names.is_empty() && n_wanted != values.len() {
        return Err(failed(format!("the statement has {n_wanted} parameters, but {} values are given", values.len())));
    }
    for number in 1..=n_wanted {
        let value = if names.is_empty() {
            values.get(number - 1)
        } else {
            let name = statement.parameter_name(number).and_then(|name| name.get(1..));
            names.iter().position(|known| Some(known.as_str()) == name).and_then(|at| values.get(at))
        };
        let Some(value) = value else {
            let name = statement.parameter_name(number).unwrap_or("?");
            return Err(failed(format!("no value is given for the parameter {name}")));
        };
        let bound = statement.raw_bind_parameter(number, value);
        bound.map_err(|error| Box::new(outcome_of(error, Phase::Execute)))?;
    }
    Ok(())
}

/// Returns a `db_error` for a file that cannot be opened or whose schema cannot be read, whatever SQLite's code is.
fn cannot_open(path: &Path, error: rusqlite::Error) -> Outcome {
    let message = outcome_of(error, Phase::Execute).error.unwrap_or_default();
    Outcome::failed(Status::DbError, format!("{}: {message}", path.display()))
}

fn fetch_rows(statement: &mut Statement<'_>, guard: &RunGuard, mut table: Table, limits: &Limits) -> Outcome {
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
            return Excess::Rows.outcome(Some(table), limits);
        }
        if let Err(excess) = push_row(&mut table, row, width, max_bytes) {
            table.abandon_row();
            return excess.outcome(Some(table), limits);
        }
        let bytes = table.bytes();
        if bytes >= next_check {
            next_check = bytes + CHECK_EVERY_BYTES;
            if guard.must_stop_between_rows() {
                return Outcome::failed(Status::Timeout, "interrupted");
            }
        }
    }
    Outcome::ok(table)
}

/// Copies a row. Returns the excess if the table grows too large, which may happen after any value.
#[inline]
fn push_row(table: &mut Table, row: &Row<'_>, width: usize, max_bytes: usize) -> Result<(), Excess> {
    // Reading a value may need memory, and rusqlite panics if it gets none. The amount is bounded: each value is read
    // once.
    meter::set_lenient(true);
    let copied = (0..width).try_for_each(|column| {
        let value = row.get_ref(column).map_err(|_| Excess::Bytes)?;
        table.try_push(from_sqlite(value)).map_err(|OutOfMemory| Excess::Memory)?;
        if table.bytes() <= max_bytes { Ok(()) } else { Err(Excess::Bytes) }
    });
    meter::set_lenient(false);
    if copied.is_ok() {
        table.end_row();
    }
    copied
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

/// Suggests a name for a missing one, under separate bounds.
fn find_hint(sandbox: &Sandbox, statement: &str, error: &str) -> Option<String> {
    let (connection, names) = sandbox.open_connection()?;
    let guard = sandbox.guard();
    let limits = Limits { timeout: None, vm_steps: Some(hint::MAX_STEPS), ..Limits::default() };
    guard.arm(&limits, None, Instant::now());
    guard.start_executing();
    let hint = hint::hint(connection, names, statement, error, &|table, column| {
        sandbox.record().hiding().hides(table, column)
    });
    guard.disarm();
    hint
}

/// Sets status and message of a refused request. SQLite reports each refusal as a lack of memory or disk space.
fn explain_refusal(outcome: &mut Outcome, refusal: Option<Refusal>, limits: &Limits) {
    let (status, error) = match refusal {
        None => return,
        Some(Refusal::Time) => (Status::Timeout, String::new()),
        Some(Refusal::Heap) => (Status::TooLarge, format!("over the limit of {} bytes of memory", limits.heap_bytes)),
        Some(Refusal::TempFiles) => {
            (Status::TooLarge, format!("over the limit of {} bytes of temporary files", limits.temp_bytes))
        }
        Some(Refusal::Snippet) => (Status::TooLarge, "snippet() of a row with too many matches".to_owned()),
        Some(Refusal::Prepare) => (Status::TooLarge, "the statement takes too much work to prepare".to_owned()),
    };
    *outcome = outcome.replaced_by(status, error);
}

/// Sets the message for the bound that stopped the run.
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
        Some(Stop::Killed | Stop::Memory) | None => "interrupted".to_owned(),
    });
}
