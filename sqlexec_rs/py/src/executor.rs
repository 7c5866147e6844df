//! `Executor`: the Python class around the pool.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sqlexec_core::{Access, Config, HiddenColumn, OutputKind, Pool, PoolError, Query, WorkerConfig, setting_query};

use crate::callbacks::observer;
use crate::convert::parameters_from_python;
use crate::duckdb;
use crate::inputs::{Batch, Inputs, items, rules_of, sql_text};
use crate::job::Job;
use crate::limits::Limits;
use crate::{ExecutorError, raise};

/// How long `close` waits for the threads between two checks for signals.
const CLOSE_PERIOD: Duration = Duration::from_millis(50);

/// The file of the worker program, next to the module's file.
const WORKER: &str = "sqlexec-worker";

/// Minimum address space of a worker: its stack and SQLite's tables.
const MIN_WORKER_BYTES: u64 = 64 << 20;

/// Runs untrusted SQL in parallel, read-only and under hard limits.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct Executor {
    pool: Pool,
    isolation: &'static str,
    sqlite_version: Option<String>,
    limits: Arc<sqlexec_core::Limits>,
    python_limits: Limits,
    hide: Vec<(String, Option<String>)>,
}

#[pymethods]
impl Executor {
    #[new]
    #[pyo3(
        signature = (
            threads=None, limits=None, isolation="process", *, max_open=512, immutable=false, copy_up_to_bytes=0,
            copies_bytes=268_435_456, cache_bytes=268_435_456, max_queued=1_048_576, like_blobs=true, cell_size_check=false, sqlite_version=None,
            hide=vec![], on_run=None, slow_query_ms=None, worker_grace_ms=25, worker_hang_ms=Some(60_000), worker_memory_bytes=2_147_483_648
        ),
        text_signature = "(threads=None, limits=None, isolation='process', *, max_open=512, immutable=False, \
                          copy_up_to_bytes=0, copies_bytes=268435456, cache_bytes=268435456, max_queued=1048576, \
                          like_blobs=True, cell_size_check=False, sqlite_version=None, hide=(), on_run=None, slow_query_ms=None, \
                          worker_grace_ms=25, worker_hang_ms=60000, worker_memory_bytes=2147483648)"
    )]
    fn new(
        py: Python<'_>,
        threads: Option<usize>,
        limits: Option<Limits>,
        isolation: &str,
        max_open: usize,
        immutable: bool,
        copy_up_to_bytes: u64,
        copies_bytes: u64,
        cache_bytes: usize,
        max_queued: usize,
        like_blobs: bool,
        cell_size_check: bool,
        sqlite_version: Option<&str>,
        hide: Vec<(String, Option<String>)>,
        on_run: Option<Py<PyAny>>,
        slow_query_ms: Option<u64>,
        worker_grace_ms: u64,
        worker_hang_ms: Option<u64>,
        worker_memory_bytes: u64,
    ) -> PyResult<Self> {
        if threads == Some(0) {
            return Err(PyValueError::new_err("threads must be at least 1, or None for one per core"));
        }
        if max_queued == 0 {
            return Err(PyValueError::new_err("max_queued must be at least 1"));
        }
        if worker_memory_bytes < MIN_WORKER_BYTES {
            let message = format!("worker_memory_bytes must be at least {MIN_WORKER_BYTES}, not {worker_memory_bytes}");
            return Err(PyValueError::new_err(message));
        }
        let worker_limits = WorkerConfig {
            grace: Duration::from_millis(worker_grace_ms),
            hang: worker_hang_ms.map(Duration::from_millis),
            memory_bytes: worker_memory_bytes,
            ..WorkerConfig::new(PathBuf::new())
        };
        let worker = match isolation {
            "thread" => None,
            "process" => Some(WorkerConfig { program: worker_program(py)?, ..worker_limits.clone() }),
            _ => return Err(PyValueError::new_err("isolation must be \"thread\" or \"process\"")),
        };
        if on_run.as_ref().is_some_and(|function| !function.bind(py).is_callable()) {
            return Err(PyTypeError::new_err("on_run must be callable"));
        }
        let hidden = hidden_columns(&hide)?;
        let observer = observer(on_run, slow_query_ms.map(Duration::from_millis));
        let minor = sqlite_version.map_or(Ok(u32::MAX), minor_version)?;
        let access = Access {
            immutable,
            copy_up_to_bytes,
            copies_bytes,
            like_blobs,
            checks_cells: cell_size_check,
            sqlite_version: minor,
        };
        let duckdb = duckdb::worker(py, worker_limits)?;
        let config = Config { threads, max_open, access, hidden, cache_bytes, max_queued, worker, duckdb };
        let pool = py.detach(|| Pool::observed(&config, observer)).map_err(|error| raise(&error))?;
        let python_limits = limits.unwrap_or_default();
        let isolation = if config.worker.is_some() { "process" } else { "thread" };
        let (sqlite_version, limits) = (sqlite_version.map(str::to_owned), Arc::new(python_limits.to_core()));
        Ok(Self { pool, isolation, sqlite_version, limits, python_limits, hide })
    }

    #[getter]
    fn limits(&self) -> Limits {
        self.python_limits.clone()
    }

    #[getter]
    fn hide(&self) -> Vec<(String, Option<String>)> {
        self.hide.clone()
    }

    #[getter]
    fn threads(&self) -> usize {
        self.pool.n_threads()
    }

    #[getter]
    fn isolation(&self) -> &'static str {
        self.isolation
    }

    #[getter]
    fn sqlite_version(&self) -> Option<&str> {
        self.sqlite_version.as_deref()
    }

    /// Runs a SQL text and returns its outcome.
    #[pyo3(signature = (db_path, sql, parameters=None, *, limits=None))]
    fn execute<'py>(
        &self,
        py: Python<'py>,
        db_path: &Bound<'py, PyAny>,
        sql: &Bound<'py, PyAny>,
        parameters: Option<&Bound<'py, PyAny>>,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run_query(py, take_query(&mut Inputs::default(), db_path, sql, parameters)?, OutputKind::Rows, limits)
    }

    /// Returns the query plan of a SQL text without running it.
    #[pyo3(signature = (db_path, sql, parameters=None, *, limits=None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        db_path: &Bound<'py, PyAny>,
        sql: &Bound<'py, PyAny>,
        parameters: Option<&Bound<'py, PyAny>>,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.run_query(py, take_query(&mut Inputs::default(), db_path, sql, parameters)?, OutputKind::Plan, limits)
    }

    /// Returns a setting of a database's engine.
    #[pyo3(signature = (db_path, name, *, limits=None))]
    fn show<'py>(
        &self,
        py: Python<'py>,
        db_path: &Bound<'py, PyAny>,
        name: &str,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let database = Inputs::default().path(db_path)?;
        let sql = setting_query(&database, name).ok_or_else(|| {
            PyValueError::new_err(format!("a setting must have a plain name, such as server_version, not {name:?}"))
        })?;
        self.run_query(py, Query { database, sql: sql.into(), parameters: None }, OutputKind::Rows, limits)
    }

    /// Runs (database, SQL) pairs and returns their outcomes in order.
    #[pyo3(signature = (pairs, *, limits=None))]
    fn execute_many<'py>(
        &self,
        py: Python<'py>,
        pairs: &Bound<'py, PyAny>,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.submit(py, pairs, limits)?.wait_for_all(py)
    }

    /// Scores a prediction against its gold.
    #[pyo3(signature = (db_path, pred_sql, gold, rules=vec!["bird".to_owned()], *, options=None, limits=None))]
    fn score<'py>(
        &self,
        py: Python<'py>,
        db_path: &Bound<'py, PyAny>,
        pred_sql: &Bound<'py, PyAny>,
        gold: &Bound<'py, PyAny>,
        rules: Vec<String>,
        options: Option<&Bound<'py, PyAny>>,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let batch = Inputs::default().score_item(db_path, pred_sql, gold, options)?;
        self.start_score(py, batch, &rules, limits)?.wait_for_first(py)
    }

    /// Scores predictions against their golds and returns arrays.
    #[pyo3(signature = (db_paths, pred_sqls, golds, rules=vec!["bird".to_owned()], *, options=None, limits=None))]
    fn score_many<'py>(
        &self,
        py: Python<'py>,
        db_paths: &Bound<'py, PyAny>,
        pred_sqls: &Bound<'py, PyAny>,
        golds: &Bound<'py, PyAny>,
        rules: Vec<String>,
        options: Option<&Bound<'py, PyAny>>,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.submit_score(py, db_paths, pred_sqls, golds, rules, options, limits)?.wait_for_all(py)
    }

    /// Queues (database, SQL) pairs and returns at once.
    #[pyo3(signature = (pairs, *, limits=None))]
    fn submit(&self, py: Python<'_>, pairs: &Bound<'_, PyAny>, limits: Option<Limits>) -> PyResult<Job> {
        self.start(py, &take_queries(pairs)?, OutputKind::Rows, limits)
    }

    /// Queues predictions to score and returns at once.
    #[pyo3(signature = (db_paths, pred_sqls, golds, rules=vec!["bird".to_owned()], *, options=None, limits=None))]
    fn submit_score<'py>(
        &self,
        py: Python<'py>,
        db_paths: &Bound<'py, PyAny>,
        pred_sqls: &Bound<'py, PyAny>,
        golds: &Bound<'py, PyAny>,
        rules: Vec<String>,
        options: Option<&Bound<'py, PyAny>>,
        limits: Option<Limits>,
    ) -> PyResult<Job> {
        self.start_score(py, Inputs::default().score_items(db_paths, pred_sqls, golds, options)?, &rules, limits)
    }

    /// Returns the counters since the executor started.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        for (name, count) in self.pool.stats().map_err(|error| raise(&error))? {
            dict.set_item(name, count)?;
        }
        Ok(dict)
    }

    /// Cancels everything in flight and waits for the threads to end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.pool.begin_close()).map_err(|error| raise(&error))?;
        while !py.detach(|| self.pool.is_closed(CLOSE_PERIOD)).map_err(|error| raise(&error))? {
            py.check_signals()?;
        }
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("Executor(threads={}, isolation={:?})", self.pool.n_threads(), self.isolation)
    }
}

