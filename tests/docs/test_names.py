"""Names in backticks exist: settings, metrics, files, `make` targets, commands, options, identifiers.

The recognisers are conservative: a span of another form is ignored. Names of other programs and invented examples
are in `EXCEPTIONS`, with the reason.
"""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxrl_sql.__main__ import commands
from jaxrl_sql.config.settings import all_sections
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import all_metrics, find_metric
from jaxrl_sql.runtime.training_metrics import TRAINING

ROOT = Path(__file__).parents[2]
PAGES = [
    path.relative_to(ROOT).as_posix()
    for glob in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "sqlexec_rs/README.md", "docs/**/*.md", "skills/**/*.md")
    for path in sorted(ROOT.glob(glob))
]
SOURCES = {".py", ".pyi", ".rs", ".js", ".toml", ".yaml", ".yml", ".sh", ".jinja", ".ipynb", ".html", ".css", ""}
CODE = ("py", "pyi", "rs", "sh", "ipynb")
"""Suffixes of the repository's files; files with others may be a user's."""
FILES = re.compile(
    rf"(?:[\w.-]+/)*[\w-]+(?:\.[\w-]+)*\.(?:{'|'.join(CODE)}|toml|yaml|yml|md|json|jsonl|html|zip|safetensors)"
)
NAME = re.compile(r"[A-Za-z]\w*(?:\.[A-Za-z_]\w*)*(?:\(\))?")
SETTING = re.compile(r"([a-z]\w*(?:\.[a-z]\w*)+)(?:=\S.*)?")
FAMILIES = {row.name.partition("/")[0] for row in all_metrics(TRAINING) if "/" in row.name} - {"data"}  # also a folder
EXCEPTIONS = {
    "lower_case_table_names": "a variable of MySQL",
    "manylinux_2_34_x86_64": "a platform of wheels",
    "posix_spawn": "a function of the C library",
    "schema_table": "the form of a name",
    "pythonX.Y": "the form of a folder's name",
    "vX.Y.Z": "the form of a tag",
    "spider_train_3153": "the id of a question",
    "executor.hide": "an attribute of an Executor",
    "validation.databases": "a key of a set in a file of `data prepare`",
    "validation.questions": "a key of a set in a file of `data prepare`",
    "data.zip": "a download of a data set",
    "eval/<split>": "a phase in `rollouts/`",
    "rollout.n": "the end of a key of verl",
    "run.samples": "an attribute of a Run of the Python API",
    "FILE.py": "a placeholder",
    "exec_eval.py": "a file of the published test-suite scorer",
    "sql_env.py": "a reader's file",
    "bikes.sqlite": "a reader's database",
    "train_filtered.jsonl": "a file of OmniSQL's data",
    "train_1_4.jsonl": "a file that a reader's command writes",
}


