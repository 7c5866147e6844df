"""Predictions that others wrote: the files that benchmarks take, told apart by what stands in them.

Nothing is guessed. A file with ids is paired by its ids, one without only where it has an entry for every question, and
where two fields hold SQL, one of which may be the gold, the reader is told which to take; what does not fit is one
InputError with counts and the first cases. So is a file whose texts mostly do not begin as SQL: it is another format.
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
from sqlexec_rs.texts import database_of, is_query, is_sql, is_word, names_sql, parts_of_queries, same_sql

BIRD_MARK = "\t----- bird -----\t"
"""Stands between SQL and database in BIRD's predictions."""

_CLEAR_KEYS, _SQL_ITSELF, _VAGUE_KEYS = ("pred_sql", "predicted_sql"), ("sql", "SQL", "query"), ("prediction", "pred")

SQL_KEYS = (*_CLEAR_KEYS, *_SQL_ITSELF, *_VAGUE_KEYS)
"""Where SQL stands, the first first: a prediction by name; what may as well be the gold; perhaps a whole answer."""

_LINES = "one SQL a line, without ids"
# What a file without names of fields has.
_ONLY_FIELD = "sql"
# These hold no prediction, whatever words they begin with.
_NO_SQL = (*ID_KEYS, "db_id", "question", "evidence")
# pandas calls an index without a name `Unnamed: 0`, or nothing.
_HEADER_NAME = re.compile(r"[^\W\d][\w. -]*|unnamed: \d+", re.IGNORECASE)
# What an index, or an id under another name, is called, without the blanks and marks between its words.
_INDEX_NAME = re.compile(
    r"|unnamed:\d+|level\d+|indexlevel\d+|no|nr|line"
    r"|(?:question|example|row|sample|instance|item|task|entry|record|prediction|query|line)?(?:id|idx|index|no|nr|number)"
)
_BETWEEN_WORDS = re.compile(r"[\s_.-]")
_DELIMITERS = "\t;,"
_SHOWN_FIELDS, _SHOWN_CHARACTERS = 20, 40

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
    """Read JSON lines, a JSON list, BIRD's JSON object, a table with a header, a folder of `<id>.sql`, or lines of SQL.

    A table's columns are separated by commas, semicolons or tabs; `id<TAB>SQL` needs no header. `field` names the field
    of the predicted SQL; a file that names no fields has one, `sql`. Raises InputError for a file that cannot be read:
    no UTF-8, broken JSON, entries without SQL, an id that is unusable or occurs twice, two fields with different SQL;
    and, unless the field is chosen, for texts that mostly do not begin as SQL.
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
    if not predictions.found:
        raise InputError(f"{path}: no predictions in it")
    if field and field.lower() != predictions.field.lower():
        form, only = predictions.form, predictions.field
        raise InputError(f"{path}: read as {form}, which names no fields: --field can only be {only}")
    if predictions.has_ids:
        _refuse_repeats(predictions)
    if not field:
        _refuse_other_texts(predictions)
    return predictions._replace(is_chosen=bool(field))


def header_advice(place: str, text: str) -> str:
    """Return what to do where a line may be the header of a table of one column."""
    return f"{place} may be a header, {text!r}: --field {text!r} says so"


def possible_header(predictions: Predictions) -> str:
    """Return the advice for a file whose first line may be a header, because it is a word; or nothing."""
    first = predictions.found[0]
    is_open = predictions.form == _LINES and not predictions.is_chosen
    return header_advice(first.place, first.sql) if is_open and first.sql and is_word(first.sql) else ""


def shown_fields(names: Sequence[str]) -> str:
    """Return a file's fields for a message."""
    return ", ".join(filter(None, names[:_SHOWN_FIELDS])) + (", …" if len(names) > _SHOWN_FIELDS else "")


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
    has_ids = any(id_values(entry) for _, entry in objects)
    wrong: dict[str, list[str]] = {}
    found = []
    for place, entry in entries:
        if not isinstance(entry, dict):
            wrong.setdefault("are no JSON object", []).append(place)
        elif has_ids and not _uid_of(entry):
            wrong.setdefault(_id_fault(entry), []).append(place)
        elif field not in entry:
            wrong.setdefault(f"have no {named}", []).append(place)
        elif not isinstance(entry[field], str | None):
            wrong.setdefault("hold SQL that is neither text nor null", []).append(place)
        else:
            found.append(Prediction(_uid_of(entry), _sql(entry[field]), id_text(entry.get("db_id")), place))
    told = [f"{len(places)} of {len(entries)} {what} ({cases(places)})" for what, places in wrong.items()]
    if fields and any(field not in entry for _, entry in objects):
        told.append(f"--field NAME says where SQL stands, of the fields {shown_fields(fields)}")
    rivals = {} if chosen or not field else _rivals(objects, field, fields)
    for rival, places in rivals.items():
        told.append(
            f"{len(places)} of {len(entries)} hold one thing in {field} and another in {rival} ({cases(places)}): "
            f"--field NAME says which is the prediction, of the fields {shown_fields(fields)}"
        )
    if told and has_ids and all(is_blank(value) for _, entry in objects for value in id_values(entry)):
        names = shown_fields([name for name in fields if name.lower() in ID_KEYS])
        told.append(f"remove {names}, which is empty everywhere, to pair entry by entry")
    if told:
        raise InputError(f"{path}: {'; '.join(told)}")
    if not has_ids:
        _refuse_other_order(path, objects, fields)
    form += " with ids" if has_ids else " without ids"
    return Predictions(path, form, tuple(found), has_ids=has_ids, field=field, fields=fields)


