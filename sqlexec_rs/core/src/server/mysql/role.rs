//! What a user may do beside reading. One that may do more is refused, with what makes one that may not.

use super::Mysql;
use crate::server::stream::Failure;
use crate::server::watch::Watch;

/// What a reader has a need of.
const READING: [&str; 4] = ["USAGE", "SELECT", "SHOW VIEW", "SHOW DATABASES"];

/// Refuses the session's user if it can do more than read.
pub(super) fn check(session: &mut Mysql, watch: &Watch<'_>) -> Result<(), Failure> {
    let grants = session.ask("SHOW GRANTS", watch)?;
    let rights: Vec<String> = grants.into_iter().flatten().flat_map(|grant| rights(&grant)).take(6).collect();
    if rights.is_empty() {
        return Ok(());
    }
    let (user, database) = (&session.url.user, &session.url.database);
    let database = format!("`{}`", database.replace('`', "``"));
    Err(Failure::Lost(format!(
        "the user {user} can do more than read: it has {}. A user that only reads, made by an owner: \
         CREATE USER reader IDENTIFIED BY '…'; GRANT SELECT ON {database}.* TO reader",
        rights.join(", "),
    )))
}

/// Returns what a line of SHOW GRANTS gives that a reader has no need of.
fn rights(grant: &str) -> Vec<String> {
    let Some(grant) = grant.strip_prefix("GRANT ") else { return Vec::new() };
    // A role without ON: what it gives has lines of its own while it is active.
    let Some((names, place)) = grant.split_once(" ON ") else { return Vec::new() };
    let place = place.split_once(" TO ").map_or(place, |(place, _)| place);
    let mut rights: Vec<String> = names_of(names)
        .into_iter()
        .filter(|name| !READING.contains(&name.as_str()))
        .map(|name| format!("{name} on {place}"))
        .collect();
    if grant.ends_with("WITH GRANT OPTION") {
        rights.push(format!("GRANT OPTION on {place}"));
    }
    rights
}

/// Takes a list of privileges apart, whose columns stand in parentheses.
fn names_of(list: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut without_columns = list.to_owned();
    without_columns.retain(|char| {
        depth += usize::from(char == '(');
        let is_kept = depth == 0;
        depth = depth.saturating_sub(usize::from(char == ')'));
        is_kept
    });
    without_columns.split(',').map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::rights;

    #[test]
    fn what_is_more_than_reading_is_found() {
        let reads = [
            "GRANT USAGE ON *.* TO `r`@`%` IDENTIFIED BY PASSWORD '*0'",
            "GRANT SELECT, SHOW VIEW ON `a`.* TO `r`@`%`",
            "GRANT SELECT (`x, y`, `z`) ON `a`.`t` TO `r`@`%`",
            "GRANT `readers` TO `r`@`%`",
            "SET DEFAULT ROLE `readers` FOR `r`@`%`",
        ];
        assert!(reads.iter().all(|grant| rights(grant).is_empty()), "{:?}", reads.map(rights));
        let cases = [
            ("GRANT SELECT, INSERT ON `a`.* TO `r`@`%`", "INSERT on `a`.*"),
            ("GRANT SELECT (`x`), UPDATE (`x`, `y`) ON `a`.`t` TO `r`@`%`", "UPDATE on `a`.`t`"),
            ("GRANT ALL PRIVILEGES ON *.* TO `r`@`%`", "ALL PRIVILEGES on *.*"),
            ("GRANT FILE ON *.* TO `r`@`%`", "FILE on *.*"),
            ("GRANT EXECUTE ON FUNCTION `a`.`f` TO `r`@`%`", "EXECUTE on FUNCTION `a`.`f`"),
            ("GRANT SELECT ON `a`.* TO `r`@`%` WITH GRANT OPTION", "GRANT OPTION on `a`.*"),
            ("GRANT PROXY ON ''@'%' TO 'r'@'%'", "PROXY on ''@'%'"),
        ];
        for (grant, expected) in cases {
            assert_eq!(rights(grant), [expected], "{grant}");
        }
    }
}
