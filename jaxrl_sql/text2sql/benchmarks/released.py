"""Training rows as the systems released them, brought to the fields that a set of one's own has.

- verl and SkyRL: `prompt` is a chat, the gold `reward_model.ground_truth` or `reward_spec.ground_truth`, a text of SQL
  or an object of `sql` and `db_id`; `data` or `data_source` says whose database it is (SkyRL-SQL-653, SQL-R1's rows).
- PaVeRL-SQL: the same, where the gold is a CSV file of its authors' machine; SQL, question and database are in
  `extra_info`, as `goldsql`, `question` and `dbname`.
- OmniSQL: `input_seq` and `output_seq` alone; the database is the one whose tables and columns the prompt shows.
- Gretel: `sql_prompt`, `sql` and `sql_context`, the script that makes the database.
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

ASKED = {
    "question": ("question", "nl_question", "utterance", "nl"),
    "evidence": ("evidence", "external_knowledge", "hint", "knowledge"),
}
"""Names of the question and its evidence in rows and files."""

# Where the databases of each source lie in OmniSQL's archive, which the others train on too.
_ROOTS = {
    "synsql": ("SynSQL-2.5M/databases",),
    "spider": ("spider/database", "spider/test_database"),
    "bird": ("bird/train/train_databases", "bird/dev_20240627/dev_databases"),
    "ehrsql": ("EHRSQL/database",),
    "sciencebenchmark": ("sciencebenchmark/databases",),
}
_MARKED = re.compile(r"\{external_knowledge\}:(?P<evidence>.*?);?\s*\{question\}:(?P<question>.*)", re.DOTALL)
_ONLY_QUESTION = re.compile(r"\{question\}:(?P<question>.*)", re.DOTALL)
# An empty section is followed by a blank line, or by the next heading.
_SECTION = r"^{}:[ \t]*\n?(?!\s*\n|[A-Z][A-Za-z ]+:[ \t]*$)(.+?)(?=\n[ \t]*\n|^[A-Z][A-Za-z ]+:[ \t]*$|\Z)"
_QUESTION, _EVIDENCE = (
    re.compile(_SECTION.format(name), re.DOTALL | re.MULTILINE) for name in ("Question", "External Knowledge")
)
# PaVeRL-SQL's heading, above the question.
_CONTEXT = re.compile(r"^Context:[ \t]*\n(.+?)\n\s*^Question:", re.DOTALL | re.MULTILINE)
_RESULT_FILE = re.compile(r"\S+\.(csv|tsv|json|parquet|pkl)")
_TABLE = re.compile(r"CREATE TABLE\s+(.+?)\s*\(\n(.*?)\n\)", re.DOTALL | re.IGNORECASE)
_COLUMN = re.compile(r"""^\s*(?:"([^"]+)"|`([^`]+)`|\[([^\]]+)\]|(\w+))\s+\S""")
_NO_COLUMN = ("primary", "foreign", "constraint", "unique", "check")


def flattened(record: Record) -> Record:
    """Return a record with what it says of question, evidence, SQL and database at its top; others as they are."""
    if not record.keys() & {"reward_spec", "reward_model", "input_seq", "sql_context"}:
        return record
    found: Record = {"id": record.get("id")}
    searched: dict[str, str] = {}
    if "sql_context" in record:
        found |= {"question": record.get("sql_prompt"), "db_id": f"gretel_{record.get('id', '')}"}
    elif "input_seq" in record:
        question = asked_in(str(record["input_seq"])).get("question", "")
        # External knowledge stands in the line before the question, without a heading.
        evidence, _, question = question.rpartition("\n")
        searched = {"question": question, "evidence": evidence}
        found |= _output(str(record.get("output_seq", "")))
    else:
        found |= _rewarded(record)
        searched = asked_in(_prompt(record.get("prompt")))
    # Empty evidence means that there is none, and is not searched for in the prompt; an empty question is.
    fields = (*found.items(), *record.items())
    names = {name for name, value in fields if not is_blank(value) or (name in ASKED["evidence"] and value is not None)}
    found |= {name: text for name, text in searched.items() if not names & {*ASKED[name]}}
    given = {name: value for name, value in record.items() if not is_blank(value)}
    return {**{name: value for name, value in found.items() if value}, **given}


def fields_of(record: Record) -> tuple[str, ...]:
    """Return the names of a record's fields, and of those inside them."""
    return tuple(
        name
        for outer, value in record.items()
        for name in ([f"{outer}.{inner}" for inner in value] if isinstance(value, dict) and value else [outer])
    )


def script_of(record: Record) -> str:
    """Return what makes a row's database: its context, and the rows that were written for it (`inserts`), if any."""
    inserts = record.get("inserts") or ()
    return ";\n".join(
        [str(record["sql_context"]).rstrip().rstrip(";"), *([inserts] if isinstance(inserts, str) else inserts)]
    )