impl Executor {
    fn core_limits(&self, limits: Option<Limits>) -> Arc<sqlexec_core::Limits> {
        limits.map_or_else(|| Arc::clone(&self.limits), |limits| Arc::new(limits.to_core()))
    }

    /// Runs a query and returns its outcome.
    fn run_query<'py>(
        &self,
        py: Python<'py>,
        query: Query,
        output: OutputKind,
        limits: Option<Limits>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.start(py, &[query], output, limits)?.wait_for_first(py)
    }

    fn start(&self, py: Python<'_>, queries: &[Query], output: OutputKind, limits: Option<Limits>) -> PyResult<Job> {
        let limits = self.core_limits(limits);
        let inner = interruptibly(py, |keep_waiting| self.pool.submit_while(queries, output, &limits, keep_waiting))?;
        Ok(Job { inner, rules: None })
    }

    /// Starts a batch. An exception meanwhile (Ctrl-C) cancels the started runs. The batch is freed while the threads
    /// work, because that takes time.
    fn start_score(&self, py: Python<'_>, batch: Batch<'_>, rules: &[String], limits: Option<Limits>) -> PyResult<Job> {
        let rules = rules_of(rules)?;
        let limits = self.core_limits(limits);
        if limits.cuts || limits.other_engines.as_ref().is_some_and(|others| others.cuts) {
            return Err(PyValueError::new_err(
                "a result that may be cut cannot be scored: on_excess must be \"refuse\"",
            ));
        }
        let builder = self.pool.score_builder(batch.len(), batch.n_pairs(), &rules, &limits);
        let mut builder = builder.map_err(|error| raise(&error))?;
        for numbers in batch.batches().iter() {
            let items = batch.take(numbers)?;
            interruptibly(py, |keep_waiting| builder.add(items, keep_waiting))?;
        }
        let inner = py.detach(|| builder.finish()).map_err(|error| raise(&error))?;
        Ok(Job { inner, rules: Some(rules.iter().map(|rule| rule.name()).collect()) })
    }
}

