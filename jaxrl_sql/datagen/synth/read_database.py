"""Read a SQLite file as a database of the generator: tables and columns with words, kinds, values and foreign keys.

The words of a table or column name it in questions; its kind (`AnnotatedColumn`) decides which questions are possible.
Parts that could lead to wrong questions are omitted: columns of several types, values that no question can contain,
foreign keys that reference no key. Declarations are verified by the rows: a label, the column that names the rows, has
no duplicate values, and templates that count rows without a join use only foreign keys without dangling references.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.datagen.synth.english import column_words, plural_of, singular_of, split_words
from jaxrl_sql.datagen.synth.part_sampler import MEASURE
from jaxrl_sql.datagen.synth.spec import (
    AnnotatedColumn,
    AnnotatedTable,
    Reference,
    RunSql,
    SynthDatabase,
    Value,
    flag_of,
)
from jaxrl_sql.text2sql.schema.describe import Description, Descriptions, plain, read_descriptions
from jaxrl_sql.text2sql.schema.quote import quote_name
from jaxrl_sql.text2sql.schema.read import Column, ForeignKey, Table, read_schema

# Rows that are read per table, and of all tables.
_MAX_ROWS = 2000
_MAX_ROWS_OF_ALL = 100_000
_MAX_VALUE_CHARS = 50
_MAX_CATEGORIES = 50
_MAX_NAME_CHARS = 40
# A comment that can be a noun: up to five words without digits and punctuation.
_NOUN = re.compile(r"[^\W\d_]+(?:[ '/-][^\W\d_]+){,4}")
# Significant digits of numbers in conditions.
_DIGITS = 4
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?")
# Names of numbers that have no meaningful average: phone numbers, ids, codes, months.
_NO_MEASURE = re.compile(
    r"\b(phone|telephone|mobile|cell|fax|zip|zipcode|postal|postcode|\w?ssn|isbn|iban|uuid|guid|latitude|longitude)\b"
    r"|(^|\b)(id|ids|key|pk|fk|code|\w?number|\w?no|nr|\w?num|ref|reference|serial|sku|account|index|rank"
    r"|(?!(?:kid|lid|bid|paid|void|grid|acid|raid)$)\w{1,2}id|(?!\w*(?:paid|bid|valid|void|grid)$)\w{3,}id)$"
    r"|(?<!per )\b(month|weekday|day|week|hour|quarter)$"
)
# Names of labels: columns that name the rows.
_LABEL = re.compile(r"\b(name|title|label)\b")
# Names of quantities, regardless of the values.
_QUANTITY = re.compile(
    r"\b(age|altitude|amount|area|attendance|budget|capacity|cost|count|credits?|depth|displacement|distance|duration"
    r"|earnings|elevation|fee|gdp|gross|height|horsepower|income|length|level|mileage|miles|millis\w*|minutes"
    r"|number of .+|points?|population|power(?! \w)|price|profits?|quantity|revenue|salary|sales|score|seats"
    r"|seconds|size|speed|sum|total|turnover|value|views|volume|votes|wage|weight|width)s?\b"
)
# UUIDs, hexadecimal hashes and tokens.
_HASH = re.compile(
    r"(?i:\{?[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\}?|[0-9a-f]{16,})|(?=\D*\d)(?=.*[A-Za-z])[\w+/=-]{16,}"
)
# With fewer integers than this, only consecutive ones count as keys; with fewer than `_FEW_KEYS`, none do.
_MIN_KEYS, _FEW_KEYS = 8, 3
# Numbers are references if the probability that all are ids by chance is below this.
_MAX_CHANCE = 0.01
_YEARS = range(1800, 2101)
# Names of years: with the word itself, unless it is a rate, or with an ending such as `built`.
_YEAR = re.compile(r"(?<!per )(?<!each )(?<!every )\b(\w*year(?!ly)\w*|yr)\b")
_SINCE = re.compile(
    r"(?<!per )(?<!each )(?<!every )\b(founded|established|opened|built|born|birth|since|season|vintage|released?"
    r"|launched|edition|\w*year|yr)( (in|on|at))?$"
)
# Unix times in seconds or milliseconds, since 2001.
_UNIX_TIMES = (range(10**9, 4 * 10**9), range(10**12, 4 * 10**12))
# Words that mean a time; for numbers, such as 20240131, at the end of the name.
_TIME = re.compile(r"\b(date|day|time)\b")
_TIME_AT_END = re.compile(r"(?<!per )\b(date|day|time|timestamp|at|on)$")
# Flags whose name is an adjective: `active`, `abandoned`, `available`.
_ADJECTIVE = re.compile(
    r"(?:not )?(\w+[^e]ed|\w+[ai]ble|active|inactive|public|private|open|new|old|current|valid|official|urgent|internal"
    r"|external|online|offline|free|full|final|read only|permanent|temporary|main|primary|default|alive|hidden|foreign)"
)
# Endings of flags that are no part of the claim: `active flag`, `active yn`.
_FLAG_MARK = re.compile(r" (yn|y n|flag|ind|indicator|tf)$")


class ReadDatabase(NamedTuple):
    """A database with all foreign keys (`joined`), and with those without dangling references only (`whole`).

    A dangling reference is a foreign key's value that no row of the referenced table has. `left_out` holds (table or
    column, reason) of omitted parts.
    """

    joined: SynthDatabase
    whole: SynthDatabase
    left_out: tuple[tuple[str, str], ...]


def read_database(path: Path, db_id: str, run: RunSql) -> ReadDatabase:
    """Read a database; `run` runs its SQL. Raises InputError if the file is not a readable database."""
    reader = _SchemaReader(run, read_descriptions(path))
    schema = read_schema(path)
    tables = schema.tables
    reader.left_out += [
        *schema.left_out,
        *((view.name, "a view, and the database has tables") for view in schema.views),
    ]
    limit = max(100, min(_MAX_ROWS, _MAX_ROWS_OF_ALL // max(len(tables), 1)))
    by_name: dict[str, tuple[Table, AnnotatedTable]] = {}
    for declared in tables:
        table = reader.table(declared, limit)
        if isinstance(table, str):
            reader.left_out.append((declared.name, table))
        else:
            by_name[declared.name] = declared, table
    _distinguish_tables(by_name)
    _mark_join_keys(by_name, run)
    joined, whole = reader.link_tables(by_name)
    return ReadDatabase(SynthDatabase(db_id, db_id, joined), SynthDatabase(db_id, db_id, whole), tuple(reader.left_out))


class _SchemaReader:
    """Reads tables and foreign keys; `left_out` lists omitted parts with the reason."""

    def __init__(self, run: RunSql, descriptions: Descriptions) -> None:
        self.run = run
        self.descriptions = descriptions
        self.left_out: list[tuple[str, str]] = []

    def table(self, table: Table, limit: int) -> AnnotatedTable | str:
        """Read a table without its foreign keys from at most `limit` rows, or return the reason for its omission."""
        name = quote_name(table.name)
        names = [quote_name(column.name) for column in table.columns]
        total = self._read_number(f"SELECT COUNT(*) FROM {name}") if names else None
        rows = self._sample(name, names, total, limit) if total else None
        if not total or not rows:
            return "empty" if total == 0 else "cannot be read"
        keys = {*table.primary_key, *(column for key in table.foreign_keys for column in key.columns)}
        columns: list[AnnotatedColumn] = []
        for column, values in zip(table.columns, zip(*rows, strict=True), strict=True):
            if column.name not in keys:
                phrase = self._natural_name(table.name, column.name) or split_words(column.name)
                is_first = not table.primary_key and column is table.columns[0]
                annotated = self._column(name, column, phrase, values, total, is_first=is_first)
                if isinstance(annotated, str):
                    self.left_out.append((f"{table.name}.{column.name}", annotated))
                else:
                    columns.append(annotated)
        columns = self._label_first(_without_ambiguous(columns), name, total)
        if not columns and not table.foreign_keys:
            return "no column to ask for"
        primary = table.primary_key
        # Without a key of a single column, the name is "" until `link_tables`.
        key = AnnotatedColumn(quote_name(primary[0]) if len(primary) == 1 else "", "id", (), "id")
        singular = singular_of(split_words(table.name))
        return AnnotatedTable(name, plural_of(singular), singular, (), key, (), tuple(columns))

    def _natural_name(self, table: str, column: str) -> str:
        """Return the documented natural name of a column, or its description if that can be a noun; else ""."""
        description = self.descriptions.columns.get((plain(table), plain(column)), Description())
        text = description.text.rstrip(".")
        texts = (description.name.rstrip("."), text if _NOUN.fullmatch(text) else "")
        return next((text for text in texts if 0 < len(text) <= _MAX_NAME_CHARS and "\ufffd" not in text), "")

    def _read_number(self, sql: str) -> int | None:
        rows = self.run(sql)
        number = rows[0][0] if rows else None
        assert number is None or isinstance(number, int)
        return number

    def _sample(self, name: str, names: Sequence[str], total: int, limit: int) -> Sequence[tuple[object, ...]] | None:
        """Return at most `limit` of the `total` rows, spread over the table if it has a rowid."""
        query = f"SELECT {', '.join(names)} FROM {name}"
        spread = self.run(f"{query} WHERE rowid % {total // limit} = 0 LIMIT {limit}") if total > 2 * limit else None
        return spread or self.run(f"{query} LIMIT {limit}")

    def _column(
        self, table: str, column: Column, phrase: str, values: Sequence[object], total: int, *, is_first: bool
    ) -> AnnotatedColumn | str:
        """Return a column with its kind and values, or the reason for its omission.

        `phrase` are its words, `values` the sampled ones, and `total` is the number of all rows. `is_first`: it is the
        first column of a table without a primary key.
        """
        name = quote_name(column.name)
        known = [value for value in values if value is not None]
        types = {int if isinstance(value, int) else type(value) for value in known}
        if not known:
            return "NULL alone"
        if bytes in types:
            return "holds blobs"
        if len(types) > 1 and types != {int, float}:
            return "holds text and numbers"
        claim = _claim(phrase, column.name) if {flag_of(value) for value in known} == {True, False} else ""
        if claim:
            phrase, kind = claim, "bool"
        elif self._is_id(table, column, phrase, [_whole_to_int(value) for value in known], total, is_first=is_first):
            kind = "id"
        else:
            kind = _text_kind(known) if str in types else _number_kind(f"{split_words(column.name)} | {phrase}", known)
        usable = [_whole_to_int(value) for value in known if _is_usable_in_text(value, kind)]
        if not usable and kind != "id":
            # Questions cannot contain these values, so the column is only a result: a text needs values for conditions.
            kind = "text"
        has_nulls = len(known) < len(values)
        if not has_nulls and not column.not_null and total > len(values):
            has_nulls = self.run(f"SELECT 1 FROM {table} WHERE {name} IS NULL LIMIT 1") != []
        # A single None marks a column with NULLs.
        sample: tuple[Value, ...] = (*usable, *([None] * has_nulls))  # type: ignore[arg-type]
        text = phrase if kind == "date" and _TIME.search(phrase) else column_words(phrase, kind)
        return AnnotatedColumn(name, text, (), kind, sample, _DIGITS if kind in MEASURE else 0)

    def _is_id(
        self, table: str, column: Column, phrase: str, known: Sequence[object], total: int, *, is_first: bool
    ) -> bool:
        """Return whether a column identifies rows by unique numbers or hashes.

        In the first column of a table without a primary key, any unique integers identify rows.
        """
        names = f"{split_words(column.name)} | {phrase}"
        if _QUANTITY.search(names) or _YEAR.search(names) or _LABEL.search(names) or len(set(known)) < len(known):
            return False
        if not (
            _are_hashes(known)
            or _are_keys(known, total)
            or (is_first and all(isinstance(value, int) for value in known) and not _is_year(names, known))
            or (_NO_MEASURE.search(phrase) and not isinstance(known[0], str))
        ):
            return False
        # The sampled values are unique; now all are compared.
        name = quote_name(column.name)
        return self._read_number(f"SELECT COUNT(*) FROM {table} WHERE {name} IS NOT NULL") == self._read_number(
            f"SELECT COUNT(DISTINCT {name}) FROM {table}"
        )

    def _label_first(self, columns: list[AnnotatedColumn], table: str, total: int) -> list[AnnotatedColumn]:
        """Put the label first, a text column that identifies each row, or else a column that is not text.

        The property `AnnotatedTable.label` is the first column if it is text.
        """
        texts = [column for column in columns if column.kind == "text" and not column.has_nulls]
        for column in sorted(texts, key=lambda column: not _LABEL.search(column.words)):
            if self._read_number(f"SELECT COUNT(DISTINCT {column.name}) FROM {table}") == total:
                return [column, *(other for other in columns if other is not column)]
        others = [column for column in columns if column.kind != "text"]
        if others:
            return [*others, *(column for column in columns if column.kind == "text")]
        # A first text column would be the label, so text that identifies no row becomes a category.
        return [replace(column, kind="category") for column in columns[:1]] + columns[1:]

    def link_tables(
        self, by_name: Mapping[str, tuple[Table, AnnotatedTable]]
    ) -> tuple[tuple[AnnotatedTable, ...], tuple[AnnotatedTable, ...]]:
        """Return the tables with all foreign keys, and with those without dangling references only.

        Without any declared foreign key, they are guessed from the names of columns.
        """
        joined: dict[str, list[Reference]] = {name: [] for name in by_name}
        whole: dict[str, list[Reference]] = {name: [] for name in by_name}
        keys = {name: table.key.name for name, (_, table) in by_name.items()}
        declared = [(name, key) for name, (table, _) in by_name.items() for key in table.foreign_keys]
        for name, key in declared or _guess_foreign_keys(by_name):
            where = f"{name}.{', '.join(key.columns)}"
            if key.table not in by_name or len(key.columns) != 1 or key.table == name:
                self.left_out.append((where, "refers to no other table that is asked about, or by several columns"))
                continue
            child, parent = by_name[name][1].name, by_name[key.table][1].name
            column, target = quote_name(key.columns[0]), quote_name(key.targets[0])
            is_key = keys[key.table] == target or (not keys[key.table] and self._is_unique(parent, target))
            query = f"SELECT {column} FROM {child} WHERE {column} IS NOT NULL LIMIT {_MAX_ROWS}"
            values = self.run(query) if is_key else None
            if not values:
                self.left_out.append((where, "references no key, or has no values"))
                continue
            matches = f"SELECT 1 FROM {parent} AS b WHERE b.{target} = a.{column}"
            dangling = self.run(f"SELECT 1 FROM {child} AS a WHERE NOT EXISTS ({matches}) LIMIT 1")
            is_whole = dangling == []
            if is_whole or declared:  # a guessed key with dangling references is probably wrong
                keys[key.table] = target
                key_values: tuple[Value, ...] = tuple(row[0] for row in values)  # type: ignore[misc]
                reference = Reference(AnnotatedColumn(column, "id", (), "id", key_values), parent, target)
                joined[name].append(reference)
                whole[name] += [reference] if is_whole else []
        tables = {
            name: replace(table, key=AnnotatedColumn(keys[name] or "rowid", "id", (), "id"))
            for name, (_, table) in by_name.items()
        }
        return _with_references(tables, joined), _with_references(tables, whole)

    def _is_unique(self, table: str, column: str) -> bool:
        return self._read_number(f"SELECT COUNT(*) = COUNT(DISTINCT {column}) FROM {table}") == 1


def _with_references(
    tables: Mapping[str, AnnotatedTable], references: Mapping[str, Sequence[Reference]]
) -> tuple[AnnotatedTable, ...]:
    return tuple(replace(table, references=tuple(references[name])) for name, table in tables.items())


def _text_kind(values: Sequence[object]) -> str:
    """Return the kind of texts: `date`, `category` if they are few and repeat, else `text`."""
    texts = [str(value) for value in values]
    if all(_DATE.fullmatch(text) for text in texts):
        return "date" if len({len(text) for text in texts}) == 1 else "category"
    num_distinct = len(set(texts))
    is_few = num_distinct <= _MAX_CATEGORIES and num_distinct * (3 if num_distinct > 3 else 1) < len(texts)
    return "category" if is_few else "text"


def _number_kind(names: str, values: Sequence[object]) -> str:
    """Return the kind of numbers: `category` if a mean makes no sense, else `year`, `real` or `int`.

    `names` is `name | words` of their column.
    """
    numbers = [_whole_to_int(value) for value in values]
    parts = names.lower().split(" | ")
    is_measured = not any(_NO_MEASURE.search(part) for part in parts)
    may_be_dates = not _QUANTITY.search(names.lower()) or any(_TIME_AT_END.search(part) for part in parts)
    are_flags = {flag_of(value) for value in values} == {True, False}
    if are_flags or not is_measured or (may_be_dates and _are_dates(numbers)):
        return "category"
    if _is_year(names, numbers):
        return "year"
    return "real" if any(isinstance(value, float) for value in values) else "int"


def _is_year(names: str, numbers: Sequence[object]) -> bool:
    """Return whether numbers are years: the name or the words (`name | words`) mean a year, and the values fit."""
    parts = names.lower().split(" | ")
    has_name = any(_SINCE.search(part) or (_YEAR.search(part) and not _QUANTITY.search(part)) for part in parts)
    return has_name and all(isinstance(value, int) and 1000 <= value <= 2200 for value in numbers)


def _are_dates(numbers: Sequence[object]) -> bool:
    """Return whether integers are dates, such as 20240131, or Unix times."""
    whole = [value for value in numbers if isinstance(value, int)]
    if len(whole) < len(numbers):
        return False
    if all(any(value in times for times in _UNIX_TIMES) for value in whole):
        return True
    return all(value // 10**4 in _YEARS and 1 <= value // 100 % 100 <= 12 and 1 <= value % 100 <= 31 for value in whole)


def _claim(phrase: str, name: str) -> str:
    """Return the claim that a flag's name makes about a row (`active`, `has a lid`); "" for others (`gender`)."""
    for text in (phrase.lower(), split_words(name)):
        claim = _FLAG_MARK.sub("", text)
        if claim.startswith(("is ", "has ")) or _ADJECTIVE.fullmatch(claim):
            return claim.removeprefix("is ")
    return ""


