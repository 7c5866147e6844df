//! Finds the single statement in a SQL text, following SQLite's rules for comments and quotes.
//!
//! The text is split before SQLite sees it: nothing after the first semicolon is prepared, and a text of semicolons
//! alone costs nothing.

/// Prefix of the text that replaces a text with an unpaired surrogate; the position of the surrogate follows. No
/// valid Rust text contains it, because it starts with NUL, which no engine accepts.
pub const HALF_PAIR: &str = "\0half a surrogate pair at ";

/// Returns the error message for a text with a NUL.
pub(crate) fn nul_error(sql: &str) -> String {
    match sql.strip_prefix(HALF_PAIR) {
        Some(position) => format!("the text holds half a surrogate pair, which is not a character, at {position}"),
        None => "the text holds a NUL character".to_owned(),
    }
}

/// The content of a SQL text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan<'a> {
    /// No statement: white space, comments and semicolons only.
    Nothing,
    /// One statement without surrounding blanks, and its byte offset in the text.
    One(&'a str, usize),
    /// A second statement follows the first.
    Several,
    /// A NUL character: SQLite would silently stop reading there.
    Nul,
}

/// Scans a SQL text.
pub fn scan(sql: &str) -> Scan<'_> {
    let bytes = sql.as_bytes();
    if memchr::memchr(0, bytes).is_some() {
        return Scan::Nul;
    }
    let start = skip_blank(bytes, 0);
    if start == bytes.len() {
        return Scan::Nothing;
    }
    let end = statement_end(bytes, start);
    if skip_blank(bytes, end) == bytes.len() { Scan::One(&sql[start..end], start) } else { Scan::Several }
}

/// Removes the keyword DISTINCT from a SQL text, except in `IS [NOT] DISTINCT FROM`, quotes and comments.
pub fn strip_distinct(sql: &str) -> String {
    const WORD: &str = "distinct";
    let bytes = sql.as_bytes();
    let mut stripped = String::with_capacity(sql.len());
    let (mut at, mut copied) = (0, 0);
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at = token_end(bytes, at);
            continue;
        }
        let end = word_end(bytes, at);
        if sql[at..end].eq_ignore_ascii_case(WORD) && !starts_with_from(bytes, end) {
            stripped.push_str(&sql[copied..at]);
            copied = end;
        }
        at = end;
    }
    stripped.push_str(&sql[copied.min(sql.len())..]);
    stripped
}

/// Maximum number of tokens in a statement. An IN list of 20,000 numbers takes 40,000.
const MAX_TOKENS: usize = 65_536;

/// Maximum number of terms in one ORDER BY, GROUP BY or PARTITION BY. SQLite compares each term with every result
/// column without calling a hook.
const MAX_SORT_TERMS: usize = 128;

/// Returns why a statement would take too much work to prepare, if its text alone shows it.
pub fn find_excess(sql: &str) -> Option<String> {
    let bytes = sql.as_bytes();
    let has_long_list = || memchr::memchr_iter(b',', bytes).nth(MAX_SORT_TERMS - 1).is_some();
    if bytes.len() <= MAX_SORT_TERMS || (bytes.len() <= MAX_TOKENS && !has_long_list()) {
        return None; // the usual case
    }
    // For each open parenthesis, the number of terms so far if it contains a list of terms.
    let mut lists = vec![None];
    let mut n_tokens = 0;
    let mut at = skip_blank(bytes, 0);
    while at < bytes.len() {
        n_tokens += 1;
        if n_tokens > MAX_TOKENS {
            return Some(format!("more than {MAX_TOKENS} tokens"));
        }
        let end = if is_word(bytes[at]) { word_end(bytes, at) } else { token_end(bytes, at) };
        match (&bytes[at..end], lists.last_mut()) {
            (b"(", _) => lists.push(None),
            (b")", _) => drop(lists.pop()),
            (b",", Some(Some(n_terms))) => {
                *n_terms += 1;
                if *n_terms > MAX_SORT_TERMS {
                    return Some(format!("more than {MAX_SORT_TERMS} terms in an ORDER BY, GROUP BY or PARTITION BY"));
                }
            }
            (word, Some(list)) if word.eq_ignore_ascii_case(b"by") => *list = Some(1),
            (word, Some(list)) if list.is_some() && ends_sort_terms(word) => *list = None,
            _ => {}
        }
        at = skip_blank(bytes, end);
    }
    None
}

