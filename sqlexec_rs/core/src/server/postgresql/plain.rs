//! Finds queries that leave no session state, so that no transaction has to be undone.

/// Words that may precede a parenthesis: keywords, types with a size, and functions without side effects.
const KNOWN: &str = "\
    all and any as between by case distinct else except exists filter from having ilike in intersect is join \
    lateral like limit materialized not offset on or over recursive row select some then union using values when \
    where with bit char character decimal float interval numeric time timestamp varchar varying abs age \
    array_agg avg bool_and bool_or btrim cast ceil ceiling char_length coalesce concat concat_ws corr count \
    cume_dist date date_part date_trunc dense_rank every exp extract first_value floor generate_series greatest \
    initcap lag last_value lead least left length ln log lower lpad ltrim make_date max md5 min mod nth_value \
    ntile nullif percent_rank percentile_cont percentile_disc position power rank regexp_match regexp_replace \
    replace reverse right round row_number rpad rtrim sign split_part sqrt stddev string_agg strpos substr \
    substring sum to_char to_date trim trunc unnest upper variance";

/// Fragments that may turn a statement into more than a query, or hide the word before a parenthesis.
const DOUBTFUL: [&str; 4] = ["--", "/*", "into", "for "];

/// Returns whether a text is a query that calls only known functions. Conservative: returns false for many such
/// queries.
pub(super) fn is_plain(sql: &str) -> bool {
    let lower = sql.to_ascii_lowercase();
    let begins = ["select", "with", "values", "table"].iter().any(|word| lower.trim_start().starts_with(word));
    begins
        && !DOUBTFUL.iter().any(|part| lower.contains(part))
        && lower.match_indices('(').all(|(at, _)| is_known_before(lower[..at].trim_end()))
        && !lower.match_indices('.').any(|(at, _)| is_value(lower[..at].trim_end()))
}

/// Returns whether a text ends with a value, after which a point and a name form a call: `(1).pg_advisory_lock`,
/// `$1.f`.
fn is_value(text: &str) -> bool {
    let rest = text.trim_end_matches(|char: char| char.is_ascii_digit());
    text.ends_with([')', ']']) || (rest.ends_with('$') && rest.len() < text.len())
}

/// Returns whether the word before a parenthesis is known.
fn is_known_before(text: &str) -> bool {
    let is_part = |char: char| char.is_alphanumeric() || !char.is_ascii() || "_$".contains(char);
    let rest = text.trim_end_matches(is_part);
    let word = &text[rest.len()..];
    // A qualified or quoted name may belong to a user-defined function.
    let last = rest.chars().next_back();
    if word.is_empty() {
        last.is_none_or(|char| "(,=<>+*|%".contains(char))
    } else {
        last != Some('.') && is_known(word)
    }
}

/// Returns whether a lower-case word is known.
pub(super) fn is_known(word: &str) -> bool {
    KNOWN.split(' ').any(|known| known == word)
}

#[cfg(test)]
mod tests {
    use super::is_plain;

    #[test]
    fn queries_of_known_functions_are_plain() {
        let plain = [
            "SELECT name FROM item WHERE id = 3",
            " select COUNT(*), Round(avg (x), 2) FROM (SELECT x FROM t WHERE y IN (1, 2)) a",
            "WITH a AS (SELECT 1 AS x) SELECT CAST(x AS numeric(8, 2)) FROM a WHERE x = ((1 + 2) * (3))",
            "VALUES (1), (2)",
            "SELECT a.b, 1.5, 'a.b', (1.5), a [1] FROM s.t AS a",
            "SELECT 'é' FROM t",
        ];
        for sql in plain {
            assert!(is_plain(sql), "{sql}");
        }
        let other = [
            "SELECT set_config('a.b', 'c', false)",
            "SELECT pg_advisory_lock (1)",
            "SELECT \"set_config\"('a.b', 'c', false)",
            "SELECT public.count(1)",
            "SELECT set_config/**/('a.b', 'c', false)",
            "SELECT set_config--\n('a.b', 'c', false)",
            "SELECT * INTO made FROM item",
            "SELECT * FROM item FOR UPDATE",
            "SELECT écount(1)",
            "SELECT (1::bigint).pg_advisory_lock",
            "SELECT (1) \n. pg_advisory_lock",
            "SELECT a[1].pg_advisory_lock FROM t",
            "SELECT $1.pg_advisory_lock",
            "(SELECT 1)",
            "EXPLAIN SELECT 1",
            "DELETE FROM item",
        ];
        for sql in other {
            assert!(!is_plain(sql), "{sql}");
        }
    }
}
