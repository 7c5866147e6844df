//! Refuses what an earlier SQLite refuses, so that scores agree with those of a scorer that ran on it.
//!
//! The authorizer finds functions, also in views. Syntax is found in the statement's tokens. Date formats and
//! modifiers, for which SQLite itself returns NULL, are found in literals. A double-quoted word is a text if no
//! column has its name, which only SQLite can decide.

use std::ops::Range;

use crate::scan::{is_among, is_word, skip_blank, token_end, unquoted, word_end};

/// The earliest minor version of SQLite 3 whose later additions are listed.
pub const EARLIEST: u32 = 40;

/// Functions added since 3.41, with the minor version of SQLite 3 that added them.
const FUNCTIONS: [(&str, u32); 27] = [
    ("unhex", 41),
    ("json_error_position", 42),
    ("octet_length", 43),
    ("timediff", 43),
    ("concat", 44),
    ("concat_ws", 44),
    ("string_agg", 44),
    ("jsonb", 45),
    ("jsonb_array", 45),
    ("jsonb_extract", 45),
    ("jsonb_group_array", 45),
    ("jsonb_group_object", 45),
    ("jsonb_insert", 45),
    ("jsonb_object", 45),
    ("jsonb_patch", 45),
    ("jsonb_remove", 45),
    ("jsonb_replace", 45),
    ("jsonb_set", 45),
    ("json_pretty", 46),
    ("fts5_get_locale", 47),
    ("fts5_locale", 47),
    ("if", 48),
    ("fts5_insttoken", 48),
    ("unistr", 50),
    ("unistr_quote", 50),
    ("json_array_insert", 52),
    ("jsonb_array_insert", 52),
];

/// Table-valued functions.
const TABLES: [(&str, u32); 2] = [("jsonb_each", 51), ("jsonb_tree", 51)];

const DATE_FUNCTIONS: [&str; 6] = ["date", "time", "datetime", "julianday", "unixepoch", "strftime"];

/// Date modifiers, and prefixes of others.
const MODIFIERS: [(&str, u32); 4] = [("subsec", 42), ("subsecond", 42), ("ceiling", 46), ("floor", 46)];
const MODIFIER_STARTS: [(&str, u32); 2] = [("end of ", 54), ("start of week", 54)];

/// Format codes of `strftime`.
const CODES: [(&[u8], u32); 2] = [(b"eFIklpPRTu", 44), (b"GgUV", 46)];

/// Keywords and operators after which a literal is compared, and those that compare the literal before them.
const COMPARES_WITH: [&str; 11] =
    ["like", "glob", "match", "regexp", "is", "from", "not", "between", "and", "case", "when"];
const COMPARES: [&str; 11] =
    ["like", "glob", "match", "regexp", "is", "in", "not", "between", "isnull", "notnull", "when"];

/// Returns the minor version that added a function, if it is later than `version`.
pub(crate) fn newer_function(name: &[u8], version: u32) -> Option<(&'static str, u32)> {
    newer(&FUNCTIONS, name, version)
}

/// Double-quoted words that an earlier SQLite refuses if they are texts, each with the refusal.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QuotedWords(Vec<(Range<usize>, String)>);

impl QuotedWords {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the statement with the words quoted as names, which SQLite never reads as texts.
    pub(crate) fn as_names(&self, sql: &str) -> String {
        let mut text = String::with_capacity(sql.len());
        let mut copied = 0;
        for (word_range, _) in &self.0 {
            text.extend([&sql[copied..word_range.start], "`", &sql[word_range.start + 1..word_range.end - 1], "`"]);
            copied = word_range.end;
        }
        text + &sql[copied..]
    }

    /// Returns the refusal for the word that an error about the rewritten statement reports as a missing column.
    pub(crate) fn refusal(&self, error: &rusqlite::Error) -> Option<&str> {
        let rusqlite::Error::SqlInputError { msg, offset, .. } = error else { return None };
        let is_meant = |word_range: &Range<usize>| usize::try_from(*offset) == Ok(word_range.start);
        let (_, refusal) = self.0.iter().find(|(range, _)| is_meant(range) && msg.starts_with("no such column: "))?;
        Some(refusal)
    }
}

