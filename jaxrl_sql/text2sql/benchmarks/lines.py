"""Sets of one record file with databases next to it: SynSQL-2.5M, and a user's JSON, JSON lines, CSV or Parquet.

Training rows that other systems released are read like a user's rows (`released`).

SynSQL (Li et al. 2025) is `data.json`, a list of objects with `db_id`, `question`, `external_knowledge`, `sql`, `cot`
and `sql_complexity`, and `databases/<db_id>/<db_id>.sqlite`. Its 2.5 million records are indexed and read lazily.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import cache, partial
from pathlib import Path

from jaxrl_sql.text2sql.benchmarks.databases import Databases, suites_of
from jaxrl_sql.text2sql.benchmarks.files import Notes, csv_columns, first_record, read_csv, read_records
from jaxrl_sql.text2sql.benchmarks.gather import (
    Format,
    LoadedQuestions,
    PublishedQuestion,
    RecordFile,
    describe_columns,
    join_names,
    missing_split_error,
    text_field,
    text_list,
    uid_or,
    with_ids,
)
from jaxrl_sql.text2sql.benchmarks.record_database import DATABASE_FIELDS, DIALECT_FIELDS, record_database
from jaxrl_sql.text2sql.benchmarks.released import (
    TEXT_FIELDS,
    PromptDatabaseFinder,
    fields_of,
    find_roots,
    flatten_record,
    messages_of,
    script_of,
    source_of,
)
from jaxrl_sql.text2sql.files.index import open_index
from jaxrl_sql.text2sql.files.shares import rank
from jaxrl_sql.text2sql.files.traces import trace_of
from jaxrl_sql.types import InputError, Record

_DATABASES = ("databases", "database", "dev_databases", "train_databases")
_IDS = ("id", "uid", "question_id", "instance_id", "qid")
_QUESTION, _EVIDENCE = TEXT_FIELDS["question"], TEXT_FIELDS["evidence"]
_SQL = ("sql", "SQL", "query", "gold_sql", "goldsql", "gold", "sql_query")
_TRACE = ("response", "completion", "output", "trace", "cot", "goldcot", "answer")
_DIFFICULTY = ("difficulty", "sql_complexity", "complexity", "hardness")
# The columns of a CSV that are read, by all of their names.
_USED = frozenset(
    (*_IDS, *_QUESTION, *_SQL, *_EVIDENCE, *_TRACE, *DATABASE_FIELDS, *DIALECT_FIELDS, *_DIFFICULTY,
     "reasoning", "demonstration")
)  # fmt: skip
_TRIED = {"db_id": DATABASE_FIELDS, "question": _QUESTION, "sql": (*_SQL, *_TRACE)}
_CSV = (".csv", ".tsv")
_ENDINGS = (".jsonl", ".json", *_CSV, ".parquet")
_SHARD = "-00000-of-00001"  # the suffix of a single shard on the hub
_NEAR = 0.5
_USUAL = ("dev", "validation", "test", "train")
# Files in sets' folders that have no questions.
_NOT_QUESTIONS = ("tables", "dev_tables", "train_tables", "verify", "metrics", "config")
# The held-out share of distinct golds in a file without splits.
_HELD_OUT = 0.25
# Larger files are read lazily.
HUGE_BYTES = 256 << 20


def synsql_item(path: Path, record: Record, number: int) -> PublishedQuestion:
    """Return the question of a SynSQL record; its chain of thought is a demonstration if it ends in SQL."""
    uid = uid_or(record, f"synsql_{number}", path, "id")
    return PublishedQuestion(
        uid,
        text_field(record, "db_id"),
        text_field(record, "question"),
        text_field(record, "sql"),
        text_field(record, "external_knowledge"),
        text_field(record, "sql_complexity"),
        more=_trace_fields(text_field(record, "cot")),
        fields=fields_of(record),
    )


def _trace_fields(text: str) -> Record:
    trace = trace_of(text) if text else None
    return {"demonstration": trace.sql, "reasoning": trace.reasoning} if trace else {}


def user_item(folder: Path, stem: str, where: str, record: Record, number: int) -> PublishedQuestion:
    """Return the question of a user's record; without a gold, the SQL of its trace is the gold."""
    fields, messages = fields_of(record), messages_of(record)
    record = flatten_record(record)
    trace = next((text for name in _TRACE if (text := text_field(record, name))), "")
    trace_fields = _trace_fields(trace or _last_message(record))
    if not trace_fields and text_field(record, "reasoning"):
        trace_fields = {"reasoning": text_field(record, "reasoning")}
    if text_field(record, "demonstration"):
        trace_fields["demonstration"] = text_field(record, "demonstration")
    database = record_database(record, folder)
    trace_fields |= {"other_golds": text_list(record, "other_sql"), "messages": messages}
    return PublishedQuestion(
        uid_or(record, f"{stem}_{number}", where, *_IDS),
        database.name,
        text_field(record, *_QUESTION),
        text_field(record, *_SQL) or trace_fields.get("demonstration", ""),
        text_field(record, *_EVIDENCE),
        text_field(record, *_DIFFICULTY),
        database.path,
        error=database.error,
        more=trace_fields,
        fields=fields,
        url=database.url,
        dialect=database.dialect,
    )


