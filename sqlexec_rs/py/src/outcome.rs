//! `Outcome`: what one run gave, with rows made into Python objects only when they are asked for.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;
use sqlexec_core::Stop;

use crate::convert::rows_to_python;

/// What one run gave. Bad SQL is data: look at `status`.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct Outcome {
    inner: Arc<sqlexec_core::Outcome>,
    rows: PyOnceLock<Py<PyList>>,
}

impl Outcome {
    pub(crate) fn new(inner: Arc<sqlexec_core::Outcome>) -> Self {
        Self { inner, rows: PyOnceLock::new() }
    }

    /// Returns the table, when the run was `ok`.
    pub(crate) fn table(&self) -> Option<&Arc<sqlexec_core::Table>> {
        self.inner.table.as_ref()
    }
}

#[pymethods]
impl Outcome {
    #[getter]
    fn status(&self) -> &'static str {
        self.inner.status.name()
    }

    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.table().map_or(Vec::new(), |table| table.columns().iter().map(String::as_str).collect())
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let make = || match self.table() {
            Some(table) => rows_to_python(py, table).map(Bound::unbind),
            None => Ok(PyList::empty(py).unbind()),
        };
        self.rows.get_or_try_init(py, make).map(|rows| rows.clone_ref(py))
    }

    #[getter]
    fn row_count(&self) -> usize {
        self.inner.row_count()
    }

    #[getter]
    fn elapsed_ms(&self) -> f64 {
        self.inner.elapsed.as_secs_f64() * 1e3
    }

    #[getter]
    fn error(&self) -> Option<&str> {
        self.inner.error.as_deref()
    }

    #[getter]
    fn error_offset(&self) -> Option<u32> {
        self.inner.error_offset
    }

    #[getter]
    fn stopped_by(&self) -> Option<&'static str> {
        self.inner.stopped_by.map(Stop::name)
    }

    #[getter]
    fn vm_steps(&self) -> u64 {
        self.inner.vm_steps
    }

    fn __repr__(&self) -> String {
        let status = self.inner.status.name();
        match &self.inner.error {
            Some(error) => format!("Outcome(status={status:?}, error={error:?})"),
            None => format!("Outcome(status={status:?}, columns={:?}, row_count={})", self.columns(), self.row_count()),
        }
    }
}
