//! The integration tests of the crate as one program, because each program links SQLite and the core again.

mod access;
mod adversarial;
mod hidden;
mod hostile;
mod pool;
mod results;