def _refuse_other_order(path: Path, entries: Sequence[Entry], fields: Sequence[str]) -> None:
    """Refuse entries without ids whose index does not count them: it may hold their ids, or another order."""
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
        is_sql = 2 * sum(is_query(text) for _, text, _ in texts) >= len(texts)
        other = [place for place, text, mine in texts if not same_sql(text, mine if isinstance(mine, str) else "")]
        if other and (is_sql or (name in _VAGUE_KEYS and field in _SQL_ITSELF)):
            found[name] = other
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _uid_of(entry: Mapping[str, Any]) -> str:
    return next(filter(None, map(id_text, id_values(entry))), "")


def _id_fault(entry: Mapping[str, Any]) -> str:
    is_missing = all(map(is_blank, id_values(entry)))
    return f"have no {' or '.join(ID_KEYS[:3])}" if is_missing else "have an id that is neither text nor a whole number"


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
    """Read a table with commas, semicolons or tabs by its header; return None if the first line is no header.

    It is one if it names an id or SQL. So is a line of nothing but words between commas, which no query is; a line with
    tabs or semicolons may be an answer with its database or its end. A column may be without a name, as pandas' index
    is.
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
    twice = [name for name in dict.fromkeys(names) if name and names.count(name) > 1]
    if twice:
        raise InputError(f"{path}: its header names {cases(twice)} more than once")
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


def _read_tabbed(path: Path, text: str) -> Predictions | None:
    """Read lines of an id, a tab and SQL; None where a line has another form, or no line has SQL behind its tab."""
    rows = [(f"line {i}", line.split("\t")) for i, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not all(len(cells) == 2 and id_text(cells[0]) and not is_query(cells[0]) for _, cells in rows):
        return None
    predictions = tuple(Prediction(id_text(uid), _sql(sql), "", place) for place, (uid, sql) in rows)
    if not any(is_query(prediction.sql or "") for prediction in predictions):
        return None
    return Predictions(path, "lines of an id, a tab and SQL", predictions)


def _read_lines(path: Path, text: str) -> Predictions:
    lines = text.removesuffix("\n").split("\n")
    found = tuple(_bare(line, f"line {number}") for number, line in enumerate(lines, start=1))
    # Spider's line of an empty answer is a tab and a database, which is no SQL.
    empty = [line.count("\t") == 1 and line.startswith("\t") and bool(database_of(line)[1]) for line in lines]
    found = tuple(
        prediction._replace(sql=f"\t{prediction.sql}") if is_empty else prediction
        for prediction, is_empty in zip(found, empty, strict=True)
    )
    if all(one.sql is None for one in found):
        found = ()
    return Predictions(path, _LINES, found, has_ids=False, is_lines=True)


def _read_folder(path: Path) -> Predictions:
    files = sorted(path.glob("*.sql"))
    if not files:
        raise InputError(f"{path}: no <id>.sql in this folder (results as .csv are not judged, only SQL is)")
    found = tuple(Prediction(file.stem, _sql(text_of(file)), "", file.name) for file in files)
    return Predictions(path, "a folder of <id>.sql", found)


def _refuse_repeats(predictions: Predictions) -> None:
    places: dict[str, list[str]] = {}
    for one in predictions.found:
        places.setdefault(one.uid, []).append(one.place)
    twice = [f"{uid} at {' and '.join(at[:2])}" for uid, at in places.items() if len(at) > 1]
    if twice:
        raise InputError(f"{predictions.path}: {len(twice)} ids stand more than once ({cases(twice)})")


def _refuse_other_texts(predictions: Predictions) -> None:
    """Refuse texts that mostly do not begin as SQL, and lines that are parts of queries or begin with a header."""
    texts = [(place, sql) for _, sql, _, place in predictions.found if sql is not None and not sql.startswith("\t")]
    others = [(place, sql) for place, sql in texts if not is_sql(sql)]
    parts = parts_of_queries(texts) if predictions.form == _LINES else []
    fault = ""
    if parts:
        fault = f"{len(parts)} of {len(texts)} lines continue a query ({cases(parts)}): write each query in one line"
    elif 2 * len(others) > len(texts):
        place, sql = others[0]
        count = f"{len(others)} of {len(texts)} texts"
        fault = f"read as {predictions.form}, {count} do not begin as SQL ({place}: {_shown(sql)})"
    elif predictions.form == _LINES and others and others[0] == texts[0] and names_sql(others[0][1]):
        fault = header_advice(*others[0])
    if fault:
        fault += "; write JSON lines or a CSV with id and sql" if predictions.is_lines else ""
        raise InputError(f"{predictions.path}: {fault}; --field {predictions.field} scores these texts as they are")


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…")


def _bare(sql: str, place: str) -> Prediction:
    return Prediction("", _sql(sql), "", place)


def _sql(text: str | None) -> str | None:
    """Return SQL without blanks around it, or None; halves of characters, which JSON can spell, are replaced.

    `null` is how EHRSQL's predictions say that a question has no answer.
    """
    sql = (text or "").encode("utf-8", errors="replace").decode().strip()
    return None if sql.lower() in ("", "null") else sql