/// Returns why an earlier SQLite refuses a statement, if its tokens show it; otherwise the quoted words that decide
/// it.
pub(crate) fn newer_syntax(sql: &str, version: u32) -> Result<QuotedWords, String> {
    let bytes = sql.as_bytes();
    let mut quoted = QuotedWords::default();
    let mut groups: Vec<OpenParenthesis<'_>> = Vec::new();
    let mut before: &[u8] = b"";
    let mut at = skip_blank(bytes, 0);
    while at < bytes.len() {
        let end = if is_word(bytes[at]) { word_end(bytes, at) } else { token_end(bytes, at) };
        let (token, next) = (&bytes[at..end], skip_blank(bytes, end));
        let since = match (token, groups.last_mut()) {
            (b"(", mut outer) => {
                let group = OpenParenthesis::new(before, outer.as_deref());
                if let Some(outer) = &mut outer {
                    outer.is_empty = false;
                }
                groups.push(group);
                newer(&TABLES, before, version)
            }
            (b")", _) => groups.pop().and_then(|group| group.newer_arguments(version)),
            (b",", Some(group)) => {
                group.n_commas += 1;
                None
            }
            (_, group) => newer_token(token, before, &bytes[next..], group, version),
        };
        if let Some((feature, since)) = since {
            let refusal = newer_message(feature, since, version);
            if token[0] != b'"' || token.contains(&b'`') {
                return Err(refusal);
            }
            quoted.0.push((at..end, refusal));
        }
        before = token;
        at = next;
    }
    Ok(quoted)
}

/// Formats the message that something was added in a later version.
pub(crate) fn newer_message(feature: &str, since: u32, version: u32) -> String {
    format!("{feature} needs SQLite 3.{since}, but sqlite_version is 3.{version}")
}

/// An open pair of parentheses.
struct OpenParenthesis<'a> {
    /// The word before it: the function's name in a call.
    name: &'a [u8],
    n_commas: u32,
    is_query: bool,
    /// If it holds arguments of a date function, the number of the first of them.
    date_argument: Option<u32>,
    is_empty: bool,
}

impl<'a> OpenParenthesis<'a> {
    fn new(before: &'a [u8], outer: Option<&OpenParenthesis<'_>>) -> Self {
        let is_name = before.first().is_some_and(|byte| is_word(*byte) || b"\"`[".contains(byte));
        let name = if is_name && !is_among(before, &["then", "else"]) { unquoted(before) } else { b"" };
        let date_argument = if is_compared(before, b"") {
            None
        } else if name.is_empty() {
            outer.and_then(|outer| outer.date_argument.map(|first| first + outer.n_commas))
        } else if name.eq_ignore_ascii_case(b"strftime") {
            Some(0) // the format is the first argument
        } else {
            DATE_FUNCTIONS.iter().any(|function| name.eq_ignore_ascii_case(function.as_bytes())).then_some(1)
        };
        Self { name, n_commas: 0, is_query: false, date_argument, is_empty: true }
    }

    /// Returns the feature that needs a later version because of the number of arguments.
    fn newer_arguments(&self, version: u32) -> Option<(&'static str, u32)> {
        let is_if = [&b"iif"[..], b"if"].iter().any(|name| self.name.eq_ignore_ascii_case(name));
        let newer = match self.n_commas + 1 {
            2 if is_if => ("iif() of two arguments", 48),
            4.. if is_if => ("iif() of more than three arguments", 49),
            2 if self.name.eq_ignore_ascii_case(b"json_valid") => ("json_valid() of two arguments", 45),
            _ => return None,
        };
        (newer.1 > version).then_some(newer)
    }
}

/// Returns the feature in a token that needs a later version.
fn newer_token(
    token: &[u8],
    before: &[u8],
    after: &[u8],
    group: Option<&mut OpenParenthesis<'_>>,
    version: u32,
) -> Option<(&'static str, u32)> {
    let is_number = token.first().is_some_and(u8::is_ascii_digit) && ![&b":"[..], b"@", b"#", b"?"].contains(&before);
    if is_number && token.contains(&b'_') && version < 46 {
        return Some(("an underscore in a number", 46));
    }
    let group = group?;
    if group.is_empty {
        group.is_query = is_among(token, &["select", "with", "values"]);
        group.is_empty = false;
    }
    let is_sorted = token.eq_ignore_ascii_case(b"by") && before.eq_ignore_ascii_case(b"order");
    let is_window = [&b"over"[..], b"as", b""].iter().any(|word| group.name.eq_ignore_ascii_case(word));
    if is_sorted && !group.is_query && !is_window && version < 44 {
        return Some(("ORDER BY in the arguments of a function", 44));
    }
    let [b'\'' | b'"', text @ .., b'\'' | b'"'] = token else { return None };
    let number = group.date_argument? + group.n_commas;
    let is_part_of_name = before == b"." || after.first() == Some(&b'.');
    if is_part_of_name || is_compared(before, after) {
        return None;
    }
    match number {
        0 => newer_code(text, version),
        _ => newer_modifier(text, version),
    }
}

