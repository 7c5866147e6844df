//! `Job`: a batch in flight, and the only place where Python waits.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTimeoutError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use sqlexec_core::{Items, NextItem};

use crate::callbacks::callback;
use crate::convert::{score_to_python, scores_to_arrays};
use crate::outcome::Outcome;
use crate::raise;

/// Interval at which waits let Python handle signals, such as Ctrl-C.
const SIGNAL_PERIOD: Duration = Duration::from_millis(50);

/// A submitted batch.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct Job {
    pub(crate) inner: sqlexec_core::Job,
    /// The rules of a score job; `None` for an execute job.
    pub(crate) rules: Option<Arc<[&'static str]>>,
}

#[pymethods]
impl Job {
    /// Returns whether every item is finished.
    fn done(&self) -> PyResult<bool> {
        self.inner.is_done().map_err(|error| raise(&error))
    }

    /// Waits at most `timeout` seconds until every item is finished; returns whether they are.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        self.wait_until_done(py, seconds(timeout))
    }

    /// Waits, and returns the outcomes in order, or the arrays of a score job.
    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait_until_done(py, None)?;
        self.all_items(py)
    }

    /// Cancels unfinished items, which get the status `cancelled`.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.cancel()).map_err(|error| raise(&error))
    }

    /// Calls `function(job)` once when every item is finished; immediately if they are.
    fn add_done_callback(slf: Bound<'_, Self>, function: Py<PyAny>) -> PyResult<()> {
        if !function.bind(slf.py()).is_callable() {
            return Err(PyTypeError::new_err("a callback must be callable"));
        }
        let call = callback(slf.clone().into_any().unbind(), function);
        let inner = &slf.get().inner;
        slf.py().detach(|| inner.when_done(call)).map_err(|error| raise(&error))
    }

    /// Iterates over (index, result) in completion order.
    #[pyo3(signature = (timeout=None))]
    fn as_completed(slf: Bound<'_, Self>, timeout: Option<f64>) -> PyResult<JobItems> {
        let inner = &slf.get().inner;
        inner.is_done().map_err(|error| raise(&error))?;
        let deadline = seconds(timeout).and_then(|timeout| Instant::now().checked_add(timeout));
        Ok(JobItems { items: Mutex::new(inner.items()), job: slf.clone().unbind(), deadline })
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let py = slf.py();
        py.import("sqlexec_rs.awaiting")?.call_method1("result_in_loop", (slf,))?.call_method0("__await__")
    }

    /// Returns the number of finished distinct items and the number of distinct items.
    fn progress(&self) -> PyResult<(usize, usize)> {
        self.inner.progress().map_err(|error| raise(&error))
    }

    fn __repr__(&self) -> PyResult<String> {
        let (done, all) = self.progress()?;
        Ok(format!("Job({done} of {all} done)"))
    }
}

impl Job {
    /// Waits until every item is finished, detached from the interpreter and handling signals. Returns false on
    /// timeout.
    fn wait_until_done(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<bool> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = deadline.map_or(SIGNAL_PERIOD, |deadline| deadline.saturating_duration_since(Instant::now()));
            if py.detach(|| self.inner.wait(left.min(SIGNAL_PERIOD))).map_err(|error| raise(&error))? {
                return Ok(true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }

    /// Waits for a job of which the caller holds no handle: an exception meanwhile (Ctrl-C) cancels it.
    fn wait_or_cancel(&self, py: Python<'_>) -> PyResult<()> {
        let result = self.wait_until_done(py, None);
        if result.is_err() {
            self.cancel(py)?;
        }
        result.map(|_| ())
    }

    /// Does the same as `result`, for a call that does not return the job.
    pub(crate) fn wait_for_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait_or_cancel(py)?;
        self.all_items(py)
    }

    /// Returns the result of the only item, for a call that does not return the job.
    pub(crate) fn wait_for_first<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.wait_or_cancel(py)?;
        self.item(py, 0)
    }

    /// Returns the outcomes or scores of a finished job.
    fn all_items<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        if let Some(rules) = &self.rules {
            let scores = self.inner.scores().map_err(|error| raise(&error))?;
            return Ok(scores_to_arrays(py, &scores, rules)?.into_any());
        }
        let outcomes = self.inner.outcomes().map_err(|error| raise(&error))?;
        let objects = outcomes.into_iter().map(|outcome| Bound::new(py, Outcome::new(outcome)));
        Ok(PyList::new(py, objects.collect::<PyResult<Vec<_>>>()?)?.into_any())
    }

    /// Returns the outcome or score of a finished item.
    fn item<'py>(&self, py: Python<'py>, number: usize) -> PyResult<Bound<'py, PyAny>> {
        if let Some(rules) = &self.rules {
            let score = self.inner.score(number).map_err(|error| raise(&error))?;
            return Ok(score_to_python(py, score, rules)?.into_any());
        }
        let outcome = self.inner.outcome(number).map_err(|error| raise(&error))?;
        Ok(Bound::new(py, Outcome::new(outcome))?.into_any())
    }
}

/// The items of a job in completion order.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct JobItems {
    /// Locked only while detached from the interpreter, to avoid deadlocks.
    items: Mutex<Items>,
    job: Py<Job>,
    deadline: Option<Instant>,
}

#[pymethods]
impl JobItems {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        slf.py().import("sqlexec_rs.awaiting")?.call_method1("next_in_loop", (slf,))
    }

    /// Returns the next finished item as `(index, result)`, `False` if it has not finished, `None` after the last.
    fn poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self.advance(py, Duration::ZERO)? {
            NextItem::Item(number) => (number, self.job.get().item(py, number)?).into_bound_py_any(py),
            NextItem::End => Ok(py.None().into_bound(py)),
            NextItem::TimedOut if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) => Err(late()),
            NextItem::TimedOut => false.into_bound_py_any(py),
        }
    }

    /// Waits at most `timeout` seconds until `poll` has a result.
    fn wait(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = seconds(Some(timeout)).unwrap_or_default();
        py.detach(|| self.lock().wait(timeout)).map_err(|error| raise(&error))
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(usize, Bound<'py, PyAny>)>> {
        loop {
            let left =
                self.deadline.map_or(SIGNAL_PERIOD, |deadline| deadline.saturating_duration_since(Instant::now()));
            match self.advance(py, left.min(SIGNAL_PERIOD))? {
                NextItem::Item(number) => return Ok(Some((number, self.job.get().item(py, number)?))),
                NextItem::End => return Ok(None),
                NextItem::TimedOut => {}
            }
            py.check_signals()?;
            if left.is_zero() {
                return Err(late());
            }
        }
    }
}

impl JobItems {
    fn advance(&self, py: Python<'_>, timeout: Duration) -> PyResult<NextItem> {
        py.detach(|| self.lock().next(timeout)).map_err(|error| raise(&error))
    }

    fn lock(&self) -> MutexGuard<'_, Items> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn late() -> PyErr {
    PyTimeoutError::new_err("not every item was finished in time")
}

/// Converts a number of seconds: negative values to zero, overlong ones to no timeout.
fn seconds(timeout: Option<f64>) -> Option<Duration> {
    timeout.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX))
}
