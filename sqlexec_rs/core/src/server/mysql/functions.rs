//! Functions that a query may not call: one call can crash the server, or its value depends on another run.
//!
//! The check matches names as the server does: in any case, quoted, qualified, and with blanks or comments before the
//! parenthesis. `?allow=extractvalue,updatexml` in a URL allows functions by name on that database.

use super::blank::skip_blank;
use super::text::{Escapes, quote_end};
use crate::outcome::{Outcome, Status};
use crate::scan::{is_word, word_end};

/// Functions that are refused for the same reason.
struct RefusedGroup {
    /// The name by which a URL allows the whole group.
    name: &'static str,
    reason: &'static str,
    /// Function names in lower case.
    functions: &'static [&'static str],
    begins: &'static [&'static str],
    ends: &'static [&'static str],
}

const REFUSED: &[RefusedGroup] = &[
    RefusedGroup {
        name: "xml",
        reason: "a nested argument can end the server",
        functions: &["extractvalue", "updatexml"],
        begins: &[],
        ends: &[],
    },
    RefusedGroup {
        name: "diagnostics",
        reason: "its value comes from an earlier statement",
        functions: &["found_rows", "row_count"],
        begins: &[],
        ends: &[],
    },
    // Each function accepts every kind of geometry, whatever its name, and reads any byte text as a geometry.
    RefusedGroup {
        name: "spatial",
        reason: "a nested geometry can end the server",
        functions: &[
            "area",
            "astext",
            "asbinary",
            "aswkb",
            "aswkt",
            "boundary",
            "buffer",
            "centroid",
            "contains",
            "convexhull",
            "crosses",
            "dimension",
            "disjoint",
            "endpoint",
            "envelope",
            "equals",
            "exteriorring",
            "geometryn",
            "geometrytype",
            "glength",
            "interiorringn",
            "intersects",
            "isclosed",
            "isempty",
            "isring",
            "issimple",
            "numgeometries",
            "numinteriorrings",
            "numpoints",
            "overlaps",
            "pointn",
            "pointonsurface",
            "startpoint",
            "touches",
            "within",
        ],
        begins: &["st_", "mbr"],
        ends: &["fromtext", "fromwkb"],
    },
    // They check neither the clock nor KILL for arguments of any length, or take memory that `max_session_mem_used`
    // does not count.
    RefusedGroup {
        name: "endless",
        reason: "a call can run past its deadline",
        functions: &["encrypt", "json_overlaps", "sformat"],
        begins: &[],
        ends: &[],
    },
]; // fmt: skip

/// Refuses a list of allowed functions that contains an unknown name.
pub(super) fn check_allowed(allowed: &str) -> Result<(), String> {
    let is_known = |name: &&str| {
        let name = name.to_ascii_lowercase();
        REFUSED.iter().any(|group| group.name == name || group.has(&name))
    };
    match allowed.split(',').map(str::trim).find(|name| !is_known(name)) {
        Some(name) => {
            let groups: Vec<&str> = REFUSED.iter().map(|group| group.name).collect();
            Err(format!("allow={name}: not a refused function; the groups are {}", groups.join(", ")))
        }
        None => Ok(()),
    }
}

/// Returns the outcome of a text that calls a refused function. `allowed` is a comma-separated list of functions and
/// groups; `escapes` describes how the session reads texts.
pub(super) fn refusal(sql: &str, allowed: Option<&str>, escapes: Escapes) -> Option<Outcome> {
    let is_allowed =
        |name: &str| allowed.is_some_and(|list| list.split(',').any(|other| other.trim().eq_ignore_ascii_case(name)));
    let (name, RefusedGroup { name: group, reason, .. }) =
        Calls { sql, at: 0, escapes }.find_map(|(name, parenthesis)| {
            let name = name.trim_end_matches(' ');
            let group = REFUSED.iter().find(|group| group.has(name))?;
            let passes =
                is_allowed(name) || is_allowed(group.name) || lists_columns(sql.as_bytes(), parenthesis, escapes);
            (!passes).then_some((name, group))
        })?;
    let name = name.to_lowercase();
    let error = format!(
        "the function {name} is refused: {reason}. If all queries are trusted, ?allow={name} or ?allow={group} in the \
         URL allows it"
    );
    Some(Outcome::failed(Status::Forbidden, error))
}

