"""Convert training rows that other text-to-SQL systems published ("released rows") to the fields of a user's set.

- verl and SkyRL: `prompt` is a chat. The gold is `reward_model.ground_truth` or `reward_spec.ground_truth`, either SQL
  or an object with `sql` and `db_id`. `data` or `data_source` is the source of the database (SkyRL-SQL-653, SQL-R1).
- PaVeRL-SQL: the same, but the gold is a path to a CSV file. SQL, question and database are `goldsql`, `question` and
  `dbname` in `extra_info`.
- OmniSQL: only `input_seq`, the prompt, and `output_seq`, the answer with its reasoning. The row names no database; it
  is the one with the tables and columns of the CREATE TABLE statements in the prompt.
- Gretel: `sql_prompt`, `sql` and `sql_context`, the script that creates the database.

`messages_of` returns the prompt of a row unchanged, which the setting `data.prompt=given` trains on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from jaxrl_sql.text2sql.env.files import is_blank
from jaxrl_sql.text2sql.files.jsonl import from_json
from jaxrl_sql.text2sql.files.traces import trace_of
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import InputError, Json, Record

TEXT_FIELDS = {
    "question": ("question", "nl_question", "utterance", "nl"),
    "evidence": ("evidence", "external_knowledge", "hint", "knowledge"),
}
"""The field names of the question and its evidence in rows and files."""

# The folders of each source's databases in OmniSQL's archive, which the other systems use, too. A source is the set
# that a row's database comes from.
_ROOTS = {
    "synsql": ("SynSQL-2.5M/databases",),
    "spider": ("spider/database", "spider/test_database"),
    "bird": ("bird/train/train_databases", "bird/dev_20240627/dev_databases"),
    "ehrsql": ("EHRSQL/database",),
    "sciencebenchmark": ("sciencebenchmark/databases",),
}
# SkyRL's prompts mark the evidence and the question; the headings below are OmniSQL's.
_MARKED_EVIDENCE = re.compile(r"\{external_knowledge\}:(?P<evidence>.*?);?\s*\{question\}:(?P<question>.*)", re.DOTALL)
_MARKED_QUESTION = re.compile(r"\{question\}:(?P<question>.*)", re.DOTALL)
# An empty section is followed by a blank line, or by the next heading.
_SECTION = r"^{}:[ \t]*\n?(?!\s*\n|[A-Z][A-Za-z ]+:[ \t]*$)(.+?)(?=\n[ \t]*\n|^[A-Z][A-Za-z ]+:[ \t]*$|\Z)"
_QUESTION, _EVIDENCE = (
    re.compile(_SECTION.format(name), re.DOTALL | re.MULTILINE) for name in ("Question", "External Knowledge")
)
# PaVeRL-SQL's heading, above the question.
_CONTEXT = re.compile(r"^Context:[ \t]*\n(.+?)\n\s*^Question:", re.DOTALL | re.MULTILINE)
# A gold that is the path of a file with the result instead of SQL.
_RESULT_FILE = re.compile(r"\S+\.(csv|tsv|json|parquet|pkl)")
# A CREATE TABLE statement, a column's line in it, and words that begin other lines.
_TABLE = re.compile(r"CREATE TABLE\s+(.+?)\s*\(\n(.*?)\n\)", re.DOTALL | re.IGNORECASE)
_COLUMN = re.compile(r"""^\s*(?:"([^"]+)"|`([^`]+)`|\[([^\]]+)\]|(\w+))\s+\S""")
# SQL-R1's prompt is one message with the text of a whole chat.
_MESSAGE_IN_TEXT = re.compile(r"<\|im_start\|>(system|user|assistant)\n(.*?)(?:<\|im_end\|>\n?|\Z)", re.DOTALL)
_ROLES = ("system", "user", "assistant")
_CONSTRAINT_KEYWORDS = ("primary", "foreign", "constraint", "unique", "check")


