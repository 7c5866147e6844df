//! Parses and writes server URLs exactly like the executor.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sqlexec_core::Url;

/// Engine, host, port, user, password, database and options.
type UrlParts = (&'static str, String, u16, String, String, String, Vec<(String, String)>);

/// Returns the parts of a server's URL; the error does not show its password.
#[pyfunction]
pub(crate) fn split_url(url: &str) -> PyResult<UrlParts> {
    let parts = Url::split(url).and_then(|url| url.n_roles().map(|_| url)).map_err(PyValueError::new_err)?;
    let (engine, port) = (parts.engine(), parts.port());
    let Url { user, password, host, database, options, .. } = parts;
    Ok((engine, host, port, user, password.unwrap_or_default(), database, options))
}

/// Writes a server's URL.
#[pyfunction]
pub(crate) fn join_url(
    engine: String,
    host: String,
    port: Option<u16>,
    user: String,
    password: String,
    database: String,
    options: Vec<(String, String)>,
) -> String {
    let password = Some(password).filter(|password| !password.is_empty());
    Url { scheme: engine, user, password, host, port, database, options }.to_text()
}
