"""Read PostgreSQL's catalogs: the tables that a role can read, their columns, keys and comments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from jaxrl_sql.databases.sample.catalog import Catalog, Column, ForeignKey, Table, TablePath

# Partitions are not listed; a partitioned table is read with its partitions. Foreign tables count as views: neither has
# keys, and the server may take long to read the first rows. Views of extensions are not listed.
_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname,
       has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), c.relrowsecurity,
       c.relkind IN ('v', 'm', 'f')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE (c.relkind IN ('r', 'p', 'f') OR c.relkind IN ('v', 'm') AND NOT EXISTS (
        SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
      )) AND NOT c.relispartition AND c.relpersistence <> 't'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname <> 'public', n.nspname, c.oid
"""
_COLUMNS = """
SELECT attrelid::int8, attnum::int8, attname, format_type(atttypid, atttypmod), atttypid::int8, atttypmod, attnotnull,
       col_description(attrelid, attnum)
FROM pg_attribute WHERE attrelid = ANY(%s::oid[]) AND attnum > 0 AND NOT attisdropped ORDER BY 1, 2
"""
_TYPES = """
SELECT t.oid::int8, n.nspname, t.typname, t.typtype, t.typcategory, t.typelem::int8, t.typbasetype::int8, t.typtypmod
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.typtype <> 'p'
"""
_KEYS = """
SELECT k.conrelid::int8, k.confrelid::int8, k.contype, k.conkey::int8[], k.confkey::int8[],
       ARRAY(SELECT 'OPERATOR(' || quote_ident(n.nspname) || '.' || o.oprname || ')'
             FROM unnest(k.conpfeqop) WITH ORDINALITY AS e(oid, place)
             JOIN pg_operator o ON o.oid = e.oid JOIN pg_namespace n ON n.oid = o.oprnamespace ORDER BY e.place)
FROM pg_constraint k
WHERE k.contype IN ('p', 'u', 'f') AND k.conparentid = 0 AND k.conrelid = ANY(%s::oid[])
ORDER BY k.conrelid, k.contype, k.conname
"""

# The kinds of built-in types; the sample holds the server's text for the others of PostgreSQL's catalog.
_KINDS = {
    "int2": "integer", "int4": "integer", "int8": "integer", "oid": "integer", "float4": "float", "float8": "float",
    "bool": "boolean", "text": "text", "varchar": "text", "name": "text", "char": "text", "bpchar": "padded",
    "date": "date", "time": "time", "timetz": "time", "timestamp": "timestamp", "timestamptz": "zoned",
    "bytea": "bytes",
}  # fmt: skip
# Types of extensions, by name.
_EXTENSIONS = {"citext": "caseless", "hstore": "other", "ltree": "other"}


class _Type(NamedTuple):
    schema: str
    name: str
    variety: str
    category: str
    element: int
    base: int
    modifier: int


def read_catalog(cursor: Any) -> Catalog:
    """Return the tables that the role can read, their foreign keys, and a line for each omission."""

    def select(sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        cursor.execute(sql, values or None)
        return cursor.fetchall()

    paths: dict[int, TablePath] = {}
    views = set()
    notes = []
    for oid, schema, name, is_readable, has_policies, is_view in select(_TABLES):
        if is_readable:
            paths[oid] = (schema, name)
            views |= {oid} if is_view else set()
        else:
            notes.append(f"{schema}.{name} is left out: the role may not read it")
        if is_readable and has_policies:
            notes.append(f"{schema}.{name} has row security: only rows that the role may see are sampled")
    types = {oid: _Type(*rest) for oid, *rest in select(_TYPES)}
    columns: dict[int, dict[int, Column]] = defaultdict(dict)
    for oid, number, name, shown, kind, modifier, not_null, comment in select(_COLUMNS, [*paths]):
        columns[oid][number] = Column(name, shown, kind_of(kind, modifier, types), not_null, comment or "")
    keys = select(_KEYS, [*paths])
    tables = tuple(replace(_table(oid, path, columns[oid], keys), is_view=oid in views) for oid, path in paths.items())
    return Catalog(tables, tuple(_foreign_keys(keys, paths, columns)), tuple(notes))


def _table(oid: int, path: TablePath, columns: Mapping[int, Column], keys: Sequence[Sequence[Any]]) -> Table:
    names = [
        (kind, tuple(columns[number].name for number in numbers)) for key, _, kind, numbers, *_ in keys if key == oid
    ]
    primary = next((key for kind, key in names if kind == "p"), ())
    return Table(path, tuple(columns.values()), primary, tuple(key for kind, key in names if kind == "u"), primary)


def _foreign_keys(
    keys: Sequence[Sequence[Any]], paths: Mapping[int, TablePath], columns: Mapping[int, Mapping[int, Column]]
) -> Iterator[ForeignKey]:
    """Yield the foreign keys between tables that can be read."""
    for child, parent, kind, numbers, targets, operators in keys:
        if kind == "f" and parent in paths:
            sources = [columns[child][number] for number in numbers]
            yield ForeignKey(
                paths[child],
                tuple(column.name for column in sources),
                paths[parent],
                tuple(columns[parent][number].name for number in targets),
                tuple(column.type for column in sources),
                tuple(operators),
            )


def kind_of(oid: int, modifier: int, types: Mapping[int, _Type]) -> str:
    """Return the kind of a type's values; "" for composite types, and for most types of extensions."""
    kind = types.get(oid)
    if kind is None or kind.variety not in "bderm":
        return ""
    if kind.variety == "d":
        return kind_of(kind.base, kind.modifier, types)
    if kind.category == "A" and kind.element:
        return "other" if kind_of(kind.element, -1, types) else ""
    if kind.variety != "b":
        return "text" if kind.variety == "e" else "other"
    if kind.schema != "pg_catalog":
        return _EXTENSIONS.get(kind.name, "")
    return _numeric(modifier) if kind.name == "numeric" else _KINDS.get(kind.name, "other")


def _numeric(modifier: int) -> str:
    """Return `whole` for a numeric that was declared without decimals."""
    if modifier < 0:
        return "numeric"
    scale = (modifier - 4) & 0x7FF
    return "whole" if scale == 0 or scale >= 0x400 else "numeric"  # 11 bits with a sign