def flatten_record(record: Record) -> Record:
    """Return a released row with question, evidence, SQL and database as top-level fields; other records unchanged."""
    if not record.keys() & {"reward_spec", "reward_model", "input_seq", "sql_context"}:
        return record
    fields: Record = {"id": record.get("id")}
    prompt_texts: dict[str, str] = {}
    if "sql_context" in record:
        fields |= {"question": record.get("sql_prompt"), "db_id": f"gretel_{record.get('id', '')}"}
    elif "input_seq" in record:
        question = question_texts(str(record["input_seq"])).get("question", "")
        # External knowledge is in the line before the question, without a heading.
        evidence, _, question = question.rpartition("\n")
        prompt_texts = {"question": question, "evidence": evidence}
        fields |= _output_fields(str(record.get("output_seq", "")))
    else:
        fields |= _reward_fields(record)
        prompt_texts = question_texts(_prompt(record.get("prompt")))
    # The texts of the prompt only replace missing fields. An empty evidence field is not missing: it means no evidence.
    items = (*fields.items(), *record.items())
    evidence_names = {name for name, value in items if name in TEXT_FIELDS["evidence"] and value is not None}
    names = {name for name, value in items if not is_blank(value)} | evidence_names
    fields |= {name: text for name, text in prompt_texts.items() if not names & {*TEXT_FIELDS[name]}}
    present = {name: value for name, value in record.items() if not is_blank(value)}
    return {**{name: value for name, value in fields.items() if value}, **present}


def fields_of(record: Record) -> tuple[str, ...]:
    """Return the names of a record's fields, with nested ones as `outer.inner`."""
    return tuple(
        name
        for outer, value in record.items()
        for name in ([f"{outer}.{inner}" for inner in value] if isinstance(value, dict) and value else [outer])
    )


def script_of(record: Record) -> str:
    """Return the script that creates a row's database: its context and its `inserts`, if any."""
    inserts = record.get("inserts") or ()
    return ";\n".join(
        [str(record["sql_context"]).rstrip().rstrip(";"), *([inserts] if isinstance(inserts, str) else inserts)]
    )


def _output_fields(text: str) -> Record:
    """Return the fields of OmniSQL's answer: its SQL, and the whole answer as `cot`; a bare answer is the SQL."""
    trace = trace_of(text)
    return {"sql": trace.sql, "cot": text} if trace else {"sql": text}


def _reward_fields(record: Record) -> Record:
    """Return the fields of a row of verl or SkyRL: the gold of its reward, and the texts in `extra_info`.

    PaVeRL-SQL's gold is a path; its SQL is in `extra_info`.
    """
    fields: Record = {}
    extra = record.get("extra_info")
    if isinstance(extra, dict):
        fields |= {name: value for name, value in extra.items() if isinstance(value, str)}
    for name in ("reward_spec", "reward_model"):
        gold = record[name].get("ground_truth") if isinstance(record.get(name), dict) else None
        if isinstance(gold, str) and gold.lstrip().startswith("{"):
            with suppress(ValueError):  # invalid JSON is a gold that fails
                gold = from_json(gold)
        if isinstance(gold, dict) and isinstance(gold.get("ground_truth"), dict):
            gold = gold["ground_truth"]
        if isinstance(gold, dict):
            fields |= {key: value for key, value in gold.items() if isinstance(value, str)}
        elif isinstance(gold, str) and not _RESULT_FILE.fullmatch(gold):
            fields["sql"] = gold
    return fields


def _prompt(value: Json) -> str:
    """Return the text of a prompt: the user's messages of a chat, or the text itself."""
    if isinstance(value, str):
        return value
    dicts = [message for message in value or () if isinstance(message, dict)]
    messages = [message for message in dicts if isinstance(message.get("content"), str)]
    users = [message["content"] for message in messages if message.get("role") == "user"]
    return "\n\n".join(users or [message["content"] for message in messages])


