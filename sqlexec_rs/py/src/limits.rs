//! `Limits`: the bounds of a run, as a frozen Python value.

use std::fmt::Write as _;
use std::time::Duration;

use pyo3::prelude::*;
use sqlexec_core::Caps;

/// The bounds of one run; `None` is no bound.
#[pyclass(frozen, get_all, eq, hash, from_py_object, module = "sqlexec_rs")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Limits {
    timeout_ms: Option<u64>,
    cpu_ms: Option<u64>,
    vm_steps: Option<u64>,
    max_rows: u64,
    max_bytes: u64,
    heap_bytes: u64,
    temp_bytes: u64,
    max_length: u32,
    max_sql_length: u32,
    max_like_pattern: u32,
    max_expr_depth: u32,
    max_compound: u32,
    max_vdbe_ops: u32,
    max_columns: u32,
}

#[pymethods]
impl Limits {
    #[new]
    #[pyo3(
        signature = (
            timeout_ms=Some(30_000), cpu_ms=None, vm_steps=None, max_rows=1_000_000, max_bytes=268_435_456, *,
            heap_bytes=268_435_456, temp_bytes=1_073_741_824, max_length=4_194_304, max_sql_length=1_048_576,
            max_like_pattern=1_000, max_expr_depth=500, max_compound=200, max_vdbe_ops=1_000_000, max_columns=2_000
        ),
        text_signature = "(timeout_ms=30000, cpu_ms=None, vm_steps=None, max_rows=1000000, max_bytes=268435456, *, \
            heap_bytes=268435456, temp_bytes=1073741824, max_length=4194304, max_sql_length=1048576, \
            max_like_pattern=1000, max_expr_depth=500, max_compound=200, max_vdbe_ops=1000000, max_columns=2000)"
    )]
    fn new(
        timeout_ms: Option<u64>,
        cpu_ms: Option<u64>,
        vm_steps: Option<u64>,
        max_rows: u64,
        max_bytes: u64,
        heap_bytes: u64,
        temp_bytes: u64,
        max_length: u32,
        max_sql_length: u32,
        max_like_pattern: u32,
        max_expr_depth: u32,
        max_compound: u32,
        max_vdbe_ops: u32,
        max_columns: u32,
    ) -> Self {
        Self {
            timeout_ms,
            cpu_ms,
            vm_steps,
            max_rows,
            max_bytes,
            heap_bytes,
            temp_bytes,
            max_length,
            max_sql_length,
            max_like_pattern,
            max_expr_depth,
            max_compound,
            max_vdbe_ops,
            max_columns,
        }
    }

    fn __repr__(&self) -> String {
        let or_none = |bound: Option<u64>| bound.map_or_else(|| "None".to_owned(), |n| n.to_string());
        let mut shown = format!(
            "Limits(timeout_ms={}, cpu_ms={}, vm_steps={}, max_rows={}, max_bytes={}",
            or_none(self.timeout_ms),
            or_none(self.cpu_ms),
            or_none(self.vm_steps),
            self.max_rows,
            self.max_bytes
        );
        let standard = Self::default_for_users();
        for ((name, value), (_, default)) in self.keyword_only().into_iter().zip(standard.keyword_only()) {
            if value != default {
                let _ = write!(shown, ", {name}={value}"); // a String takes everything
            }
        }
        shown + ")"
    }
}

impl Limits {
    /// Returns what an executor has when it is given none; the same as `Limits()`.
    pub(crate) fn default_for_users() -> Self {
        let core = sqlexec_core::Limits::default();
        let milliseconds = |time: Duration| time.as_millis() as u64;
        Self {
            timeout_ms: core.timeout.map(milliseconds),
            cpu_ms: core.cpu.map(milliseconds),
            vm_steps: core.vm_steps,
            max_rows: core.max_rows,
            max_bytes: core.max_bytes,
            heap_bytes: core.heap_bytes,
            temp_bytes: core.temp_bytes,
            max_length: core.caps.max_length,
            max_sql_length: core.caps.max_sql_length,
            max_like_pattern: core.caps.max_like_pattern,
            max_expr_depth: core.caps.max_expr_depth,
            max_compound: core.caps.max_compound,
            max_vdbe_ops: core.caps.max_vdbe_ops,
            max_columns: core.caps.max_columns,
        }
    }

    /// Returns the core's form.
    pub(crate) fn to_core(&self) -> sqlexec_core::Limits {
        sqlexec_core::Limits {
            timeout: self.timeout_ms.map(Duration::from_millis),
            cpu: self.cpu_ms.map(Duration::from_millis),
            vm_steps: self.vm_steps,
            max_rows: self.max_rows,
            max_bytes: self.max_bytes,
            heap_bytes: self.heap_bytes,
            temp_bytes: self.temp_bytes,
            caps: Caps {
                max_length: self.max_length,
                max_sql_length: self.max_sql_length,
                max_like_pattern: self.max_like_pattern,
                max_expr_depth: self.max_expr_depth,
                max_compound: self.max_compound,
                max_vdbe_ops: self.max_vdbe_ops,
                max_columns: self.max_columns,
            },
        }
    }

    /// Returns the bounds that few users set, by name; `repr` shows those that differ from the default.
    fn keyword_only(&self) -> [(&'static str, u64); 9] {
        [
            ("heap_bytes", self.heap_bytes),
            ("temp_bytes", self.temp_bytes),
            ("max_length", self.max_length.into()),
            ("max_sql_length", self.max_sql_length.into()),
            ("max_like_pattern", self.max_like_pattern.into()),
            ("max_expr_depth", self.max_expr_depth.into()),
            ("max_compound", self.max_compound.into()),
            ("max_vdbe_ops", self.max_vdbe_ops.into()),
            ("max_columns", self.max_columns.into()),
        ]
    }
}
