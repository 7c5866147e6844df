//! The tests of the crate from outside, in one program: each further program is linked with SQLite and the core again.

mod access;
mod adversarial;
mod hidden;
mod hostile;
mod pool;
mod results;
