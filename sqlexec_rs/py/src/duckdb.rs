//! The worker process of DuckDB: a Python program passes an object that has loaded the library.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use sqlexec_core::{ForeignEngine, Outcome, OutputKind, ParameterValue, Parameters, Rows, Status, Value, WorkerConfig};

/// The program, next to the module's file.
const PROGRAM: &str = "duckdb_worker.py";

/// Number of rows per fetch.
const BATCH_ROWS: usize = 1_024;

/// Serves the requests of a pool with an object that runs SQL, until the input is closed.
#[pyfunction]
pub(crate) fn _serve_duckdb(py: Python<'_>, engine: Py<PyAny>, memory_bytes: u64, cap: usize) -> PyResult<()> {
    let mut engine = Duckdb { engine };
    let served = py.detach(|| sqlexec_core::serve_foreign(&mut engine, memory_bytes, cap));
    served.map_err(|error| PyOSError::new_err(error.to_string()))
}

/// Returns the configuration of a DuckDB worker; `None` without DuckDB, or without an interpreter program to run it.
pub(crate) fn worker(py: Python<'_>, other: WorkerConfig) -> PyResult<Option<WorkerConfig>> {
    let spec = py.import("importlib.util")?.call_method1("find_spec", ("duckdb",));
    let (Some(interpreter), Ok(spec)) = (interpreter(py)?, spec) else { return Ok(None) };
    if spec.is_none() {
        return Ok(None);
    }
    let Some(package) = spec.getattr("origin")?.extract::<Option<PathBuf>>()? else { return Ok(None) };
    let Some(folder) = package.parent().and_then(Path::parent) else { return Ok(None) };
    let module: PathBuf = py.import("sqlexec_rs._native")?.getattr("__file__")?.extract()?;
    // Isolates the interpreter: no environment variables, no working directory on the path, no bytecode files, no
    // site module.
    let options = ["-I", "-S", "-B"].map(Into::into);
    let paths = [module.with_file_name(PROGRAM).into(), module.into(), folder.as_os_str().to_owned()];
    let arguments = options.into_iter().chain(paths).collect();
    Ok(Some(WorkerConfig { program: interpreter, arguments, ..other }))
}

/// Finds the program of this interpreter: `sys.executable`, unless that is not a file or, in an embedded Python,
/// another program.
fn interpreter(py: Python<'_>) -> PyResult<Option<PathBuf>> {
    let sys = py.import("sys")?;
    let path = |name: &str| sys.getattr(name).and_then(|value| value.extract::<PathBuf>()).ok();
    let version = py.version_info();
    let name = format!("python{}.{}", version.major, version.minor);
    let installed = ["exec_prefix", "base_exec_prefix"].map(|prefix| path(prefix).map(|p| p.join("bin").join(&name)));
    let executable = path("executable").filter(|program| program.is_file());
    let is_python = |program: &PathBuf| program.file_name().is_some_and(|name| name.as_bytes().starts_with(b"python"));
    let others = installed.into_iter().flatten().filter(|program| program.is_file());
    Ok(executable.clone().filter(is_python).into_iter().chain(others).next().or(executable))
}

struct Duckdb {
    engine: Py<PyAny>,
}

impl Duckdb {
    /// Calls a method; the object itself converts its exceptions to outcomes.
    fn attach<T>(
        &self,
        call: impl for<'py> FnOnce(Python<'py>, &Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Result<T, Box<Outcome>> {
        Python::attach(|py| {
            let engine = self.engine.bind(py);
            call(py, engine).map_err(|error| {
                let explained = explain(engine, &error.into_value(py).into_bound(py).into_any());
                Box::new(explained.unwrap_or_else(|error| Outcome::failed(Status::DbError, error.to_string())))
            })
        })
    }
}

fn explain(engine: &Bound<'_, PyAny>, error: &Bound<'_, PyAny>) -> PyResult<Outcome> {
    let explained = engine.call_method1("explain", (error,))?;
    let (status, message, error_offset, hint): (String, String, Option<u32>, Option<String>) = explained.extract()?;
    let status = Status::ALL.iter().find(|known| known.name() == status).copied().unwrap_or(Status::RuntimeError);
    Ok(Outcome { error_offset, hint, ..Outcome::failed(status, message) })
}

impl ForeignEngine for Duckdb {
    fn load(&mut self) {
        let _ = self.attach(|_, engine| engine.call_method0("load").map(drop));
    }

    fn open(&mut self, file: &Path) -> Result<(), Box<Outcome>> {
        let opened = self.attach(|_, engine| engine.call_method1("open", (file.as_os_str(),)).map(drop));
        opened.map_err(|mut outcome| {
            outcome.status = Status::DbError;
            outcome
        })
    }

