"""Read the column descriptions that some benchmarks publish with their databases.

BIRD has a folder `database_description` next to each database, with a CSV file per table. Spider has natural names of
all columns, such as "student id" for `stuid`, in one `tables.json`, two folders up. BIRD has it, too
(`dev_tables.json`). The files are written by hand, so unreadable parts are skipped and reported in `errors`.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jaxrl_sql.text2sql.files.jsonl import from_json
from jaxrl_sql.text2sql.schema.cache import version_of
from jaxrl_sql.types import Fields, Record

_TABLES_FILES = ("tables.json", "dev_tables.json", "train_tables.json", "test_tables.json")
_MAX_CHARACTERS = 200
_EVIDENCE_PREFIX = re.compile(r"^commonsense evidence:\s*", re.IGNORECASE)  # the prefix of BIRD's value descriptions

# The columns of a CSV file, in letters only: the described column, then the fields of a `Description`.
_COLUMNS = ("originalcolumnname", "columndescription", "columnname", "dataformat", "valuedescription")


class Description(NamedTuple):
    """The description of a column: its meaning (`text`), natural name, data format and values; each may be empty."""

    text: str = ""
    name: str = ""
    form: str = ""
    values: str = ""


class Descriptions(NamedTuple):
    """Descriptions by normalized table and column (`plain`), and a line per faulty file."""

    columns: Mapping[tuple[str, str], Description]
    errors: tuple[str, ...] = ()

    def of(self, table: str, column: str) -> str:
        """Return the meaning of a column and of its values as one line, each truncated to 200 characters.

        Parts that only repeat the column's name are omitted; "" if nothing remains.
        """
        description = self.columns.get((plain(table), plain(column)))
        if description is None:
            return ""
        values_text = next(
            (text for text in (description.text, description.name) if _letters(text) not in ("", _letters(column))), ""
        )
        values = _EVIDENCE_PREFIX.sub("", description.values)
        values = values if _letters(values) not in ("", _letters(values_text), _letters(column)) else ""
        return ", ".join(filter(None, map(_truncate, (values_text, values and f"values: {values}"))))


NO_DESCRIPTIONS = Descriptions(MappingProxyType({}))


def plain(name: str) -> str:
    """Return a name normalized for lookup: case-folded, without quotes, with single spaces."""
    return " ".join(name.strip().strip("\"'`[]").split()).casefold()


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_CHARACTERS else text[: _MAX_CHARACTERS - 1] + "…"


def _letters(text: str) -> str:
    """Return the letters and digits of a text, case-folded, to compare texts regardless of punctuation."""
    return "".join(character for character in text.casefold() if character.isalnum())


def read_descriptions(db_path: str | Path) -> Descriptions:
    """Read the descriptions of a database's columns, once per version (sizes and times) of the files.

    A CSV file's description takes precedence over the natural name. Raises InputError if the database does not exist.
    """
    version = version_of(db_path)
    path = Path(version.path)
    files = [*sorted((path.parent / "database_description").glob("*.[cC][sS][vV]")), *tables_files(path)]
    if not files:
        return NO_DESCRIPTIONS
    stats = [file.stat() for file in files]
    versions = ((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in zip(files, stats, strict=True))
    return _read_version(path.parent.name, tuple(versions))


def tables_file_records(db_path: str | Path) -> list[Record]:
    """Return a database's unmodified records in the tables files (`tables.json`), one per readable file."""
    path, natural = Path(db_path), []
    for file in tables_files(path):
        try:
            records = from_json(_decode(file.read_bytes()))
        except (OSError, ValueError):
            continue  # `read_descriptions` reports it when prompts are created
        named = (record for record in records if isinstance(record, dict) and record.get("db_id") == path.parent.name)
        natural += list(named) if isinstance(records, list) else []
    return natural


def tables_files(path: Path) -> list[Path]:
    """Return the tables files of a database's set, which are next to the folder of all databases."""
    root = path.parent.parent.parent
    return [file for name in _TABLES_FILES if (file := root / name).is_file()]


@lru_cache(maxsize=4096)
def _read_version(db_id: str, files: tuple[tuple[str, int, int], ...]) -> Descriptions:
    """Read the descriptions of a database from files, each with its time of modification and size."""
    columns: dict[tuple[str, str], Description] = {}
    errors: list[str] = []
    for path, mtime_ns, size in files:
        if path.endswith(".json"):
            names, error = _natural_names(path, mtime_ns, size)
            for key, name in names.get(db_id, {}).items():
                columns.setdefault(key, Description(name=name))
        else:
            table = plain(Path(path).stem)
            description_by_column, error = _read_table(Path(path))
            columns |= {(table, column): description for column, description in description_by_column.items()}
        errors += [f"{path}: {error}"] if error else []
    return Descriptions(MappingProxyType(columns), tuple(errors))


# A line that is appended to a table. It is a separate row, unless a quoted cell before it is never closed.
_LAST_LINE = "\0"


def _read_table(path: Path) -> tuple[dict[str, Description], str]:
    """Read a table's CSV file; return descriptions by column, and an error or ""."""
    description_by_column: dict[str, Description] = {}
    try:
        text = io.StringIO(_decode(path.read_bytes()), newline="")
        lines = csv.DictReader([*text, _LAST_LINE])
        headers = {_letters(header): header for header in lines.fieldnames or () if header}
        if "originalcolumnname" not in headers:
            return {}, "no column original_column_name"
        is_closed = False
        for line in lines:
            is_closed = _LAST_LINE in line.values()
            column, *values_of_description = (_cell(line, headers.get(name, "")) for name in _COLUMNS)
            if column and not is_closed:
                description_by_column[plain(column)] = Description(*values_of_description)
    except (OSError, csv.Error) as error:
        return description_by_column, f"read in part ({error})"
    if not is_closed:
        return description_by_column, "read in part (a quote is opened and never closed)"
    return description_by_column, "" if description_by_column else "no column is described"


def _cell(line: Fields, header: str) -> str:
    """Return the cell under a header as one line; "" without one."""
    value = line.get(header)
    return " ".join(value.split()) if isinstance(value, str) else ""


def _decode(raw: bytes) -> str:
    """Decode a file: UTF-8 with or without a byte order mark, else Windows-1252."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


@lru_cache(maxsize=8)
def _natural_names(path: str, _mtime_ns: int, _size: int) -> tuple[Mapping[str, Mapping[tuple[str, str], str]], str]:
    """Read a file in Spider's format; return natural names by database and (table, column), and an error or "".

    The time and size are only keys of the cache, so that a changed file is read again.
    """
    names: dict[str, dict[tuple[str, str], str]] = {}
    errors: list[str] = []
    try:
        records = list(from_json(_decode(Path(path).read_bytes())))
    except (OSError, ValueError, TypeError) as error:
        return names, f"no list of databases ({error})"
    for number, record in enumerate(records):
        try:
            names[record["db_id"]] = dict(_natural_columns(record))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            errors.append(f"record {number} cannot be read ({error!r})")
    return names, "; ".join(errors[:1]) + (f" and {len(errors) - 1} more" if len(errors) > 1 else "")


def _natural_columns(record: Fields) -> Iterator[tuple[tuple[str, str], str]]:
    """Yield ((table, column), natural name) of a database's record; names are normalized by `plain`."""
    tables = record["table_names_original"]
    for (index, original), (_, natural) in zip(record["column_names_original"], record["column_names"], strict=True):
        if index >= 0:  # the first is `*`, without a table
            yield (plain(tables[index]), plain(original)), " ".join(natural.split())
