//! Suggestions for unknown names, from the schema of the connection.
//!
//! A hint is computed only when a query fails, is bounded (columns read, bytes of a name, VM steps), and changes no
//! status. It uses SQLite's message and the words of the statement, which show the tables it names and their aliases.

mod names;
mod nearest;
mod words;

use rusqlite::Connection;

use names::{Names, quote_name};
use nearest::NearestName;
use words::{TableReference, mentions};

pub(crate) use names::NameCache;

/// Maximum number of VM steps to read the schema: far above the needs of thousands of columns.
pub(crate) const MAX_STEPS: u64 = 2_000_000;

/// Suggests the name that SQLite's `message` is about, excluding hidden columns. The caller bounds the connection by
/// [`MAX_STEPS`].
pub(crate) fn hint(
    connection: &Connection,
    cache: &NameCache,
    statement: &str,
    message: &str,
    is_hidden: &dyn Fn(&str, &str) -> bool,
) -> Option<String> {
    let missing = UnresolvedName::of(message)?;
    let names = cache.get(connection, is_hidden)?;
    match missing {
        UnresolvedName::Table(name) => suggest_table(&names, name),
        UnresolvedName::Column(qualifier, name) => {
            suggest_column(&names, &mentions(statement, &names), qualifier, name)
        }
        UnresolvedName::Ambiguous(name) => suggest_qualified(&names, &mentions(statement, &names), name),
    }
}

/// The name that SQLite could not find or found ambiguous.
enum UnresolvedName<'a> {
    Table(&'a str),
    Column(Option<&'a str>, &'a str),
    Ambiguous(&'a str),
}

impl<'a> UnresolvedName<'a> {
    fn of(message: &'a str) -> Option<Self> {
        if let Some(name) = message.strip_prefix("no such table: ") {
            return Some(Self::Table(name.rsplit('.').next()?));
        }
        if let Some(name) = message.strip_prefix("ambiguous column name: ") {
            return Some(Self::Ambiguous(name.rsplit('.').next()?));
        }
        let name = message.strip_prefix("no such column: ")?;
        let name = name.split(" - should this be").next()?.trim_matches('"');
        let mut parts = name.rsplit('.');
        let column = parts.next()?;
        Some(Self::Column(parts.next(), column))
    }
}

fn suggest_table(names: &Names, wanted: &str) -> Option<String> {
    let mut nearest = NearestName::new(wanted);
    names.tables().for_each(|(number, table)| nearest.offer(table, 0, number));
    nearest.best().map(|number| format!("Did you mean {}?", quote_name(names.table(number))))
}

fn suggest_column(
    names: &Names,
    mentioned: &[TableReference<'_>],
    qualifier: Option<&str>,
    wanted: &str,
) -> Option<String> {
    let names_qualifier = |mention: &&TableReference<'_>| {
        qualifier.is_some_and(|q| {
            mention.qualifier.eq_ignore_ascii_case(q) || names.table(mention.table).eq_ignore_ascii_case(q)
        })
    };
    let named_table =
        mentioned.iter().find(|mention| mention.is_shown_as(qualifier)).or(mentioned.iter().find(names_qualifier));
    if let Some(qualifier) = qualifier
        && named_table.is_none()
        && let Some(table) = names.find_table(qualifier)
        && names.has_column(table, wanted)
    {
        return Some(format!("{} is not in the FROM clause.", quote_name(names.table(table))));
    }
    // Columns of the named table come first, then those of other tables in the statement, then the whole schema.
    let mut nearest = NearestName::new(wanted);
    for (position, (table, column)) in names.columns() {
        let mention = mentioned.iter().position(|mention| mention.table == table);
        let rank = match (named_table, mention) {
            (Some(named_table), _) if named_table.table == table => 0,
            (_, Some(_)) => 1,
            _ => 2,
        };
        nearest.offer(column, rank, position);
    }
    let (table, column) = names.column(nearest.best()?);
    let shown = match named_table
        .filter(|named_table| named_table.table == table)
        .or(mentioned.iter().find(|mention| mention.table == table))
    {
        Some(mention) => mention.qualifier,
        None => names.table(table),
    };
    Some(format!("Did you mean {}.{}?", quote_name(shown), quote_name(column)))
}

fn suggest_qualified(names: &Names, mentioned: &[TableReference<'_>], wanted: &str) -> Option<String> {
    let holders: Vec<String> = mentioned
        .iter()
        .filter(|mention| names.has_column(mention.table, wanted))
        .map(|mention| format!("{}.{}", quote_name(mention.qualifier), quote_name(wanted)))
        .take(4)
        .collect();
    (holders.len() > 1).then(|| format!("Did you mean {}?", holders.join(" or ")))
}
