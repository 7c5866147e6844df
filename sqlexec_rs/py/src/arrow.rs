//! `ArrowTable`: a result as Arrow data, handed over by the Arrow `PyCapsule` interface.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::Arc;

use numpy::PyArray1;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyCapsule, PyList, PyString};
use sqlexec_core::Table;
use sqlexec_core::arrow::{ArrowArray, ArrowArrayStream, ArrowSchema, Bytes, Column, Data, columns};

use crate::raise;

// The names that the PyCapsule interface prescribes.
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// A result as Arrow data: pyarrow, polars, nanoarrow and others import it without a copy.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct ArrowTable {
    columns: Arc<Vec<Column>>,
    n_rows: usize,
}

impl ArrowTable {
    /// Makes the columns of a table, detached from the interpreter.
    pub(crate) fn of(py: Python<'_>, table: &Table, unique_names: bool) -> PyResult<Self> {
        let mut columns = py.detach(|| columns(table)).map_err(|fault| raise(&fault))?;
        if unique_names {
            make_unique(&mut columns);
        }
        Ok(Self { columns: Arc::new(columns), n_rows: table.n_rows() })
    }

    /// Returns (name, type, values, mask of NULLs or `None`) a column, for a library that takes no Arrow data.
    pub(crate) fn columns_to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let columns = self.columns.iter().map(|column| {
            let values = match &column.data {
                Data::Null => PyList::new(py, (0..self.n_rows).map(|_| py.None()))?.into_any(),
                Data::Int64(values) => PyArray1::from_slice(py, values).into_any(),
                Data::Float64(values) => PyArray1::from_slice(py, values).into_any(),
                Data::Utf8(bytes) => {
                    list(py, column, bytes, |text| PyString::from_bytes(py, text).map(Bound::into_any))?
                }
                Data::Binary(bytes) => list(py, column, bytes, |blob| Ok(PyBytes::new(py, blob).into_any()))?,
            };
            let mask = column
                .validity
                .as_ref()
                .map(|_| PyArray1::from_iter(py, (0..self.n_rows).map(|row| !column.is_valid(row))));
            Ok((column.name.as_str(), column.data.type_name(), values, mask))
        });
        PyList::new(py, columns.collect::<PyResult<Vec<_>>>()?)
    }
}

fn list<'py>(
    py: Python<'py>,
    column: &Column,
    bytes: &Bytes,
    make: impl Fn(&[u8]) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let cell = |row| if column.is_valid(row) { make(bytes.value(row)) } else { Ok(py.None().into_bound(py)) };
    let cells = (0..bytes.offsets.len() - 1).map(cell).collect::<PyResult<Vec<_>>>()?;
    Ok(PyList::new(py, cells)?.into_any())
}

/// Gives a name that came before a number: `id`, `id_2`, `id_3`.
fn make_unique(columns: &mut [Column]) {
    let mut taken: HashSet<String> = columns.iter().map(|column| column.name.clone()).collect();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for column in columns {
        let count = counts.entry(column.name.clone()).or_default();
        *count += 1;
        while *count > 1 {
            let name = format!("{}_{count}", column.name);
            if taken.insert(name.clone()) {
                column.name = name;
                break;
            }
            *count += 1;
        }
    }
}

#[pymethods]
impl ArrowTable {
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|column| column.name.as_str()).collect()
    }

    #[getter]
    fn types(&self) -> Vec<&str> {
        self.columns.iter().map(|column| column.data.type_name()).collect()
    }

    fn __len__(&self) -> usize {
        self.n_rows
    }

    // A requested schema is a wish that a producer need not grant.
    #[pyo3(signature = (requested_schema=None))]
    pub(crate) fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        PyCapsule::new_with_value(py, ArrowArrayStream::of(&self.columns, self.n_rows), STREAM)
    }

    #[pyo3(signature = (requested_schema=None))]
    pub(crate) fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        drop(requested_schema);
        let array = PyCapsule::new_with_value(py, ArrowArray::of(&self.columns, self.n_rows), ARRAY)?;
        Ok((self.__arrow_c_schema__(py)?, array))
    }

    pub(crate) fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        PyCapsule::new_with_value(py, ArrowSchema::of(&self.columns), SCHEMA)
    }

    fn __repr__(&self) -> String {
        let fields: Vec<String> =
            self.columns.iter().map(|column| format!("{}: {}", column.name, column.data.type_name())).collect();
        format!("<ArrowTable of {} rows: {}>", self.n_rows, fields.join(", "))
    }
}