def _are_hashes(values: Sequence[object]) -> bool:
    """Return whether all values are hashes, UUIDs, tokens or numbers as text."""
    return all(isinstance(value, str) and (_HASH.fullmatch(value) or value.isdecimal()) for value in values)


def _are_keys(values: Sequence[object], total: int) -> bool:
    """Return whether distinct integers identify rows: they number the rows, or all have the same number of digits.

    With fewer than `_MIN_KEYS`, they must be consecutive.
    """
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) < max(len(values), _FEW_KEYS):
        return False
    if len(numbers) < _MIN_KEYS:
        return numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    is_numbering = max(numbers) - min(numbers) < 2 * total and numbers == sorted(numbers)
    is_wide = min(numbers) >= 10**5 and len({len(str(number)) for number in numbers}) == 1
    # Amounts are often multiples of ten, ids are not.
    return is_numbering or (is_wide and sum(number % 10 != 0 for number in numbers) > len(numbers) * 3 // 4)


def _is_usable_in_text(value: object, kind: str) -> bool:
    """Return whether a value can appear literally in a question, and for the kind `text` also in a LIKE pattern."""
    if not isinstance(value, str):
        return not isinstance(value, float) or math.isfinite(value)
    if not value or len(value) > _MAX_VALUE_CHARS or value != value.strip() or "  " in value or not value.isprintable():
        return False
    return kind != "text" or not set(value) & set("%_")


def _whole_to_int(value: object) -> object:
    """Return a whole float as an integer, because questions write 27.0 as `27`."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _without_ambiguous(columns: Sequence[AnnotatedColumn]) -> list[AnnotatedColumn]:
    """Omit columns with the same words, which would make questions ambiguous."""
    counts = Counter(column.words for column in columns)
    return [column for column in columns if counts[column.words] == 1]


def _distinguish_tables(by_name: dict[str, tuple[Table, AnnotatedTable]]) -> None:
    """Replace the words of tables with equal words by their names in SQL."""
    counts = Counter(table.plural for _, table in by_name.values())
    for name, (declared, table) in list(by_name.items()):
        if counts[table.plural] > 1:
            by_name[name] = declared, replace(table, plural=name, singular=name)


def _mark_join_keys(by_name: dict[str, tuple[Table, AnnotatedTable]], run: RunSql) -> None:
    """Mark the numbers of join keys, declared or guessed, as ids, so that no question asks for their mean."""
    declared = [(name, key) for name, (table, _) in by_name.items() for key in table.foreign_keys]
    joins = [*declared, *_guess_foreign_keys(by_name)]
    ids = {(name, quote_name(column)) for name, key in joins for column in key.columns}
    ids |= {(key.table, quote_name(column)) for _, key in joins for column in key.targets}
    for name, (table, annotated) in list(by_name.items()):
        columns = tuple(
            replace(column, kind="id", digits=0)
            if column.kind in MEASURE
            and ((name, column.name) in ids or _are_references(annotated, column, by_name, run))
            else column
            for column in annotated.columns
        )
        by_name[name] = table, replace(annotated, columns=columns)


def _are_references(
    table: AnnotatedTable, column: AnnotatedColumn, by_name: Mapping[str, tuple[Table, AnnotatedTable]], run: RunSql
) -> bool:
    """Return whether all values of a column are ids of another table's rows.

    The column must also be named after that table or its ids, or a match by chance must be unlikely.
    """
    if _QUANTITY.search(column.words) or _YEAR.search(column.words):
        return False
    for _, other in by_name.values():
        is_named = other.singular.split()[-1:] == column.words.split()[-1:]
        keys = [
            key
            for key in other.columns
            if key.kind == "id"
            and (is_named or key.words == column.words or _is_match_unlikely(column.values, key.values))
        ]
        keys += [other.key] if is_named and other.key.name else []
        for key in keys if other is not table else ():
            matches = f"SELECT 1 FROM {other.name} AS b WHERE b.{key.name} = a.{column.name}"
            dangling = f"SELECT 1 FROM {table.name} AS a WHERE a.{column.name} IS NOT NULL AND NOT EXISTS ({matches})"
            if run(f"{dangling} LIMIT 1") == []:
                return True
    return False


def _is_match_unlikely(values: Sequence[Value], ids: Sequence[Value]) -> bool:
    """Return whether numbers are all among the ids, which is unlikely by chance because the ids are sparse.

    The probability is s^n for n numbers, where s is the share of ids among the integers between the numbers.
    """
    numbers = {value for value in values if isinstance(value, int)}
    keys = {key for key in ids if isinstance(key, int)}
    if not numbers or not numbers <= keys:
        return False
    low, high = min(numbers), max(numbers)
    share = sum(low <= key <= high for key in keys) / (high - low + 1)
    return len(numbers) >= _FEW_KEYS and share ** len(numbers) < _MAX_CHANCE


def _guess_foreign_keys(by_name: Mapping[str, tuple[Table, AnnotatedTable]]) -> Iterator[tuple[str, ForeignKey]]:
    """Guess undeclared foreign keys: `customer_id` references the key `id` or `customer_id` of `customers`."""
    # (table, key) by the words of a column that would reference it
    keys: dict[str, list[tuple[str, str]]] = {}
    for name, (declared, table) in by_name.items():
        if len(declared.primary_key) == 1:
            key = declared.primary_key[0]
            for phrase in {split_words(key)} - {"id"} | {
                f"{table.singular.removesuffix(' record')} {split_words(key)}"
            }:
                keys.setdefault(phrase, []).append((name, key))
    for name, (declared, _) in by_name.items():
        for column in declared.columns:
            targets = keys.get(split_words(column.name), [])
            if len(targets) == 1 and targets[0][0] != name:
                yield name, ForeignKey((column.name,), targets[0][0], (targets[0][1],))