/// Returns whether a literal between these tokens is only compared, and is not a value of the expression.
fn is_compared(before: &[u8], after: &[u8]) -> bool {
    let compares = |mark: Option<&u8>| mark.is_some_and(|mark| b"=<>!".contains(mark));
    let word = after.get(..after.iter().take_while(|byte| is_word(**byte)).count()).unwrap_or_default();
    compares(before.first()) || compares(after.first()) || is_among(before, &COMPARES_WITH) || is_among(word, &COMPARES)
}

fn newer_code(format: &[u8], version: u32) -> Option<(&'static str, u32)> {
    let mut rest = format;
    while let Some(at) = memchr::memchr(b'%', rest) {
        let code = rest.get(at + 1)?;
        if let Some((_, since)) = CODES.iter().find(|(codes, since)| *since > version && codes.contains(code)) {
            return Some(("a format code of strftime()", *since));
        }
        rest = &rest[at + 2..];
    }
    None
}

fn newer_modifier(text: &[u8], version: u32) -> Option<(&'static str, u32)> {
    let is_shift = matches!(text, [b'+' | b'-', date @ ..] if date.len() >= 10 && date[4] == b'-' && date[7] == b'-');
    if is_shift && version < 43 {
        return Some(("a date modifier of the form ±YYYY-MM-DD", 43));
    }
    let begins =
        |start: &str| text.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start.as_bytes()));
    let of_unit = MODIFIER_STARTS.iter().find(|(start, since)| *since > version && begins(start)).copied();
    newer(&MODIFIERS, text, version).or(of_unit)
}

