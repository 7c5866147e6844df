"""Generate databases from domains: names first, then rows.

A role is a table or column of a domain, with several names. Every database of a domain has its own subset of the column
roles, one name per role, singular or plural table names, and one of two key styles (`id` or `customer_id`). A share of
the training databases is decorated: general words are joined to their names (`harbor_price`), so that a policy cannot
memorize names and must copy them from the schema.
"""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Sequence
from typing import NamedTuple

from jaxrl_sql.datagen.synth.english import add_spaces, column_words, plural
from jaxrl_sql.datagen.synth.grammar.relations import RELATIONS
from jaxrl_sql.datagen.synth.pools import AFFIX, DECORATION, ONSETS, RIMES, text_value
from jaxrl_sql.datagen.synth.spec import (
    OF,
    AnnotatedColumn,
    AnnotatedTable,
    ColumnSpec,
    Domain,
    Reference,
    SynthDatabase,
    TableSpec,
    Value,
)
from jaxrl_sql.text2sql.schema.quote import RESERVED

# Names that SQLite or other engines reserve.
AVOIDED = RESERVED | frozenset(
    """action asc by column current database desc end interval key like match over partition plan position range release
    row rows schema show trigger use user view window with""".split()
)


def _pick(rng: random.Random, names: Sequence[str], used: set[str]) -> str:
    """Choose a name that is neither avoided nor used, and mark it as used; if all are, append a suffix to the first."""
    unused = [name for name in names if name not in used and name not in AVOIDED]
    if not unused:
        unused = [f"{names[0]}_{suffix}" for suffix in ("name", "value", "info") if f"{names[0]}_{suffix}" not in used]
    name = rng.choice(unused)
    used.add(name)
    return name


def _decoration(rng: random.Random) -> str:
    """Choose a general word or, one time in three, an invented word, which can only be copied."""
    if rng.random() < 0.67:
        return rng.choice(DECORATION)
    return "".join(rng.choice(ONSETS) + rng.choice(RIMES) for _ in range(rng.randint(2, 3)))


def _decorate(rng: random.Random, name: str) -> str:
    """Return a decorated name; one in four keeps nothing of the original name."""
    pattern = rng.random()
    if pattern < 0.55:
        return f"{_decoration(rng)}_{name}"
    if pattern < 0.75:
        return f"{name}_{rng.choice(AFFIX)}"
    return f"{_decoration(rng)}_{rng.choice(AFFIX)}"


def _choose_columns(rng: random.Random, spec: TableSpec) -> list[ColumnSpec]:
    """Choose the first column and 3 to 5 others, including a measure and a category if available."""
    first, rest = spec.columns[0], list(spec.columns[1:])
    measures = [column for column in rest if column.kind in ("int", "real")]
    categories = [column for column in rest if column.kind == "category"]
    chosen = [first, *(rng.choice(group) for group in (measures, categories) if group)]
    remaining = [column for column in rest if column not in chosen]
    rng.shuffle(remaining)
    chosen += remaining[: rng.randint(1, 3)]
    return [column for column in spec.columns if column in chosen]


def _name_column(
    rng: random.Random, spec: ColumnSpec, used: set[str], is_decorated: bool
) -> tuple[str, tuple[str, ...]]:
    """Choose and return a column's name, and its synonyms in words; a decorated name has no synonyms."""
    name = _pick(rng, spec.names, used)
    # The names of a bool make different claims (is_remote, is_manager), so they are not synonyms.
    synonyms = () if spec.kind == "bool" else tuple(other for other in spec.names if other != name)
    if is_decorated and spec.kind != "bool" and rng.random() < 0.6:
        name = _decorate(rng, name)
        synonyms = ()
        while name in used:
            name = f"{_decoration(rng)}_{name}"
        used.add(name)
    return name, tuple(column_words(other, spec.kind) for other in synonyms if other not in used)


