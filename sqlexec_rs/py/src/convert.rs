//! Conversion of values and tables between Rust and Python.

use std::ops::Range;

use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use sqlexec_core::{ParameterValue, Parameters, Score, Table, Value, check_room};

use crate::raise_out_of_memory;

/// Converts some of the rows to a list of tuples.
///
/// Text with invalid UTF-8 becomes a `str` with surrogate escapes: `text.encode("utf-8", "surrogateescape")` returns
/// the stored bytes. It stays distinct from a blob, which becomes `bytes`.
pub(crate) fn rows_to_python<'py>(py: Python<'py>, table: &Table, rows: Range<usize>) -> PyResult<Bound<'py, PyList>> {
    let (mut texts, mut room) = (Texts::new(), MemoryCheck::new(rows.len().saturating_mul(size_of::<usize>()))?);
    let rows = rows.map(|row| {
        if let Err(error) = room.take(table.width().saturating_mul(size_of::<usize>())) {
            return PyObjectResult(Err(error));
        }
        let cells = table.row(row).map(|value| PyObjectResult(value_to_python(py, value, &mut texts, &mut room)));
        PyObjectResult(PyTuple::new(py, cells).map(Bound::into_any))
    });
    PyList::new(py, rows)
}

/// An object to be stored in a list or a tuple, or the error.
struct PyObjectResult<'py>(PyResult<Bound<'py, PyAny>>);

impl<'py> IntoPyObject<'py> for PyObjectResult<'py> {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, _: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0
    }
}

fn value_to_python<'a, 'py>(
    py: Python<'py>,
    value: Value<'a>,
    texts: &mut Texts<'a, 'py>,
    room: &mut MemoryCheck,
) -> PyResult<Bound<'py, PyAny>> {
    let n_bytes = if let Value::Text(bytes) | Value::Blob(bytes) = value { bytes.len() } else { 0 };
    room.take(n_bytes)?;
    Ok(match value {
        Value::Null => py.None().into_bound(py),
        Value::Integer(i) => PyInt::new(py, i).into_any(),
        Value::Real(r) => PyFloat::new(py, r).into_any(),
        Value::Text(bytes) => return texts.get(py, bytes),
        Value::Blob(bytes) => bytes_to_python(py, bytes)?.into_any(),
    })
}

/// Bytes of a small object.
pub(crate) const OBJECT_BYTES: usize = 64;

/// Checks for memory ahead of time, because Python does not report failure when it creates small objects.
struct MemoryCheck(usize);

impl MemoryCheck {
    /// Bytes of objects between two checks.
    const PERIOD: usize = 8 << 20;

    fn new(n_bytes: usize) -> PyResult<Self> {
        if n_bytes >= Self::PERIOD {
            check_room(n_bytes).map_err(raise_out_of_memory)?;
        }
        Ok(Self(0))
    }

    /// Counts an object with `n_bytes` in addition to its header.
    #[inline]
    fn take(&mut self, n_bytes: usize) -> PyResult<()> {
        self.0 += OBJECT_BYTES + n_bytes;
        if self.0 < Self::PERIOD {
            return Ok(());
        }
        self.0 = 0;
        check_room(0).map_err(raise_out_of_memory)
    }
}

/// Creates `bytes`; raises `MemoryError` if memory is short.
pub(crate) fn bytes_to_python<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    const SMALL: usize = 64 << 10;
    if bytes.len() < SMALL {
        return Ok(PyBytes::new(py, bytes));
    }
    PyBytes::new_with(py, bytes.len(), |buffer| {
        buffer.copy_from_slice(bytes);
        Ok(())
    })
}

/// A cache of recent short texts of a result, because values in a column often repeat and then share an object.
struct Texts<'a, 'py>(Vec<Option<(&'a [u8], Bound<'py, PyAny>)>>);

impl<'a, 'py> Texts<'a, 'py> {
    const N_PLACES: usize = 1 << 10;

    /// Maximum length of a cached text.
    const MAX_BYTES: usize = 16;

    fn new() -> Self {
        Self(Vec::new())
    }

    fn get(&mut self, py: Python<'py>, bytes: &'a [u8]) -> PyResult<Bound<'py, PyAny>> {
        if bytes.len() > Self::MAX_BYTES {
            return text_to_python(py, bytes);
        }
        if self.0.is_empty() {
            self.0.resize_with(Self::N_PLACES, || None);
        }
        // The last bytes differ in numbered texts. A collision only costs time.
        let tail = bytes.iter().rev().take(4).fold(0_u32, |sum, byte| (sum << 8) | u32::from(*byte));
        let cached = &mut self.0[(tail.wrapping_mul(0x9e37_79b1) >> 22) as usize];
        match cached {
            Some((known, text)) if *known == bytes => Ok(text.clone()),
            _ => Ok(cached.insert((bytes, text_to_python(py, bytes)?)).1.clone()),
        }
    }
}

fn text_to_python<'py>(py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match PyString::from_bytes(py, bytes) {
        Ok(text) => Ok(text.into_any()),
        Err(error) if error.is_instance_of::<PyMemoryError>(py) => Err(error),
        Err(_) => bytes_to_python(py, bytes)?.call_method1("decode", ("utf-8", "surrogateescape")),
    }
}