/// Returns whether a keyword ends a list of terms, so that later commas belong to something else.
fn ends_sort_terms(word: &[u8]) -> bool {
    is_among(word, &["having", "limit", "select", "values", "window"])
}

/// Counts an upper bound of the JSON paths in a SQL text; for each path a JSON function walks the whole document.
pub fn n_json_paths(sql: &str) -> usize {
    let bytes = sql.as_bytes();
    let n_arrows = memchr::memchr_iter(b'>', bytes).filter(|at| *at > 0 && bytes[at - 1] == b'-').count();
    let is_json = |at: usize| bytes.get(at..at + 4).is_some_and(|word| word.eq_ignore_ascii_case(b"json"));
    let first_call = memchr::memchr2_iter(b'j', b'J', bytes).find(|at| is_json(*at));
    n_arrows + first_call.map_or(0, |at| memchr::memchr2_iter(b',', b'(', &bytes[at..]).count())
}

/// Kinds of LIKE and GLOB patterns in a SQL text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patterns {
    /// No patterns.
    None,
    /// Only literals that an index may support and that take work proportional to their length: a fixed prefix, with
    /// `%` or `*` only at the end.
    Short,
    /// Other patterns.
    Any,
}

/// Classifies the patterns in a SQL text.
pub fn patterns(sql: &str) -> Patterns {
    let bytes = sql.as_bytes();
    if !may_match_patterns(bytes) {
        return Patterns::None;
    }
    let mut kind_of_patterns = Patterns::None;
    let mut at = 0;
    while at < bytes.len() {
        let end = if is_word(bytes[at]) { word_end(bytes, at) } else { token_end(bytes, at) };
        let is_call = is_pattern_word(unquoted(&bytes[at..end]));
        let is_operator = is_pattern_word(&bytes[at..end]);
        if is_call && !(is_operator && is_short_literal(bytes, skip_blank(bytes, end))) {
            return Patterns::Any;
        }
        if is_operator {
            kind_of_patterns = Patterns::Short;
        }
        at = end;
    }
    kind_of_patterns
}

/// Searches for the rarer letters of `like` and `glob` first.
fn may_match_patterns(bytes: &[u8]) -> bool {
    let around = |at: usize, before: usize| at.checked_sub(before).and_then(|from| bytes.get(from..from + 4));
    memchr::memchr2_iter(b'k', b'K', bytes).any(|at| around(at, 2).is_some_and(is_pattern_word))
        || memchr::memchr2_iter(b'g', b'G', bytes).any(|at| around(at, 0).is_some_and(is_pattern_word))
}

fn is_pattern_word(word: &[u8]) -> bool {
    word.eq_ignore_ascii_case(b"like") || word.eq_ignore_ascii_case(b"glob")
}

/// Returns the name in a quoted name. A text in single quotes is not a name.
pub(crate) fn unquoted(token: &[u8]) -> &[u8] {
    match token {
        [b'"' | b'`' | b'[', name @ .., b'"' | b'`' | b']'] => name,
        _ => token,
    }
}

fn is_short_literal(bytes: &[u8], at: usize) -> bool {
    if bytes.get(at) != Some(&b'\'') {
        return false;
    }
    let end = quoted_end(bytes, at, b'\'');
    let [b'\'', fixed @ .., last, b'\''] = &bytes[at..end] else { return false };
    let is_fixed = |byte: &u8| !b"%*_?[".contains(byte);
    if !fixed.iter().all(is_fixed) || !(is_fixed(last) || b"%*".contains(last)) || fixed.is_empty() {
        return false;
    }
    // The next token may extend the pattern (another quote, an operator) or set an escape character.
    let next = skip_blank(bytes, end);
    match bytes.get(next) {
        None | Some(b')' | b',') => true,
        Some(byte) if is_word(*byte) => !is_among(&bytes[next..word_end(bytes, next)], &["escape", "collate"]),
        Some(_) => false,
    }
}

/// Returns whether a word is in a list, ignoring case.
pub(crate) fn is_among<T: AsRef<[u8]>>(word: &[u8], list: &[T]) -> bool {
    list.iter().any(|other| other.as_ref().eq_ignore_ascii_case(word))
}

pub(crate) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || byte >= 0x80
}