    fn close(&mut self, file: &Path) {
        let _ = self.attach(|_, engine| engine.call_method1("close", (file.as_os_str(),)).map(drop));
    }

    fn run(
        &mut self,
        file: &Path,
        sql: &str,
        parameters: Option<&Parameters>,
        output: OutputKind,
        time: Option<Duration>,
        rows: &mut Rows<'_>,
    ) -> Result<(), Box<Outcome>> {
        let run = self.attach(|py, engine| {
            let parameters = parameters.map(|parameters| parameters_to_python(py, parameters)).transpose()?;
            let seconds = time.map(|time| time.as_secs_f64());
            let is_plan = output == OutputKind::Plan;
            let header = engine.call_method1("start", (file.as_os_str(), sql, parameters, seconds, is_plan))?;
            let (names, types) = header.extract()?;
            rows.begin(names, types);
            loop {
                let batch = engine.call_method1("fetch", (BATCH_ROWS,))?.cast_into::<PyList>()?;
                for row in &batch {
                    if !rows.begin_row() {
                        return Ok(());
                    }
                    for value in row.cast_into::<PyTuple>()? {
                        push(engine, &value, rows)?;
                    }
                    if !rows.end_row() {
                        return Ok(());
                    }
                }
                if batch.len() < BATCH_ROWS {
                    return Ok(());
                }
            }
        });
        let ended = self.attach(|_, engine| engine.call_method0("end").map(drop));
        run.and(ended)
    }
}

fn push(engine: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, rows: &mut Rows<'_>) -> PyResult<()> {
    if value.is_none() {
        rows.push(Value::Null);
    } else if let Ok(text) = value.cast::<PyString>() {
        rows.push(Value::Text(text.to_str()?.as_bytes()));
    } else if let Ok(flag) = value.cast::<PyBool>() {
        rows.push(Value::Integer(i64::from(flag.is_true())));
    } else if let Ok(number) = value.cast::<PyFloat>() {
        rows.push(Value::Real(number.value()));
    } else if let Ok(bytes) = value.cast::<PyBytes>() {
        rows.push(Value::Blob(bytes.as_bytes()));
    } else if let Ok(number) = value.extract::<i64>() {
        rows.push(Value::Integer(number));
    } else if let Some(parsed) = of_text(value)? {
        parsed.push(rows);
    } else {
        return push(engine, &engine.call_method1("to_cell", (value,))?, rows);
    }
    Ok(())
}

/// A value that is parsed from Python's `str` of an object.
enum FromText {
    Integer(i64),
    Real(f64),
    Text(String),
}

impl FromText {
    fn push(&self, rows: &mut Rows<'_>) {
        rows.push(match self {
            Self::Integer(i) => Value::Integer(*i),
            Self::Real(r) => Value::Real(*r),
            Self::Text(text) => Value::Text(text.as_bytes()),
        });
    }
}

/// Parses the types of frequent columns, for which a Python call per value would dominate the run.
fn of_text(value: &Bound<'_, PyAny>) -> PyResult<Option<FromText>> {
    let kind = value.get_type().name()?;
    let kind = kind.to_str()?;
    if !matches!(kind, "Decimal" | "date" | "datetime" | "time" | "timedelta" | "UUID") {
        return Ok(None);
    }
    let text = value.str()?.to_str()?.to_owned();
    if kind != "Decimal" {
        return Ok(Some(FromText::Text(text)));
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let integer = if fraction.bytes().all(|digit| digit == b'0') { whole.parse().ok() } else { None };
    // Python parses numbers with an exponent.
    let real = if text.contains(['E', 'e']) { None } else { text.parse().ok() };
    Ok(integer.map(FromText::Integer).or(real.map(FromText::Real)))
}

fn parameters_to_python<'py>(py: Python<'py>, parameters: &Parameters) -> PyResult<Bound<'py, PyAny>> {
    let values = parameters.values.iter().map(|value| {
        Ok(match value {
            ParameterValue::Null => py.None().into_bound(py),
            ParameterValue::Integer(i) => PyInt::new(py, *i).into_any(),
            ParameterValue::Real(bits) => PyFloat::new(py, f64::from_bits(*bits)).into_any(),
            ParameterValue::Text(bytes) => PyString::from_bytes(py, bytes)?.into_any(),
            ParameterValue::Blob(bytes) => PyBytes::new(py, bytes).into_any(),
        })
    });
    let values = values.collect::<PyResult<Vec<_>>>()?;
    if parameters.names.is_empty() {
        return Ok(PyList::new(py, values)?.into_any());
    }
    let dict = PyDict::new(py);
    for (name, value) in parameters.names.iter().zip(values) {
        dict.set_item(name, value)?;
    }
    Ok(dict.into_any())
}
