//! Tokenizes definitions and statements, as far as hidden columns require it.

use crate::scan::{is_word, skip_blank, word_end};

/// A table, view, index or trigger in the schema.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) kind: Vec<u8>,
    pub(super) name: Vec<u8>,
    pub(super) sql: Vec<u8>,
}

impl Definition {
    pub(super) fn is_table(&self) -> bool {
        self.kind == b"table"
    }

    pub(super) fn is_index(&self) -> bool {
        self.kind == b"index"
    }

    pub(super) fn is_view(&self) -> bool {
        self.kind == b"view"
    }

    pub(super) fn is_virtual(&self) -> bool {
        self.is_table() && tokens(&self.sql).get(1).is_some_and(|token| token.is_word("virtual"))
    }
}

/// A word, a quoted name or text without its quotes, or one byte of anything else. A parameter is represented by its
/// first byte.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(Vec<u8>),
    /// A quoted token. SQLite also accepts a text in single quotes as a name.
    Quoted(u8, Vec<u8>),
    Mark(u8),
}

impl Token {
    /// Returns whether the token is this keyword.
    pub(super) fn is_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(content) if content.eq_ignore_ascii_case(word.as_bytes()))
    }

    /// Returns whether the token may be this name.
    pub(super) fn is(&self, name: &[u8]) -> bool {
        matches!(self, Self::Word(content) | Self::Quoted(_, content) if content.eq_ignore_ascii_case(name))
    }

    pub(super) fn is_mark(&self, mark: u8) -> bool {
        *self == Self::Mark(mark)
    }

    /// Returns whether the name of a table may follow.
    fn is_before_tables(&self) -> bool {
        self.is_mark(b',') || BEFORE_TABLES.iter().any(|word| self.is_word(word))
    }

    /// Returns whether the token is a text or starts a number.
    pub(super) fn is_literal(&self) -> bool {
        match self {
            Self::Quoted(quote, _) => matches!(quote, b'\'' | b'"'),
            Self::Word(word) => word.first().is_some_and(u8::is_ascii_digit),
            Self::Mark(_) => false,
        }
    }
}

/// Keywords after which the name of a table may follow.
const BEFORE_TABLES: [&str; 6] = ["from", "join", "in", "into", "update", "table"];

/// Returns whether a token may name this table: after FROM, JOIN, a comma and the like, possibly after the name of
/// its database or parentheses.
pub(super) fn mentions_table(tokens: &[Token], name: &[u8]) -> bool {
    let may_be_table = |at: usize| {
        let mut before = &tokens[..at];
        if let [rest @ .., _, dot] = before
            && dot.is_mark(b'.')
        {
            before = rest;
        }
        while let [rest @ .., Token::Mark(b'(')] = before {
            before = rest;
        }
        before.last().is_none_or(Token::is_before_tables)
    };
    tokens.iter().enumerate().any(|(at, token)| token.is(name) && may_be_table(at))
}

/// Returns whether a token may be this name.
pub(super) fn mentions_name(tokens: &[Token], name: &[u8]) -> bool {
    tokens.iter().any(|token| token.is(name))
}

/// Splits a text into tokens as SQLite does, dropping comments.
pub(super) fn tokens(sql: &[u8]) -> Vec<Token> {
    let mut list = Vec::new();
    let mut at = skip_blank(sql, 0);
    while at < sql.len() {
        let (token, end) = match sql[at] {
            b'\x0b' => {
                at = skip_blank(sql, at + 1); // SQLite accepts it as a space after a space, and refuses it elsewhere
                continue;
            }
            mark @ (b'?' | b'$' | b'@' | b':' | b'#') => (Token::Mark(mark), parameter_end(sql, at)),
            byte if is_word(byte) => {
                let end = word_end(sql, at);
                (Token::Word(sql[at..end].to_vec()), end)
            }
            quote @ (b'\'' | b'"' | b'`' | b'[') => read_quoted(sql, at, quote),
            mark => (Token::Mark(mark), at + 1),
        };
        list.push(token);
        at = skip_blank(sql, end);
    }
    list
}

