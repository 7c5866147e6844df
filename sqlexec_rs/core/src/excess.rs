//! Results that exceed the limits of their run.

use crate::outcome::{Outcome, Status};
use crate::request::Limits;
use crate::result::table::Table;

/// The reason for not reading a result to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Rows,
    Bytes,
    /// Not enough memory for more rows.
    Memory,
}

impl Excess {
    /// Returns the outcome of the run, with the rows read so far if the limits allow a cut result.
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
