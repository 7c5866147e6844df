"""Predictions that others wrote: the files that benchmarks take, told apart by what stands in them.

Nothing is guessed. A file with ids is paired by its ids, one without only where it has an entry for every question, and
where two fields hold SQL, one of which may be the gold, the reader is told which to take; what does not fit is one
InputError with counts and the first cases.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlexec_rs.files import ID_KEYS, InputError, cases

BIRD_MARK = "\t----- bird -----\t"
"""Stands between SQL and database in BIRD's predictions."""

_CLEAR_KEYS, _SQL_ITSELF, _VAGUE_KEYS = ("pred_sql", "predicted_sql"), ("sql", "SQL", "query"), ("prediction", "pred")

SQL_KEYS = (*_CLEAR_KEYS, *_SQL_ITSELF, *_VAGUE_KEYS)
"""Where SQL stands, the first first: a prediction by name; what may as well be the gold; perhaps a whole answer."""

# What a file without names of fields has.
_ONLY_FIELD = "sql"
# These hold no prediction, whatever words they begin with.
_NO_SQL = (*ID_KEYS, "db_id", "question", "evidence")
# SQL, perhaps in a code fence, in brackets or behind a comment.
_BEGINS_AS_SQL = re.compile(r"(?:\s|\(|--[^\n]*\n|```(?:sql\b)?)*(?:select|with)\b", re.IGNORECASE)
_FENCE = re.compile(r"\A\s*```(?:sql\b)?|```\s*\Z", re.IGNORECASE)
_HEADER_NAME = re.compile(r"[^\W\d][\w. -]*")
_SHOWN_FIELDS = 20

Entry = tuple[str, Mapping[str, Any]]


class Prediction(NamedTuple):
    """A predicted SQL (None: the model gave none); `uid` and `db_id` are empty where the file has none."""

    uid: str
    sql: str | None
    db_id: str
    place: str


class Predictions(NamedTuple):
    """What a file holds; `form` says in words how it was read. A file of lines keeps its blank ones.

    SQL was read from `field`, one of the `fields` that the file names, which the caller chose or not.
    """

    path: Path
    form: str
    found: tuple[Prediction, ...]
    has_ids: bool = True
    is_numbered: bool = False
    is_lines: bool = False
    field: str = _ONLY_FIELD
    fields: tuple[str, ...] = (_ONLY_FIELD,)
    is_chosen: bool = False

    @property
    def empty(self) -> int:
        """Return how many hold no SQL."""
        return sum(one.sql is None for one in self.found)


def read_predictions(path: str | Path, field: str = "") -> Predictions:
    """Read JSON lines, a JSON list, BIRD's JSON object, a CSV with a header, a folder of `<id>.sql`, or lines of SQL.

    `field` names where the predicted SQL stands; a file that names no fields has one, `sql`. Raises InputError for what
    cannot be read: no UTF-8, broken JSON, entries without SQL, an id that stands twice, two fields with different SQL.
    """
    path = Path(path)
    if path.is_dir():
        made = _read_folder(path)
    else:
        text = _text_of(path)
        start = text.lstrip()[:1]
        if start in ("{", "["):
            made = _read_json(path, text, field, is_list=start == "[")
        else:
            made = _read_csv(path, text, field) or _read_lines(path, text)
    if not made.found:
        raise InputError(f"{path}: no predictions in it")
    if field and field.lower() != made.field.lower():
        raise InputError(f"{path}: read as {made.form}, which names no fields: --field can only be {made.field}")
    if made.has_ids:
        _refuse_repeats(made)
    return made._replace(is_chosen=bool(field))


def shown_fields(names: Sequence[str]) -> str:
    """Return a file's fields for a message."""
    return ", ".join(names[:_SHOWN_FIELDS]) + (", …" if len(names) > _SHOWN_FIELDS else "")


def same_sql(one: str, other: str) -> bool:
    """Return whether two texts differ in blanks, a last semicolon and a code fence at most."""
    first, second = (_FENCE.sub("", text).rstrip("; \t\r\n").split() for text in (one, other))
    return first == second


