"""Read what PostgreSQL's catalogs say: tables that a role can read, their columns, keys, comments and statistics."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from jaxrl_sql.datagen.snapshot.plan import Catalog, SourceColumn, SourceReference, SourceTable

# Tables with the tables that store their rows: partitions, and what inherits. `files` are pairs of oid and file.
_TABLES = """
WITH RECURSIVE listed AS (
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relrowsecurity,
           has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT') AS is_readable
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence <> 't'
      AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
), stored(root, oid) AS (
    SELECT oid, oid FROM listed
    UNION SELECT s.root, i.inhrelid FROM stored s JOIN pg_inherits i ON i.inhparent = s.oid
)
SELECT l.oid::int8, l.nspname, l.relname, l.relkind = 'p', l.is_readable, l.relrowsecurity,
       obj_description(l.oid, 'pg_class'), bool_or(c.relkind = 'f'),
       array_agg(c.oid::int8 ORDER BY c.oid), array_agg(c.relfilenode::int8 ORDER BY c.oid)
FROM listed l JOIN stored s ON s.root = l.oid JOIN pg_class c ON c.oid = s.oid
GROUP BY 1, 2, 3, 4, 5, 6, 7 ORDER BY l.nspname <> 'public', l.nspname, 1
"""
_COLUMNS = """
SELECT a.attrelid::int8, a.attnum::int8, a.attname, format_type(a.atttypid, a.atttypmod), a.atttypid::int8,
       a.atttypmod, a.attnotnull, col_description(a.attrelid, a.attnum), s.n_distinct
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname
    AND s.inherited = (c.relkind = 'p')
