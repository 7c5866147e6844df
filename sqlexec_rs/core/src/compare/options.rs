//! The sides of a comparison, and what a caller may choose for it.

use crate::result::table::Table;

/// What a caller may choose for an item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "they are choices of rules that have nothing to do with each other")]
pub struct Options {
    /// `spider2`: the gold columns that count; none named is all.
    pub condition_cols: Vec<usize>,
    /// `spider2`: columns are sorted before they are compared.
    pub ignore_order: bool,
    /// `test_suite`: whether row order counts; without it the gold's text decides.
    pub ordered: Option<bool>,
    /// `paverl`, `ex_b`: rows that the tables' counts may differ by (5 in the reward, 30 in the evaluation).
    pub row_slack: usize,
    /// `paverl`, `ex_b`: rows of a longer prediction that come twice count once, where too many are left (not in the reward).
    pub drop_duplicates: bool,
    /// `ex_b`: it has fewer than so many columns beyond the gold's; any number of them without it.
    pub surplus_columns: Option<usize>,
    /// `defog`: the question asks for rows in an order.
    pub asks_for_order: bool,
    /// DISTINCT is taken out of both SQL texts before they run.
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
pub struct Side<'a> {
    /// The result.
    pub table: &'a Table,
    /// The SQL that gave it, when there is one.
    pub sql: Option<&'a str>,
}

impl Side<'_> {
    /// Spider looks for the two words anywhere in the text, with one space.
    pub(super) fn asks_for_order(&self) -> bool {
        self.sql.is_some_and(|sql| sql.to_lowercase().contains("order by"))
    }
}