def messages_of(record: Record) -> tuple[tuple[str, str], ...]:
    """Return the prompt of a released row as (role, text) pairs, unchanged; empty for a row without a prompt.

    The roles are `user`, optionally `system` before it, and optionally `assistant` after it: the begun answer. A single
    message with the text of a whole chat is split into its messages.
    """
    value = record.get("prompt") or record.get("input_seq")
    is_released = bool(record.keys() & {"reward_spec", "reward_model", "input_seq"})
    if isinstance(value, str):
        value = [{"role": "user", "content": value}] if is_released else []
    messages = [message for message in value or () if isinstance(message, dict)]
    pairs = [(message.get("role"), message.get("content")) for message in messages]
    texts = tuple((role, text) for role, text in pairs if role in _ROLES and isinstance(text, str))
    matches_in_text = [*_MESSAGE_IN_TEXT.finditer(texts[0][1])] if len(texts) == 1 else []
    if matches_in_text and sum(len(match[0]) for match in matches_in_text) == len(texts[0][1]):
        texts = tuple((match[1], match[2]) for match in matches_in_text)
    roles = [role for role, _ in texts]
    is_prompt = roles == [role for role in _ROLES if role in roles] and "user" in roles
    return texts if is_prompt and len(texts) >= len(pairs) else ()


def question_texts(prompt: str) -> dict[str, str]:
    """Return the texts `question` and `evidence` of a prompt, as far as it has them.

    They are located by the markers of SkyRL's prompts or the headings of OmniSQL's and PaVeRL-SQL's.
    """
    if marked := _MARKED_EVIDENCE.search(prompt) or _MARKED_QUESTION.search(prompt):
        return {name: text.strip() for name, text in marked.groupdict().items()}
    matches = {"question": _QUESTION.search(prompt), "evidence": _EVIDENCE.search(prompt) or _CONTEXT.search(prompt)}
    return {name: match[1].strip() for name, match in matches.items() if match and match[1].strip() != "None"}


def source_of(record: Record, stem: str) -> str:
    """Return the source of a row's database, such as `bird`, from the row or the stem of its file; "" if unknown."""
    names = [*(str(record.get(name, "")).lower() for name in ("data", "data_source", "source")), stem.lower()]
    return next((name for source_name in names for name in _ROOTS if name in source_name), "")


def find_roots(home: Path, source: str = "") -> list[Path]:
    """Return the folders of a source's databases ("": of all sources) in OmniSQL's archive.

    The archive is unpacked in or next to the set's folder `home`.
    """
    names = _ROOTS.get(source, ()) if source else [name for roots in _ROOTS.values() for name in roots]
    parents = (home, home / "data", home / "db_files" / "data", home.parent)
    return [parent / name for name in names for parent in parents if (parent / name).is_dir()]


def read_prompt_tables(prompt: str) -> dict[str, frozenset[str]]:
    """Return the columns of each table in a prompt's CREATE TABLE statements, in lower case."""
    tables = {}
    for name, body in _TABLE.findall(prompt):
        columns = (_COLUMN.match(line) for line in body.split("\n"))
        names = (next(group for group in column.groups() if group).lower() for column in columns if column)
        tables[name.strip().strip('"`[]').lower()] = frozenset(
            column for column in names if column not in _CONSTRAINT_KEYWORDS
        )
    return tables


class PromptDatabaseFinder:
    """Find the database of a prompt's CREATE TABLE statements in some folders, by tables and columns."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self._columns = cache(self._read)

    def find(self, prompt: str) -> str:
        """Return the file of the smallest database with all tables and columns of the prompt, "" unless unique."""
        prompt_tables = read_prompt_tables(prompt)
        tables_by_path = self._columns()
        fitting = [
            (sum(map(len, tables.values())), path)
            for path, tables in tables_by_path.items()
            if prompt_tables
            and all(columns <= tables.get(name, frozenset()) for name, columns in prompt_tables.items())
        ]
        if not fitting:
            return ""
        least = min(size for size, _ in fitting)
        paths = [path for size, path in fitting if size == least]
        # The same database may be in several folders.
        return paths[0] if len({Path(path).stem for path in paths}) == 1 else ""

    def _read(self) -> Mapping[str, dict[str, frozenset[str]]]:
        """Return the columns by table of each database file in the folders."""
        return {str(path): tables for path in _files(self.roots) if (tables := _tables(path)) is not None}


def _files(roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        yield from sorted([*root.glob("*.sqlite"), *root.glob("*/*.sqlite")])


def _tables(path: Path) -> dict[str, frozenset[str]] | None:
    """Return the columns of each table of a database, in lower case; None if it cannot be read."""
    try:
        schema = read_schema(str(path))
    except InputError:
        return None
    return {table.name.lower(): frozenset(column.name.lower() for column in table.columns) for table in schema.tables}