def _last_message(record: Record) -> str:
    """Return the last assistant message in a record of chat messages."""
    messages = record.get("messages") or record.get("conversations") or ()
    texts = [
        text_field(message, "content", "value")
        for message in messages
        if isinstance(message, dict) and text_field(message, "role", "from") in ("assistant", "gpt")
    ]
    return texts[-1] if texts else ""


def is_synsql(folder: Path) -> bool:
    """Return whether a folder contains SynSQL: `data.json` or `data.jsonl` with its fields."""
    return _synsql_file(folder) is not None


def _synsql_file(folder: Path) -> Path | None:
    paths = [folder / name for name in ("data.json", "data.jsonl") if (folder / name).is_file()]
    return next((path for path in paths if {"db_id", "question", "sql"} <= first_record(path).keys()), None)


def user_files(folder: Path, split: str = "") -> list[Path]:
    """Return the files of a split of a user's set: `<split>.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet` or shards."""
    if folder.is_file():
        return [folder] if is_question_file(folder) else []
    for name in (split,) if split else _USUAL:
        for parent in (folder, folder / "data"):
            candidates = split_files(parent, name)
            parts = [part for part in candidates if _is_part(part, name)]
            for path in candidates:
                if path not in parts and (
                    _ending(path) in _CSV or _has_questions(path)
                ):  # a CSV without the columns is reported
                    return [path]
            if parts:
                return parts
    if split:
        return []
    with_questions = [file for file in _files(folder) if file.stem not in _NOT_QUESTIONS and _has_questions(file)]
    return with_questions if len(with_questions) == 1 else []


def split_files(folder: Path, split: str) -> list[Path]:
    """Return the files of a folder with the name of a split, including shards."""
    return [file for file in _files(folder) if file.stem in (split, split + _SHARD) or _is_part(file, split)]


def _is_part(path: Path, split: str) -> bool:
    return _ending(path) == ".parquet" and path.stem.startswith(f"{split}-") and path.stem != split + _SHARD


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder that may have questions, in order of their extensions."""
    entries = folder.iterdir() if folder.is_dir() else ()
    paths = [path for path in entries if is_question_file(path) and path.is_file()]
    return sorted(paths, key=lambda path: (_ENDINGS.index(_ending(path)), path.stem))


def is_question_file(path: Path) -> bool:
    """Return whether a name has the extension of a file of questions."""
    return _ending(path) in _ENDINGS


def _ending(path: Path) -> str:
    return path.suffix.lower()


def _has_questions(path: Path) -> bool:
    if _ending(path) == ".parquet":
        return True
    if _ending(path) in _CSV:
        return not _missing_columns(csv_columns(path, _USED))
    return not _lacks_first(flatten_record(first_record(path)))


def _lacks_first(record: Record) -> list[str]:
    sql = text_field(record, *_SQL, *_TRACE) or _last_message(record)
    values = {"question": text_field(record, *_QUESTION), "sql": sql}
    return [name for name, value in values.items() if not value]


def missing_fields(folder: Path, split: str) -> str:
    """Return the fields that the only candidate for a split's JSON file lacks; "" without exactly one candidate."""
    others = [file for file in _files(folder) if file.stem not in _NOT_QUESTIONS]
    candidates = split_files(folder, split) if split else others
    records = [(path.name, first_record(path)) for path in candidates if _ending(path) in (".json", ".jsonl")]
    if len(records) != 1 or not records[0][1] or not (lacks := _lacks_first(flatten_record(records[0][1]))):
        return ""
    name, record = records[0]
    return (
        f"the first record of {name} has no {' and no '.join(lacks)}, but {join_names(fields_of(record), 24)} (names "
        f"tried: {describe_fields(lacks)})"
    )


