"""Write the prompts in checkouts of the authors' code as templates for `data.chat.template`.

    python scripts/authors_prompts.py CHECKOUT... --out FOLDER

FOLDER gets a file per prompt: `omnisql`, `arctic`, `think2sql`, `sql_r1` (training rows), `sql_r1_evaluation`, `paverl`
and `skyrl_sql`. The authors' sentences stay in FOLDER. Their forms are a string for `str.format` (OmniSQL), f-strings
among messages (Arctic), a Jinja file per role (Think2SQL), and released rows (SQL-R1, PaVeRL-SQL, SkyRL-SQL). SkyRL's
repository has no rows: without them, the abbreviated prompt of its documentation is written, with a note.
"""

from __future__ import annotations

import argparse
import ast
import re
import string
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.text2sql.benchmarks.files import first_record, read_records
from jaxrl_sql.text2sql.benchmarks.lines import read_parquet
from jaxrl_sql.text2sql.benchmarks.released import messages_of
from jaxrl_sql.types import InputError, Record

Texts = dict[str, str]
"""The messages of a prompt by role: `user`, and optionally `system` and `assistant` (the begun answer)."""

# Placeholders in a text are names between these characters.
_OPEN, _CLOSE = "\ue000", "\ue001"
_PLACE = re.compile(f"{_OPEN}(.*?){_CLOSE}")
_QUESTION_WITH_EVIDENCE = "evidence and question"
_EVIDENCE_OR_NONE = "evidence or None"
# The names of a placeholder in the authors' code.
_NAMES = {
    "db_engine": "dialect",
    "db_details": "schema",
    "db_desc": "schema",
    "schema": "schema",
    "question": "question",
    "evidence": "evidence",
}
_JINJA = {
    _QUESTION_WITH_EVIDENCE: "{% if evidence %}{{ evidence }}\n{% endif %}{{ question }}",
    _EVIDENCE_OR_NONE: "{% if evidence %}{{ evidence }}{% else %}None{% endif %}",
}


class Source(NamedTuple):
    """A prompt of the authors: its messages with placeholders, and those for models that think by themselves.

    `rows` are the messages and values of released rows, `note` is a remark for the user.
    """

    name: str
    place: Path
    texts: Texts
    thinking: Texts
    rows: Sequence[tuple[Texts, Texts]] = ()
    note: str = ""


class Rows(NamedTuple):
    """A system's released rows: the text that identifies them, and a pattern per (role, placeholder)."""

    name: str
    mark: str
    patterns: Mapping[tuple[str, str], str]


ROWS = (
    Rows(
        "sql_r1",
        "\nSQL Complexity Level: ",
        {
            ("system", "schema"): r"(?<=Database Schema:\n).*?(?=\n\nExternal Knowledge:\n)",
            ("system", "evidence"): r"(?<=\n\nExternal Knowledge:\n).*?(?=\n\nSQL Complexity Level: )",
            ("system", "complexity"): r"(?<=\n\nSQL Complexity Level: )[^\n]*",
            ("user", "question"): r"\A.*(?=\n\Z)",
        },
    ),
    Rows(
        "paverl",
        "\n\nContext:\n",
        {
            ("user", "dialect"): r"(?<=Database Engine:\n)[^\n]*",
            ("user", "schema"): r"(?<=Database Schema:\n).*?(?=\n\nContext:\n)",
            ("user", _EVIDENCE_OR_NONE): r"(?<=\n\nContext:\n).*?(?=\n\nQuestion:\n)",
            ("user", "question"): r"(?<=\n\nQuestion:\n).*?(?=\n\nInstructions:\n)",
        },
    ),
    Rows(
        "skyrl_sql",
        "{db_details}:",
        {
            ("user", "schema"): r"(?<=\{db_details\}:).*?(?=;\s*\{external_knowledge\}:)",
            ("user", "evidence"): r"(?<=\{external_knowledge\}: ).*?(?=;\s*\{question\}:)",
            ("user", "question"): r"(?<=\{question\}: ).*\Z",
        },
    ),
)


def mark_place(name: str) -> str:
    """Return a placeholder."""
    return f"{_OPEN}{name}{_CLOSE}"


