"""Read what MariaDB and MySQL say of a database: tables that a user can read, their columns, keys and comments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.snapshot.plan import Catalog, Record, SourceColumn, SourceReference, SourceTable

Select = Callable[[str], Sequence[Record]]
"""Return the rows of a query, as texts."""

_TABLES = """
SELECT table_name, engine, table_comment FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_type IN ('BASE TABLE', 'SYSTEM VERSIONED') ORDER BY create_time, table_name
"""
_COLUMNS = """
SELECT table_name, column_name, data_type, column_type, is_nullable, column_comment, character_set_name,
       collation_name, character_maximum_length, numeric_scale
FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position
"""
_INDEXES = """
SELECT table_name, index_name, column_name, sub_part, cardinality, non_unique
FROM information_schema.statistics WHERE table_schema = DATABASE() ORDER BY table_name, index_name, seq_in_index
"""
_REFERENCES = """
SELECT table_name, constraint_name, column_name, referenced_table_name, referenced_column_name, referenced_table_schema
FROM information_schema.key_column_usage
WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL
ORDER BY table_name, constraint_name, ordinal_position
"""

_INTEGERS = frozenset("tinyint smallint mediumint int bigint year".split())
_TEXTS = frozenset("char varchar tinytext text mediumtext longtext enum set json".split())
_BYTES = frozenset("binary varbinary tinyblob blob mediumblob longblob bit".split())
_SHAPES = frozenset(
    [
        *"geometry point linestring polygon multipoint multilinestring multipolygon".split(),
        "geometrycollection",
        "geomcollection",
    ]
)
_KINDS = {
    "float": "float", "double": "float", "date": "date", "time": "time", "datetime": "timestamp",
    "timestamp": "timestamp", "uuid": "uuid", "inet4": "other", "inet6": "other",
}  # fmt: skip
_KINDS |= dict.fromkeys(_INTEGERS, "integer") | dict.fromkeys(_BYTES | _SHAPES, "bytes")
# What can be looked up by the value that is shown, and is ordered as it is compared (an enum is not).
_LOOKED_UP = _INTEGERS | {"decimal", "char", "varchar", "binary", "varbinary", "date", "datetime", "timestamp"}


class Details(NamedTuple):
    """What of a column's type a look-up needs."""

    data: str
    full: str
    charset: str
    collation: str
    length: int

    @property
    def is_binary(self) -> bool:
        """Return whether values are bytes, which are shown in hexadecimal."""
        return self.data in _BYTES or self.data in _SHAPES

    @property
    def is_number(self) -> bool:
        """Return whether values are written without quotes."""
        return self.data in _INTEGERS or self.data == "decimal"

    @property
    def looked_up_as(self) -> str:
        """Return the type by which a list of values is compared with the column."""
        if self.is_binary:
            return f"varchar({max(2, 2 * self.length)}) CHARACTER SET ascii"
        if self.data in _TEXTS:
            return f"varchar({max(1, self.length)}) CHARACTER SET {self.charset} COLLATE {self.collation}"
        if self.data == "year":
            return "smallint"
        if self.is_number or self.data in ("date", "datetime"):
            return self.full.replace(" zerofill", "")
        return "datetime(6)" if self.data == "timestamp" else "varchar(255) CHARACTER SET utf8mb4"


class Storage(NamedTuple):
    """The details of a table's columns, and what its rows are known by: a unique key, or nothing."""

    details: Mapping[str, Details]
    key: tuple[str, ...]