fn newer(names: &[(&'static str, u32)], name: &[u8], version: u32) -> Option<(&'static str, u32)> {
    let name = unquoted(name);
    names.iter().find(|(known, since)| *since > version && known.as_bytes().eq_ignore_ascii_case(name)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The functions of SQLite 3.40 (`pragma_function_list`), plus all options of this build.
    const OF_3_40: &str = "-> ->> abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling changes char coalesce cos \
        cosh count cume_dist current_date current_time current_timestamp date datetime degrees dense_rank exp first_value \
        floor format fts3_tokenizer fts5 fts5_source_id glob group_concat hex highlight ifnull iif instr json json_array \
        json_array_length json_extract json_group_array json_group_object json_insert json_object json_patch json_quote \
        json_remove json_replace json_set json_type json_valid julianday lag last_insert_rowid last_value lead length like \
        likelihood likely ln load_extension log log10 log2 lower ltrim match matchinfo max min mod nth_value ntile nullif \
        offsets optimize percent_rank pi pow power printf quote radians random randomblob rank replace round row_number \
        rtreecheck rtreedepth rtreenode rtrim sign sin sinh snippet soundex sqlite_compileoption_get \
        sqlite_compileoption_used sqlite_log sqlite_source_id sqlite_version sqrt strftime substr substring subtype sum tan \
        tanh time total total_changes trim trunc typeof unicode unixepoch unlikely upper zeroblob";

    #[test]
    fn every_function_is_in_3_40_or_has_a_version() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let mut statement = connection.prepare("SELECT DISTINCT name FROM pragma_function_list").unwrap();
        let built: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
        let old: Vec<&str> = OF_3_40.split_whitespace().collect();
        let is_newer = |name: &str| newer_function(name.as_bytes(), EARLIEST).is_some();
        let unlisted: Vec<&String> =
            built.iter().filter(|name| !old.contains(&name.as_str()) && !is_newer(name)).collect();
        assert!(unlisted.is_empty(), "functions without a version: {unlisted:?}");
        assert!(!old.iter().any(|name| is_newer(name)));
    }

    #[test]
    fn finds_syntax_of_later_versions() {
        for (sql, since) in [
            ("SELECT 1_000", 46),
            ("SELECT a + 1.5_0", 46),
            ("SELECT group_concat(a, ',' ORDER BY a) FROM t", 44),
            ("SELECT sum(a ORDER /* x */ BY b) OVER (ORDER BY a) FROM t", 44),
            ("SELECT iif(a, 1)", 48),
            ("SELECT \"iif\"((a),(b))", 48),
            ("SELECT iif(a, 1, b, 2)", 49),
            ("SELECT json_valid(a, 6)", 45),
            ("SELECT strftime('%Y %p', a)", 44),
            ("SELECT strftime(('%G'), a)", 46),
            ("SELECT datetime(a, 'Subsec')", 42),
            ("SELECT date(a, '+1 month', ('floor'))", 46),
            ("SELECT date(a, '+0001-00-00')", 43),
            ("SELECT unixepoch('subsec')", 42),
            ("SELECT * FROM [jsonb_each](a)", 51),
            ("SELECT strftime(\"%G`\", a)", 46),
            ("SELECT date(a, CASE WHEN b = 1 THEN ('floor') ELSE 'ceiling' END)", 46),
        ] {
            assert!(newer_syntax(sql, since - 1).is_err(), "{sql}");
            assert_eq!(newer_syntax(sql, since), Ok(QuotedWords::default()), "{sql}");
        }
    }

    #[test]
    fn double_quoted_literal_is_refused_without_such_a_column() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        connection.execute_batch("CREATE TABLE t(d, floor, \"%F\")").unwrap();
        let refuses = |sql: &str, version: u32| {
            connection.prepare(sql).unwrap();
            let quoted = newer_syntax(sql, version).unwrap();
            let tried = connection.prepare(&quoted.as_names(sql));
            tried.is_err_and(|error| quoted.refusal(&error).is_some())
        };
        for (sql, since) in [
            ("SELECT strftime(\"%Y %p\", d) FROM t", 44),
            ("SELECT date(d, \"floor\", \"ceiling\") FROM t", 46),
            ("SELECT date('2024-01-31', \"floor\")", 46),
            ("SELECT d AS ceiling, date(d, /* é */ \"Ceiling\") FROM t", 46),
            ("SELECT unixepoch(\"subsec\")", 42),
        ] {
            assert!(refuses(sql, since - 1), "{sql}");
            assert!(!refuses(sql, since), "{sql}");
        }
        for sql in [
            "SELECT date(d, \"floor\"), strftime(\"%f\", d) FROM t",
            "SELECT date(d, t.\"floor\"), strftime(\"%Y\", d, \"+1 day\"), \"ceiling\" FROM t",
            "SELECT d AS ceiling FROM t ORDER BY date(d, \"ceiling\")",
        ] {
            assert!(!refuses(sql, EARLIEST), "{sql}");
        }
    }

    #[test]
    fn accepts_syntax_of_3_40() {
        for sql in [
            "SELECT a_1, t_0.b_2, '1_000', :1_0, \"1_0\" FROM t_0 -- 1_0",
            "SELECT count(*) OVER (PARTITION BY a ORDER BY b), f((SELECT a FROM t ORDER BY b)) FROM t",
            "SELECT a IN (SELECT a FROM t ORDER BY b), EXISTS(WITH c AS (SELECT 1) SELECT a FROM c ORDER BY 1)",
            "SELECT sum(a) OVER w FROM t WINDOW w AS (ORDER BY a), v AS (w) ORDER BY 1",
            "SELECT iif(a, f(1, 2), 3), json_valid(a), coalesce(a, b, c, d)",
            "SELECT strftime('%Y-%m-%d %%I %H:%M:%f', a, '+1 day', 'start of month'), '%p', '%', date(a, '-1 years')",
            "SELECT * FROM json_each(a) WHERE x LIKE '%I' AND 'floor' = y",
            "SELECT date(CASE WHEN a = 'floor' OR a IN ('floor') OR a == (('floor')) THEN d END)",
            "SELECT date(d, CASE a WHEN 'floor' THEN b END), date(d, CASE 'floor' WHEN a THEN b END)",
            "SELECT strftime(CASE WHEN a LIKE '%Park' OR a NOT GLOB '%e' OR a MATCH '%F' THEN '%Y' ELSE '%m' END, d)",
            "SELECT strftime(CASE WHEN a IS NOT DISTINCT FROM '%e' OR a BETWEEN '%F' AND '%p' THEN '%Y' END, d)",
            "SELECT date(a ->> 'floor', a -> 'subsec', CASE WHEN a IS NOT 'floor' THEN b END)",
            "SELECT date(d, CASE WHEN a <> \"floor\" AND 'floor'/**/!= a AND (a) > 'floor' THEN b END)",
        ] {
            assert_eq!(newer_syntax(sql, EARLIEST), Ok(QuotedWords::default()), "{sql}");
        }
    }
}
