"""Read files of predictions in the formats of common benchmarks, detected by their content.

A file with ids is paired by id; a file without ids must have an entry per question. If two fields hold SQL, one of
which may be the gold, the caller must choose the field. A file whose texts mostly do not start like SQL has another
format. Each violation is a single InputError with counts and examples.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from sqlexec_rs.files import ID_KEYS, InputError, cases, id_text, id_values, is_blank, text_of, whole_number_ids
from sqlexec_rs.texts import is_query, is_sql, is_word, names_sql, parts_of_queries, same_sql, split_database

BIRD_MARK = "\t----- bird -----\t"
"""Separates SQL and database in BIRD's predictions."""

_CLEAR_KEYS, _SQL_ITSELF, _VAGUE_KEYS = ("pred_sql", "predicted_sql"), ("sql", "SQL", "query"), ("prediction", "pred")

SQL_KEYS = (*_CLEAR_KEYS, *_SQL_ITSELF, *_VAGUE_KEYS)
"""Fields with SQL, by priority: named as a prediction; possibly the gold; possibly a complete answer."""

_LINES = "one query per line, without ids"
# The field of a file without field names.
_ONLY_FIELD = "sql"
# Fields without predictions, whatever their texts.
_NO_SQL = (*ID_KEYS, "db_id", "question", "evidence")
# pandas names an unnamed index `Unnamed: 0`, or leaves its name empty.
_HEADER_NAME = re.compile(r"[^\W\d][\w. -]*|unnamed: \d+", re.IGNORECASE)
# Names of an index, or of an id under another name, without separators between words.
_INDEX_NAME = re.compile(
    r"|unnamed:\d+|level\d+|indexlevel\d+|no|nr|line"
    r"|(?:question|example|row|sample|instance|item|task|entry|record|prediction|query|line)?(?:id|idx|index|no|nr|number)"
)
_BETWEEN_WORDS = re.compile(r"[\s_.-]")
_DELIMITERS = "\t;,"
_SHOWN_FIELDS, _SHOWN_CHARACTERS = 20, 40

Entry = tuple[str, Mapping[str, Any]]


class Prediction(NamedTuple):
    """A predicted SQL (None: no SQL). `uid` and `db_id` are empty if the file lacks them."""

    uid: str
    sql: str | None
    db_id: str
    location: str


class Predictions(NamedTuple):
    """The content of a file; `form` describes the detected format. A file of lines keeps blank lines.

    SQL was read from `field`, one of the file's `fields`; `is_chosen` if the caller selected it.
    """

    path: Path
    form: str
    entries: tuple[Prediction, ...]
    has_ids: bool = True
    is_numbered: bool = False
    is_lines: bool = False
    field: str = _ONLY_FIELD
    fields: tuple[str, ...] = (_ONLY_FIELD,)
    is_chosen: bool = False

    @property
    def empty(self) -> int:
        """Return the number of entries without SQL."""
        return sum(entry.sql is None for entry in self.entries)


def read_predictions(path: str | Path, field: str = "") -> Predictions:
    """Read JSON lines, a JSON list, BIRD's JSON object, a table with a header, a folder of `<id>.sql`, or lines of SQL.

    A table's columns are separated by commas, semicolons or tabs; `id<TAB>SQL` needs no header. `field` names the field
    of the predicted SQL; a file without field names has the field `sql`. Raises InputError for invalid UTF-8 or JSON,
    entries without SQL, an invalid or repeated id, and two fields with different SQL; and, unless the field is chosen,
    for texts that mostly do not start like SQL.
    """
    path = Path(path)
    if path.is_dir():
        predictions = _read_folder(path)
    else:
        text = text_of(path)
        start = text.lstrip()[:1]
        if start in ("{", "["):
            predictions = _read_json(path, text, field, is_list=start == "[")
        else:
            predictions = _read_csv(path, text, field) or _read_tabbed(path, text) or _read_lines(path, text)
    if not predictions.entries:
        raise InputError(f"{path}: no predictions in it")
    if field and field.lower() != predictions.field.lower():
        form, only = predictions.form, predictions.field
        raise InputError(f"{path}: read as {form}, which has no field names: --field can only be {only}")
    if predictions.has_ids:
        _refuse_repeats(predictions)
    if not field:
        _refuse_other_texts(predictions)
    return predictions._replace(is_chosen=bool(field))


def header_advice(location: str, text: str) -> str:
    """Return advice for a line that may be the header of a single-column table."""
    return f"{location} may be a header, {text!r}: --field {text!r} selects it"