def read_catalog(select: Select, database: str) -> Catalog:
    """Return the tables that the user can read, their references, and a line for what is left out."""
    columns: dict[str, dict[str, SourceColumn]] = defaultdict(dict)
    details: dict[str, dict[str, Details]] = defaultdict(dict)
    indexes = _indexes(select)
    for table, name, data, full, nullable, comment, charset, collation, length, scale in _texts(select(_COLUMNS)):
        kind = _kind(data.lower(), full.lower(), collation, scale)
        distinct = indexes.distinct.get((table, name), 0.0)
        columns[table][name] = SourceColumn(name, full, kind, nullable == "NO", comment, distinct)
        details[table][name] = Details(data.lower(), full.lower(), charset, collation, int(length or 0))
    tables: dict[str, SourceTable] = {}
    notes: list[str] = []
    for name, engine, comment in _texts(select(_TABLES)):
        if engine.lower() != "innodb":
            notes.append(f"{database}.{name} is left out: {engine or 'its engine'} has no snapshots, InnoDB has")
        elif columns[name]:
            tables[name] = _table((database, name), columns[name], details[name], indexes, comment)
    references: list[SourceReference] = []
    for one in _references(select, database):
        if one.parent[0] != database or one.parent[1] not in tables or one.child[1] not in tables:
            continue
        parent = tables[one.parent[1]]
        if set(one.targets) in (set(parent.primary_key), *map(set, parent.unique)):
            references.append(one)
        else:
            notes.append(
                f"{'.'.join(one.child)} ({', '.join(one.columns)}) refers to what is no key: no foreign key in the copy"
            )
    return Catalog(tuple(tables.values()), tuple(references), tuple(notes))


class _Indexes(NamedTuple):
    """Unique keys by table, the primary one named PRIMARY, and the estimated number of values of first columns."""

    unique: Mapping[str, Mapping[str, tuple[str, ...]]]
    distinct: Mapping[tuple[str, str], float]


def _indexes(select: Select) -> _Indexes:
    unique: dict[str, dict[str, tuple[str, ...]]] = defaultdict(dict)
    distinct: dict[tuple[str, str], float] = {}
    partial: set[tuple[str, str]] = set()
    seen: set[tuple[str, str]] = set()
    for table, index, column, part, cardinality, non_unique in _texts(select(_INDEXES)):
        if (table, index) not in seen and column and not part:
            distinct[table, column] = max(distinct.get((table, column), 0.0), float(cardinality or 0))
        seen.add((table, index))
        if part or not column:  # of the beginnings of values, or of an expression
            partial.add((table, index))
        if non_unique == "0":
            unique[table][index] = (*unique[table].get(index, ()), column)
    for table, index in partial:
        unique[table].pop(index, None)
    return _Indexes(unique, distinct)


def _table(
    path: tuple[str, str],
    columns: Mapping[str, SourceColumn],
    details: Mapping[str, Details],
    indexes: _Indexes,
    comment: str,
) -> SourceTable:
    """Return a table; its rows are known by the primary key, or the first key without NULL, that can be looked up."""
    unique = dict(indexes.unique.get(path[1], {}))
    primary = unique.pop("PRIMARY", ())
    known_by = (
        names
        for names in (primary, *unique.values())
        if names and all(columns[name].not_null and details[name].data in _LOOKED_UP for name in names)
    )
    return SourceTable(
        path,
        tuple(columns.values()),
        primary,
        tuple(unique.values()),
        comment,
        Storage(details, next(known_by, ())),
    )


def _references(select: Select, database: str) -> Iterator[SourceReference]:
    grouped: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    for table, constraint, *rest in _texts(select(_REFERENCES)):
        grouped[table, constraint].append(tuple(rest))
    for (table, _), sides in grouped.items():
        columns, parents, targets, schemas = zip(*sides, strict=True)
        yield SourceReference((database, table), columns, (schemas[0], parents[0]), targets)


def _texts(rows: Sequence[Record]) -> list[tuple[str, ...]]:
    return [tuple(value or "" for value in row) for row in rows]


def _kind(data: str, full: str, collation: str, scale: str) -> str:
    """Return the kind of a type's values; texts are compared by case or not, as their collation does."""
    if data in _TEXTS:
        return "caseless" if "_ci" in collation else "text"
    if data == "decimal":
        return "numeric" if int(scale or 0) else "whole"
    if data == "bigint" and "unsigned" in full:
        return "whole"
    return _KINDS.get(data, "")