def _text_of(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in raw[:64]:
        raise InputError(f"{path}: not UTF-8, but UTF-16 or no text at all: write it as UTF-8")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        bad = [f"line {number}" for number, line in enumerate(raw.split(b"\n"), start=1) if not _is_utf8(line)]
        raise InputError(f"{path}: not UTF-8 in {len(bad)} lines ({cases(bad)}): write it as UTF-8") from None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _read_json(path: Path, text: str, field: str, is_list: bool) -> Predictions:
    """Read a list, one object (BIRD's, or of ids), or an object a line."""
    try:
        whole: Any = json.loads(text, object_pairs_hook=_object)
    except _RepeatedError as error:
        raise InputError(f"{path}: {len(error.keys)} ids stand more than once ({cases(error.keys)})") from None
    except (ValueError, RecursionError) as error:
        if is_list or "\n" not in text.strip() or text.lstrip().partition("\n")[0].strip() == "{":
            raise InputError(f"{path}: not JSON: {error}") from None
        return _read_json_lines(path, text, field)
    if isinstance(whole, list) and whole and all(isinstance(one, str) for one in whole):
        found = tuple(_bare(sql, f"entry {i}") for i, sql in enumerate(whole))
        return Predictions(path, "a JSON list of SQL without ids", found, has_ids=False, is_lines=True)
    if isinstance(whole, list):
        return _from_objects(path, "a JSON list", [(f"entry {i}", one) for i, one in enumerate(whole)], field)
    if any(key in whole for key in (*SQL_KEYS, *ID_KEYS)):
        return _from_objects(path, "JSON lines", [("line 1", whole)], field)
    return _from_mapping(path, whole)


class _RepeatedError(ValueError):
    """Keys of an object that stand twice, of which JSON would keep the last."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__()
        self.keys = keys


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedError([name for name in whole if names.count(name) > 1])
    return whole


def _read_json_lines(path: Path, text: str, field: str) -> Predictions:
    entries: list[tuple[str, Any]] = []
    bad: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entries.append((f"line {number}", json.loads(line)))
        except (ValueError, RecursionError) as error:
            bad[f"line {number}"] = str(error)
    if bad:
        first = next(iter(bad.values()))
        raise InputError(f"{path}: {len(bad)} of {len(entries) + len(bad)} lines are not JSON ({cases(bad)}): {first}")
    return _from_objects(path, "JSON lines", entries, field)


def _from_objects(path: Path, form: str, entries: Sequence[tuple[str, Any]], chosen: str) -> Predictions:
    """Read objects with SQL, all of them with an id or none; `chosen` is the field that the caller asks for."""
    objects = [(place, entry) for place, entry in entries if isinstance(entry, dict)]
    fields = tuple(dict.fromkeys(name for _, entry in objects for name in entry))
    field = chosen or _field_of(objects, fields)
    named = field if chosen or field not in ("", *_SQL_ITSELF) else " or ".join(_SQL_ITSELF)
    has_ids = any(_uid_of(entry) for _, entry in objects)
    wrong: dict[str, list[str]] = {}
    found = []
    for place, entry in entries:
        if not isinstance(entry, dict):
            wrong.setdefault("are no JSON object", []).append(place)
        elif has_ids and not _uid_of(entry):
            wrong.setdefault(f"have no {' or '.join(ID_KEYS[:3])}", []).append(place)
        elif field not in entry:
            wrong.setdefault(f"have no {named}", []).append(place)
        elif not isinstance(entry[field], str | None):
            wrong.setdefault("hold SQL that is neither text nor null", []).append(place)
        else:
            found.append(Prediction(_uid_of(entry), _sql(entry[field]), _word(entry.get("db_id")), place))
    told = [f"{len(places)} of {len(entries)} {what} ({cases(places)})" for what, places in wrong.items()]
    if fields and any(field not in entry for _, entry in objects):
        told.append(f"--field NAME says where SQL stands, of the fields {shown_fields(fields)}")
    rivals = {} if chosen or not field else _rivals(objects, field, fields)
    for rival, places in rivals.items():
        told.append(
            f"{len(places)} of {len(entries)} hold one thing in {field} and another in {rival} ({cases(places)}): "
            f"--field NAME says which is the prediction, of the fields {shown_fields(fields)}"
        )
    if told:
        raise InputError(f"{path}: {'; '.join(told)}")
    form += " with ids" if has_ids else " without ids"
    return Predictions(path, form, tuple(found), has_ids=has_ids, field=field, fields=fields)


def _field_of(entries: Sequence[Entry], fields: Sequence[str]) -> str:
    """Return the field that SQL is read from in all entries, the first of SQL_KEYS that holds text; or nothing."""
    known = [key for key in SQL_KEYS if key in fields]
    filled = (key for key in known if any(isinstance(entry.get(key), str) for _, entry in entries))
    return next(filled, known[0] if known else "")


def _rivals(entries: Sequence[Entry], field: str, fields: Sequence[str]) -> dict[str, list[str]]:
    """Return the fields that could be the prediction as well as `field`, with the places where they say another thing.

    That is every field of SQL (half of its texts begin so), and one that may be a whole answer beside one that may be
    the gold. A field whose name says `gold` is none, nor one that may be it beside one whose name says `pred_sql`.
    """
    found = {}
    for name in fields:
        beside_clear = field in _CLEAR_KEYS and name in _SQL_ITSELF
        if name == field or name in _NO_SQL or name.lower().startswith("gold") or beside_clear:
            continue
        texts = [(place, entry[name], entry.get(field)) for place, entry in entries if _is_text(entry.get(name))]
        is_sql = 2 * sum(bool(_BEGINS_AS_SQL.match(text)) for _, text, _ in texts) >= len(texts)
        other = [place for place, text, mine in texts if not same_sql(text, mine if isinstance(mine, str) else "")]
        if other and (is_sql or (name in _VAGUE_KEYS and field in _SQL_ITSELF)):
            found[name] = other
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _uid_of(entry: Mapping[str, Any]) -> str:
    return next((_word(entry[key]) for key in ID_KEYS if _word(entry.get(key))), "")


def _from_mapping(path: Path, whole: Mapping[str, Any]) -> Predictions:
    """Read BIRD's object, number to `SQL<mark>database`, or one of id to SQL.

    BIRD's scripts write a number where a model gave nothing.
    """
    is_bird = any(isinstance(value, str) and BIRD_MARK in value for value in whole.values())
    nested = [key for key, value in whole.items() if isinstance(value, list | dict)]
    if nested:
        raise InputError(f"{path}: {len(nested)} of {len(whole)} ids hold no SQL, but more JSON ({cases(nested)})")
    found = []
    for key, value in whole.items():
        sql, _, db_id = value.partition(BIRD_MARK) if isinstance(value, str) else ("", "", "")
        found.append(Prediction(key, _sql(sql), db_id.strip(), f"entry {key}"))
    is_numbered = is_bird and {one.uid for one in found} == {str(i) for i in range(len(found))}
    form = "BIRD's JSON object" if is_bird else "a JSON object of ids and SQL"
    return Predictions(path, form, tuple(found), is_numbered=is_numbered)


def _read_csv(path: Path, text: str, field: str) -> Predictions | None:
    """Read a CSV (or tab-separated file) by its header; None where the first line is none.

    It is one if it names an id or SQL, or nothing but words between commas, which no query is.
    """
    head = text.partition("\n")[0].rstrip("\r")
    delimiter = "\t" if "\t" in head else ","
    names = [name.strip().strip('"').lower() for name in head.split(delimiter)]
    known = {*ID_KEYS, *(key.lower() for key in SQL_KEYS), field.lower()} - {""}
    are_names = all(_HEADER_NAME.fullmatch(name) for name in names) and not _BEGINS_AS_SQL.match(head)
    if not are_names or (not known.intersection(names) and "," not in head):
        return None
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: its header names {cases(twice)} more than once")
    return _from_objects(path, "a table", list(_rows(path, text, names, delimiter)), field.lower())


def _rows(path: Path, text: str, names: Sequence[str], delimiter: str) -> Iterator[Entry]:
    bad: list[str] = []
    count = 0
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        next(rows)
        for row in rows:
            count += bool(row)
            place = f"line {rows.line_num}"
            if row and len(row) != len(names):
                bad.append(place)
            elif row:
                yield place, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: line {rows.line_num}: not CSV: {error}") from None
    if bad:
        raise InputError(
            f"{path}: {len(bad)} of {count} rows have not the {len(names)} columns of the header ({cases(bad)})"
        )


def _read_lines(path: Path, text: str) -> Predictions:
    lines = text.removesuffix("\n").split("\n")
    found = tuple(_bare(line.rstrip("\r"), f"line {number}") for number, line in enumerate(lines, start=1))
    if all(one.sql is None for one in found):
        found = ()
    return Predictions(path, "one SQL a line, without ids", found, has_ids=False, is_lines=True)


def _read_folder(path: Path) -> Predictions:
    files = sorted(path.glob("*.sql"))
    if not files:
        raise InputError(f"{path}: no <id>.sql in this folder (results as .csv are not judged, only SQL is)")
    found = tuple(Prediction(file.stem, _sql(_text_of(file)), "", file.name) for file in files)
    return Predictions(path, "a folder of <id>.sql", found)


def _refuse_repeats(made: Predictions) -> None:
    places: dict[str, list[str]] = {}
    for one in made.found:
        places.setdefault(one.uid, []).append(one.place)
    twice = [f"{uid} at {' and '.join(at[:2])}" for uid, at in places.items() if len(at) > 1]
    if twice:
        raise InputError(f"{made.path}: {len(twice)} ids stand more than once ({cases(twice)})")


def _bare(sql: str, place: str) -> Prediction:
    return Prediction("", _sql(sql), "", place)


def _sql(text: str | None) -> str | None:
    """Return SQL without blanks around it, or None; halves of characters, which JSON can spell, are replaced.

    `null` is how EHRSQL's predictions say that a question has no answer.
    """
    sql = (text or "").encode("utf-8", errors="replace").decode().strip()
    return None if sql.lower() in ("", "null") else sql


def _word(value: object) -> str:
    """Return text and whole numbers as text, anything else as nothing."""
    if isinstance(value, str):
        return value.strip()
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