def possible_header(predictions: Predictions) -> str:
    """Return the advice if a file's first line may be a header, because it is a word; otherwise an empty text."""
    first = predictions.entries[0]
    is_open = predictions.form == _LINES and not predictions.is_chosen
    return header_advice(first.location, first.sql) if is_open and first.sql and is_word(first.sql) else ""


def describe_fields(names: Sequence[str]) -> str:
    """Return a file's field names for a message."""
    return ", ".join(filter(None, names[:_SHOWN_FIELDS])) + (", …" if len(names) > _SHOWN_FIELDS else "")


def _read_json(path: Path, text: str, field: str, is_list: bool) -> Predictions:
    """Read a list, an object (BIRD's, or by id), or an object per line."""
    try:
        whole: Any = json.loads(text, object_pairs_hook=_object)
    except _RepeatedIdError as error:
        raise InputError(f"{path}: {len(error.keys)} ids are repeated ({cases(error.keys)})") from None
    except (ValueError, RecursionError) as error:
        if is_list or "\n" not in text.strip() or text.lstrip().partition("\n")[0].strip() == "{":
            raise InputError(f"{path}: not JSON: {error}") from None
        return _read_json_lines(path, text, field)
    if isinstance(whole, list) and whole and all(isinstance(sql, str) for sql in whole):
        predictions = tuple(_bare(sql, f"entry {i}") for i, sql in enumerate(whole))
        return Predictions(path, "a JSON list of SQL without ids", predictions, has_ids=False, is_lines=True)
    if isinstance(whole, list):
        return _from_objects(path, "a JSON list", [(f"entry {i}", entry) for i, entry in enumerate(whole)], field)
    if any(key in whole for key in (*SQL_KEYS, *ID_KEYS)):
        return _from_objects(path, "JSON lines", [("line 1", whole)], field)
    return _from_mapping(path, whole)


