//! The sides of a comparison, and its options.

use crate::result::table::Table;

/// The options of a score item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "they are options of unrelated rules")]
pub struct Options {
    /// `spider2`: the gold columns to compare; empty for all.
    pub condition_cols: Vec<usize>,
    /// `spider2`: sort columns before comparing them.
    pub ignore_order: bool,
    /// `test_suite`: whether row order counts; `None` lets the gold's SQL decide.
    pub ordered: Option<bool>,
    /// `paverl`, `ex_b`: maximum difference between the row counts (5 in the reward, 30 in the evaluation).
    pub row_slack: usize,
    /// `paverl`, `ex_b`: if the prediction has too many rows, count repeated ones once (not in the reward).
    pub drop_duplicates: bool,
    /// `ex_b`: the number of extra columns must be less than this; `None` for no limit.
    pub surplus_columns: Option<usize>,
    /// `defog`: whether the question asks for ordered rows.
    pub asks_for_order: bool,
    /// Whether DISTINCT is removed from both SQL texts before they run.
    pub strip_distinct: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            condition_cols: Vec::new(),
            ignore_order: true,
            ordered: None,
            row_slack: 5,
            drop_duplicates: false,
            surplus_columns: None,
            asks_for_order: false,
            strip_distinct: false,
        }
    }
}

/// One side of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct QueryResult<'a> {
    /// The result table.
    pub table: &'a Table,
    /// The SQL that produced it, if any.
    pub sql: Option<&'a str>,
}

impl QueryResult<'_> {
    /// Returns whether the SQL has ORDER BY. Like Spider, searches the whole text for the two words with one space.
    pub(super) fn asks_for_order(&self) -> bool {
        self.sql.is_some_and(|sql| sql.to_lowercase().contains("order by"))
    }
}
