"""Sets of one record file with databases next to it: SynSQL-2.5M, and a user's JSON, JSON lines, CSV or Parquet.

Training rows that other systems published, such as SkyRL-SQL's, are read like a user's rows (module `released`). A
trace is a teacher's or model's answer: its reasoning (chain of thought), then SQL. A demonstration is SQL that
supervised training learns in place of the gold.

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
    id_or_default,
    join_names,
    mark_empty_ids,
    missing_split_error,
    text_field,
    text_list,
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

# Names of folders with databases, in order of search; then the accepted names of each field.
_DATABASES = ("databases", "database", "dev_databases", "train_databases")
_ID_FIELDS = ("id", "uid", "question_id", "instance_id", "qid")
_QUESTION_FIELDS, _EVIDENCE_FIELDS = TEXT_FIELDS["question"], TEXT_FIELDS["evidence"]
_SQL_FIELDS = ("sql", "SQL", "query", "gold_sql", "goldsql", "gold", "sql_query")
_TRACE_FIELDS = ("response", "completion", "output", "trace", "cot", "goldcot", "answer")
_DIFFICULTY_FIELDS = ("difficulty", "sql_complexity", "complexity", "hardness")
# The names of all columns of a CSV that are read.
_USED_COLUMNS = frozenset(
    (*_ID_FIELDS, *_QUESTION_FIELDS, *_SQL_FIELDS, *_EVIDENCE_FIELDS, *_TRACE_FIELDS, *DATABASE_FIELDS,
     *DIALECT_FIELDS, *_DIFFICULTY_FIELDS, "reasoning", "demonstration")
)  # fmt: skip
# The names that are tried for each required field, for messages.
_TRIED_COLUMNS = {"db_id": DATABASE_FIELDS, "question": _QUESTION_FIELDS, "sql": (*_SQL_FIELDS, *_TRACE_FIELDS)}
_CSV_EXTENSIONS = (".csv", ".tsv")
_EXTENSIONS = (".jsonl", ".json", *_CSV_EXTENSIONS, ".parquet")
_SINGLE_SHARD = "-00000-of-00001"  # the suffix of a file on the Hugging Face hub that is the only shard of a split
# The minimum similarity (`difflib`) of a column's name and a known name that is suggested for it.
_MIN_SIMILARITY = 0.5
# Without a requested split, the first of these that exists is read.
_DEFAULT_SPLITS = ("dev", "validation", "test", "train")
# Files in sets' folders that have no questions.
_NOT_QUESTIONS = ("tables", "dev_tables", "train_tables", "verify", "metrics", "config")
# The held-out share of distinct golds in a file without splits.
_HELD_OUT = 0.25
# Larger files are read lazily.
HUGE_BYTES = 256 << 20


def synsql_item(path: Path, record: Record, number: int) -> PublishedQuestion:
    """Return the question of a SynSQL record; its chain of thought is a demonstration if it ends in SQL."""
    uid = id_or_default(record, f"synsql_{number}", path, "id")
    return PublishedQuestion(
        uid=uid,
        db_id=text_field(record, "db_id"),
        question=text_field(record, "question"),
        sql=text_field(record, "sql"),
        evidence=text_field(record, "external_knowledge"),
        difficulty=text_field(record, "sql_complexity"),
        more=_fields_of_trace(text_field(record, "cot")),
        fields=fields_of(record),
    )


def _fields_of_trace(text: str) -> Record:
    """Return the fields of `Example` for a trace: its SQL is a demonstration; empty if the text contains no SQL."""
    trace = trace_of(text) if text else None
    return {"demonstration": trace.sql, "reasoning": trace.reasoning} if trace else {}


def user_item(folder: Path, stem: str, where: str, record: Record, number: int) -> PublishedQuestion:
    """Return the question of a user's record; without a gold, the SQL of its trace is the gold.

    Database files are relative to `folder`. A record without an id gets `<stem>_<number>`, from the stem of its file's
    name. `where` is the file, for messages.
    """
    fields, messages = fields_of(record), messages_of(record)
    record = flatten_record(record)
    trace = next((text for name in _TRACE_FIELDS if (text := text_field(record, name))), "")
    trace_fields = _fields_of_trace(trace or _last_message(record))
    if not trace_fields and text_field(record, "reasoning"):
        trace_fields = {"reasoning": text_field(record, "reasoning")}
    if text_field(record, "demonstration"):
        trace_fields["demonstration"] = text_field(record, "demonstration")
    database = record_database(record, folder)
    trace_fields |= {"other_golds": text_list(record, "other_sql"), "messages": messages}
    return PublishedQuestion(
        uid=id_or_default(record, f"{stem}_{number}", where, *_ID_FIELDS),
        db_id=database.name,
        question=text_field(record, *_QUESTION_FIELDS),
        sql=text_field(record, *_SQL_FIELDS) or trace_fields.get("demonstration", ""),
        evidence=text_field(record, *_EVIDENCE_FIELDS),
        difficulty=text_field(record, *_DIFFICULTY_FIELDS),
        db_path=database.path,
        error=database.error,
        more=trace_fields,
        fields=fields,
        url=database.url,
        dialect=database.dialect,
    )


def _last_message(record: Record) -> str:
    """Return the last assistant message in a record of chat messages; "" without one."""
    messages = record.get("messages") or record.get("conversations") or ()
    texts = [
        text_field(message, "content", "value")
        for message in messages
        if isinstance(message, dict) and text_field(message, "role", "from") in ("assistant", "gpt")
    ]
    return texts[-1] if texts else ""


def is_synsql(folder: Path) -> bool:
    """Return whether a folder contains SynSQL: `data.json` or `data.jsonl` with `db_id`, `question` and `sql`."""
    return _synsql_file(folder) is not None


def _synsql_file(folder: Path) -> Path | None:
    paths = [folder / name for name in ("data.json", "data.jsonl") if (folder / name).is_file()]
    return next((path for path in paths if {"db_id", "question", "sql"} <= first_record(path).keys()), None)


def user_files(folder: Path, split: str = "") -> list[Path]:
    """Return the files of a split of a user's set: `<split>.jsonl`, `.json`, `.csv`, `.tsv`, `.parquet` or shards.

    Without a split, these are the files of the first default split that exists. A file in place of a folder is a set by
    itself. Empty if there is no file, or several without a known split.
    """
    if folder.is_file():
        return [folder] if is_question_file(folder) else []
    for name in (split,) if split else _DEFAULT_SPLITS:
        for parent in (folder, folder / "data"):
            candidates = split_files(parent, name)
            parts = [part for part in candidates if _is_part(part, name)]
            for path in candidates:
                if path not in parts and (
                    _extension(path) in _CSV_EXTENSIONS or _has_questions(path)
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
    return [file for file in _files(folder) if file.stem in (split, split + _SINGLE_SHARD) or _is_part(file, split)]


def _is_part(path: Path, split: str) -> bool:
    """Return whether a file is one of several Parquet shards of a split, such as `train-00001-of-00004`."""
    return _extension(path) == ".parquet" and path.stem.startswith(f"{split}-") and path.stem != split + _SINGLE_SHARD


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder that may have questions, in order of their extensions."""
    entries = folder.iterdir() if folder.is_dir() else ()
    paths = [path for path in entries if is_question_file(path) and path.is_file()]
    return sorted(paths, key=lambda path: (_EXTENSIONS.index(_extension(path)), path.stem))


