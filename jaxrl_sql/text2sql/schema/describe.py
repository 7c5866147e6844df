"""What people wrote about the columns of a database, where it was handed out beside it.

BIRD has a folder `database_description` beside each database, with a CSV file a table. Spider has natural names of all
columns in one `tables.json`, two folders up, which BIRD has too (`dev_tables.json`). Such files are written by hand: of
what cannot be read, the rest is taken, and `faults` say what was left.
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

_NATURAL = ("tables.json", "dev_tables.json", "train_tables.json", "test_tables.json")
_LONGEST = 200
_MARK = re.compile(r"^commonsense evidence:\s*", re.IGNORECASE)  # what BIRD's value descriptions begin with, or are

# The columns of a CSV file, in letters alone: which column it is about, then the fields of a `Description`.
_COLUMNS = ("originalcolumnname", "columndescription", "columnname", "dataformat", "valuedescription")


class Description(NamedTuple):
    """What was written about a column: what it is, its natural name, and its form and values; each may be empty."""

    text: str = ""
    name: str = ""
    form: str = ""
    values: str = ""


class Descriptions(NamedTuple):
    """Descriptions by table and column, both in plain letters (`plain`), and a line for each file that is faulty."""

    columns: Mapping[tuple[str, str], Description]
    faults: tuple[str, ...] = ()

    def of(self, table: str, column: str) -> str:
        """Return in one line what a column is and what its values mean, each cut at 200 characters.

        What would only repeat the column's name is left out: "" where nothing else was written.
        """
        found = self.columns.get((plain(table), plain(column)))
        if found is None:
            return ""
        said = next((text for text in (found.text, found.name) if _letters(text) not in ("", _letters(column))), "")
        values = _MARK.sub("", found.values)
        values = values if _letters(values) not in ("", _letters(said), _letters(column)) else ""
        return ", ".join(filter(None, map(_cut, (said, values and f"values: {values}"))))


NO_DESCRIPTIONS = Descriptions(MappingProxyType({}))


def plain(name: str) -> str:
    """Return a name as it is looked up: without regard to case, quotes round it, and how wide its spaces are."""
    return " ".join(name.strip().strip("\"'`[]").split()).casefold()


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _letters(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def read_descriptions(db_path: str | Path) -> Descriptions:
    """Read what was written about a database's columns, once for each version (sizes and times) of the files.

    What a CSV file says of a column goes before its natural name. Raises InputError when there is no database.
    """
    version = version_of(db_path)
    path = Path(version.path)
    files = [*sorted((path.parent / "database_description").glob("*.[cC][sS][vV]")), *_natural_files(path)]
    if not files:
        return NO_DESCRIPTIONS
    stats = [file.stat() for file in files]
    versions = ((str(file), stat.st_mtime_ns, stat.st_size) for file, stat in zip(files, stats, strict=True))
    return _read_version(path.parent.name, tuple(versions))


def natural_records(db_path: str | Path) -> list[Record]:
    """Return what `tables.json` says of a database, as it stands there: a record a file that can be read."""
    path, found = Path(db_path), []
    for file in _natural_files(path):
        try:
            records = from_json(_decode(file.read_bytes()))
        except (OSError, ValueError):
            continue  # told where prompts are made
        named = (record for record in records if isinstance(record, dict) and record.get("db_id") == path.parent.name)
        found += list(named) if isinstance(records, list) else []
    return found


def _natural_files(path: Path) -> list[Path]:
    """Return the files of natural names, which lie beside the folder of databases that has a folder for each."""
    root = path.parent.parent.parent
    return [file for name in _NATURAL if (file := root / name).is_file()]


@lru_cache(maxsize=4096)
def _read_version(db_id: str, files: tuple[tuple[str, int, int], ...]) -> Descriptions:
    columns: dict[tuple[str, str], Description] = {}
    faults: list[str] = []
    for path, mtime_ns, size in files:
        if path.endswith(".json"):
            names, fault = _natural_names(path, mtime_ns, size)
            for key, name in names.get(db_id, {}).items():
                columns.setdefault(key, Description(name=name))
        else:
            table = plain(Path(path).stem)
            found, fault = _read_table(Path(path))
            columns |= {(table, column): description for column, description in found.items()}
        faults += [f"{path}: {fault}"] if fault else []
    return Descriptions(MappingProxyType(columns), tuple(faults))


# A line below a table: a row by itself unless a quote is still open.
_LAST_LINE = "\0"


def _read_table(path: Path) -> tuple[dict[str, Description], str]:
    """Read a table's CSV file; return descriptions by column, and what is wrong with it."""
    found: dict[str, Description] = {}
    try:
        text = io.StringIO(_decode(path.read_bytes()), newline="")
        lines = csv.DictReader([*text, _LAST_LINE])
        heads = {_letters(head): head for head in lines.fieldnames or () if head}
        if "originalcolumnname" not in heads:
            return {}, "no column original_column_name"
        is_closed = False
        for line in lines:
            is_closed = _LAST_LINE in line.values()
            column, *written = (_cell(line, heads.get(name, "")) for name in _COLUMNS)
            if column and not is_closed:
                found[plain(column)] = Description(*written)
    except (OSError, csv.Error) as error:
        return found, f"read in part ({error})"
    if not is_closed:
        return found, "read in part (a quote is opened and never closed)"
    return found, "" if found else "no column is described"


def _cell(line: Fields, head: str) -> str:
    value = line.get(head)
    return " ".join(value.split()) if isinstance(value, str) else ""


def _decode(raw: bytes) -> str:
    """Return a file's text: UTF-8, with or without the mark before it, or what Windows wrote."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return raw.decode("cp1252", errors="replace")


@lru_cache(maxsize=8)
def _natural_names(path: str, _mtime_ns: int, _size: int) -> tuple[Mapping[str, Mapping[tuple[str, str], str]], str]:
    """Read a file of Spider's form; return natural names by database, then (table, column), and what is wrong."""
    names: dict[str, dict[tuple[str, str], str]] = {}
    strange: list[str] = []
    try:
        records = list(from_json(_decode(Path(path).read_bytes())))
    except (OSError, ValueError, TypeError) as error:
        return names, f"no list of databases ({error})"
    for number, record in enumerate(records):
        try:
            names[record["db_id"]] = dict(_natural_columns(record))
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            strange.append(f"record {number} cannot be read ({error!r})")
    return names, "; ".join(strange[:1]) + (f" and {len(strange) - 1} more" if len(strange) > 1 else "")


def _natural_columns(record: Fields) -> Iterator[tuple[tuple[str, str], str]]:
    tables = record["table_names_original"]
    for (place, original), (_, natural) in zip(record["column_names_original"], record["column_names"], strict=True):
        if place >= 0:  # the first is `*`, of no table
            yield (plain(tables[place]), plain(original)), " ".join(natural.split())