/// Runs `work` detached from the interpreter. If the queue is full, signals (Ctrl-C) are handled while waiting.
fn interruptibly<T: Send>(
    py: Python<'_>,
    work: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, PoolError> + Send,
) -> PyResult<T> {
    let mut raised = None;
    let mut keep_waiting = || {
        Python::attach(|py| match py.check_signals() {
            Ok(()) => true,
            Err(error) => {
                raised = Some(error);
                false
            }
        })
    };
    let done = py.detach(|| work(&mut keep_waiting));
    done.map_err(|error| raised.unwrap_or_else(|| raise(&error)))
}

/// Returns the minor version of SQLite 3.
fn minor_version(version: &str) -> PyResult<u32> {
    let parts: Option<Vec<u32>> = version.split('.').map(|part| part.parse().ok()).collect();
    match parts.as_deref() {
        Some([3, minor] | [3, minor, _]) if *minor >= sqlexec_core::EARLIEST_SQLITE => Ok(*minor),
        _ => {
            let earliest = sqlexec_core::EARLIEST_SQLITE;
            Err(PyValueError::new_err(format!("sqlite_version must be 3.{earliest} or later, not {version:?}")))
        }
    }
}

/// Converts the hidden columns from (table, column) or, for whole tables, (table, None).
fn hidden_columns(hide: &[(String, Option<String>)]) -> PyResult<Arc<[HiddenColumn]>> {
    let hidden_column = |(table, column): &(String, Option<String>)| {
        if table.contains('\0') || column.as_ref().is_some_and(|column| column.contains('\0')) {
            return Err(PyValueError::new_err(format!(
                "hide: a name must not contain a NUL character, like {table:?}"
            )));
        }
        Ok(HiddenColumn { table: table.clone(), column: column.clone() })
    };
    hide.iter().map(hidden_column).collect()
}