def _output(text: str) -> Record:
    trace = trace_of(text)
    return {"sql": trace.sql, "cot": text} if trace else {"sql": text}


def _rewarded(record: Record) -> Record:
    """Read a row of verl's or SkyRL's: the gold with its reward, and the texts in `extra_info`.

    PaVeRL-SQL's gold is a path: its SQL is in `extra_info`.
    """
    found: Record = {}
    extra = record.get("extra_info")
    found |= {name: value for name, value in extra.items() if isinstance(value, str)} if isinstance(extra, dict) else {}
    for name in ("reward_spec", "reward_model"):
        truth = record[name].get("ground_truth") if isinstance(record.get(name), dict) else None
        if isinstance(truth, str) and truth.lstrip().startswith("{"):
            with suppress(ValueError):  # what only looks like JSON is a gold that does not run
                truth = from_json(truth)
        if isinstance(truth, dict) and isinstance(truth.get("ground_truth"), dict):
            truth = truth["ground_truth"]
        if isinstance(truth, dict):
            found |= {key: value for key, value in truth.items() if isinstance(value, str)}
        elif isinstance(truth, str) and not _RESULT_FILE.fullmatch(truth):
            found["sql"] = truth
    return found


def _prompt(value: Json) -> str:
    """Return the text of a prompt: what the user says in a chat, or the text itself."""
    if isinstance(value, str):
        return value
    said = [one for one in value or () if isinstance(one, dict) and isinstance(one.get("content"), str)]
    users = [one["content"] for one in said if one.get("role") == "user"]
    return "\n\n".join(users or [one["content"] for one in said])


def asked_in(prompt: str) -> dict[str, str]:
    """Return the question and evidence of a prompt: marked as in SkyRL's rows, or below headings as in OmniSQL's."""
    if marked := _MARKED.search(prompt) or _ONLY_QUESTION.search(prompt):
        return {name: text.strip() for name, text in marked.groupdict().items()}
    found = {"question": _QUESTION.search(prompt), "evidence": _EVIDENCE.search(prompt) or _CONTEXT.search(prompt)}
    return {name: match[1].strip() for name, match in found.items() if match and match[1].strip() != "None"}


def source_of(record: Record, stem: str) -> str:
    """Return whose databases a row is on, by its own word or by its file's name; "" where neither says."""
    words = [*(str(record.get(name, "")).lower() for name in ("data", "data_source", "source")), stem.lower()]
    return next((name for word in words for name in _ROOTS if name in word), "")


def released_roots(home: Path, source: str = "") -> list[Path]:
    """Return the folders of a source's databases in OmniSQL's archive, unpacked in a set's folder or around it."""
    names = _ROOTS.get(source, ()) if source else [name for every in _ROOTS.values() for name in every]
    places = (home, home / "data", home / "db_files" / "data", home.parent)
    return [place / name for name in names for place in places if (place / name).is_dir()]


def shown_tables(prompt: str) -> dict[str, frozenset[str]]:
    """Return the columns of each table that a prompt shows as DDL, all in lower case."""
    found = {}
    for name, body in _TABLE.findall(prompt):
        columns = (_COLUMN.match(line) for line in body.split("\n"))
        names = (next(group for group in column.groups() if group).lower() for column in columns if column)
        found[name.strip().strip('"`[]').lower()] = frozenset(one for one in names if one not in _NO_COLUMN)
    return found


class ShownDatabases:
    """Finds the database that a prompt shows, among those of some folders, by its tables and columns."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self._columns = cache(self._read)

    def find(self, prompt: str) -> str:
        """Return the file of the one database that has all tables and columns shown, of several the least; or ""."""
        shown = shown_tables(prompt)
        every = self._columns()
        fitting = [
            (sum(map(len, tables.values())), path)
            for path, tables in every.items()
            if shown and all(columns <= tables.get(name, frozenset()) for name, columns in shown.items())
        ]
        if not fitting:
            return ""
        least = min(size for size, _ in fitting)
        found = [path for size, path in fitting if size == least]
        # The same database may lie in several folders.
        return found[0] if len({Path(path).stem for path in found}) == 1 else ""

    def _read(self) -> Mapping[str, dict[str, frozenset[str]]]:
        return {str(path): tables for path in _files(self.roots) if (tables := _tables(path)) is not None}


def _files(roots: Sequence[Path]) -> Iterator[Path]:
    for root in roots:
        yield from sorted([*root.glob("*.sqlite"), *root.glob("*/*.sqlite")])


def _tables(path: Path) -> dict[str, frozenset[str]] | None:
    try:
        schema = read_schema(str(path))
    except InputError:
        return None
    return {table.name.lower(): frozenset(column.name.lower() for column in table.columns) for table in schema.tables}
