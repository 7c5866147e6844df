//! Comparison rules between a predicted and a gold table. Each file implements one rule exactly.
//!
//! A rule takes two tables and returns a number in [0, 1]. `test_suite` also reads ORDER BY in the gold's SQL, and
//! `defog` in both SQL texts.

pub mod score;

mod bird;
mod csv;
mod defog;
mod ehrsql;
mod multiset;
mod number;
mod options;
mod paverl;
mod permute;
mod pytext;
mod qatch;
mod refined;
mod soft_f1;
mod spider2;
mod test_suite;

use std::str::FromStr;

use strum::{IntoStaticStr, VariantArray};

use crate::budget;
use crate::result::table::Table;
pub use options::{Options, QueryResult};

/// A comparison rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum Rule {
    /// Sets of rows are equal (BIRD; Arctic, SkyRL-SQL).
    Bird,
    /// Multisets of rows with sorted cells are equal (Think2SQL).
    Refined,
    /// A single column permutation makes the rows equal (Spider; SQL-R1).
    TestSuite,
    /// Mean of cell precision, cell recall and tuple cardinality (Think2SQL's dense reward).
    Qatch,
    /// Share of the gold's cells, column by column (PaVeRL-SQL).
    Paverl,
    /// Whether all of the gold's cells are found by the same matching (PaVeRL-SQL's `EX_b`).
    ExB,
    /// Every gold column occurs among the predicted ones (Spider 2.0).
    Spider2,
    /// Micro F1 over the values of rows in order (BIRD mini-dev).
    SoftF1,
    /// The first hundred sorted rows are equal as texts of rounded numbers (shared task of EHRSQL, 2024).
    Ehrsql,
    /// The first hundred rows are equal in any order, with their types (EHRSQL, 2022).
    #[strum(serialize = "ehrsql_2022")]
    Ehrsql2022,
    /// Equal as data frames by column name, or the gold's columns occur among the predicted ones (Defog's sql-eval).
    Defog,
}

impl Rule {
    /// Every rule.
    pub const ALL: &[Rule] = Rule::VARIANTS;

    /// Returns the name in Python.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

/// The error for an unknown rule name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("no rule is named {0:?}")]
pub struct UnknownRule(String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        Self::ALL.iter().find(|rule| rule.name() == name).copied().ok_or_else(|| UnknownRule(name.to_owned()))
    }
}

/// Scores a predicted result against a gold one.
pub fn compare(rule: Rule, prediction: QueryResult<'_>, gold: QueryResult<'_>, options: &Options) -> f64 {
    let predicted = prediction.table;
    let n_cells = |table: &Table| table.n_rows().saturating_mul(table.width().max(1));
    budget::spend(n_cells(predicted).saturating_add(n_cells(gold.table))); // every rule reads both tables
    match rule {
        Rule::Bird => f64::from(bird::equal_sets(predicted, gold.table)),
        Rule::Refined => f64::from(refined::equal_rows_of_sorted_cells(predicted, gold.table)),
        Rule::TestSuite => {
            let is_ordered = options.ordered.unwrap_or_else(|| gold.asks_for_order());
            f64::from(test_suite::equal_up_to_columns(predicted, gold.table, is_ordered))
        }
        Rule::Qatch => qatch::cell_overlap(predicted, gold.table),
        Rule::Paverl => paverl::accuracy(predicted, gold.table, options),
        Rule::ExB => f64::from(paverl::is_whole(predicted, gold.table, options)),
        Rule::Spider2 => {
            let columns = options.condition_cols.as_slice();
            f64::from(spider2::columns_found(predicted, gold.table, columns, options.ignore_order))
        }
        Rule::SoftF1 => soft_f1::soft_f1(predicted, gold.table),
        Rule::Ehrsql => f64::from(ehrsql::equal_as_text(predicted, gold.table)),
        Rule::Ehrsql2022 => f64::from(ehrsql::equal_as_written(predicted, gold.table)),
        Rule::Defog => f64::from(defog::is_correct(prediction, gold, options.asks_for_order)),
    }
}

#[cfg(test)]
mod tests;