def spans(page: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each span in backticks in a page's prose."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"^( *)```.*?^\1```$", lambda code: "\n" * code[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)
    for match in re.finditer(r"(?<!`)`([^`\n]+)`(?!`)", text):
        yield text.count("\n", 0, match.start()) + 1, match[1].replace("\\|", "|")


@functools.cache
def list_tracked() -> tuple[str, ...]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return tuple(name for name in listed.stdout.split("\0") if name)


@functools.cache
def source_words() -> frozenset[str]:
    """Return the words of all sources, and their file names."""
    names: set[str] = set()
    for name in list_tracked():
        path = ROOT / name
        if path.suffix in SOURCES and "/vendor/" not in name and name != "tests/docs/test_names.py" and path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            names.update(re.findall(r"\w+", text))
            names.update(re.findall(r"[\w-]+(?:\.[\w-]+)+", text))
            names.update(re.findall(r"--[a-z][a-z-]+", text))
    return frozenset(names)


@functools.cache
def keys() -> frozenset[str]:
    """Return every setting and section."""
    return frozenset(
        name for section in all_sections() for name in (section.name, *(field.key for field in section.fields)) if name
    )


@functools.cache
def foreign_keys() -> frozenset[str]:
    """Return the keys of TRL and verl that the pages compare with ours."""
    synonyms = (field.synonyms for section in all_sections() for field in section.fields)
    names = (name for other in synonyms if other for name in f"{other.trl}, {other.verl}".split(", "))
    return frozenset(names)


@functools.cache
def sections() -> frozenset[str]:
    return frozenset(key.partition(".")[0] for key in keys() if "." in key)


@functools.cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@functools.cache
def options() -> frozenset[str]:
    """Return the options on the generated page of commands."""
    page = ROOT / "docs" / "reference" / "commands.md"
    return frozenset(re.findall(r"--[a-z][a-z-]+", page.read_text(encoding="utf-8")))


def find_error(text: str) -> str:  # noqa: PLR0911 - a return per form
    """Return why a span names something that does not exist; empty if it does or is of another form."""
    if text in EXCEPTIONS or text in foreign_keys() or "…" in text or "..." in text:
        return ""
    tokens = text.split()
    if tokens[0] == "make" and len(tokens) > 1:
        names = [word for word in tokens[1:] if re.fullmatch(r"[a-z][\w-]*", word)]
        return "" if set(names) <= targets() else "no such target"
    if tokens[0] == "jaxrl-sql" and len(tokens) > 1 and re.fullmatch(r"[a-z]+", tokens[1]):
        name = " ".join(tokens[1:3]) if tokens[1] == "data" else tokens[1]
        return "" if name in {*commands(), "data"} else "no such command"
    if re.fullmatch(r"--[a-z][a-z-]+", tokens[0]):
        return "" if tokens[0] in source_words() or tokens[0] in options() else "no such option"
    setting = SETTING.fullmatch(text)
    if setting and setting[1].partition(".")[0] in sections() and not FILES.fullmatch(setting[1]):
        return "" if setting[1] in keys() or is_module(setting[1]) else "no such setting"
    if FILES.fullmatch(text):
        return "" if is_file(text) else "no such file"
    if re.fullmatch(r"[a-z_]+(?:/[\w<>]+)+", text) and text.partition("/")[0] in FAMILIES:
        is_path = any(f"/{name}".find(f"/{text}") >= 0 for name in list_tracked())
        return "" if is_path or find_metric(text, (*TRAINING, *EVALUATION)) else "no such metric"
    if NAME.fullmatch(text) and ("_" in text or "." in text) and not text.isupper():  # SQL, variables, macros
        parts = text.removesuffix("()").split(".")
        is_known = is_file(text) or all(part in source_words() for part in parts)
        return "" if is_known else "no such name"
    return ""


def is_module(name: str) -> bool:
    """Return whether a dotted name begins with a module of the package, as `data.py` or `data/`."""
    first, second, *_ = name.split(".")
    return any(f"/{path}".find(f"/{first}/{second}.py") >= 0 for path in list_tracked())


def is_file(text: str) -> bool:
    """Return whether a file is tracked, or a data file that a source names."""
    is_tracked = any(f"/{name}".endswith(f"/{text}") for name in list_tracked())
    return is_tracked or (text.rpartition(".")[2] not in CODE and text.rpartition("/")[2] in source_words())


@pytest.mark.parametrize("page", PAGES)
def test_names_in_backticks_exist(page: str) -> None:
    assert [f"{page}:{line}: `{text}`: {why}" for line, text in spans(page) if (why := find_error(text))] == []


def test_files_that_comments_and_docstrings_name_exist() -> None:
    """Only files of code: a data file may be a user's."""
    form = re.compile(rf"`((?:[\w.-]+/)*[\w-]+\.(?:{'|'.join(CODE)}))`")
    errors = [
        f"{name}: `{text}`"
        for name in list_tracked()
        if name.endswith((".py", ".rs", ".sh", ".yaml", ".toml", "Makefile")) and not name.startswith("tests/")
        for text in form.findall((ROOT / name).read_text(encoding="utf-8"))
        if not is_file(text) and text not in EXCEPTIONS
    ]
    assert errors == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("grpo.steps", ""),
        ("grpo.optim", ""),
        ("grpo.optim.lr=1e-6", ""),
        ("grpo.equal_steps", "no such setting"),
        ("grpo.group_size=8", "no such setting"),
        ("reward/mean", ""),
        ("reward/<part>", ""),
        ("policy/mean_ratio", "no such metric"),
        ("rollout/scheduler.py", ""),
        ("rounding.py", "no such file"),
        ("tests/functions.rs", "no such file"),
        ("metrics.jsonl", ""),
        ("metrics.jsnl.md", "no such file"),
        ("make test", ""),
        ("make tests", "no such target"),
        ("make quickstart ARGS='seed=1'", ""),
        ("jaxrl-sql data audit", ""),
        ("jaxrl-sql data train", "no such command"),
        ("jaxrl-sql evaluat", "no such command"),
        ("--dry-run", ""),
        ("--dry-running", "no such option"),
        ("distribution.by_mass", "no such name"),
        ("submit_score()", ""),
        ("equal_step_count", "no such name"),
        ("SELECT name_x FROM y", ""),
        ("words in a row", ""),
    ],
)
def test_the_recognisers(text: str, why: str) -> None:
    assert find_error(text) == why