impl RefusedGroup {
    /// Returns whether the server may read a name as one of these functions.
    fn has(&self, name: &str) -> bool {
        let n_chars = name.chars().count();
        let part = |from: usize, n: usize| name.chars().skip(from).take(n);
        self.functions.iter().any(|function| n_chars == function.len() && is_alike(name.chars(), function))
            || self.begins.iter().any(|begin| is_alike(part(0, begin.len()), begin))
            || self.ends.iter().any(|end| {
                n_chars.checked_sub(end.len()).is_some_and(|n_before| is_alike(part(n_before, end.len()), end))
            })
    }
}

/// Returns whether the server may treat characters as equal to ASCII ones: it ignores case, and accents of Latin
/// letters.
fn is_alike(chars: impl Iterator<Item = char>, refused: &str) -> bool {
    let mut others = refused.chars();
    let mut is_same = |char: char| {
        let is_latin = matches!(char, '\u{80}'..='\u{24f}' | '\u{1e00}'..='\u{1eff}' | '\u{2100}'..='\u{214f}');
        others.next().is_some_and(|other| char.eq_ignore_ascii_case(&other) || (is_latin && other.is_alphabetic()))
    };
    let mut chars = chars;
    chars.all(&mut is_same) && others.next().is_none()
}

/// Returns whether a parenthesis lists columns of a common table expression: `name (a, b) AS (…)`. No call has `AS (`
/// after it in the grammar.
fn lists_columns(bytes: &[u8], parenthesis: usize, escapes: Escapes) -> bool {
    let mut at = skip_blank(bytes, parenthesis + 1);
    while bytes.get(at) != Some(&b')') {
        let end = match bytes.get(at) {
            Some(b',') => at + 1,
            Some(b'"' | b'`') => quote_end(bytes, at, escapes),
            Some(byte) if is_word(*byte) => word_end(bytes, at),
            _ => return false,
        };
        at = skip_blank(bytes, end);
    }
    let begin = skip_blank(bytes, at + 1);
    let end = word_end(bytes, begin);
    bytes[begin..end].eq_ignore_ascii_case(b"as") && bytes.get(skip_blank(bytes, end)) == Some(&b'(')
}

/// The names before each parenthesis, with its position.
struct Calls<'a> {
    sql: &'a str,
    at: usize,
    escapes: Escapes,
}