def fill(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of its placeholders, as the authors' code inserts them."""
    before = f"{values['evidence']}\n" if values["evidence"] else ""
    special = {
        _QUESTION_WITH_EVIDENCE: before + values["question"],
        _EVIDENCE_OR_NONE: values["evidence"] or "None",
    }
    return _PLACE.sub(lambda match: {**values, **special}[match[1]], text)


def render_template(source: Source) -> str:
    """Return a prompt as a template, with a comment on its place."""
    blocks = [f"{{# Written by scripts/authors_prompts.py from {source.place.name}. #}}\n"]
    for role in ("system", "user", "assistant"):
        text, thinking = source.texts.get(role, ""), source.thinking.get(role, "")
        body = _jinja(text)
        if thinking != text:
            body = f"{{% if thinks %}}\n{_jinja(thinking)}{{% else %}}\n{body}{{% endif %}}\n"
        if text or thinking:
            # The last newline of a block is not part of the message.
            blocks.append(f"{{% block {role} %}}\n{body}\n{{% endblock %}}\n")
    return "".join(blocks)


def _jinja(text: str) -> str:
    """Return a text as Jinja; braces of the authors stay text."""
    pieces = _PLACE.split(text)
    literal = [re.sub(r"\{[{%#]", lambda match: f"{{{{ '{match[0]}' }}}}", piece) for piece in pieces[::2]]
    names = [_JINJA.get(name, f"{{{{ {name} }}}}") for name in pieces[1::2]]
    result = "".join(piece for pair in zip(literal, [*names, ""], strict=True) for piece in pair)
    return result.replace("{% endif %}\n", "{% endif %}\n\n")  # Jinja drops the first newline after a tag


def read_prompts(checkout: Path) -> list[Source]:
    """Return the prompts of a checkout; raises InputError without any."""
    prompts = [source for read in _READERS for source in read(checkout)]
    if not prompts:
        raise InputError(f"{checkout}: no prompt of OmniSQL, SQL-R1, Arctic, PaVeRL-SQL, Think2SQL or SkyRL-SQL")
    return prompts


def _omnisql(checkout: Path) -> Iterator[Source]:
    """Yield the string for `str.format` in the code of OmniSQL, and in SQL-R1's for evaluation."""
    for name, inner in (
        ("omnisql", "train_and_evaluate/process_dataset.py"),
        ("sql_r1_evaluation", "src/utils/prepare_input_seq.py"),
    ):
        path = checkout / inner
        if not path.is_file():
            continue
        code = ast.parse(path.read_text(encoding="utf-8"))
        texts = [text for text in _assigned(code).values() if "{db_details}" in text and "{question}" in text]
        # Both functions put the evidence into the question.
        names = {**_NAMES, "question": _QUESTION_WITH_EVIDENCE}
        for text in texts[:1]:
            user = "".join(
                literal + (mark_place(names[field]) if field else "")
                for literal, field, _, _ in string.Formatter().parse(text)
            )
            yield _source(name, path, {"user": user})


def _arctic(checkout: Path) -> Iterator[Source]:
    """Yield the f-strings among messages, and the text that the code adds to the prompt."""
    for path in sorted(checkout.rglob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if "db_desc" not in text or "apply_chat_template" not in text:
            continue
        code = ast.parse(text)
        names = _assigned(code)
        for node in ast.walk(code):
            if isinstance(node, ast.List) and (texts := _messages(node, names)):
                added = [
                    _text(item.value, names)
                    for item in ast.walk(code)
                    if isinstance(item, ast.AugAssign) and isinstance(item.op, ast.Add)
                ]
                yield _source("arctic", path, texts | ({"assistant": added[0]} if added else {}))
                return


def _messages(node: ast.List, names: Mapping[str, str]) -> Texts:
    """Return the texts of a list of message dictionaries by role; empty for another list."""
    texts: Texts = {}
    for item in node.elts:
        pairs = dict(zip(item.keys, item.values, strict=True)) if isinstance(item, ast.Dict) else {}
        fields = {key.value: value for key, value in pairs.items() if isinstance(key, ast.Constant)}
        role = fields.get("role")
        if isinstance(role, ast.Constant) and isinstance(role.value, str) and "content" in fields:
            texts[role.value] = _text(fields["content"], names)
    return texts if mark_place("schema") in "".join(texts.values()) else {}


def _assigned(code: ast.Module) -> Texts:
    """Return the texts that code assigns to names."""
    return {
        node.targets[0].id: _text(node.value, {})
        for node in ast.walk(code)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }


def _text(node: ast.expr, names: Mapping[str, str]) -> str:
    """Return the text of an expression: constants, f-strings, names, sums and `strip`; other parts are placeholders."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(part, names) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _text(node.value, names)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _text(node.left, names) + _text(node.right, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "strip":
        return _text(node.func.value, names).strip()
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        name = _NAMES.get(str(node.slice.value), "")
        return mark_place(_QUESTION_WITH_EVIDENCE if name == "question" else name) if name else ""
    return ""


def _think2sql(checkout: Path) -> Iterator[Source]:
    """Yield the Jinja files per role, which the code renders and ends with one newline."""
    folder = checkout / "prompts"
    paths = [folder / f"base_think_{name}_prompt{rest}.jinja" for name, rest in _THINK2SQL]
    if not all(path.is_file() for path in paths):
        return
    texts = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if "{%" in text:
            raise InputError(f"{path}: only placeholders are expected in it")
        named = re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: mark_place(_NAMES[match[1]]), text)
        texts.append(named.rstrip() + "\n")
    system, thinking, user = texts
    yield _source("think2sql", paths[-1], {"system": system, "user": user}, {"system": thinking, "user": user})


_THINK2SQL = (("system", ""), ("system", "_qwen"), ("user", ""))


def _rows(checkout: Path) -> Iterator[Source]:
    """Yield the prompt of each file of released rows."""
    names = set[str]()
    for path in sorted(file for file in checkout.rglob("*") if file.suffix in (".parquet", ".jsonl", ".json")):
        form = next((form for form in ROWS if form.name not in names and form.mark in _first_text(path)), None)
        if form is None:
            continue
        names.add(form.name)
        rows = [split_row(form, dict(messages_of(record))) for record in _records(path)]
        yield _source(form.name, path, rows[0][0])._replace(rows=[(fill_all(*row), row[1]) for row in rows])


def split_row(form: Rows, messages: Texts) -> tuple[Texts, Texts]:
    """Return the messages of a row with placeholders, and their values.

    Raises InputError for a row of another form.
    """
    texts, values = dict(messages), {"dialect": "SQLite", "evidence": "", "complexity": ""}
    for (role, name), pattern in form.patterns.items():
        match = re.search(pattern, texts.get(role, ""), re.DOTALL)
        if match is None:
            raise InputError(f"a row of {form.name} has no {name} in its {role} message")
        value = "" if name == _EVIDENCE_OR_NONE and match[0] == "None" else match[0]
        values["evidence" if name == _EVIDENCE_OR_NONE else name] = value
        texts[role] = texts[role][: match.start()] + mark_place(name) + texts[role][match.end() :]
    return texts, values


def fill_all(texts: Texts, values: Mapping[str, str]) -> Texts:
    """Return messages with the values of their placeholders."""
    return {role: fill(text, values) for role, text in texts.items()}


def _first_text(path: Path) -> str:
    """Return the prompt of a file's first row; "" for another file."""
    if path.suffix == ".parquet":
        try:
            records = read_parquet([path], [])[:1]
        except InputError:
            return ""
    else:
        records = [first_record(path)]
    return "".join(text for record in records for _, text in messages_of(record))


def _records(path: Path) -> list[Record]:
    return read_parquet([path], []) if path.suffix == ".parquet" else read_records(path, [])


def _skyrl_page(checkout: Path) -> Iterator[Source]:
    """Yield the abbreviated prompt of SkyRL's documentation, in which dots replace parts."""
    for path in sorted(checkout.rglob("*.md*")):
        page = path.read_text(encoding="utf-8", errors="replace")
        for block in re.findall(r"```text\n(.*?)\n```", page, re.DOTALL):
            if "{db_details}: " in block and "<solution>" in block:
                system = block.partition("\n...\n{db_details}:")[0]
                user = f"{{db_details}}:{mark_place('schema')};\n {{external_knowledge}}: {mark_place('evidence')};\n "
                user += f"{{question}}: {mark_place('question')}"
                note = "abbreviated: the rows have the whole prompt, which data.prompt=given uses"
                yield _source("skyrl_sql", path, {"system": system, "user": user})._replace(note=note)
                return


def _rows_or_page(checkout: Path) -> Iterator[Source]:
    yield from (from_rows := [*_rows(checkout)])
    if not from_rows:
        yield from _skyrl_page(checkout)


_READERS: tuple[Callable[[Path], Iterator[Source]], ...] = (_omnisql, _arctic, _think2sql, _rows_or_page)


def _source(name: str, path: Path, texts: Texts, thinking: Texts | None = None) -> Source:
    return Source(name, path, texts, texts if thinking is None else thinking)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and write the templates; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="+", metavar="CHECKOUT", help="a checkout of the authors' code")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the folder of the templates")
    args = parser.parse_args(arguments)
    try:
        for source in (source for checkout in args.checkouts for source in read_prompts(checkout)):
            args.out.mkdir(parents=True, exist_ok=True)
            path = args.out / f"{source.name}.jinja"
            path.write_text(render_template(source), encoding="utf-8")
            sys.stdout.write(f"{path}: from {source.place}{f' ({source.note})' if source.note else ''}\n")
    except InputError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
