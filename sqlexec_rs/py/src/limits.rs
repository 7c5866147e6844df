//! `Limits`: the bounds of a run, as a frozen Python value.

use std::time::Duration;

use pyo3::prelude::*;

/// The bounds of one run; `None` is no bound.
#[pyclass(frozen, get_all, eq, hash, from_py_object, module = "sqlexec_rs")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    timeout_ms: Option<u64>,
    cpu_ms: Option<u64>,
    vm_steps: Option<u64>,
    max_rows: u64,
    max_bytes: u64,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(
        signature = (timeout_ms=Some(30_000), cpu_ms=None, vm_steps=None, max_rows=1_000_000, max_bytes=268_435_456),
        text_signature = "(timeout_ms=30000, cpu_ms=None, vm_steps=None, max_rows=1000000, max_bytes=268435456)"
    )]
    fn new(timeout_ms: Option<u64>, cpu_ms: Option<u64>, vm_steps: Option<u64>, max_rows: u64, max_bytes: u64) -> Self {
        Self { timeout_ms, cpu_ms, vm_steps, max_rows, max_bytes }
    }

    fn __repr__(&self) -> String {
        let or_none = |bound: Option<u64>| bound.map_or_else(|| "None".to_owned(), |n| n.to_string());
        format!(
            "Limits(timeout_ms={}, cpu_ms={}, vm_steps={}, max_rows={}, max_bytes={})",
            or_none(self.timeout_ms),
            or_none(self.cpu_ms),
            or_none(self.vm_steps),
            self.max_rows,
            self.max_bytes
        )
    }
}

impl Limits {
    /// Returns what an executor has when it is given none; the same as `Limits()`.
    pub(crate) fn default_for_users() -> Self {
        Self { timeout_ms: Some(30_000), cpu_ms: None, vm_steps: None, max_rows: 1_000_000, max_bytes: 256 << 20 }
    }

    /// Returns the core's form.
    pub(crate) fn to_core(&self) -> sqlexec_core::Limits {
        sqlexec_core::Limits {
            timeout: self.timeout_ms.map(Duration::from_millis),
            cpu: self.cpu_ms.map(Duration::from_millis),
            vm_steps: self.vm_steps,
            max_rows: self.max_rows,
            max_bytes: self.max_bytes,
        }
    }
}