impl<'a> Iterator for Calls<'a> {
    type Item = (&'a str, usize);

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.sql.as_bytes();
        while self.at < bytes.len() {
            let begin = self.at;
            let (name, end) = match bytes[begin] {
                b'\'' => (None, quote_end(bytes, begin, self.escapes)),
                b'"' | b'`' => {
                    let end = quote_end(bytes, begin, self.escapes);
                    (self.sql.get(begin + 1..end - 1), end)
                }
                byte if is_word(byte) => {
                    let end = word_end(bytes, begin);
                    (Some(&self.sql[begin..end]), end)
                }
                _ => (None, skip_blank(bytes, begin).max(begin + 1)),
            };
            self.at = end;
            let Some(name) = name else { continue };
            let next = skip_blank(bytes, end);
            if bytes.get(next) == Some(&b'(') {
                return Some((name, next));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::Escapes;
    use super::{check_allowed, refusal};

    const MODES: [&str; 5] =
        ["", "ANSI_QUOTES", "NO_BACKSLASH_ESCAPES", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "STRICT_ALL_TABLES,ONLY_FULL"];

    /// Returns the modes under which a session refuses a text.
    fn modes_that_refuse(sql: &str) -> Vec<&'static str> {
        MODES.into_iter().filter(|mode| refusal(sql, None, Escapes::of_mode(mode)).is_some()).collect()
    }

    #[test]
    fn finds_calls_of_refused_functions() {
        let calls = [
            "SELECT EXTRACTVALUE('<a/>', '/a')",
            "select updatexml /* a */ -- b\n # c\n ('<a/>', '/a', '')",
            "SELECT `ExtractValue`('<a/>', '/a')",
            "SELECT \"extractvalue\"('<a/>', '/a')",
            "SELECT mariadb_schema.extractvalue('<a/>', '/a')",
            "SELECT `extractvalue  ` ('<a/>', '/a')",
            "SELECT éxtractvalue('<a/>', '/a')",
            "SELECT 1+extractvalue('<a/>', '/a')",
            "SELECT a FROM t WHERE b IN (SELECT ST_GeomFromGeoJSON(c) FROM t)",
            "SELECT ST_GEOMFROMTEXT('POINT(1 1)'), 1",
            "SELECT pointfromtext('POINT(1 1)')",
            "SELECT MPolyFromWKB(x'00')",
            "SELECT ST_Area(x'00'), 1",
            "SELECT `ſT_X`(x'00')",
            "SELECT area (g) FROM t WHERE Within(g, g)",
            "SELECT Encrypt('x', '$6$rounds=999999999$abc')",
            "SELECT json_overlaps(a, b), 1",
            "SELECT SFORMAT('{:>2000000000}', 'x')",
            "WITH area (id) AS (SELECT AREA(g) FROM t) SELECT id FROM area",
            "SELECT area(g) AS a FROM t",
            "SELECT area(g) AS `(` FROM t",
            "SELECT area(g) ASC (a)",
            "SELECT area((g)) AS (a)",
            "SELECT area(g) /* AS (a) */ FROM t",
            "SELECT area(x'00') AS (a)",
            "SELECT area(g",
            "SELECT area(`g",
        ];
        for sql in calls {
            assert_eq!(modes_that_refuse(sql), MODES, "{sql}");
        }
    }

    #[test]
    fn sql_mode_decides_where_a_quote_with_a_backslash_ends() {
        let cases: [(&str, &[&str]); 7] = [
            ("SELECT 'a\\'', extractvalue('<a/>', '/a')", &[MODES[0], MODES[1], MODES[4]]),
            ("SELECT 'a\\', extractvalue('<a/>', '/a'), ''", &MODES[2..4]),
            ("SELECT '\\'', \"a\\\", extractvalue('<a/>', '/a') -- \"", &MODES[1..2]),
            ("SELECT \"a\\\", extractvalue('<a/>', '/a') -- \"", &MODES[1..4]),
            ("SELECT a FROM t WHERE a = 'O\\'Hare' AND b = 'Area (km)'", &MODES[2..4]),
            ("SELECT 'a\\'', area(g), 'b'", &[MODES[0], MODES[1], MODES[4]]),
            ("SELECT area('a\\\\'), 'b'", &MODES),
        ];
        for (sql, modes) in cases {
            assert_eq!(modes_that_refuse(sql), modes, "{sql}");
        }
    }

    #[test]
    fn other_queries_are_accepted() {
        let texts = [
            "SELECT 'extractvalue(', \"it's updatexml (\"",
            "SELECT extractvalue, `updatexml` FROM t WHERE (1)",
            "SELECT a /* extractvalue( */ FROM t -- updatexml(\n",
            "SELECT my_extractvalue(1), extractvalues(1), 'a''extractvalue('",
            "SELECT area, st_x, within FROM t WHERE area IN (1, 2) AND (st_x) > 1",
            "WITH été (a) AS (SELECT 1) SELECT LENGTH(GEOMETRYCOLLECTION(POINT(1, 2))) FROM été",
            "SELECT 'it\\'s', COUNT(*) FROM t",
            "SELECT 'open extractvalue(",
            "SELECT `",
            "WITH RECURSIVE area (id) AS (SELECT 1) SELECT id FROM area",
            "WITH row_count(n) AS (SELECT 1), dimension(a,b) as(SELECT 1, 2) SELECT 1",
            "WITH `boundary` ( `x,` , \"y\" -- a\n ) /* b */ AS # c\n (SELECT 1) SELECT 1",
        ];
        for sql in texts {
            assert_eq!(modes_that_refuse(sql), [""; 0], "{sql}");
        }
    }

    #[test]
    fn allowed_functions_are_accepted() {
        let sql = "SELECT EXTRACTVALUE('<a/>', '/a'), ST_GEOMFROMTEXT('POINT(1 1)')";
        let error = |allowed| refusal(sql, allowed, Escapes::DEFAULT).and_then(|outcome| outcome.error);
        assert!(error(None).is_some_and(|error| error.contains("?allow=extractvalue")));
        assert!(error(Some("extractvalue")).is_some_and(|error| error.contains("?allow=st_geomfromtext")));
        assert_eq!(error(Some("st_geomfromtext,ExtractValue")), None);
        assert_eq!(error(Some("xml, spatial")), None);
        assert!(check_allowed("xml, ST_X,encrypt").is_ok());
        assert!(["", "xlm", "encrypt,", "repeat"].iter().all(|list| check_allowed(list).is_err()));
    }
}
