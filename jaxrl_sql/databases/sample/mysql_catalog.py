"""Read the catalogs of MariaDB and MySQL: the tables that a user can read, their columns, keys and comments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from jaxrl_sql.databases.sample.catalog import Catalog, Column, ForeignKey, Record, Table

Select = Callable[[str], Sequence[Record]]
"""Return the rows of a query, as texts."""

_TABLES = """
SELECT table_name, table_type FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED', 'VIEW')
ORDER BY create_time, table_name
"""
_COLUMNS = """
SELECT table_name, column_name, data_type, column_type, is_nullable, column_comment, collation_name, numeric_scale
FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position
"""
_UNIQUE = """
SELECT table_name, index_name, column_name, sub_part
FROM information_schema.statistics WHERE table_schema = DATABASE() AND non_unique = 0
ORDER BY table_name, index_name, seq_in_index
"""
_FOREIGN_KEYS = """
SELECT table_name, constraint_name, column_name, referenced_table_schema, referenced_table_name, referenced_column_name
FROM information_schema.key_column_usage
WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL
ORDER BY table_name, constraint_name, ordinal_position
"""

_TEXTS = frozenset("char varchar tinytext text mediumtext longtext enum set json".split())
_KINDS = {
    "float": "float", "double": "float", "date": "date", "time": "time", "datetime": "timestamp",
    "timestamp": "timestamp", "uuid": "other", "inet4": "other", "inet6": "other",
}  # fmt: skip
_KINDS |= dict.fromkeys("tinyint smallint mediumint int bigint year".split(), "integer")
_KINDS |= dict.fromkeys("binary varbinary tinyblob blob mediumblob longblob bit".split(), "bytes")
_KINDS |= dict.fromkeys("geometry point linestring polygon multipoint multilinestring multipolygon".split(), "bytes")
_KINDS |= dict.fromkeys(("geometrycollection", "geomcollection"), "bytes")


def read_catalog(select: Select, database: str) -> Catalog:
    """Return the tables that the user can read, their foreign keys, and a line for each omission."""
    columns: dict[str, dict[str, Column]] = defaultdict(dict)
    for table, name, data, full, nullable, comment, collation, scale in _texts(select(_COLUMNS)):
        kind = _kind(data.lower(), full.lower(), collation, scale)
        columns[table][name] = Column(name, full, kind, nullable == "NO", comment)
    unique = _unique(select)
    tables: dict[str, Table] = {}
    for name, kind in _texts(select(_TABLES)):
        primary = unique[name].pop("PRIMARY", ())
        tables[name] = Table(
            (database, name), tuple(columns[name].values()), primary, (*unique[name].values(),), primary,
            is_view=kind == "VIEW",
        )  # fmt: skip
    foreign_keys, notes = [], []
    for key in _foreign_keys(select, database, columns):
        parent = tables.get(key.parent[1]) if key.parent[0] == database else None
        if parent is None or key.child[1] not in tables:
            continue
        if set(key.targets) in (set(parent.primary_key), *map(set, parent.unique)):
            foreign_keys.append(key)
        else:
            notes.append(f"{key.title} references columns that are not a key: it is no foreign key in the sample")
    return Catalog(tuple(tables.values()), tuple(foreign_keys), tuple(notes))


def _unique(select: Select) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return unique keys of whole columns by table, the primary one named PRIMARY."""
    unique: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    partial: set[tuple[str, str]] = set()
    for table, index, column, part in _texts(select(_UNIQUE)):
        if part or not column:  # of the beginnings of values, or of an expression
            partial.add((table, index))
        unique[table][index] = (*unique[table].get(index, ()), column)
    for table, index in partial:
        del unique[table][index]
    return unique


def _foreign_keys(select: Select, database: str, columns: dict[str, dict[str, Column]]) -> Iterator[ForeignKey]:
    grouped: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    for table, constraint, *rest in _texts(select(_FOREIGN_KEYS)):
        grouped[table, constraint].append(tuple(rest))
    for (table, _), sides in grouped.items():
        names, schemas, parents, targets = zip(*sides, strict=True)
        kinds = tuple(columns[table][name].kind for name in names)
        yield ForeignKey((database, table), names, (schemas[0], parents[0]), targets, kinds)


def _texts(rows: Sequence[Record]) -> list[tuple[str, ...]]:
    return [tuple(value or "" for value in row) for row in rows]


def _kind(data: str, full: str, collation: str, scale: str) -> str:
    """Return the kind of a type's values; the collation of a text decides whether case matters."""
    if data in _TEXTS:
        return "caseless" if "_ci" in collation else "text"
    if data == "decimal":
        return "numeric" if int(scale or 0) else "whole"
    if data == "bigint" and "unsigned" in full:
        return "whole"
    return _KINDS.get(data, "")
