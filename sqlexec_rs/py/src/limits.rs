//! `Limits`: the limits of a run, as a frozen Python class.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use sqlexec_core::StatementLimits;

/// The limits of one run; `None` means no limit.
#[pyclass(frozen, eq, hash, from_py_object, module = "sqlexec_rs")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    core: sqlexec_core::Limits,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(
        signature = (
            timeout_ms=Some(30_000), cpu_ms=None, vm_steps=None, max_rows=1_000_000, max_bytes=268_435_456, *,
            heap_bytes=268_435_456, temp_bytes=1_073_741_824, compare_steps=2_000_000_000, on_excess=OnExcess(false), max_length=4_194_304, max_sql_length=1_048_576,
            max_like_pattern=1_000, max_expr_depth=500, max_compound=200, max_vdbe_ops=1_000_000, max_columns=2_000,
            other_engines=None
        ),
        text_signature = "(timeout_ms=30000, cpu_ms=None, vm_steps=None, max_rows=1000000, max_bytes=268435456, *, \
            heap_bytes=268435456, temp_bytes=1073741824, compare_steps=2000000000, on_excess='refuse', max_length=4194304, max_sql_length=1048576, \
            max_like_pattern=1000, max_expr_depth=500, max_compound=200, max_vdbe_ops=1000000, max_columns=2000, other_engines=None)"
    )]
    fn new(
        timeout_ms: Option<u64>,
        cpu_ms: Option<u64>,
        vm_steps: Option<u64>,
        max_rows: u64,
        max_bytes: u64,
        heap_bytes: u64,
        temp_bytes: u64,
        compare_steps: u64,
        on_excess: OnExcess,
        max_length: u32,
        max_sql_length: u32,
        max_like_pattern: u32,
        max_expr_depth: u32,
        max_compound: u32,
        max_vdbe_ops: u32,
        max_columns: u32,
        other_engines: Option<Self>,
    ) -> PyResult<Self> {
        let other_engines = other_engines.map(|limits| Arc::new(limits.core));
        if other_engines.as_ref().is_some_and(|limits| limits.other_engines.is_some()) {
            return Err(PyValueError::new_err("other_engines cannot be nested"));
        }
        let caps = StatementLimits {
            max_length,
            max_sql_length,
            max_like_pattern,
            max_expr_depth,
            max_compound,
            max_vdbe_ops,
            max_columns,
        };
        let timeout = timeout_ms.map(Duration::from_millis);
        let cpu = cpu_ms.map(Duration::from_millis);
        let core = sqlexec_core::Limits {
            timeout,
            cpu,
            vm_steps,
            max_rows,
            max_bytes,
            heap_bytes,
            temp_bytes,
            compare_steps,
            cuts: on_excess.0,
            caps,
            other_engines,
        };
        Ok(Self { core })
    }

    fn __repr__(&self) -> String {
        let or_none = |bound: Option<u64>| bound.map_or_else(|| "None".to_owned(), |n| n.to_string());
        let mut shown = format!(
            "Limits(timeout_ms={}, cpu_ms={}, vm_steps={}, max_rows={}, max_bytes={}",
            or_none(self.timeout_ms()),
            or_none(self.cpu_ms()),
            or_none(self.core.vm_steps),
            self.core.max_rows,
            self.core.max_bytes
        );
        if self.core.cuts {
            shown += ", on_excess='cut'";
        }
        let standard = Self::default();
        for ((name, value), (_, default)) in self.keyword_only().into_iter().zip(standard.keyword_only()) {
            if value != default {
                let _ = write!(shown, ", {name}={value}"); // writing to a String cannot fail
            }
        }
        if let Some(limits) = self.other_engines() {
            let _ = write!(shown, ", other_engines={}", limits.__repr__());
        }
        shown + ")"
    }

    /// Returns the same limits with the given changes.
    #[pyo3(signature = (**changes))]
    fn replace<'py>(&self, py: Python<'py>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        let bounds = self.bounds(py)?;
        if let Some(changes) = changes {
            bounds.update(changes.as_mapping())?;
        }
        py.get_type::<Self>().call((), Some(&bounds))
    }

    /// Implements `copy.replace`.
    #[pyo3(signature = (**changes))]
    fn __replace__<'py>(&self, py: Python<'py>, changes: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        self.replace(py, changes)
    }

    /// Implements pickling.
    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyTuple>, Bound<'py, PyDict>)> {
        Ok((PyTuple::empty(py), self.bounds(py)?))
    }

    #[getter]
    fn on_excess(&self) -> &'static str {
        if self.core.cuts { "cut" } else { "refuse" }
    }

    #[getter]
    fn other_engines(&self) -> Option<Self> {
        self.core.other_engines.as_deref().map(|core| Self { core: core.clone() })
    }

    #[getter]
    fn timeout_ms(&self) -> Option<u64> {
        self.core.timeout.map(milliseconds)
    }

    #[getter]
    fn cpu_ms(&self) -> Option<u64> {
        self.core.cpu.map(milliseconds)
    }

    #[getter]
    fn vm_steps(&self) -> Option<u64> {
        self.core.vm_steps
    }

    #[getter]
    fn max_rows(&self) -> u64 {
        self.core.max_rows
    }

    #[getter]
    fn max_bytes(&self) -> u64 {
        self.core.max_bytes
    }

    #[getter]
    fn heap_bytes(&self) -> u64 {
        self.core.heap_bytes
    }

    #[getter]
    fn temp_bytes(&self) -> u64 {
        self.core.temp_bytes
    }

    #[getter]
    fn compare_steps(&self) -> u64 {
        self.core.compare_steps
    }

    #[getter]
    fn max_length(&self) -> u32 {
        self.core.caps.max_length
    }

    #[getter]
    fn max_sql_length(&self) -> u32 {
        self.core.caps.max_sql_length
    }

    #[getter]
    fn max_like_pattern(&self) -> u32 {
        self.core.caps.max_like_pattern
    }

    #[getter]
    fn max_expr_depth(&self) -> u32 {
        self.core.caps.max_expr_depth
    }

    #[getter]
    fn max_compound(&self) -> u32 {
        self.core.caps.max_compound
    }

    #[getter]
    fn max_vdbe_ops(&self) -> u32 {
        self.core.caps.max_vdbe_ops
    }

    #[getter]
    fn max_columns(&self) -> u32 {
        self.core.caps.max_columns
    }
}