class _RepeatedIdError(ValueError):
    """Repeated keys of an object, of which the parser would keep the last."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__()
        self.keys = keys


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    whole = dict(pairs)
    if len(whole) < len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedIdError([name for name in whole if names.count(name) > 1])
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
    """Read objects with SQL, either all with an id or all without; `chosen` is the field selected by the caller."""
    objects = [(location, entry) for location, entry in entries if isinstance(entry, dict)]
    fields = tuple(dict.fromkeys(name for _, entry in objects for name in entry))
    field = chosen or _field_of(objects, fields)
    named = field if chosen or field not in ("", *_SQL_ITSELF) else " or ".join(_SQL_ITSELF)
    has_ids = any(id_values(entry) for _, entry in objects)
    wrong: dict[str, list[str]] = {}
    predictions = []
    for location, entry in entries:
        if not isinstance(entry, dict):
            wrong.setdefault("are not JSON objects", []).append(location)
        elif has_ids and not _uid_of(entry):
            wrong.setdefault(_id_error(entry), []).append(location)
        elif field not in entry:
            wrong.setdefault(f"have no {named}", []).append(location)
        elif not isinstance(entry[field], str | None):
            wrong.setdefault("hold SQL that is neither text nor null", []).append(location)
        else:
            predictions.append(Prediction(_uid_of(entry), _sql(entry[field]), id_text(entry.get("db_id")), location))
    errors = [f"{len(where)} of {len(entries)} {error} ({cases(where)})" for error, where in wrong.items()]
    if fields and any(field not in entry for _, entry in objects):
        errors.append(f"--field NAME selects the field of the SQL, of the fields {describe_fields(fields)}")
    rivals = {} if chosen or not field else _rivals(objects, field, fields)
    for rival, where in rivals.items():
        errors.append(
            f"{len(where)} of {len(entries)} hold different SQL in {field} and {rival} ({cases(where)}): "
            f"--field NAME selects the prediction, of the fields {describe_fields(fields)}"
        )
    if errors and has_ids and all(is_blank(value) for _, entry in objects for value in id_values(entry)):
        names = describe_fields([name for name in fields if name.lower() in ID_KEYS])
        errors.append(f"remove {names}, which is empty everywhere, to pair entry by entry")
    if errors:
        raise InputError(f"{path}: {'; '.join(errors)}")
    if not has_ids:
        _refuse_other_order(path, objects, fields)
    form += " with ids" if has_ids else " without ids"
    return Predictions(path, form, tuple(predictions), has_ids=has_ids, field=field, fields=fields)


def _refuse_other_order(path: Path, entries: Sequence[Entry], fields: Sequence[str]) -> None:
    """Refuse entries without ids whose index is not consecutive: it may hold ids, or another order."""
    for name in fields:
        index = [id_text(entry.get(name)) for _, entry in entries]
        if not _is_index_name(name) or all(is_blank(entry.get(name)) for _, entry in entries):
            continue
        if index not in ([str(i + start) for i in range(len(index))] for start in (0, 1)):
            column = repr(name) if name else "a column without a name"
            raise InputError(
                f"{path}: no id, and {column} ({cases(index)}) does not count the entries: rename it to id, or "
                "remove it to pair entry by entry"
            )


def _is_index_name(name: str) -> bool:
    return bool(_INDEX_NAME.fullmatch(_BETWEEN_WORDS.sub("", name).lower()))


def _field_of(entries: Sequence[Entry], fields: Sequence[str]) -> str:
    """Return the field of the SQL in all entries: the first of SQL_KEYS that holds a text; otherwise an empty text."""
    known = [key for key in SQL_KEYS if key in fields]
    filled = (key for key in known if any(isinstance(entry.get(key), str) for _, entry in entries))
    return next(filled, known[0] if known else "")


def _rivals(entries: Sequence[Entry], field: str, fields: Sequence[str]) -> dict[str, list[str]]:
    """Return the other fields that may be the prediction, with the locations at which they differ from `field`.

    These are the fields with SQL (at least half of their texts), and those that may be complete answers if `field` may
    be the gold. Excluded are fields named `gold`, and fields that may be the gold if `field` is named `pred_sql`.
    """
    rivals = {}
    for name in fields:
        is_probable_gold = field in _CLEAR_KEYS and name in _SQL_ITSELF
        if name == field or name in _NO_SQL or name.lower().startswith("gold") or is_probable_gold:
            continue
        texts = [(location, entry[name], entry.get(field)) for location, entry in entries if _is_text(entry.get(name))]
        is_sql = 2 * sum(is_query(text) for _, text, _ in texts) >= len(texts)
        differing = [
            location for location, text, mine in texts if not same_sql(text, mine if isinstance(mine, str) else "")
        ]
        if differing and (is_sql or (name in _VAGUE_KEYS and field in _SQL_ITSELF)):
            rivals[name] = differing
    return rivals


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _uid_of(entry: Mapping[str, Any]) -> str:
    return next(filter(None, map(id_text, id_values(entry))), "")


def _id_error(entry: Mapping[str, Any]) -> str:
    is_missing = all(map(is_blank, id_values(entry)))
    return f"have no {' or '.join(ID_KEYS[:3])}" if is_missing else "have an id that is neither text nor a whole number"


def _from_mapping(path: Path, whole: Mapping[str, Any]) -> Predictions:
    """Read an object by id, with SQL or BIRD's `SQL<mark>database` as values.

    BIRD's scripts write a number for a missing answer.
    """
    is_bird = any(isinstance(value, str) and BIRD_MARK in value for value in whole.values())
    nested = [key for key, value in whole.items() if isinstance(value, list | dict)]
    if nested:
        raise InputError(f"{path}: {len(nested)} of {len(whole)} ids hold nested JSON instead of SQL ({cases(nested)})")
    predictions = []
    for key, value in whole.items():
        sql, _, db_id = value.partition(BIRD_MARK) if isinstance(value, str) else ("", "", "")
        predictions.append(Prediction(key, _sql(sql), db_id.strip(), f"entry {key}"))
    uids = {prediction.uid for prediction in predictions}
    is_numbered = is_bird and uids == {str(i) for i in range(len(predictions))}
    form = "BIRD's JSON object" if is_bird else "a JSON object of ids and SQL"
    return Predictions(path, form, tuple(predictions), is_numbered=is_numbered)


def _read_csv(path: Path, text: str, field: str) -> Predictions | None:
    """Read a table with commas, semicolons or tabs by its header; return None if the first line is not a header.

    A header names an id or SQL, or consists of words between commas, unlike any query. A line with tabs or semicolons
    may be an answer with its database or its end. A column may have no name, like pandas' index.
    """
    head = text.partition("\n")[0].rstrip("\r")
    delimiter = next((mark for mark in _DELIMITERS if mark in head), ",")
    cells = head.split(delimiter)
    names = [name.strip().strip('"').lower() for name in cells]
    known = {*ID_KEYS, *(key.lower() for key in SQL_KEYS), field.lower()} - {""}
    are_names = all(_HEADER_NAME.fullmatch(name) and not is_query(name) for name in names if name)
    is_known = bool(known.intersection(names)) or (len(names) > 1 and any(map(names_sql, names)))
    are_words = "," in head and delimiter == "," and all(names) and not any(cell.startswith(" ") for cell in cells)
    if not are_names or not (is_known or are_words):
        return None
    repeated = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if repeated:
        raise InputError(f"{path}: its header repeats {cases(repeated)}")
    rows = list(_rows(path, text, names, delimiter))
    whole_number_ids([row for _, row in rows], [name for name in names if name in ID_KEYS or _is_index_name(name)])
    return _from_objects(path, "a table", rows, field.lower())


def _rows(path: Path, text: str, names: Sequence[str], delimiter: str) -> Iterator[tuple[str, dict[str, Any]]]:
    bad: list[str] = []
    count = 0
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        next(rows)
        for row in rows:
            count += bool(row)
            location = f"line {rows.line_num}"
            if row and len(row) != len(names):
                bad.append(location)
            elif row:
                yield location, dict(zip(names, row, strict=True))
    except csv.Error as error:
        raise InputError(f"{path}: line {rows.line_num}: not CSV: {error}") from None
    if bad:
        raise InputError(
            f"{path}: {len(bad)} of {count} rows do not have the {len(names)} columns of the header ({cases(bad)})"
        )


def _read_tabbed(path: Path, text: str) -> Predictions | None:
    """Read lines of an id, a tab and SQL; None if a line has another form, or no line has SQL after its tab."""
    rows = [(f"line {i}", line.split("\t")) for i, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not all(len(cells) == 2 and id_text(cells[0]) and not is_query(cells[0]) for _, cells in rows):
        return None
    predictions = tuple(Prediction(id_text(uid), _sql(sql), "", location) for location, (uid, sql) in rows)
    if not any(is_query(prediction.sql or "") for prediction in predictions):
        return None
    return Predictions(path, "lines of an id, a tab and SQL", predictions)


def _read_lines(path: Path, text: str) -> Predictions:
    lines = text.removesuffix("\n").split("\n")
    predictions = tuple(_bare(line, f"line {number}") for number, line in enumerate(lines, start=1))
    # Spider's line for an empty answer is a tab and a database, which is not SQL.
    empty = [line.count("\t") == 1 and line.startswith("\t") and bool(split_database(line)[1]) for line in lines]
    predictions = tuple(
        prediction._replace(sql=f"\t{prediction.sql}") if is_empty else prediction
        for prediction, is_empty in zip(predictions, empty, strict=True)
    )
    if all(prediction.sql is None for prediction in predictions):
        predictions = ()
    return Predictions(path, _LINES, predictions, has_ids=False, is_lines=True)


def _read_folder(path: Path) -> Predictions:
    files = sorted(path.glob("*.sql"))
    if not files:
        raise InputError(f"{path}: no <id>.sql in this folder (.csv results are not supported, only SQL)")
    predictions = tuple(Prediction(file.stem, _sql(text_of(file)), "", file.name) for file in files)
    return Predictions(path, "a folder of <id>.sql", predictions)


def _refuse_repeats(predictions: Predictions) -> None:
    locations: dict[str, list[str]] = {}
    for entry in predictions.entries:
        locations.setdefault(entry.uid, []).append(entry.location)
    repeated = [f"{uid} at {' and '.join(at[:2])}" for uid, at in locations.items() if len(at) > 1]
    if repeated:
        raise InputError(f"{predictions.path}: {len(repeated)} ids are repeated ({cases(repeated)})")


def _refuse_other_texts(predictions: Predictions) -> None:
    """Refuse texts that mostly do not start like SQL, and lines that are parts of queries or start with a header."""
    texts = [
        (entry.location, entry.sql) for entry in predictions.entries if entry.sql and not entry.sql.startswith("\t")
    ]
    others = [(location, sql) for location, sql in texts if not is_sql(sql)]
    parts = parts_of_queries(texts) if predictions.form == _LINES else []
    error = ""
    if parts:
        error = f"{len(parts)} of {len(texts)} lines continue a query ({cases(parts)}): write each query in one line"
    elif 2 * len(others) > len(texts):
        location, sql = others[0]
        count = f"{len(others)} of {len(texts)} texts"
        error = f"read as {predictions.form}, {count} do not start like SQL ({location}: {_shorten(sql)})"
    elif predictions.form == _LINES and others and others[0] == texts[0] and names_sql(others[0][1]):
        error = header_advice(*others[0])
    if error:
        error += "; write JSON lines or a CSV with id and sql" if predictions.is_lines else ""
        raise InputError(f"{predictions.path}: {error}; --field {predictions.field} scores these texts unchanged")


def _shorten(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _bare(sql: str, location: str) -> Prediction:
    return Prediction("", _sql(sql), "", location)


def _sql(text: str | None) -> str | None:
    """Return SQL without surrounding blanks, or None if empty; unpaired surrogates, as in JSON escapes, are replaced.

    EHRSQL's predictions use `null` for a question without an answer.
    """
    sql = (text or "").encode("utf-8", errors="replace").decode().strip()
    return None if sql.lower() in ("", "null") else sql
