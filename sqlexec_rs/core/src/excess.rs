//! Results that are larger than the limits of their run allow.

use crate::outcome::{Outcome, Status};
use crate::request::Limits;
use crate::result::table::Table;

/// Why the rows of a result are not read to the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Rows,
    Bytes,
    /// There is no memory for more.
    Memory,
}

impl Excess {
    /// Returns the outcome of the run, with the rows that were read where the limits allow to cut a result.
    pub(crate) fn outcome(self, table: Option<Table>, limits: &Limits) -> Outcome {
        let error = match self {
            Self::Rows => format!("more than {} rows", limits.max_rows),
            Self::Bytes => format!("more than {} bytes of result", limits.max_bytes),
            Self::Memory => return Outcome::out_of_memory(),
        };
        match table {
            Some(table) if limits.cuts => Outcome { is_cut: true, ..Outcome::ok(table) },
            _ => Outcome::failed(Status::TooLarge, error),
        }
    }
}
