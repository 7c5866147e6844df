//! Functions that a query may not call because a call can outlive its run: they do not check the server's clock.
//!
//! `servers readers --harden` revokes most such functions (`servers/_functions.py`). The ones here cannot be revoked.
//! XMLTABLE is part of the grammar. `to_date` and `to_timestamp` are common, but take quadratic time for long
//! formats. `?allow=xmltable,to_date` in a URL allows them by name on that database.

use crate::outcome::{Outcome, Status};

/// Maximum bytes of a literal format, including quotes.
const MAX_FORMAT: usize = 100;

/// Functions that take a format.
const OF_FORMATS: [&str; 2] = ["to_date", "to_timestamp"];

/// Names that a URL may allow.
const NAMES: [&str; 3] = ["to_date", "to_timestamp", "xmltable"];

/// Refuses a list of allowed functions that contains an unknown name.
pub(super) fn check_allowed(allowed: &str) -> Result<(), String> {
    match allowed.split(',').map(str::trim).find(|name| !NAMES.contains(name)) {
        Some(name) => Err(format!("allow={name}: not a refused function; refused functions are {}", NAMES.join(", "))),
        None => Ok(()),
    }
}

/// Returns the outcome of a text that calls a refused function. `allowed` is a comma-separated list of functions.
pub(super) fn refusal(sql: &str, allowed: Option<&str>) -> Option<Outcome> {
    if !may_call(sql.as_bytes()) {
        return None; // the usual case
    }
    let is_allowed = |name: &str| allowed.is_some_and(|list| list.split(',').any(|other| other.trim() == name));
    let tokens: Vec<PostgresToken<'_>> = PostgresTokens { sql, at: 0 }.collect();
    let refused = |reason: String| Some(Outcome::failed(Status::Forbidden, reason));
    for (index, pair) in tokens.windows(2).enumerate() {
        let [PostgresToken::Name(name) | PostgresToken::QuotedName(name), PostgresToken::Symbol(b'(')] = pair else {
            continue;
        };
        let is_quoted = matches!(pair[0], PostgresToken::QuotedName(_));
        let name = if is_quoted { (*name).to_owned() } else { name.to_ascii_lowercase() };
        if is_allowed(&name) {
            continue;
        }
        if name == "xmltable" && !is_quoted {
            return refused(format!("{name} is refused: it can run past its deadline. {}", allow_hint(&name)));
        }
        if OF_FORMATS.contains(&name.as_str()) && !has_short_format(&tokens[index + 2..]) {
            let reason = format!("the format of {name} must be a literal of at most {} bytes", MAX_FORMAT - 2);
            return refused(format!(
                "{reason}: with a long format it can run past its deadline. {}",
                allow_hint(&name)
            ));
        }
        // Unicode escapes can spell any name.
        if is_quoted && matches!(tokens[..index], [.., PostgresToken::Name("u" | "U"), PostgresToken::Symbol(b'&')]) {
            return refused("a function whose name has Unicode escapes is refused".to_owned());
        }
    }
    None
}

fn allow_hint(name: &str) -> String {
    format!("If all queries are trusted, ?allow={name} in the URL allows it")
}

/// Searches for the rarer letters of the names first.
fn may_call(bytes: &[u8]) -> bool {
    let has =
        |at: usize, word: &[u8]| bytes.get(at..at + word.len()).is_some_and(|part| part.eq_ignore_ascii_case(word));
    memchr::memchr_iter(b'_', bytes)
        .any(|at| at >= 2 && has(at - 2, b"to") && (has(at + 1, b"date") || has(at + 1, b"timestamp")))
        || memchr::memchr2_iter(b'x', b'X', bytes).any(|at| has(at, b"xmltable"))
        || memchr::memchr_iter(b'&', bytes).any(|at| at >= 1 && has(at - 1, b"u&\""))
}

