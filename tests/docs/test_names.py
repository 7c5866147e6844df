"""Settings, identifiers and files that the pages name exist."""

from __future__ import annotations

import functools
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxrl_sql.config.prepare import PrepareConfig
from jaxrl_sql.config.settings import all_sections

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs/howto", "docs/tutorials", "docs/reference", "docs/explanation", "skills")
PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "AGENTS.md",
    *sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.md")),
]
FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
SOURCES = {".py", ".pyi", ".rs", ".sh", ".yaml", ".yml", ".toml", ".js", ".ipynb", ""}
KEY = re.compile(r"(?<![\w./<>*-])[a-z][a-z_]*(?:\.[a-z_0-9]+)+(?=[=:`\s,]|$)")
IDENTIFIER = re.compile(r"(?<![\w./\\-])[a-z]+(?:_[a-z0-9]+)+(?![\w-])")
FILE = re.compile(r"(?<![\w*])[\w/.-]+\.(?:py|rs|sh)\b")
# Endings of file names, which a key does not have.
NO_KEYS = {"md", "py", "json", "jsonl", "yaml", "csv", "sqlite", "sql", "gz", "jinja", "safetensors", "zip", "toml"}
# Attributes in Python that begin as a section of the configuration.
ATTRIBUTES = {"run.metrics", "run.samples", "run.model", "executor.hide"}
# Names of a reader's own, of other systems and of data.
NOT_OURS = {
    "example_data", "lower_case_table_names", "my_reward", "posix_spawn", "schema_table", "spider_train_3153", "tdb_id",
    "train_1_4", "manylinux_2_34_x86_64",
    "FILE.py", "sql_env.py",
}  # fmt: skip


def spans(page: str) -> list[str]:
    """Return the code in a page's prose."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"`([^`\n]+)`", FENCED.sub("", text))


@functools.cache
def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    return [name for name in done.stdout.splitlines() if (ROOT / name).is_file()]


@functools.cache
def identifiers() -> frozenset[str]:
    """Return all names in the sources."""
    names: set[str] = set()
    for path in (ROOT / name for name in tracked() if not name.endswith(".md")):
        if path.suffix in SOURCES:
            names.update(re.findall(r"[A-Za-z_]\w*", path.read_text(encoding="utf-8", errors="replace")))
    return frozenset(names)


@functools.cache
def settings() -> frozenset[str]:
    """Return the keys of all commands with their ends, those of `data prepare`, and those of other libraries."""
    sections = list(all_sections())
    keys = {section.name for section in sections} | {field.key for section in sections for field in section.fields}
    other = [field.synonyms for section in sections for field in section.fields if field.synonyms is not None]
    theirs = {key for names in other for key in f"{names.trl}, {names.verl}".split(", ")}
    parts = {key.split(".", number)[-1] for key in theirs for number in range(key.count(".") + 1)}
    ends = {key.split(".", number)[-1] for key in keys for number in range(key.count("."))}
    return frozenset(keys | ends | parts | _prepare_keys())


def _prepare_keys() -> set[str]:
    config = PrepareConfig()
    parts = {name: value for name, value in vars(config).items() if hasattr(value, "__dataclass_fields__")}
    return {f"{name}.{field}" for name, value in parts.items() for field in value.__dataclass_fields__}


def missing_keys(span: str) -> Iterator[str]:
    roots = {key.partition(".")[0] for key in settings()}
    for key in KEY.findall(span):
        is_key = key.partition(".")[0] in roots and key.rpartition(".")[2] not in NO_KEYS
        if is_key and key not in settings() | ATTRIBUTES:
            yield key


def missing_files(span: str) -> Iterator[str]:
    for name in FILE.findall(span):
        if name not in NOT_OURS and not any(f"/{path}".endswith(f"/{name}") for path in tracked()):
            yield name


@pytest.mark.parametrize("page", PAGES)
def test_named_settings_exist(page: str) -> None:
    assert sorted({key for span in spans(page) for key in missing_keys(span)}) == []


@pytest.mark.parametrize("page", PAGES)
def test_named_identifiers_exist(page: str) -> None:
    names = {name for span in spans(page) for name in IDENTIFIER.findall(span)}
    assert sorted(names - identifiers() - NOT_OURS) == []


@pytest.mark.parametrize("page", PAGES)
def test_named_files_exist(page: str) -> None:
    assert sorted({name for span in spans(page) for name in missing_files(span)}) == []


def test_invented_names_are_found() -> None:
    assert list(missing_keys("grpo.stepps=3")) == ["grpo.stepps"]
    assert list(missing_files("tests/functions.rs")) == ["tests/functions.rs"]
    assert "equal_" + "steps" not in identifiers()