def _power_law_weights(rng: random.Random, count: int) -> list[float]:
    """Return `count` weights that decay as a random power of the rank, so that few values are frequent."""
    power = rng.uniform(0.3, 1.3)
    return [1.0 / (rank + 1) ** power for rank in range(count)]


def _numbers(rng: random.Random, spec: ColumnSpec, rows: int) -> list[Value]:
    """Return numbers in a column's range, uniform or with more low than high ones; large integers are round (4,300)."""
    low, high = float(spec.args[0]), float(spec.args[1])
    power = rng.choice((1.0, 1.5, 2.2))
    raw = [low + (high - low) * rng.random() ** power for _ in range(rows)]
    if spec.kind == "real":
        digits = 2 if high - low < 20 else 1
        return [round(value, digits) for value in raw]
    step = next((step for limit, step in ((1e6, 10000), (1e5, 1000), (1e4, 100), (2e3, 10)) if high >= limit), 1)
    if step == 1 or spec.kind == "year":
        return [int(value) for value in raw]
    return [max(int(low), int(value / step) * step) for value in raw]


def _dates(rng: random.Random, spec: ColumnSpec, rows: int) -> list[Value]:
    first = dt.date(int(spec.args[0]), 1, 1).toordinal()
    last = dt.date(int(spec.args[1]), 12, 28).toordinal()
    return [dt.date.fromordinal(rng.randint(first, last)).isoformat() for _ in range(rows)]


def _make_distinct_values(rng: random.Random, pool: str, rows: int) -> list[Value]:
    """Return distinct values of a pool; repeated values are numbered (`Ada Cohen 2`)."""
    counts: dict[str, int] = {}
    values: list[Value] = []
    for _ in range(rows):
        value = text_value(rng, pool)
        counts[value] = counts.get(value, 0) + 1
        values.append(value if counts[value] == 1 else f"{value} {counts[value]}")
    return values


def _texts(rng: random.Random, spec: ColumnSpec, rows: int, label: str) -> list[Value]:
    """Return the values of a text column; `label` is as in `_values`."""
    pool = spec.args[0]
    if label == "numbered":
        return _make_distinct_values(rng, pool, rows)
    if label:
        values: dict[str, None] = {}
        for _ in range(rows * 20):
            values.setdefault(text_value(rng, pool), None)
            if len(values) == rows:
                break
        return list(values)
    if pool in ("city", "country", "district", "company", "person", "place"):
        # Places and people repeat across rows.
        few = [text_value(rng, pool) for _ in range(rng.randint(6, 40))]
        return list(rng.choices(few, _power_law_weights(rng, len(few)), k=rows))
    return [text_value(rng, pool) for _ in range(rows)]


def _values(rng: random.Random, spec: ColumnSpec, rows: int, label: str) -> list[Value]:
    """Return `rows` values of a column.

    `label` is "" unless the column is the label, which names the rows and whose values are distinct. A `plain` label
    returns fewer values if its pool is too small; a `numbered` one repeats values with a number (`Ada Cohen 2`).
    """
    values: list[Value]
    if spec.kind == "text":
        values = _texts(rng, spec, rows, label)
    elif spec.kind == "category":
        categories = list(spec.args)
        rng.shuffle(categories)
        categories = categories[: rng.randint(min(3, len(categories)), len(categories))]
        values = list(rng.choices(categories, _power_law_weights(rng, len(categories)), k=rows))
    elif spec.kind == "date":
        values = _dates(rng, spec, rows)
    elif spec.kind == "bool":
        share = rng.uniform(0.15, 0.6)
        values = [int(rng.random() < share) for _ in range(rows)]
    else:
        values = _numbers(rng, spec, rows)
    if spec.is_nullable:
        share = rng.uniform(0.05, 0.3)
        values = [None if rng.random() < share else value for value in values]
    return values


def _parent_keys(rng: random.Random, parent: AnnotatedTable, rows: int) -> tuple[Value, ...]:
    """Return the key of a parent for each of `rows` rows, unevenly distributed; about 10 % of parents have no child."""
    keys = list(parent.key.values)
    rng.shuffle(keys)
    keys = keys[: max(2, round(len(keys) * rng.uniform(0.82, 0.96)))]
    return tuple(rng.choices(keys, _power_law_weights(rng, len(keys)), k=rows))