pub(crate) fn word_end(bytes: &[u8], at: usize) -> usize {
    (at..bytes.len()).find(|i| !is_word(bytes[*i])).unwrap_or(bytes.len())
}

fn starts_with_from(bytes: &[u8], at: usize) -> bool {
    let at = skip_blank(bytes, at);
    bytes.get(at..at + 4).is_some_and(|word| word.eq_ignore_ascii_case(b"from"))
        && !bytes.get(at + 4).is_some_and(|byte| is_word(*byte))
}

/// Returns the first position at or after `at` that is not white space, a comment, a semicolon or a byte order mark.
pub(crate) fn skip_blank(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b' ' | b'\t' | b'\n' | b'\x0c' | b'\r' | b';' => at += 1,
            b'-' if bytes.get(at + 1) == Some(&b'-') => at = line_comment_end(bytes, at),
            b'/' if bytes.get(at + 1) == Some(&b'*') => at = block_comment_end(bytes, at),
            0xef if bytes[at..].starts_with(b"\xef\xbb\xbf") => at += 3,
            _ => break,
        }
    }
    at
}

/// Returns the position of the semicolon that ends the statement, or the end of the text.
fn statement_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at,
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b' ' => at += 1,
            _ => at = token_end(bytes, at),
        }
    }
    bytes.len()
}

/// Returns the position after the quoted token or comment that starts at `at`, or after one byte of anything else.
pub(crate) fn token_end(bytes: &[u8], at: usize) -> usize {
    match bytes[at] {
        quote @ (b'\'' | b'"' | b'`') => quoted_end(bytes, at, quote),
        b'[' => quoted_end(bytes, at, b']'),
        b'-' if bytes.get(at + 1) == Some(&b'-') => line_comment_end(bytes, at),
        b'/' if bytes.get(at + 1) == Some(&b'*') => block_comment_end(bytes, at),
        _ => at + 1,
    }
}

/// Returns the position after a quoted token. A doubled quote reads as the start of a second token, which ends at the
/// same place.
fn quoted_end(bytes: &[u8], at: usize, quote: u8) -> usize {
    (position_of(bytes, at + 1, quote) + 1).min(bytes.len())
}

fn line_comment_end(bytes: &[u8], at: usize) -> usize {
    position_of(bytes, at, b'\n')
}

fn block_comment_end(bytes: &[u8], at: usize) -> usize {
    let mut i = at + 2;
    while i + 1 < bytes.len() {
        if bytes[i] == b'*' && bytes[i + 1] == b'/' {
            return i + 2;
        }
        i += 1;
    }
    bytes.len()
}