/// Returns the path of the worker program that was installed with this module.
fn worker_program(py: Python<'_>) -> PyResult<PathBuf> {
    let module: PathBuf = py.import("sqlexec_rs._native")?.getattr("__file__")?.extract()?;
    let program = module.with_file_name(WORKER);
    if program.is_file() {
        return Ok(program);
    }
    let message = format!(
        "{} does not exist: isolation=\"process\" needs the worker that `pip install ./sqlexec_rs` builds and installs",
        program.display()
    );
    Err(ExecutorError::new_err(message))
}

fn take_queries(argument: &Bound<'_, PyAny>) -> PyResult<Vec<Query>> {
    let mut inputs = Inputs::default();
    let take = |item: &Bound<'_, PyAny>| {
        let fields = item.cast::<PyTuple>().ok().filter(|fields| matches!(fields.len(), 2 | 3));
        let fields = fields
            .ok_or_else(|| PyTypeError::new_err("each item must be (db_path, sql) or (db_path, sql, parameters)"))?;
        let parameters = if fields.len() == 3 { Some(fields.get_borrowed_item(2)?) } else { None };
        take_query(&mut inputs, &*fields.get_borrowed_item(0)?, &*fields.get_borrowed_item(1)?, parameters.as_deref())
    };
    items("pairs", argument)?.iter().map(take).collect()
}

fn take_query(
    inputs: &mut Inputs,
    path: &Bound<'_, PyAny>,
    sql: &Bound<'_, PyAny>,
    parameters: Option<&Bound<'_, PyAny>>,
) -> PyResult<Query> {
    let parameters = parameters.filter(|parameters| !parameters.is_none());
    let parameters = parameters.map(parameters_from_python).transpose()?.map(Arc::new);
    Ok(Query { database: inputs.path(path)?, sql: sql_text(sql)?, parameters })
}