/// Returns the position after a parameter, following SQLite: `?1`, or `$name::name(anything)`.
fn parameter_end(sql: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    if sql[start] == b'?' {
        return (at..sql.len()).find(|i| !sql[*i].is_ascii_digit()).unwrap_or(sql.len());
    }
    let mut has_name = false;
    while let Some(byte) = sql.get(at) {
        match byte {
            byte if is_word(*byte) => has_name = true,
            b'(' if has_name => {
                let is_end = |byte: &u8| *byte == b')' || *byte == b'\x0b' || byte.is_ascii_whitespace();
                let end = (at + 1..sql.len()).find(|i| is_end(&sql[*i])).unwrap_or(sql.len());
                return if sql.get(end) == Some(&b')') { end + 1 } else { end };
            }
            b':' if sql.get(at + 1) == Some(&b':') => at += 1,
            _ => break,
        }
        at += 1;
    }
    at
}

/// Reads a quoted token, in which a doubled quote represents a single one. Returns the position after it.
fn read_quoted(sql: &[u8], at: usize, quote: u8) -> (Token, usize) {
    let close = if quote == b'[' { b']' } else { quote };
    let mut text = Vec::new();
    let mut i = at + 1;
    while let Some(byte) = sql.get(i) {
        i += 1;
        if *byte == close {
            if quote == b'[' || sql.get(i) != Some(&close) {
                break;
            }
            i += 1;
        }
        text.push(*byte);
    }
    (Token::Quoted(quote, text), i)
}

/// Splits the first parentheses of a table definition at their commas: its columns and constraints.
pub(super) fn segments(sql: &[u8]) -> Vec<Vec<Token>> {
    let mut parts = Vec::new();
    let mut part = Vec::new();
    let mut depth = 0_usize;
    for token in tokens(sql) {
        let was_inside = depth > 0;
        match token {
            Token::Mark(b'(') => depth += 1,
            Token::Mark(b')') => depth = depth.saturating_sub(1),
            _ => {}
        }
        if was_inside && depth == 0 {
            break;
        }
        if depth == 1 && token.is_mark(b',') {
            parts.push(std::mem::take(&mut part));
        } else if was_inside {
            part.push(token);
        }
    }
    parts.push(part);
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_names_and_comments_are_read_as_in_sqlite() {
        let all = tokens(b"SELECT \"a\"\"b\", [c d], `e`, 'f''g' -- users\n/* users */ NATURAL");
        for name in ["a\"b", "c d", "e", "f'g", "natural"] {
            assert!(mentions_name(&all, name.as_bytes()), "{name}");
        }
        assert!(!mentions_name(&all, b"users"));
        assert!(tokens(b"SELECT 'open").last().is_some_and(|token| token.is(b"open")));
    }

    #[test]
    fn parameters_end_as_in_sqlite() {
        for (sql, mark) in [
            ("?1NATURAL", b'?'),
            ("?NATURAL", b'?'),
            ("$a(')NATURAL", b'$'),
            ("@a::b(--) NATURAL", b'@'),
            (":a(/*)NATURAL", b':'),
            ("#a([)\n\x0bNATURAL", b'#'),
            ("$a( NATURAL", b'$'),
        ] {
            assert_eq!(tokens(sql.as_bytes()), [Token::Mark(mark), Token::Word(b"NATURAL".into())], "{sql}");
        }
    }

    #[test]
    fn table_columns_are_split_at_top_level_commas() {
        let parts =
            segments(b"CREATE TABLE \"t(,\"(a DECIMAL(3, 2), [b, c] TEXT DEFAULT ',', CHECK(a IN (1, 2))) STRICT, x");
        let firsts: Vec<_> = parts.iter().map(|part| &part[0]).collect();
        assert_eq!(
            firsts,
            [&Token::Word(b"a".into()), &Token::Quoted(b'[', b"b, c".into()), &Token::Word(b"CHECK".into())]
        );
        assert!(segments(b"CREATE TABLE").iter().all(Vec::is_empty));
    }
}