def is_question_file(path: Path) -> bool:
    """Return whether a name has the extension of a file of questions."""
    return _extension(path) in _EXTENSIONS


def _extension(path: Path) -> str:
    return path.suffix.lower()


def _has_questions(path: Path) -> bool:
    """Return whether a file has the fields of questions, by its header or first record; Parquet always counts."""
    if _extension(path) == ".parquet":
        return True
    if _extension(path) in _CSV_EXTENSIONS:
        return not _missing_columns(csv_columns(path, _USED_COLUMNS))
    return not _missing_in_record(flatten_record(first_record(path)))


def _missing_in_record(record: Record) -> list[str]:
    """Return which of `question` and `sql` a record lacks under all of their names."""
    sql = text_field(record, *_SQL_FIELDS, *_TRACE_FIELDS) or _last_message(record)
    values = {"question": text_field(record, *_QUESTION_FIELDS), "sql": sql}
    return [name for name, value in values.items() if not value]


def missing_fields(folder: Path, split: str) -> str:
    """Return the fields that the only candidate for a split's JSON file lacks; "" without exactly one candidate."""
    others = [file for file in _files(folder) if file.stem not in _NOT_QUESTIONS]
    candidates = split_files(folder, split) if split else others
    records = [(path.name, first_record(path)) for path in candidates if _extension(path) in (".json", ".jsonl")]
    if len(records) != 1 or not records[0][1] or not (missing := _missing_in_record(flatten_record(records[0][1]))):
        return ""
    name, record = records[0]
    return (
        f"the first record of {name} has no {' and no '.join(missing)}, but {join_names(fields_of(record), 24)} (names "
        f"tried: {describe_fields(missing)})"
    )


