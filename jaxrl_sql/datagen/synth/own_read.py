"""Read somebody's SQLite file as the generator's nouns: tables and columns with their words, kinds, values and keys.

What a template could get wrong is left out: columns of several types, values that no question can name, references to
what is no key. Nothing is believed that the rows do not show: a naming column holds no value twice, and a template
that counts rows without joining them sees only references that all lead somewhere.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.data.schema import read as schemas
from jaxrl_sql.data.schema.read import read_schema
from jaxrl_sql.data.schema.render import quote_name
from jaxrl_sql.datagen.synth.descriptions import read_descriptions
from jaxrl_sql.datagen.synth.draw import column_words
from jaxrl_sql.datagen.synth.english import many_of, one_of, split_words
from jaxrl_sql.datagen.synth.spec import Column, Database, ForeignKey, Table, Value

Run = Callable[[str], Sequence[tuple[object, ...]] | None]
"""Runs a query and returns its rows, or None where it fails or does not end within the limits."""

_SAMPLE = 2000
_SAMPLES = 100_000
_LONGEST_VALUE = 50
_FEW = 50
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?")
_NO_MEASURE = re.compile(r"(^|\b)(id|ids|key|code|number|no|num|zip|postal|postcode|phone|fax|ssn|isbn|index|rank)$")
_NAMING = re.compile(r"\b(name|title|label)\b")
_Link = tuple[ForeignKey, Column]


class Read(NamedTuple):
    """A database with all references, and with those alone that lead somewhere in every row; what was left out, why.

    `left_out` holds (table or column, reason).
    """

    joined: Database
    whole: Database
    left_out: tuple[tuple[str, str], ...]


def read_own(path: Path, db_id: str, run: Run) -> Read:
    """Read a database; InputError when the file cannot be read as one."""
    described = read_descriptions(path)
    left_out: list[tuple[str, str]] = []
    found: dict[str, tuple[schemas.Table, Table]] = {}
    tables = read_schema(path).tables
    limit = max(100, min(_SAMPLE, _SAMPLES // max(len(tables), 1)))
    for table in tables:
        made = _table(table, described, run, limit, left_out)
        if isinstance(made, Table):
            found[table.name] = table, made
        else:
            left_out.append((table.name, made))
    _name_apart(found)
    joined, whole = _linked(found, run, left_out)
    return Read(Database(db_id, db_id, joined), Database(db_id, db_id, whole), tuple(left_out))


def _table(
    table: schemas.Table,
    described: Mapping[tuple[str, str], str],
    run: Run,
    limit: int,
    left_out: list[tuple[str, str]],
) -> Table | str:
    """Return a table without its references, or why it is of no use."""
    name = quote_name(table.name)
    names = [quote_name(column.name) for column in table.columns]
    counted = run(f"SELECT COUNT(*) FROM {name}")
    if not names or not counted:
        return "cannot be read"
    total = counted[0][0]
    assert isinstance(total, int)
    if not total:
        return "empty"
    rows = _sample(run, name, names, total, limit)
    if not rows:
        return "cannot be read"
    keys = set(table.primary_key) | {column for key in table.foreign_keys for column in key.columns}
    columns: list[Column] = []
    for column, sql_name, values in zip(table.columns, names, zip(*rows, strict=True), strict=True):
        if column.name in keys:
            continue
        words = described.get((table.name.lower(), column.name.lower())) or split_words(column.name)
        made = _column(name, column, sql_name, words, values, total, run)
        if isinstance(made, Column):
            columns.append(made)
        else:
            left_out.append((f"{table.name}.{column.name}", made))
    primary = table.primary_key
    key = Column(quote_name(primary[0]) if len(primary) == 1 else "", "id", (), "id")
    singular = one_of(split_words(table.name))
    columns = _in_order(_words_apart(columns), name, total, run)
    if not columns and not table.foreign_keys:
        return "no column to ask for"
    return Table(name, many_of(singular), singular, (), key, (), tuple(columns))


def _sample(run: Run, name: str, names: Sequence[str], total: int, limit: int) -> Sequence[tuple[object, ...]] | None:
    """Return some rows, from all over the table where it has row numbers."""
    query = f"SELECT {', '.join(names)} FROM {name}"
    spread = run(f"{query} WHERE rowid % {total // limit} = 0 LIMIT {limit}") if total > 2 * limit else None
    return spread or run(f"{query} LIMIT {limit}")


def _column(
    table: str, column: schemas.Column, name: str, words: str, values: Sequence[object], total: int, run: Run
) -> Column | str:
    known = [value for value in values if value is not None]
    if not known:
        return "NULL alone"
    if any(isinstance(value, bytes) for value in known):
        return "holds blobs"
    types = {int if isinstance(value, int) else type(value) for value in known}
    if types == {int, float}:
        types = {float}
    if len(types) > 1:
        return "holds text and numbers"
    kind = _text_kind(known) if types == {str} else _number_kind(column, words, known, float in types)
    usable = [value for value in known if _is_speakable(value, kind)]
    if not usable:
        # It can be shown; only text that repeats, or is a pattern, is asked for by its values.
        kind = "text"
    has_nulls = len(known) < len(values)
    if not has_nulls and not column.not_null and total > len(values):
        has_nulls = run(f"SELECT 1 FROM {table} WHERE {name} IS NULL LIMIT 1") != []
    kept: tuple[Value, ...] = (*usable, *([None] * has_nulls))  # type: ignore[arg-type]
    return Column(name, column_words(_plain(words, kind), kind), (), kind, kept)


def _plain(words: str, kind: str) -> str:
    return words.removeprefix("is ") if kind == "bool" else words


def _text_kind(values: Sequence[object]) -> str:
    texts = [str(value) for value in values]
    if all(_DATE.fullmatch(text) for text in texts):
        return "date" if len({len(text) for text in texts}) == 1 else "category"
    different = len(set(texts))
    return "category" if different <= _FEW and different * (3 if different > 3 else 1) < len(texts) else "text"


def _number_kind(column: schemas.Column, words: str, values: Sequence[object], is_real: bool) -> str:
    if set(values) == {0, 1} and not is_real:
        is_claim = words.startswith("is ") or column.name.lower().startswith("has_")
        return "bool" if is_claim else "category"
    if _NO_MEASURE.search(words.lower()):
        return "category"
    if is_real:
        return "real"
    is_year = "year" in words.lower() and all(isinstance(value, int) and 1000 <= value <= 2200 for value in values)
    return "year" if is_year else "int"


def _is_speakable(value: object, kind: str) -> bool:
    """Tell whether a value can stand in a question and in a pattern as itself."""
    if not isinstance(value, str):
        return not isinstance(value, float) or math.isfinite(value)
    if not value or len(value) > _LONGEST_VALUE or value != value.strip() or "  " in value or not value.isprintable():
        return False
    return kind != "text" or not set(value) & set("%_")


def _words_apart(columns: Sequence[Column]) -> list[Column]:
    """Leave out a column whose words another one has: a question could mean either."""
    times = Counter(column.words for column in columns)
    return [column for column in columns if times[column.words] == 1]


def _in_order(columns: list[Column], table: str, total: int, run: Run) -> list[Column]:
    """Put a naming column first, if there is one, and no other text there."""
    texts = [column for column in columns if column.kind == "text" and not column.has_nulls]
    for column in sorted(texts, key=lambda column: not _NAMING.search(column.words)):
        rows = run(f"SELECT COUNT(DISTINCT {column.name}) FROM {table}")
        if rows and rows[0][0] == total:
            return [column, *(other for other in columns if other is not column)]
    others = [column for column in columns if column.kind != "text"]
    if others:
        return [*others, *(column for column in columns if column.kind == "text")]
    # Text that names no row may stand first as something else than text.
    return [Column(one.name, one.words, (), "category", one.values) for one in columns[:1]] + columns[1:]


def _name_apart(found: dict[str, tuple[schemas.Table, Table]]) -> None:
    """Call tables by their whole names where their words are the same."""
    times = Counter(table.plural for _, table in found.values())
    for name, (declared, table) in list(found.items()):
        if times[table.plural] > 1:
            parts = (table.name, name, name, (), table.key, table.foreign, table.columns)
            found[name] = declared, Table(*parts)


def _linked(
    found: dict[str, tuple[schemas.Table, Table]], run: Run, left_out: list[tuple[str, str]]
) -> tuple[tuple[Table, ...], tuple[Table, ...]]:
    """Give tables their references: all that can be joined, and those that lead somewhere in every row."""
    joined: dict[str, list[_Link]] = {name: [] for name in found}
    whole: dict[str, list[_Link]] = {name: [] for name in found}
    keys: dict[str, str] = {name: table.key.name for name, (_, table) in found.items()}
    declared = [(name, key) for name, (table, _) in found.items() for key in table.foreign_keys]
    candidates = declared or list(_guessed(found))
    for name, key in candidates:
        where = f"{name}.{', '.join(key.columns)}"
        if key.table not in found or len(key.columns) != 1 or key.table == name:
            left_out.append((where, "refers to no other table that is asked about, or by several columns"))
            continue
        child, parent = found[name][1], found[key.table][1]
        column, target = quote_name(key.columns[0]), quote_name(key.targets[0])
        is_key = keys[key.table] in ("", target) and (keys[key.table] == target or _is_unique(run, parent.name, target))
        values = (
            run(f"SELECT {column} FROM {child.name} WHERE {column} IS NOT NULL LIMIT {_SAMPLE}") if is_key else None
        )
        if not values:
            left_out.append((where, "refers to what is no key, or nowhere"))
            continue
        lost = run(
            f"SELECT 1 FROM {child.name} AS a WHERE NOT EXISTS (SELECT 1 FROM {parent.name} AS b "
            f"WHERE b.{target} = a.{column}) LIMIT 1"
        )
        if lost != [] and not declared:
            continue
        keys[key.table] = target
        points = tuple(row[0] for row in values)
        link = ForeignKey(column, parent.name, target), Column(column, "id", (), "id", points)  # type: ignore[arg-type]
        joined[name].append(link)
        if lost == []:
            whole[name].append(link)
    return tuple(
        tuple(
            Table(
                table.name, table.plural, table.singular, (), Column(keys[name] or "rowid", "id", (), "id"),
                tuple(links[name]), table.columns,
            )
            for name, (_, table) in found.items()
        )
        for links in (joined, whole)
    )  # type: ignore[return-value]  # fmt: skip


def _is_unique(run: Run, table: str, column: str) -> bool:
    rows = run(f"SELECT COUNT(*) = COUNT(DISTINCT {column}) FROM {table}")
    return bool(rows and rows[0][0])


def _guessed(found: Mapping[str, tuple[schemas.Table, Table]]) -> list[tuple[str, schemas.ForeignKey]]:
    """Guess references where none is declared: `customer_id` is the key `id` or `customer_id` of `customers`."""
    keys: dict[str, list[tuple[str, str]]] = {}
    for name, (declared, table) in found.items():
        if len(declared.primary_key) == 1:
            key = declared.primary_key[0]
            words = {split_words(key)} - {"id"} | {f"{table.singular} {split_words(key)}"}
            for said in words:
                keys.setdefault(said, []).append((name, key))
    guessed = []
    for name, (declared, _) in found.items():
        for column in declared.columns:
            targets = keys.get(split_words(column.name), [])
            if len(targets) == 1 and targets[0][0] != name:
                target, key = targets[0]
                guessed.append((name, schemas.ForeignKey((column.name,), target, (key,))))
    return guessed