def read_synsql(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read SynSQL, which has no splits; its records are read lazily."""
    lines = synsql_lines(folder, split)
    return LoadedQuestions(
        _records(lines, notes), lines.databases, f"{lines.path} (databases: {folder / 'databases'})", is_huge=True
    )


def synsql_lines(folder: Path, split: str) -> RecordFile:
    """Return the location of SynSQL's records."""
    path = _synsql_file(folder)
    if path is None or split not in ("", "train"):
        raise missing_split_error(folder, split, ["train"] if path else [])
    return RecordFile(path, partial(synsql_item, path), Databases(folder / name for name in _DATABASES))


def user_lines(folder: Path, split: str) -> RecordFile:
    """Return the location of the records of a user's set, a single JSON file."""
    paths = user_files(folder, split)
    if len(paths) != 1:
        candidates = [path for path in _files(folder) if path.stem not in _NOT_QUESTIONS]
        error = missing_split_error(folder, split, sorted({path.stem for path in candidates}))
        if len(candidates) == 1 and split:
            raise InputError(f"{error}; name {candidates[0]} as the data, and a part of it is held out from train")
        raise error
    home, stem = _databases_folder(folder), paths[0].stem
    item, databases = user_items(home, stem, str(paths[0]))
    return RecordFile(paths[0], item, databases)


def _databases_folder(folder: Path) -> Path:
    """Return the folder that contains a set's databases: the file's folder, or the parent of its `data` folder."""
    home = folder.parent if folder.is_file() else folder
    return home.parent if folder.is_file() and home.name == "data" else home


def user_items(home: Path, stem: str, where: str) -> tuple[Callable[[Record, int], PublishedQuestion], Databases]:
    """Return a converter of a user's records to questions, and the databases; released rows select them by source."""
    roots = [*(home / name for name in _DATABASES), home]
    only, several = _only_database(roots)

    @cache
    def of_source(source: str) -> tuple[Databases, PromptDatabaseFinder]:
        roots_of_source = [*find_roots(home, source), *(roots if not source else roots[:-1])]
        return Databases(roots_of_source), PromptDatabaseFinder([root for root in roots_of_source if root.is_dir()])

    def item(record: Record, number: int) -> PublishedQuestion:
        question = user_item(home, stem, where, record, number)
        source = source_of(record, stem) if record.keys() & {"prompt", "input_seq"} else ""
        if "sql_context" in record and not databases.path(question.db_id):
            error = "its database is a script: run jaxrl-sql data prepare to create it"
            return question._replace(error=error, script=script_of(record))
        if question.url or question.error or question.db_path or (question.db_id and not source):
            return question
        named, shown = of_source(source)
        path = named.path(question.db_id) if question.db_id else ""
        if not path and "input_seq" in record:
            path = shown.find(str(record["input_seq"]))
            return question._replace(
                db_path=path, error="" if path else "no unique database has the schema in its prompt"
            )
        if path or question.db_id:
            return question._replace(db_path=path)
        return question._replace(db_path=only, error=several, is_unnamed=True)

    databases = Databases([*roots, *find_roots(home)], suites_of(home))
    return item, databases


def _only_database(roots: Sequence[Path]) -> tuple[str, str]:
    """Return (database, error) of a set whose questions need not name its only database."""
    patterns = [f"{depth}*.{ending}" for depth in ("", "*/") for ending in ("sqlite", "db", "sqlite3")]
    paths = {path for root in roots if root.is_dir() for pattern in patterns for path in root.glob(pattern)}
    if len(paths) > 1:
        names = join_names(sorted(str(path.relative_to(roots[-1])) for path in paths), 4)
        return (
            "",
            f"no db_id, and {len(paths)} databases are there, {names}: name one in db_path, or move the others away",
        )
    return str(paths.pop()) if paths else "", ""


def _csv_records(path: Path, notes: Notes, places: list[str]) -> list[Record]:
    """Read a CSV of questions; raises InputError with its columns and the nearest names if columns are missing."""
    records = read_csv(path, notes, _USED, places)
    columns = [*records[0]]
    if lacks := _missing_columns(columns):
        field_names = dict.fromkeys((*_QUESTION, *(name.lower() for name in _SQL)))
        near = ((column, get_close_matches(column, field_names, 1, _NEAR)) for column in columns)
        alike = ", ".join(f"{names[0]} for {column}" for column, names in near if names and names[0] != column)
        raise InputError(
            f"{path}: no column {' and no column '.join(lacks)}; its columns are {join_names(columns, 24)}"
            f"{f' (did you mean {alike}?)' if alike else ''}; names tried: {describe_fields(lacks)}"
        )
    return records


def describe_fields(fields: Iterable[str]) -> str:
    """Return the names that are read for some fields of a user's file, for a message."""
    return describe_columns({field: _TRIED[field] for field in fields})


def _missing_columns(columns: Sequence[str]) -> list[str]:
    """Return the missing columns of a CSV by their usual names."""
    names = {"question": _QUESTION, "sql": (*_SQL, *_TRACE)}
    return [usual for usual, others in names.items() if not {*columns} & {*others}]


def _records(lines: RecordFile, notes: Notes) -> Iterator[PublishedQuestion]:
    places: list[str] = []
    if _ending(lines.path) in _CSV:
        records: Iterable[Record] = _csv_records(lines.path, notes, places)
    elif lines.path.stat().st_size <= HUGE_BYTES:
        records = read_records(lines.path, notes, places)
    else:
        records = open_index(lines.path)
    for number, record in enumerate(records):
        item = lines.item(record, number)
        yield item._replace(line=places[number]) if places else item


def read_own(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a user's set; a single file is split into train and held-out questions, with a note."""
    paths = user_files(folder, split)
    is_made = folder.is_file() and split != ""
    if not paths or _ending(paths[0]) != ".parquet":
        lines = user_lines(folder, split)
        is_huge = lines.path.stat().st_size > HUGE_BYTES
        if is_made and is_huge:
            raise InputError(f"{folder}: too large to split: pass a folder with train and dev files")
        items: Iterable[PublishedQuestion] = _records(lines, notes)
        loaded = LoadedQuestions(items, lines.databases, str(lines.path), is_huge=is_huge, tried=_TRIED)
    else:
        where = ", ".join(map(str, paths))
        item, databases = user_items(_databases_folder(folder), paths[0].stem.partition("-00000")[0], where)
        places: list[str] = []
        records = read_parquet(paths, places)
        items = [
            item(record, number)._replace(line=position)
            for number, (record, position) in enumerate(zip(records, places, strict=True))
        ]
        loaded = LoadedQuestions(items, databases, where, tried=_TRIED)
    return loaded._replace(items=_split_questions(with_ids(items), split, folder, notes)) if is_made else loaded


def _split_questions(
    items: Sequence[PublishedQuestion], split: str, path: Path, notes: Notes
) -> list[PublishedQuestion]:
    """Return the `train` questions of a file without splits, or for any other split the held-out questions.

    The side depends on the gold alone, so questions with the same gold are on the same side. Adding questions moves
    few others.
    """
    golds = [" ".join(item.sql.lower().split()) for item in items]
    order = sorted(set(golds), key=lambda sql: rank(sql, "split"))
    held_out = {*order[: max(1, round(_HELD_OUT * len(order)))]}
    chosen = [item for item, gold in zip(items, golds, strict=True) if (gold in held_out) != (split == "train")]
    if items and not chosen:
        raise InputError(
            f"{path}: no training questions remain: its questions ({len(items)}) have one gold, which is held out; add "
            "others, or pass a folder with train and dev files"
        )
    notes.append(
        f"using {len(chosen)} of the {len(items)} questions of {path.name}, which has no splits: questions of "
        f"{_HELD_OUT:.0%} of its golds are held out from train"
    )
    return chosen


def read_parquet(paths: Sequence[Path], places: list[str]) -> list[Record]:
    """Read the rows of Parquet files, and append the place of each to `places`.

    Raises InputError without pyarrow and for an invalid file.
    """
    try:
        from pyarrow import ArrowInvalid, parquet  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise InputError(f"{paths[0]}: Parquet requires pyarrow: pip install 'jaxrl-sql[parquet]'") from error
    rows: list[Record] = []
    for path in paths:
        try:
            new = parquet.read_table(path).to_pylist()
        except (ArrowInvalid, OSError) as error:
            raise InputError(f"{path}: not a Parquet file ({str(error).splitlines()[0]})") from error
        rows += new
        places += [f"{path}: row {number}" for number in range(1, len(new) + 1)]
    return rows


SYNSQL = Format(
    "synsql",
    "bird",
    "jsonl",
    "data.json or data.jsonl with db_id, question and sql; databases/<db_id>/<db_id>.sqlite",
    is_synsql,
    read_synsql,
)
OWN = Format(
    "own",
    "bird",
    "jsonl",
    "<split>.jsonl, .json, .csv, .tsv or .parquet with question, sql, and db_id (databases/) or db_path",
    lambda folder: bool(user_files(folder)),
    read_own,
)