fn position_of(bytes: &[u8], from: usize, wanted: u8) -> usize {
    let tail = bytes.get(from..).unwrap_or_default();
    tail.iter().position(|b| *b == wanted).map_or(bytes.len(), |i| from + i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_single_statement() {
        for sql in ["SELECT 1", "SELECT 1;", " ;; SELECT 1 ; -- end", "/* a; b */SELECT 1;/* open"] {
            assert!(matches!(scan(sql), Scan::One(s, _) if s.trim() == "SELECT 1"), "{sql}");
        }
        assert_eq!(scan("-- x;\nSELECT 1"), Scan::One("SELECT 1", 6));
    }

    #[test]
    fn semicolons_in_quotes_do_not_split() {
        for sql in [
            "SELECT ';'",
            "SELECT 'it''s; here'",
            "SELECT \"a;b\"",
            "SELECT [a;b]",
            "SELECT `a;b`",
            "SELECT 1 -- a; b",
            "SELECT 1 /* ; */ + 1",
        ] {
            assert_eq!(scan(sql), Scan::One(sql, 0), "{sql}");
        }
    }

    #[test]
    fn strips_distinct_only_as_a_keyword() {
        for (sql, stripped) in [
            ("SELECT DISTINCT a FROM t", "SELECT  a FROM t"),
            ("select count(distinct a), 'distinct' from t", "select count( a), 'distinct' from t"),
            (
                "SELECT \"distinct\", distinct_id, [distinct] FROM t",
                "SELECT \"distinct\", distinct_id, [distinct] FROM t",
            ),
            ("SELECT a IS DISTINCT FROM b -- distinct", "SELECT a IS DISTINCT FROM b -- distinct"),
            ("SELECT é, DISTINCT fromage, 'open", "SELECT é,  fromage, 'open"),
        ] {
            assert_eq!(strip_distinct(sql), stripped);
        }
    }

    #[test]
    fn classifies_short_patterns() {
        for sql in
            ["SELECT 1", "SELECT 'like'", "SELECT likely(1) -- like", "SELECT liked, a_glob FROM t", "\" like", "[glob"]
        {
            assert_eq!(patterns(sql), Patterns::None, "{sql}");
        }
        for sql in [
            "SELECT a like 'ab%'",
            "SELECT a FROM t WHERE a NOT LIKE /* x */ 'ab%' AND (b GLOB 'c*') ORDER BY 1",
            "SELECT a LIKE 'abc' -- ESCAPE",
        ] {
            assert_eq!(patterns(sql), Patterns::Short, "{sql}");
        }
        for sql in [
            "SELECT a LIKE '%a'",
            "SELECT a LIKE 'a%b'",
            "SELECT a LIKE 'a_%'",
            "SELECT a GLOB '[a-z]*'",
            "SELECT a LIKE ''",
            "SELECT a LIKE 'a' || b",
            "SELECT a LIKE 'a''%'",
            "SELECT a LIKE 'a%' ESCAPE '\\'",
            "SELECT a LIKE b",
            "SELECT a LIKE ('a%')",
            "SELECT a LIKE 'a",
            "SELECT a LIKE '",
            "SELECT a LIKE",
            "SELECT like('a%', a)",
            "SELECT a LIKE 'a%', \"like\"('%b%', a)",
            "SELECT a LIKE 'a%', [Glob]('%b%', a)",
        ] {
            assert_eq!(patterns(sql), Patterns::Any, "{sql}");
        }
    }

    #[test]
    fn finds_too_many_tokens_and_too_long_lists() {
        let list = |n: usize| vec!["a"; n].join(", ");
        for (sql, is_fine) in [
            (format!("SELECT {} FROM t ORDER BY {}", list(2_000), list(128)), true),
            (format!("SELECT a FROM t ORDER BY {}", list(129)), false),
            (format!("SELECT a FROM t group /* , */ by {} ORDER BY {}", list(100), list(100)), true),
            (format!("SELECT a, sum(a) OVER (ORDER BY b PARTITION BY {}) FROM t", list(129)), false),
            (format!("SELECT a FROM t GROUP BY f({}), b", list(500)), true),
            (format!("SELECT * FROM (SELECT a FROM t ORDER BY a), {} -- ORDER BY ','", list(200)), true),
            (format!("SELECT a FROM t GROUP BY a UNION SELECT {} ORDER BY 1 LIMIT 1, 2", list(200)), true),
            (format!("SELECT 'ORDER BY', \"BY\", {}", list(500)), true),
            (format!("SELECT 1 IN ({})", list(32_000)), true),
            (format!("SELECT 1 IN ({})", list(33_000)), false),
            (format!("SELECT '{}', 2 {}", ",".repeat(100_000), " ".repeat(100_000)), true),
            (")))))".repeat(100) + "ORDER BY ,", true),
        ] {
            assert_eq!(find_excess(&sql).is_none(), is_fine, "{}: {:?}", &sql[..50], find_excess(&sql));
        }
    }

    #[test]
    fn counts_an_upper_bound_of_json_paths() {
        for (sql, n) in [("SELECT a, f(b, c)", 0), ("SELECT a -> 1 ->> 2", 2), ("SELECT JSON_extract(a, '$', '$')", 3)]
        {
            assert_eq!(n_json_paths(sql), n, "{sql}");
        }
    }

    #[test]
    fn detects_no_statement_several_statements_and_nul() {
        for sql in ["", "  \n", ";;;", "-- only", "/* only */ ;", "/* open", "\u{feff}"] {
            assert_eq!(scan(sql), Scan::Nothing, "{sql:?}");
        }
        for sql in ["SELECT 1; SELECT 2", "SELECT ';'; DROP TABLE t", "a;b;c"] {
            assert_eq!(scan(sql), Scan::Several, "{sql:?}");
        }
        assert_eq!(scan("SELECT 1\0"), Scan::Nul);
        assert_eq!(scan("SELECT 'open; "), Scan::One("SELECT 'open; ", 0));
        assert_eq!(scan("SELECT ["), Scan::One("SELECT [", 0));
    }
}