def read_synsql(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read SynSQL, which has no splits; its records are read lazily."""
    record_file = locate_synsql_records(folder, split)
    return LoadedQuestions(
        _iter_questions(record_file, notes),
        record_file.databases,
        f"{record_file.path} (databases: {folder / 'databases'})",
        is_huge=True,
    )


def locate_synsql_records(folder: Path, split: str) -> RecordFile:
    """Return the file of SynSQL's records, with its converter and databases; raises InputError without the split."""
    path = _synsql_file(folder)
    if path is None or split not in ("", "train"):
        raise missing_split_error(folder, split, ["train"] if path else [])
    return RecordFile(path, partial(synsql_item, path), Databases(folder / name for name in _DATABASES))


def locate_user_records(folder: Path, split: str) -> RecordFile:
    """Return the file of a user's records, with its converter and databases.

    Raises InputError unless the split is a single file.
    """
    paths = user_files(folder, split)
    if len(paths) != 1:
        candidates = [path for path in _files(folder) if path.stem not in _NOT_QUESTIONS]
        error = missing_split_error(folder, split, sorted({path.stem for path in candidates}))
        if len(candidates) == 1 and split:
            raise InputError(f"{error}; name {candidates[0]} as the data, and a part of it is held out from train")
        raise error
    home, stem = _databases_folder(folder), paths[0].stem
    convert, databases = make_converter(home, stem, str(paths[0]))
    return RecordFile(paths[0], convert, databases)


def _databases_folder(folder: Path) -> Path:
    """Return the folder in which a set's databases are searched.

    It is the set's folder. For a single file it is the file's folder, or the parent of that folder if it is `data`.
    """
    home = folder.parent if folder.is_file() else folder
    return home.parent if folder.is_file() and home.name == "data" else home


def make_converter(home: Path, stem: str, where: str) -> tuple[Callable[[Record, int], PublishedQuestion], Databases]:
    """Return a function that converts a user's record and its number to a question, and the databases.

    `home` is the folder of the databases, `stem` that of the file's name, and `where` the file for messages. The row of
    another system names the source of its database, such as BIRD; the folders of that source are searched first. A row
    of OmniSQL names no database: it is located by the schema in its prompt.
    """
    roots = [*(home / name for name in _DATABASES), home]
    only_database, not_unique_error = _only_database(roots)

    @cache
    def databases_of(source: str) -> tuple[Databases, PromptDatabaseFinder]:
        roots_of_source = [*find_roots(home, source), *(roots if not source else roots[:-1])]
        return Databases(roots_of_source), PromptDatabaseFinder([root for root in roots_of_source if root.is_dir()])

    def convert(record: Record, number: int) -> PublishedQuestion:
        question = user_item(home, stem, where, record, number)
        source = source_of(record, stem) if record.keys() & {"prompt", "input_seq"} else ""
        if "sql_context" in record and not databases.path(question.db_id):
            error = "its database is a script: run jaxrl-sql data prepare to create it"
            return question._replace(error=error, script=script_of(record))
        if question.url or question.error or question.db_path or (question.db_id and not source):
            return question
        source_databases, finder = databases_of(source)
        path = source_databases.path(question.db_id) if question.db_id else ""
        if not path and "input_seq" in record:  # a row of OmniSQL
            path = finder.find(str(record["input_seq"]))
            return question._replace(
                db_path=path, error="" if path else "no unique database has the schema in its prompt"
            )
        if path or question.db_id:
            return question._replace(db_path=path)
        return question._replace(db_path=only_database, error=not_unique_error, is_unnamed=True)

    databases = Databases([*roots, *find_roots(home)], suites_of(home))
    return convert, databases


def _only_database(roots: Sequence[Path]) -> tuple[str, str]:
    """Return the only database file in some folders ("" without one), and an error if there are several.

    It is the database of questions that name none.
    """
    patterns = [f"{depth}*.{ending}" for depth in ("", "*/") for ending in ("sqlite", "db", "sqlite3")]
    paths = {path for root in roots if root.is_dir() for pattern in patterns for path in root.glob(pattern)}
    if len(paths) > 1:
        names = join_names(sorted(str(path.relative_to(roots[-1])) for path in paths), 4)
        return (
            "",
            f"no db_id, and {len(paths)} databases are there, {names}: name one in db_path, or move the others away",
        )
    return str(paths.pop()) if paths else "", ""


def _csv_records(path: Path, notes: Notes, question_positions: list[str]) -> list[Record]:
    """Read a CSV of questions; raises InputError with its columns and the nearest names if columns are missing."""
    records = read_csv(path, notes, _USED_COLUMNS, question_positions)
    columns = [*records[0]]
    if missing := _missing_columns(columns):
        field_names = dict.fromkeys((*_QUESTION_FIELDS, *(name.lower() for name in _SQL_FIELDS)))
        near = ((column, get_close_matches(column, field_names, 1, _MIN_SIMILARITY)) for column in columns)
        alike = ", ".join(f"{names[0]} for {column}" for column, names in near if names and names[0] != column)
        raise InputError(
            f"{path}: no column {' and no column '.join(missing)}; its columns are {join_names(columns, 24)}"
            f"{f' (did you mean {alike}?)' if alike else ''}; rename the header to one of the "
            f"names tried: {describe_fields(missing)}"
        )
    return records


def describe_fields(fields: Iterable[str]) -> str:
    """Return the column names that are accepted for some fields of a user's file, as a text for messages."""
    return describe_columns({field: _TRIED_COLUMNS[field] for field in fields})


def _missing_columns(columns: Sequence[str]) -> list[str]:
    """Return which of `question` and `sql` a CSV lacks under all of their names."""
    accepted = {"question": _QUESTION_FIELDS, "sql": (*_SQL_FIELDS, *_TRACE_FIELDS)}
    return [field for field, names in accepted.items() if not {*columns} & {*names}]


def _iter_questions(record_file: RecordFile, notes: Notes) -> Iterator[PublishedQuestion]:
    """Yield the questions of a file in order; a huge JSON file is read lazily, by index."""
    question_positions: list[str] = []
    if _extension(record_file.path) in _CSV_EXTENSIONS:
        records: Iterable[Record] = _csv_records(record_file.path, notes, question_positions)
    elif record_file.path.stat().st_size <= HUGE_BYTES:
        records = read_records(record_file.path, notes, question_positions)
    else:
        records = open_index(record_file.path)
    for number, record in enumerate(records):
        item = record_file.convert(record, number)
        yield item._replace(line=question_positions[number]) if question_positions else item


def read_own(folder: Path, split: str, notes: Notes) -> LoadedQuestions:
    """Read a user's set.

    If a split of a single file is requested, its questions are divided into train and held-out ones, with a note.
    """
    paths = user_files(folder, split)
    is_split_here = folder.is_file() and split != ""
    if not paths or _extension(paths[0]) != ".parquet":
        record_file = locate_user_records(folder, split)
        is_huge = record_file.path.stat().st_size > HUGE_BYTES
        if is_split_here and is_huge:
            raise InputError(f"{folder}: too large to split: pass a folder with train and dev files")
        items: Iterable[PublishedQuestion] = _iter_questions(record_file, notes)
        loaded = LoadedQuestions(
            items, record_file.databases, str(record_file.path), is_huge=is_huge, tried=_TRIED_COLUMNS
        )
    else:
        where = ", ".join(map(str, paths))
        convert, databases = make_converter(_databases_folder(folder), paths[0].stem.partition("-00000")[0], where)
        question_positions: list[str] = []
        records = read_parquet(paths, question_positions)
        items = [
            convert(record, number)._replace(line=position)
            for number, (record, position) in enumerate(zip(records, question_positions, strict=True))
        ]
        loaded = LoadedQuestions(items, databases, where, tried=_TRIED_COLUMNS)
    return (
        loaded._replace(items=_split_questions(mark_empty_ids(items), split, folder, notes))
        if is_split_here
        else loaded
    )


def _split_questions(
    items: Sequence[PublishedQuestion], split: str, path: Path, notes: Notes
) -> list[PublishedQuestion]:
    """Return the `train` questions of a file without splits, or for any other split the held-out questions.

    Distinct golds are sorted by a hash, and the first quarter is held out. So questions with the same gold are in the
    same split, and added questions move few others to another split.
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


def read_parquet(paths: Sequence[Path], question_positions: list[str]) -> list[Record]:
    """Read the rows of Parquet files, and append the position of each (`file: row 1`) to `question_positions`.

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
        question_positions += [f"{path}: row {number}" for number in range(1, len(new) + 1)]
    return rows


SYNSQL = Format(
    name="synsql",
    rule="bird",
    submission="jsonl",
    description="data.json or data.jsonl with db_id, question and sql; databases/<db_id>/<db_id>.sqlite",
    matches=is_synsql,
    read=read_synsql,
)
OWN = Format(
    name="own",
    rule="bird",
    submission="jsonl",
    description="<split>.jsonl, .json, .csv, .tsv or .parquet with question, sql, and db_id (databases/) or db_path",
    matches=lambda folder: bool(user_files(folder)),
    read=read_own,
)
"""The format of a user's own file."""
