//! `ArrowTable`: a result as Arrow data, exported through the Arrow `PyCapsule` interface.

use std::collections::{HashMap, HashSet};
use std::ffi::CStr;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, RecordBatch, RecordBatchIterator, RecordBatchOptions, StructArray};
use arrow_schema::{ArrowError, DataType, Field, Schema};
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyList};
use sqlexec_core::{Table, check_room, to_arrow};

use crate::convert::OBJECT_BYTES;
use crate::{raise, raise_out_of_memory};

// The capsule names required by the PyCapsule interface.
const SCHEMA: &CStr = c"arrow_schema";
const ARRAY: &CStr = c"arrow_array";
const STREAM: &CStr = c"arrow_array_stream";

/// A result as Arrow data, which pyarrow, polars, nanoarrow and others import without copying.
#[pyclass(frozen, module = "sqlexec_rs")]
pub(crate) struct ArrowTable {
    batch: RecordBatch,
}

impl ArrowTable {
    /// Creates the columns of a table, detached from the interpreter.
    pub(crate) fn of(py: Python<'_>, table: &Table, unique_names: bool) -> PyResult<Self> {
        let mut batch = py.detach(|| to_arrow(table)).map_err(|error| raise(&error))?;
        if unique_names {
            let (schema, columns, n_rows) = batch.into_parts();
            let options = RecordBatchOptions::new().with_row_count(Some(n_rows));
            let schema = Arc::new(with_unique_names(&schema));
            batch = RecordBatch::try_new_with_options(schema, columns, &options).map_err(cannot_export)?;
        }
        Ok(Self { batch })
    }

    /// Returns (name, type, values, mask of NULLs or `None`) per column, for libraries without Arrow support.
    pub(crate) fn columns_to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let schema = self.batch.schema_ref();
        let n_cells = self.batch.num_rows().saturating_mul(self.batch.num_columns());
        let room = n_cells.saturating_mul(OBJECT_BYTES) + self.batch.get_array_memory_size();
        check_room(room).map_err(raise_out_of_memory)?;
        let columns = schema.fields().iter().zip(self.batch.columns()).map(|(field, column)| {
            let values = match column.data_type() {
                DataType::Int64 => PyArray1::from_slice(py, column.as_primitive::<Int64Type>().values()).into_any(),
                DataType::Float64 => PyArray1::from_slice(py, column.as_primitive::<Float64Type>().values()).into_any(),
                DataType::LargeUtf8 => PyList::new(py, column.as_string::<i64>())?.into_any(),
                DataType::LargeBinary => PyList::new(py, column.as_binary::<i64>())?.into_any(),
                _ => PyList::new(py, (0..column.len()).map(|_| py.None()))?.into_any(),
            };
            let mask = column.nulls().map(|nulls| PyArray1::from_iter(py, nulls.iter().map(|is_valid| !is_valid)));
            Ok((field.name(), type_name(field), values, mask))
        });
        PyList::new(py, columns.collect::<PyResult<Vec<_>>>()?)
    }
}

/// Returns Arrow's name of a column's type.
fn type_name(field: &Field) -> &'static str {
    match field.data_type() {
        DataType::Int64 => "int64",
        DataType::Float64 => "float64",
        DataType::LargeUtf8 => "large_utf8",
        DataType::LargeBinary => "large_binary",
        _ => "null",
    }
}

#[allow(clippy::needless_pass_by_value, reason = "`map_err` passes it by value")]
fn cannot_export(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Appends a number to repeated names: `id`, `id_2`, `id_3`.
fn with_unique_names(schema: &Schema) -> Schema {
    let mut taken: HashSet<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
    let mut counts: HashMap<&str, usize> = HashMap::new();
    let mut fields: Vec<Field> = Vec::new();
    for field in schema.fields() {
        let count = counts.entry(field.name()).or_default();
        *count += 1;
        let mut name = field.name().clone();
        while *count > 1 {
            name = format!("{}_{count}", field.name());
            if taken.insert(name.clone()) {
                break;
            }
            *count += 1;
        }
        fields.push(field.as_ref().clone().with_name(name));
    }
    Schema::new(fields)
}

#[pymethods]
impl ArrowTable {
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.batch.schema_ref().fields().iter().map(|field| field.name().as_str()).collect()
    }

    #[getter]
    fn types(&self) -> Vec<&str> {
        self.batch.schema_ref().fields().iter().map(|field| type_name(field)).collect()
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    // A requested schema is a wish that a producer may ignore.
    #[pyo3(signature = (requested_schema=None))]
    pub(crate) fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        drop(requested_schema);
        let batches = RecordBatchIterator::new([Ok(self.batch.clone())], self.batch.schema());
        PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(Box::new(batches)), STREAM)
    }

    #[pyo3(signature = (requested_schema=None))]
    pub(crate) fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Py<PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        drop(requested_schema);
        let array = FFI_ArrowArray::new(&StructArray::from(self.batch.clone()).to_data());
        Ok((self.__arrow_c_schema__(py)?, PyCapsule::new_with_value(py, array, ARRAY)?))
    }

    pub(crate) fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.batch.schema_ref().as_ref()).map_err(cannot_export)?;
        PyCapsule::new_with_value(py, schema, SCHEMA)
    }

    fn __repr__(&self) -> String {
        let fields = self.batch.schema_ref().fields().iter();
        let fields: Vec<String> = fields.map(|field| format!("{}: {}", field.name(), type_name(field))).collect();
        format!("<ArrowTable of {} rows: {}>", self.batch.num_rows(), fields.join(", "))
    }
}