class Style(NamedTuple):
    """The style of names and values of a database.

    With `has_long_keys` a key is `customer_id`, else `id`. `label` is `plain`, or `numbered` to allow more rows than
    there are names (`_values`).
    """

    domain: str
    has_plurals: bool
    has_long_keys: bool
    is_decorated: bool
    label: str


def _reference_name(parent: AnnotatedTable) -> str:
    return f"{parent.singular.replace(' ', '_')}_id"


def _generate_table(
    rng: random.Random, spec: TableSpec, singular: str, parents: dict[str, AnnotatedTable], style: Style, rows: int
) -> AnnotatedTable:
    """Generate a table of about `rows` rows with the name `singular`; `parents` are the tables so far, by role."""
    base = _decorate(rng, singular) if style.is_decorated and rng.random() < 0.4 else singular
    name = plural(base) if style.has_plurals or base in AVOIDED else base
    key_name = f"{base}_id" if style.has_long_keys else "id"
    used = {key_name, "id", *map(_reference_name, parents.values())}
    named = [(column, *_name_column(rng, column, used, style.is_decorated)) for column in _choose_columns(rng, spec)]
    filled = []
    for index, (column, _, _) in enumerate(named):
        filled.append(_values(rng, column, rows, style.label if index == 0 and column.kind == "text" else ""))
        rows = min(rows, len(filled[-1]))
    columns = tuple(
        AnnotatedColumn(
            column_name, column_words(column_name, column.kind), synonyms, column.kind, tuple(values[:rows])
        )
        for (column, column_name, synonyms), values in zip(named, filled, strict=True)
    )
    references = []
    for role in spec.parents:
        parent = parents[role]
        reference_name = _reference_name(parent)
        key_column = AnnotatedColumn(
            reference_name, add_spaces(reference_name), (), "id", _parent_keys(rng, parent, rows)
        )
        relation = RELATIONS.get((style.domain, spec.names[0], role), OF)
        references.append(Reference(key_column, parent.name, parent.key.name, relation))
    key = AnnotatedColumn(key_name, add_spaces(key_name), (), "id", tuple(range(1, rows + 1)))
    others = () if base != singular else tuple(add_spaces(plural(other)) for other in spec.names if other != singular)
    return AnnotatedTable(name, add_spaces(plural(base)), add_spaces(base), others, key, tuple(references), columns)


def generate_database(
    rng: random.Random, domain: Domain, db_id: str, is_decorated: bool = False, mean_rows: int = 0
) -> SynthDatabase:
    """Generate a database of a domain with 1,000 to 3,000 rows in total, or about `mean_rows` per table.

    Tables that are typically short, such as departments, stay short. The result depends only on `rng`.
    """
    style = Style(
        domain.name, rng.random() < 0.75, rng.random() < 0.4, is_decorated, "numbered" if mean_rows else "plain"
    )
    # Rows of the whole database, before the random factors of the tables.
    target: float = rng.randint(1300, 2700)
    if mean_rows:
        target *= mean_rows * len(domain.tables) / 2000
    scale = target / sum(table.rows for table in domain.tables)
    tables: dict[str, AnnotatedTable] = {}
    used: set[str] = set()
    for spec in domain.tables:
        singular = _pick(rng, spec.names, used | (set() if style.has_plurals else AVOIDED))
        used.add(singular)
        rows = max(8, round(spec.rows * scale * rng.uniform(0.8, 1.2))) if spec.rows > 60 else spec.rows
        rows = max(8, round(rows * rng.uniform(0.7, 1.0)))
        if mean_rows and spec.rows <= 60:
            rows = min(rows, max(8, mean_rows))
        tables[spec.names[0]] = _generate_table(rng, spec, singular, tables, style, rows)
    return SynthDatabase(db_id, domain.name, tuple(tables.values()))
