//! `Outcome`: the result of a run. Rows become Python objects only when requested.

use std::sync::Arc;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyCapsule, PyList};
use sqlexec_core::{Stop, catch_out_of_memory, outcome_from_bytes, outcome_to_bytes};

use crate::arrow::ArrowTable;
use crate::convert::{bytes_to_python, rows_to_python};
use crate::{raise, raise_out_of_memory};

/// Maximum number of characters of an error in a `repr`.
const REPR_CHARS: usize = 100;

/// The result of a run. Bad SQL is data: check `status`.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct Outcome {
    inner: Arc<sqlexec_core::Outcome>,
    rows: PyOnceLock<Py<PyList>>,
}

impl Outcome {
    pub(crate) fn new(inner: Arc<sqlexec_core::Outcome>) -> Self {
        Self { inner, rows: PyOnceLock::new() }
    }

    /// Returns the table if the run was `ok`.
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
    fn column_types(&self) -> Vec<Option<&str>> {
        self.table().map_or(Vec::new(), |table| (0..table.width()).map(|column| table.column_type(column)).collect())
    }

    #[getter]
    fn rows(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        let make = || match self.table() {
            Some(table) => rows_to_python(py, table, 0..table.n_rows()).map(Bound::unbind),
            None => Ok(PyList::empty(py).unbind()),
        };
        self.rows.get_or_try_init(py, make).map(|rows| rows.clone_ref(py))
    }

    /// Returns the rows from `start` up to `stop`, newly created.
    fn slice<'py>(&self, py: Python<'py>, start: usize, stop: usize) -> PyResult<Bound<'py, PyList>> {
        match self.table() {
            Some(table) => rows_to_python(py, table, start.min(table.n_rows())..stop.min(table.n_rows())),
            None => Ok(PyList::empty(py)),
        }
    }

    /// Iterates over the rows in lists of `size`, with `for` or `async for`.
    #[pyo3(signature = (size=1_000))]
    fn batches(slf: Bound<'_, Self>, size: usize) -> PyResult<Bound<'_, PyAny>> {
        slf.py().import("sqlexec_rs.batches")?.call_method1("RowBatches", (slf, size))
    }

    /// Returns whether `rows` are only the first rows because the limits allow no more.
    #[getter]
    pub(crate) fn is_cut(&self) -> bool {
        self.inner.is_cut
    }

    /// Implements pickling.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Bound<'py, PyBytes>,))> {
        let bytes = py.detach(|| outcome_to_bytes(&self.inner)).map_err(|error| raise(&error))?;
        Ok((py.get_type::<Self>().getattr("_from_bytes")?, (bytes_to_python(py, &bytes)?,)))
    }

    #[staticmethod]
    fn _from_bytes(py: Python<'_>, bytes: &[u8]) -> PyResult<Self> {
        let outcome = py.detach(|| outcome_from_bytes(bytes)).map_err(|error| raise(&error))?;
        let reason =
            || PyValueError::new_err("an outcome can only be unpickled by the version of sqlexec_rs that pickled it");
        Ok(Self::new(Arc::new(outcome.ok_or_else(reason)?)))
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
    fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    #[getter]
    fn stopped_by(&self) -> Option<&'static str> {
        self.inner.stopped_by.map(Stop::name)
    }

    #[getter]
    fn vm_steps(&self) -> u64 {
        self.inner.vm_steps
    }

    #[getter]
    fn set_digest(&self, py: Python<'_>) -> PyResult<Option<u128>> {
        let digest = || self.table().and_then(|table| table.set_digest());
        py.detach(|| catch_out_of_memory(digest)).map_err(raise_out_of_memory)
    }

    /// Returns an object that every Arrow library can import.
    #[pyo3(signature = (*, unique_names=false))]
    fn to_arrow(&self, py: Python<'_>, unique_names: bool) -> PyResult<ArrowTable> {
        ArrowTable::of(py, self.wanted_table()?, unique_names)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        self.to_arrow(py, false)?.__arrow_c_stream__(py, requested_schema)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        self.to_arrow(py, false)?.__arrow_c_array__(py, requested_schema)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        self.to_arrow(py, false)?.__arrow_c_schema__(py)
    }

    /// Returns a pandas.DataFrame.
    fn to_pandas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let table = self.to_arrow(py, false)?;
        py.import("sqlexec_rs.frames")?.call_method1("to_pandas", (table.columns_to_python(py)?,))
    }

    /// Returns a polars.DataFrame.
    fn to_polars<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("sqlexec_rs.frames")?.call_method1("to_polars", (self.to_arrow(py, true)?,))
    }

    /// Returns the result as a text table, or the error.
    #[pyo3(signature = (max_rows=Some(20), max_width=Some(120)))]
    #[pyo3(text_signature = "($self, max_rows=20, max_width=120)")]
    fn pretty(&self, py: Python<'_>, max_rows: Option<usize>, max_width: Option<usize>) -> PyResult<String> {
        match self.table() {
            Some(table) => {
                let text = py.detach(|| catch_out_of_memory(|| table.pretty(max_rows, max_width)));
                text.map_err(raise_out_of_memory)
            }
            None => Ok(self.failure()),
        }
    }

    fn __str__(&self, py: Python<'_>) -> PyResult<String> {
        self.pretty(py, Some(20), Some(120))
    }

    fn __repr__(&self) -> String {
        if let Some(table) = self.table() {
            let cut = if self.inner.is_cut { ", cut" } else { "" };
            return format!("<Outcome ok: {} rows{cut}, {} columns>", table.n_rows(), table.width());
        }
        let failure = self.failure();
        let cut: String = failure.chars().take(REPR_CHARS).collect();
        format!("<Outcome {cut}{}>", if cut.len() < failure.len() { "…" } else { "" })
    }
}

impl Outcome {
    /// Returns status, error and hint in one line.
    fn failure(&self) -> String {
        let status = self.inner.status.name();
        let parts = [self.inner.error.as_deref(), self.inner.hint.as_deref()].into_iter().flatten();
        format!("{status}: {}", parts.collect::<Vec<_>>().join(". "))
    }

    fn wanted_table(&self) -> PyResult<&Arc<sqlexec_core::Table>> {
        let reason = || PyValueError::new_err(format!("the outcome has no table: {}", self.failure()));
        self.table().ok_or_else(reason)
    }
}