impl Limits {
    /// Returns the core's limits.
    pub(crate) fn to_core(&self) -> sqlexec_core::Limits {
        self.core.clone()
    }

    /// Returns every limit by name, as constructor arguments.
    fn bounds<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        dict.set_item("timeout_ms", self.timeout_ms())?;
        dict.set_item("cpu_ms", self.cpu_ms())?;
        dict.set_item("vm_steps", self.core.vm_steps)?;
        dict.set_item("max_rows", self.core.max_rows)?;
        dict.set_item("max_bytes", self.core.max_bytes)?;
        dict.set_item("on_excess", self.on_excess())?;
        for (name, value) in self.keyword_only() {
            dict.set_item(name, value)?;
        }
        dict.set_item("other_engines", self.other_engines())?;
        Ok(dict)
    }

    /// Returns the rarely changed limits by name; `repr` shows those that differ from the default.
    fn keyword_only(&self) -> [(&'static str, u64); 10] {
        let sqlexec_core::Limits { heap_bytes, temp_bytes, compare_steps, caps, .. } = &self.core;
        [
            ("heap_bytes", *heap_bytes),
            ("temp_bytes", *temp_bytes),
            ("compare_steps", *compare_steps),
            ("max_length", caps.max_length.into()),
            ("max_sql_length", caps.max_sql_length.into()),
            ("max_like_pattern", caps.max_like_pattern.into()),
            ("max_expr_depth", caps.max_expr_depth.into()),
            ("max_compound", caps.max_compound.into()),
            ("max_vdbe_ops", caps.max_vdbe_ops.into()),
            ("max_columns", caps.max_columns.into()),
        ]
    }
}

/// Whether a result over a limit is cut, converted from its Python name.
pub(crate) struct OnExcess(bool);

impl FromPyObject<'_, '_> for OnExcess {
    type Error = PyErr;

    fn extract(name: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        match name.extract::<&str>()? {
            "refuse" => Ok(Self(false)),
            "cut" => Ok(Self(true)),
            _ => Err(PyValueError::new_err("on_excess must be \"refuse\" or \"cut\"")),
        }
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis() as u64
}
