//! Finds the tables that a statement names, and their aliases.

use super::names::Names;
use crate::scan::{is_word, token_end, word_end};

/// Maximum number of table mentions that are examined.
const MAX_MENTIONS: usize = 64;

/// Keywords that may follow a table and are not its alias.
const NO_ALIAS: [&str; 24] = [
    "on",
    "using",
    "where",
    "group",
    "order",
    "having",
    "limit",
    "offset",
    "union",
    "except",
    "intersect",
    "join",
    "inner",
    "left",
    "right",
    "full",
    "cross",
    "natural",
    "outer",
    "window",
    "indexed",
    "not",
    "set",
    "and",
];

/// A table named by a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TableReference<'a> {
    /// Its number in the schema.
    pub(super) table: usize,
    /// Its alias, or its name as written.
    pub(super) qualifier: &'a str,
}

impl TableReference<'_> {
    /// Returns whether the statement uses this qualifier for the table.
    pub(super) fn is_shown_as(&self, qualifier: Option<&str>) -> bool {
        qualifier.is_some_and(|qualifier| self.qualifier.eq_ignore_ascii_case(qualifier))
    }
}

/// Finds the tables that a statement names, ignoring names before a point, which are qualifiers.
pub(super) fn mentions<'a>(statement: &'a str, names: &Names) -> Vec<TableReference<'a>> {
    let tokens: Vec<Word<'_>> = Words { text: statement, at: 0 }.collect();
    let mut mentions_found: Vec<TableReference<'a>> = Vec::new();
    for (i, word) in tokens.iter().enumerate() {
        let Some(table) = names.find_table(word.text).filter(|_| !word.is_before_point) else { continue };
        let mut after = tokens[i + 1..].iter();
        let alias = match after.next() {
            Some(word) if word.is_next && word.text.eq_ignore_ascii_case("as") => after.next(),
            Some(word) if word.is_next && !NO_ALIAS.iter().any(|no| word.text.eq_ignore_ascii_case(no)) => Some(word),
            _ => None,
        };
        mentions_found.push(TableReference { table, qualifier: alias.map_or(word.text, |alias| alias.text) });
        if mentions_found.len() == MAX_MENTIONS {
            break;
        }
    }
    mentions_found
}

/// An identifier or a keyword, without quotes.
struct Word<'a> {
    text: &'a str,
    /// Whether only white space separates it from the previous word.
    is_next: bool,
    is_before_point: bool,
}

struct Words<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Iterator for Words<'a> {
    type Item = Word<'a>;

    fn next(&mut self) -> Option<Word<'a>> {
        let bytes = self.text.as_bytes();
        let mut is_next = true;
        while self.at < bytes.len() {
            let start = self.at;
            let close = match bytes[start] {
                b'[' => Some(b']'),
                quote @ (b'"' | b'`') => Some(quote),
                _ => None,
            };
            self.at =
                if is_word(bytes[start]) { word_end(bytes, start) } else { token_end(bytes, start).min(bytes.len()) };
            if close.is_some() && self.at >= start + 2 && close == Some(bytes[self.at - 1]) {
                let text = &self.text[start + 1..self.at - 1];
                return Some(Word { text, is_next, is_before_point: bytes.get(self.at) == Some(&b'.') });
            }
            if is_word(bytes[start]) {
                let text = &self.text[start..self.at];
                return Some(Word { text, is_next, is_before_point: bytes.get(self.at) == Some(&b'.') });
            }
            is_next &= bytes[start].is_ascii_whitespace();
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_tables_and_aliases() {
        let names = Names::of(&["singer", "order", "concert"]);
        let sql = "SELECT singer.x, 'concert', T1.y FROM Singer AS T1 JOIN [order] o ON T1.a = o.b, \"concert\" WHERE x -- singer";
        let mentioned: Vec<_> = mentions(sql, &names).into_iter().map(|m| (m.table, m.qualifier)).collect();
        assert_eq!(mentioned, [(0, "T1"), (1, "o"), (2, "concert")]);
        assert_eq!(mentions("FROM singer, concert", &names).len(), 2);
        assert_eq!(mentions("FROM singer)", &names)[0].qualifier, "singer");
        assert!(mentions("SELECT 'open [singer é", &names).is_empty());
    }
}
