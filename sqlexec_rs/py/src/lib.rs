//! The Python binding of `sqlexec_core`: converts inputs, detaches from the interpreter, converts results. Contains
//! no SQL logic.

#![allow(clippy::needless_pass_by_value, reason = "pyo3 passes arguments by value")]
#![allow(clippy::too_many_arguments, reason = "Python's keyword arguments are arguments here")]

mod allocator;
mod arrow;
mod callbacks;
mod convert;
mod duckdb;
mod executor;
mod inputs;
mod job;
mod limits;
mod outcome;
mod urls;

use pyo3::exceptions::{PyException, PyImportError, PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sqlexec_core::{OutOfMemory, PoolError, Rule, Status, Stop};

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

pyo3::create_exception!(
    sqlexec_rs,
    ExecutorError,
    PyException,
    "An error of the executor itself. Bad SQL never raises: it has a status."
);

/// Converts an error to the Python exception.
pub(crate) fn raise(error: &PoolError) -> PyErr {
    match error {
        PoolError::NotHonoured(..) | PoolError::CannotHide(_) => PyValueError::new_err(error.to_string()),
        PoolError::OutOfMemory => PyMemoryError::new_err(error.to_string()),
        _ => ExecutorError::new_err(error.to_string()),
    }
}

/// Returns the `MemoryError` of a missing allocation.
pub(crate) fn raise_out_of_memory(_: OutOfMemory) -> PyErr {
    raise(&PoolError::OutOfMemory)
}

/// Returns the version of the bundled SQLite.
#[pyfunction]
fn sqlite_version() -> &'static str {
    sqlexec_core::sqlite_version()
}

/// Returns the options that the bundled SQLite was compiled with.
#[pyfunction]
fn compile_options() -> Vec<String> {
    sqlexec_core::compile_options()
}

/// Refuses subinterpreters: our threads would attach to one when it is finalized.
fn check_interpreter() -> PyResult<()> {
    #[allow(unsafe_code, reason = "pyo3 has no safe function for the id of an interpreter")]
    // SAFETY: the interpreter that imports the module runs on this thread.
    let id = unsafe { pyo3::ffi::PyInterpreterState_GetID(pyo3::ffi::PyInterpreterState_Get()) };
    if id == 0 { Ok(()) } else { Err(PyImportError::new_err("sqlexec_rs cannot be imported in a subinterpreter")) }
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    check_interpreter()?;
    sqlexec_core::check_options().map_err(|error| PyImportError::new_err(error.to_string()))?;
    module.add("ExecutorError", py.get_type::<ExecutorError>())?;
    module.add("STATUS_NAMES", PyTuple::new(py, Status::ALL.iter().map(|status| status.name()))?)?;
    let stops = Stop::ALL.iter().map(|stop| stop.name());
    module.add("STOP_NAMES", PyTuple::new(py, [""].into_iter().chain(stops).collect::<Vec<_>>())?)?;
    module.add("RULE_NAMES", PyTuple::new(py, Rule::ALL.iter().map(|rule| rule.name()))?)?;
    callbacks::shut_at_exit(module)?;
    module.add_class::<arrow::ArrowTable>()?;
    module.add_class::<executor::Executor>()?;
    module.add_class::<job::Job>()?;
    module.add_class::<limits::Limits>()?;
    module.add_class::<outcome::Outcome>()?;
    module.add_function(wrap_pyfunction!(duckdb::_serve_duckdb, module)?)?;
    module.add_function(wrap_pyfunction!(urls::split_url, module)?)?;
    module.add_function(wrap_pyfunction!(urls::join_url, module)?)?;
    module.add_function(wrap_pyfunction!(sqlite_version, module)?)?;
    module.add_function(wrap_pyfunction!(compile_options, module)?)
}
