//! Python callbacks that a finished job calls, on a thread of the executor.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyCFunction, PyDict, PyTuple};
use sqlexec_core::Observer;

use crate::outcome::Outcome;

/// How long the interpreter's exit waits for running callbacks.
const EXIT_WAIT: Duration = Duration::from_secs(2);

/// Counts threads that run Python code or are about to. A thread that attaches to a finalizing interpreter is killed
/// in the middle of our code. So after `atexit` no thread may attach, and running callbacks are waited for.
struct InterpreterGate {
    state: Mutex<InterpreterUse>,
    has_left: Condvar,
}

struct InterpreterUse {
    n_inside: usize,
    is_shut: bool,
}

static GATE: InterpreterGate =
    InterpreterGate { state: Mutex::new(InterpreterUse { n_inside: 0, is_shut: false }), has_left: Condvar::new() };

impl InterpreterGate {
    fn enter(&self) -> bool {
        let mut state = self.lock();
        if !state.is_shut {
            state.n_inside += 1;
        }
        !state.is_shut
    }

    fn leave(&self) {
        self.lock().n_inside -= 1;
        self.has_left.notify_all();
    }

    fn shut(&self) {
        let mut state = self.lock();
        state.is_shut = true;
        let _ = self.has_left.wait_timeout_while(state, EXIT_WAIT, |state| state.n_inside > 0);
    }

    fn lock(&self) -> MutexGuard<'_, InterpreterUse> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wraps a Python function that takes the job as a callback for the core. Exceptions are reported as unraisable,
/// because no caller could handle them.
pub(crate) fn callback(job: Py<PyAny>, function: Py<PyAny>) -> Box<dyn FnOnce() + Send> {
    Box::new(move || {
        if !GATE.enter() {
            std::mem::forget((job, function)); // no interpreter is left to release them
            return;
        }
        let _ = Python::try_attach(|py| {
            if let Err(error) = function.call1(py, (job,)) {
                error.write_unraisable(py, Some(function.bind(py)));
            }
            drop(function);
        });
        GATE.leave();
    })
}

/// Creates the function that the core calls after each run: it calls `on_run(db_path, sql, outcome)`, and logs a run
/// that took at least `slow`.
pub(crate) fn observer(on_run: Option<Py<PyAny>>, slow: Option<Duration>) -> Option<Observer> {
    if on_run.is_none() && slow.is_none() {
        return None;
    }
    Some(Box::new(move |path, sql, outcome| {
        let is_slow = slow.is_some_and(|slow| outcome.elapsed >= slow);
        if !(is_slow || on_run.is_some()) || !GATE.enter() {
            return;
        }
        let _ = Python::try_attach(|py| {
            let functions = [
                on_run.as_ref().map(|function| Ok(function.bind(py).clone())),
                is_slow.then(|| py.import("sqlexec_rs.slow_log")?.getattr("log_slow")),
            ];
            for function in functions.into_iter().flatten() {
                let call = || function?.call1((path, sql, Outcome::new(Arc::clone(outcome))));
                if let Err(error) = call() {
                    error.write_unraisable(py, None);
                }
            }
        });
        GATE.leave();
    }))
}

/// Closes the gate when the interpreter that imports the module exits. A forked child ignores it, because its threads
/// are gone and the lock may be held forever.
pub(crate) fn shut_at_exit(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let owner = std::process::id();
    let shut = move |arguments: &Bound<'_, PyTuple>, _: Option<&Bound<'_, PyDict>>| {
        if std::process::id() == owner {
            arguments.py().detach(|| GATE.shut());
        }
    };
    let py = module.py();
    let function = PyCFunction::new_closure(py, Some(c"shut_callbacks"), None, shut)?;
    py.import("atexit")?.call_method1("register", (function,))?;
    Ok(())
}