WHERE a.attrelid = ANY(%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1, 2
"""
_TYPES = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype, t.typcategory, t.typelem::int8, t.typbasetype::int8, t.typtypmod
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'p'
"""
_KEYS = """
SELECT k.conrelid::int8, k.confrelid::int8, k.contype, k.conkey::int8[], k.confkey::int8[],
       ARRAY(SELECT format('OPERATOR(%I.%s)', n.nspname, o.oprname)
             FROM unnest(k.conpfeqop) WITH ORDINALITY AS e(oid, place)
             JOIN pg_operator o ON o.oid = e.oid JOIN pg_namespace n ON n.oid = o.oprnamespace ORDER BY e.place)
FROM pg_constraint k
WHERE k.contype IN ('p', 'u', 'f') AND k.conparentid = 0 AND k.conrelid = ANY($1)
ORDER BY k.conrelid, k.contype, k.conname
""".replace("%", "%%").replace("$1", "%s::oid[]")

# The kinds of built-in types; the others of PostgreSQL's own are kept as the server's text.
_KINDS = {
    "int2": "integer", "int4": "integer", "int8": "integer", "oid": "integer", "float4": "float", "float8": "float",
    "bool": "boolean", "text": "text", "varchar": "text", "name": "text", "char": "text", "bpchar": "padded",
    "date": "date", "time": "time", "timetz": "time", "timestamp": "timestamp", "timestamptz": "zoned",
    "uuid": "uuid", "json": "json", "jsonb": "json", "bytea": "bytes",
}  # fmt: skip
# Types that extensions bring, by name.
_EXTENSIONS = {"citext": "caseless", "hstore": "other", "ltree": "other"}


class Storage(NamedTuple):
    """What stores a table's rows: its oid, whether it has partitions, and the file of each table by oid."""

    oid: int
    is_partitioned: bool
    files: Mapping[int, int]

    def is_unchanged(self, cursor: Any) -> bool:
        """Return whether the tables and their files are still the same, in whatever the server holds now.

        TRUNCATE and whatever rewrites a table give it another file, which shows nothing to an older snapshot.
        """
        cursor.execute(
            """SELECT ARRAY(SELECT COALESCE(pg_relation_filenode(oid), 0)::int8
                            FROM unnest(%s::oid[]) WITH ORDINALITY AS u(oid, place) ORDER BY place),
                      ARRAY(SELECT relid::oid::int8 FROM pg_partition_tree(%s::oid::regclass))""",
            ([*self.files], self.oid),
        )
        files, parts = cursor.fetchone()
        return files == [*self.files.values()] and (not self.is_partitioned or set(parts) == set(self.files))


class _Type(NamedTuple):
    schema: str
    name: str
    variety: str
    category: str
    element: int
    base: int
    modifier: int


def read_catalog(cursor: Any) -> Catalog:
    """Return the tables that the role can read, their references, and a line for what it cannot."""
    cursor.execute(_TABLES)
    rows = cursor.fetchall()
    notes = _note(rows)
    found = {oid: row for oid, *row in rows if row[3] and not row[6]}
    oids = list(found)
    cursor.execute(_TYPES)
    types = {oid: _Type(*rest) for oid, *rest in cursor.fetchall()}
    cursor.execute(_COLUMNS, (oids,))
    columns: dict[int, dict[int, SourceColumn]] = defaultdict(dict)
    for oid, number, name, shown, kind, modifier, not_null, comment, distinct in cursor.fetchall():
        columns[oid][number] = SourceColumn(
            name, shown, kind_of(kind, modifier, types), not_null, comment or "", distinct or 0.0
        )
    cursor.execute(_KEYS, (oids,))
    keys = cursor.fetchall()
    return Catalog(
        tuple(_table(oid, row, columns[oid], keys) for oid, row in found.items()),
        tuple(_references(keys, {oid: (row[0], row[1]) for oid, row in found.items()}, columns)),
        tuple(notes),
    )


def _note(rows: Iterable[Sequence[Any]]) -> list[str]:
    """Return lines for tables that cannot be read, that a policy shows in part, or that other servers hold."""
    notes = []
    for _, schema, name, _, is_readable, has_policies, _, is_foreign, *_ in rows:
        title = f"{schema}.{name}"
        if not is_readable:
            notes.append(f"{title} is left out: the role may not read it")
        elif is_foreign:
            notes.append(f"{title} is left out: a part of it is a foreign table, which has no snapshot")
        elif has_policies:
            notes.append(f"{title} has row security: only rows that the role may see are counted and copied")
    return notes


def _table(
    oid: int, row: Sequence[Any], columns: Mapping[int, SourceColumn], keys: Sequence[Sequence[Any]]
) -> SourceTable:
    schema, name, is_partitioned, _, _, comment, _, oids, files = row
    own = [
        (kind, tuple(columns[number].name for number in numbers)) for key, _, kind, numbers, *_ in keys if key == oid
    ]
    return SourceTable(
        (schema, name),
        tuple(columns.values()),
        next((names for kind, names in own if kind == "p"), ()),
        tuple(names for kind, names in own if kind == "u"),
        comment or "",
        Storage(oid, is_partitioned, dict(zip(oids, files, strict=True))),
    )


def _references(
    keys: Sequence[Sequence[Any]],
    paths: Mapping[int, tuple[str, str]],
    columns: Mapping[int, Mapping[int, SourceColumn]],
) -> Iterable[SourceReference]:
    """Yield the foreign keys between tables that can be read."""
    for child, parent, kind, numbers, targets, operators in keys:
        if kind == "f" and parent in paths:
            own = [columns[child][number] for number in numbers]
            yield SourceReference(
                paths[child],
                tuple(column.name for column in own),
                paths[parent],
                tuple(columns[parent][number].name for number in targets),
                tuple(column.type for column in own),
                tuple(operators),
            )


def kind_of(oid: int, modifier: int, types: Mapping[int, _Type]) -> str:
    """Return the kind of a type's values; "" where it has none: composite types, and most of extensions'."""
    found = types.get(oid)
    if found is None or found.variety not in "bderm":
        return ""
    if found.variety == "d":
        return kind_of(found.base, found.modifier, types)
    if found.category == "A" and found.element:
        return "other" if kind_of(found.element, -1, types) else ""
    if found.variety != "b":
        return "text" if found.variety == "e" else "other"
    if found.schema != "pg_catalog":
        return _EXTENSIONS.get(found.name, "")
    return _numeric(modifier) if found.name == "numeric" else _KINDS.get(found.name, "other")


def _numeric(modifier: int) -> str:
    """Return `whole` for a numeric that was declared without decimals."""
    if modifier < 0:
        return "numeric"
    scale = (modifier - 4) & 0x7FF
    return "whole" if scale == 0 or scale >= 0x400 else "numeric"  # 11 bits with a sign