/// Returns whether the arguments after a parenthesis have no format, or a short literal format.
fn has_short_format(tokens: &[PostgresToken<'_>]) -> bool {
    let mut depth = 1_usize;
    let comma = tokens.iter().position(|token| {
        match token {
            PostgresToken::Symbol(b'(' | b'[') => depth += 1,
            PostgresToken::Symbol(b')' | b']') => depth -= 1,
            _ => {}
        }
        depth == 0 || (depth == 1 && matches!(token, PostgresToken::Symbol(b',')))
    });
    let Some(comma) = comma.filter(|index| matches!(tokens[*index], PostgresToken::Symbol(b','))) else { return true };
    let [PostgresToken::Text(length), rest @ ..] = &tokens[comma + 1..] else { return false };
    let rest = match rest {
        // The server writes literals this way in view definitions; the cast does not extend the text.
        [PostgresToken::Symbol(b':'), PostgresToken::Symbol(b':'), PostgresToken::Name(name), rest @ ..]
            if is_text(name) =>
        {
            rest
        }
        _ => rest,
    };
    *length <= MAX_FORMAT && matches!(rest, [PostgresToken::Symbol(b')'), ..])
}

fn is_text(name: &str) -> bool {
    ["text", "varchar"].iter().any(|kind| name.eq_ignore_ascii_case(kind))
}

/// A token that is neither blank nor a comment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PostgresToken<'a> {
    Name(&'a str),
    /// The text between double quotes.
    QuotedName(&'a str),
    /// The bytes of a literal, including quotes.
    Text(usize),
    Symbol(u8),
}

struct PostgresTokens<'a> {
    sql: &'a str,
    at: usize,
}

impl<'a> Iterator for PostgresTokens<'a> {
    type Item = PostgresToken<'a>;

    fn next(&mut self) -> Option<PostgresToken<'a>> {
        let bytes = self.sql.as_bytes();
        self.at = skip_blank(bytes, self.at);
        let begin = self.at;
        let (token, end) = match *bytes.get(begin)? {
            b'\'' => {
                let end = quote_end(bytes, begin, false);
                (PostgresToken::Text(end - begin), end)
            }
            b'e' | b'E' if bytes.get(begin + 1) == Some(&b'\'') => {
                let end = quote_end(bytes, begin + 1, true);
                (PostgresToken::Text(end - begin), end)
            }
            b'"' => {
                let end = quote_end(bytes, begin, false);
                (PostgresToken::QuotedName(self.sql.get(begin + 1..end - 1).unwrap_or_default()), end)
            }
            b'$' => match dollar_quote_end(bytes, begin) {
                Some(end) => (PostgresToken::Text(end - begin), end),
                None => (PostgresToken::Symbol(b'$'), begin + 1),
            },
            byte if is_name_byte(byte) => {
                let length = bytes[begin..].iter().take_while(|byte| is_name_byte(**byte) || **byte == b'$').count();
                (PostgresToken::Name(&self.sql[begin..begin + length]), begin + length)
            }
            byte => (PostgresToken::Symbol(byte), begin + 1),
        };
        self.at = end;
        Some(token)
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// Skips white space and comments; block comments nest.
fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    loop {
        at = match &bytes[at.min(bytes.len())..] {
            [byte, ..] if byte.is_ascii_whitespace() || *byte == 0x0b => at + 1,
            [b'-', b'-', rest @ ..] => memchr::memchr2(b'\n', b'\r', rest).map_or(bytes.len(), |n| at + n + 2),
            [b'/', b'*', ..] => comment_end(bytes, at),
            _ => return at.min(bytes.len()),
        };
    }
}

fn comment_end(bytes: &[u8], begin: usize) -> usize {
    let (mut at, mut depth) = (begin, 0_usize);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => (at, depth) = (at + 2, depth + 1),
            [b'*', b'/', ..] if depth == 1 => return at + 2,
            [b'*', b'/', ..] => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the end of a quote that starts here.
fn quote_end(bytes: &[u8], begin: usize, has_escapes: bool) -> usize {
    let quote = bytes[begin];
    let mut at = begin + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' if has_escapes => at += 2,
            byte if byte == quote && bytes.get(at + 1) == Some(&quote) => at += 2,
            byte if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the end of `$tag$…$tag$`; `None` if no such quote starts here.
fn dollar_quote_end(bytes: &[u8], begin: usize) -> Option<usize> {
    let rest = &bytes[begin + 1..];
    let length = rest.iter().take_while(|byte| is_name_byte(**byte)).count();
    if rest.first().is_some_and(u8::is_ascii_digit) || rest.get(length) != Some(&b'$') {
        return None;
    }
    let body = begin + length + 2;
    let end = memchr::memmem::find(&bytes[body..], &bytes[begin..body]);
    Some(end.map_or(bytes.len(), |n| body + n + length + 2))
}

#[cfg(test)]
mod tests {
    use super::{check_allowed, refusal};

    #[test]
    fn finds_calls_that_may_outlive_their_run() {
        let long = "Y".repeat(99);
        let calls = [
            "SELECT * FROM XMLTABLE('//a' PASSING x COLUMNS b text)",
            "SELECT * FROM xmlTable /* a /* b */ */ -- c\n ('//a' PASSING x COLUMNS b text)",
            "SELECT to_timestamp(repeat('1', 9), repeat('YYYY', 9))",
            "SELECT pg_catalog.TO_DATE(a, 'YYYY' || b)",
            "SELECT \"to_date\"(a, (SELECT 'YYYY'))",
            "SELECT to_date(f(a, 'b'), c)",
            "SELECT to_date(a[1, 2], c)",
            "SELECT to_date('1', $1)",
            "SELECT to_date('1', U&'YYYY')",
            "SELECT $a$ to_date($a$, to_date('1', b)",
            "SELECT E'\\'', to_date('1', b) -- '",
            "SELECT U&\"to\\005fdate\"('1', b)",
            &format!("SELECT to_date('1', '{long}')"),
            &format!("SELECT to_date('1', '{long}'::text)"),
            "SELECT to_date('1', 'YYYY'::text || b)",
            "SELECT to_date('1', 'YYYY'::text::a)",
            "SELECT to_date('1', 'YYYY'::a)",
            "SELECT to_date('1', 'YYYY'::text(b))",
            "SELECT to_date('1', b::text)",
            "SELECT to_date('1', 'YYYY'::a.text)",
            &format!("SELECT to_date('1', $${long}$$)"),
        ];
        for sql in calls {
            assert!(refusal(sql, None).is_some(), "{sql}");
        }
    }

    #[test]
    fn other_calls_are_accepted() {
        let texts = [
            "SELECT to_date(a, 'YYYY-MM-DD') FROM t",
            "SELECT to_date(t.a, 'YYYY-MM-DD'::text), to_timestamp(a::text, 'YYYY' :: VARCHAR) FROM t",
            "SELECT to_timestamp (a, E'YYYY\\'MM'), to_timestamp(1.5), to_date((a || 'b, c'), $$YYYY$$)",
            "SELECT 'to_date(a, b)', \"xmltable\"(1), xmltable FROM t -- to_date(a, b)",
            "SELECT $$to_date(a, b)$$, $1, $a$to_date(a, b)$b$xmltable(1)$a$",
            "SELECT to_date, my_to_date(a, b), to_dates(a, b), to_char(a, b) FROM t",
            "SELECT U&\"d\\0061t\" FROM t, to_date('1', 'YYYY')",
            "SELECT to_date(",
            "SELECT ) to_date(a)",
        ];
        for sql in texts {
            assert!(refusal(sql, None).is_none(), "{sql}: {:?}", refusal(sql, None));
        }
        assert!(refusal("SELECT to_date(a, b), xmltable(1)", Some("to_date, xmltable")).is_none());
        assert!(refusal("SELECT to_date(a, b), xmltable(1)", Some("to_date")).is_some());
        assert!(check_allowed("to_date, xmltable").is_ok() && check_allowed("to_date,xml_table").is_err());
    }
}