/// Creates a table from `(columns, rows)`. Rejects values that no cell can hold; NaN becomes NULL, as in SQLite.
pub(crate) fn table_from_python(columns: &Bound<'_, PyAny>, rows: &Bound<'_, PyAny>) -> PyResult<Table> {
    let mut table = Table::new(columns.extract()?);
    for row in rows.try_iter()? {
        let mut width = 0;
        for value in row?.try_iter()? {
            push_python(&mut table, &value?)?;
            width += 1;
        }
        if width != table.width() {
            let (row, wanted) = (table.n_rows(), table.width());
            return Err(PyValueError::new_err(format!("gold row {row} has {width} values for {wanted} columns")));
        }
        table.end_row();
    }
    Ok(table)
}

/// Converts the parameters of a statement: by name from a dict, by position from a sequence.
pub(crate) fn parameters_from_python(argument: &Bound<'_, PyAny>) -> PyResult<Parameters> {
    let mut table = Table::new(Vec::new());
    let mut names = Vec::new();
    if let Ok(dict) = argument.cast::<PyDict>() {
        for (name, value) in dict {
            names.push(name.extract()?);
            push_python(&mut table, &value)?;
        }
    } else if argument.is_instance_of::<PyString>() || argument.is_instance_of::<PyBytes>() {
        return Err(wrong_type("parameters must be a sequence or a dict", argument));
    } else {
        for value in argument.try_iter()? {
            push_python(&mut table, &value?)?;
        }
    }
    Ok(Parameters { names, values: table.open_row().map(ParameterValue::from).collect() })
}

fn push_python(table: &mut Table, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let mut push = |value: Value<'_>| table.try_push(value).map_err(raise_out_of_memory);
    if value.is_none() {
        push(Value::Null)
    } else if let Ok(text) = value.cast::<PyString>() {
        match text.to_str() {
            Ok(text) => push(Value::Text(text.as_bytes())),
            Err(_) => push(Value::Text(
                text.call_method1("encode", ("utf-8", "surrogateescape"))?.cast::<PyBytes>()?.as_bytes(),
            )),
        }
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        push(Value::Blob(bytes.as_bytes()))
    } else if let Ok(flag) = value.cast::<PyBool>() {
        push(Value::Integer(i64::from(flag.is_true())))
    } else if let Ok(number) = value.cast::<PyFloat>() {
        let number = number.value();
        push(if number.is_nan() { Value::Null } else { Value::Real(number) })
    } else if value.is_instance_of::<PyInt>() {
        let number = value.extract().map_err(|_| PyValueError::new_err("an integer does not fit in 64 bits"))?;
        push(Value::Integer(number))
    } else {
        // This converts NumPy scalars, decimals and times to basic types.
        push_python(table, &value.py().import("sqlexec_rs.values")?.call_method1("to_cell", (value,))?)
    }
}

/// Creates the error for a value of the wrong type.
pub(crate) fn wrong_type(wanted: &str, got: &Bound<'_, PyAny>) -> PyErr {
    let kind = got.get_type().name().map_or_else(|_| "something else".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!("{wanted}, not {kind}"))
}

/// Creates the dict that `score` returns.
pub(crate) fn score_to_python<'py>(py: Python<'py>, score: &Score, rules: &[&str]) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    dict.set_item("pred_status", score.pred_status.name())?;
    dict.set_item("gold_status", score.gold_status.name())?;
    dict.set_item("pred_stop", score.pred_stop.map_or("", sqlexec_core::Stop::name))?;
    dict.set_item("pred_rows", score.pred_rows)?;
    dict.set_item("gold_rows", score.gold_rows)?;
    dict.set_item("pred_ms", score.pred_ms)?;
    dict.set_item("gold_ms", score.gold_ms)?;
    for (rule, value) in rules.iter().zip(&score.values) {
        dict.set_item(rule, value)?;
    }
    Ok(dict)
}

/// Creates the dict of arrays that `score_many` returns.
pub(crate) fn scores_to_arrays<'py>(
    py: Python<'py>,
    scores: &[&Score],
    rules: &[&str],
) -> PyResult<Bound<'py, PyDict>> {
    use numpy::PyArray1;
    let dict = PyDict::new(py);
    let bytes = |read: fn(&Score) -> u8| PyArray1::from_iter(py, scores.iter().map(|score| read(score)));
    let counts = |read: fn(&Score) -> u64| PyArray1::from_iter(py, scores.iter().map(|score| read(score) as i64));
    let floats = |read: fn(&Score) -> f64| PyArray1::from_iter(py, scores.iter().map(|score| read(score)));
    dict.set_item("pred_status", bytes(|score| score.pred_status as u8))?;
    dict.set_item("gold_status", bytes(|score| score.gold_status as u8))?;
    dict.set_item("pred_stop", bytes(|score| score.pred_stop.map_or(0, |stop| stop as u8)))?;
    dict.set_item("pred_rows", counts(|score| score.pred_rows))?;
    dict.set_item("gold_rows", counts(|score| score.gold_rows))?;
    dict.set_item("pred_ms", floats(|score| score.pred_ms))?;
    dict.set_item("gold_ms", floats(|score| score.gold_ms))?;
    for (number, rule) in rules.iter().enumerate() {
        dict.set_item(rule, PyArray1::from_iter(py, scores.iter().map(|score| score.values[number])))?;
    }
    Ok(dict)
}
