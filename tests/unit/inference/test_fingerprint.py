"""Fingerprints: each command refuses its journal if a setting that affects answers changed, and resumes otherwise."""

from __future__ import annotations

import dataclasses
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.config import (
    AugmentConfig,
    DistillConfig,
    EvaluateConfig,
    FilterConfig,
    RootConfig,
    VerbalConfig,
    load_config,
)
from jaxrl_sql.inference import augmentation, distillation, filtering
from jaxrl_sql.inference.benchmark_evaluation import answer_settings
from jaxrl_sql.inference.fingerprint import (
    checkpoint_settings,
    describe_changes,
    digests,
    endpoint_settings,
    fingerprint,
    select_unchanged,
    set_digest,
)
from jaxrl_sql.runtime.model_locator import files_identity
from jaxrl_sql.training.verbal import choosing
from jaxrl_sql.types import Example

MODEL = Path(__file__).parents[3] / "configs" / "quickstart_start"
ROOTS: dict[str, type[RootConfig]] = {
    "filter_data": FilterConfig,
    "distill": DistillConfig,
    "augment": AugmentConfig,
    "evaluate": EvaluateConfig,
    "verbal": VerbalConfig,
}
HERE = [f"model.checkpoint={MODEL}"]
THERE = ["verbal.base_url=http://localhost/v1", "verbal.model=m"]
SMALL = Path(__file__).parents[2] / "small.yaml"
CORRECTED = ["augment.correct=1", "distill.base_url=http://localhost/v1", "distill.model=m"]
ANSWERING = {"filter_data": HERE, "evaluate": HERE, "verbal": HERE, "distill": [], "augment": CORRECTED}
LIMITS = ["executor.timeout_ms=7", "executor.vm_steps=7", "executor.max_rows=7", "executor.max_bytes=7"]
WORDS = [
    "recipe=sql_r1",
    "data.schema=ddl",
    "data.chat.thinking=no_think",
    "data.retrieval.top_k=3",
    "data.schema_budget=9",
]
SYNONYMS = ("data.retrieval.top_k=3", "data.retrieval.synonyms=vectors")
CHECKPOINT = [
    "model.dtype=bfloat16", "model.compute_dtype=bfloat16", "data.prompt=chat", "data.tokenizer.path=other", "seed=1",
    "data.shots=2", "data.chat.date=2024-02-09",
]  # fmt: skip
FREE = ["executor.threads=1", "executor.isolation=thread", "data.retrieval.placement=question"]


@cache
def settings_of(command: str, *changes: str) -> dict[str, Any]:
    config = load_config(ROOTS[command], SMALL, [*ANSWERING[command], *changes])
    match config:
        case FilterConfig():
            return filtering.pass_rate_settings(
                policy_spec(config), config.filter.samples, config.sampling, config.executor
            )
        case DistillConfig():
            return distillation.trace_settings(config.recipe, config.data, config.executor, config.distill)
        case AugmentConfig():
            return augmentation.copy_settings(
                config.augment, config.seed, config.data, config.executor, config.distill, []
            )
        case EvaluateConfig():
            return answer_settings(policy_spec(config), config.evaluate, config.executor, [])
        case VerbalConfig():
            return choosing.choice_settings(policy_spec(config), config.verbal, config.executor)
    raise AssertionError(command)


@pytest.mark.parametrize(
    ("command", "change"),
    [
        *((command, change) for command in ROOTS for change in LIMITS),
        *((command, change) for command in ROOTS if command != "augment" for change in WORDS),
        *((command, change) for command in ("filter_data", "evaluate", "verbal") for change in CHECKPOINT),
        ("filter_data", "sampling.stop=[x]"),
        ("verbal", "verbal.stop=[x]"),
        ("evaluate", "evaluate.sampling.stop=[x]"),
        *(("filter_data", item) for item in ("sampling.top_k=3", "filter.samples=3")),
        ("filter_data", "data.prune=true"),
        ("evaluate", "evaluate.sampling.temperature=0.5"),
        ("evaluate", "data.max_prompt_tokens=77"),
        ("verbal", "verbal.judge_temperature=0.5"),
        *((command, "distill.temperature=0.1") for command in ("distill", "augment")),
        ("augment", "augment.fill=empty"),
    ],
)
def test_fingerprint_depends_on_settings_that_affect_answers(command: str, change: str) -> None:
    before, after = settings_of(command), settings_of(command, change)
    assert before != after
    assert change.partition("=")[0] in {name for name in {*before, *after} if before.get(name) != after.get(name)}


def test_fingerprint_depends_on_word_vectors_with_retrieval() -> None:
    for command in ("evaluate", "distill"):
        assert settings_of(command, SYNONYMS[0]) != settings_of(command, *SYNONYMS)


def test_fingerprint_depends_on_dialects_and_their_engines() -> None:
    where = "executor.databases.mysql=translated"
    there = settings_of("filter_data", where)
    mixed = settings_of("filter_data", "data.dialects={sqlite: 0.5, mysql: 0.5}", where)
    assert settings_of("filter_data")["executor.databases.mysql"] != there["executor.databases.mysql"]
    assert {name for name in mixed if mixed[name] != there[name]} == {"data.dialects.sqlite", "data.dialects.mysql"}


@pytest.mark.parametrize(
    ("command", "change"),
    [
        *((command, change) for command in ROOTS for change in FREE),
        *((command, "run.display=none") for command in ROOTS if command != "augment"),  # augment has no display
        ("distill", "distill.samples=9"),
        ("filter_data", "filter.low=0.5"),
        ("filter_data", "data.max_prompt_tokens=77"),
        ("verbal", "verbal.batch=3"),
        ("verbal", "verbal.max_requests=3"),
        ("evaluate", "evaluate.max_num_seqs=3"),
    ],
)
def test_fingerprint_ignores_settings_that_affect_no_answer(command: str, change: str) -> None:
    assert settings_of(command) == settings_of(command, change)


def test_fingerprint_depends_on_the_endpoint_model() -> None:
    assert settings_of("verbal", *THERE) != settings_of("verbal")
    assert settings_of("verbal", *THERE) != settings_of("verbal", *THERE, "verbal.model=n")
    assert settings_of("verbal", *THERE) == settings_of("verbal", *THERE, "verbal.base_url=http://other/v1")


def checkpoint_fingerprint(config: EvaluateConfig) -> dict[str, Any]:
    settings = checkpoint_settings(config.recipe, config.data, config.model)
    return fingerprint(settings, config.data, config.executor)


def test_fingerprint_depends_on_the_weights_at_a_path(tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    config = load_config(EvaluateConfig, None, [f"model.checkpoint={model}"])
    before = checkpoint_fingerprint(config)
    assert files_identity(model) == files_identity(MODEL)
    (model / "README.md").write_text("a note")
    assert checkpoint_fingerprint(config) == before
    weights = next(model.glob("*.safetensors"))
    raw = bytearray(weights.read_bytes())
    raw[len(raw) // 2] ^= 1
    weights.write_bytes(raw)
    assert checkpoint_fingerprint(config)["model"] != before["model"]
    assert files_identity(tmp_path / "none") == ""
    assert files_identity("") == ""


def test_fingerprint_depends_on_the_template_at_a_path(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("{% block user %}{{ question }}{% endblock %}")
    config = load_config(EvaluateConfig, None, [f"data.chat.template={path}"])
    settings = endpoint_settings(config.recipe, config.data)
    before = fingerprint(settings, config.data, config.executor)
    assert fingerprint(settings, config.data, config.executor) == before
    path.write_text("{% block user %}Q: {{ question }}{% endblock %}")
    assert fingerprint(settings, config.data, config.executor)["data.chat.template"] != before["data.chat.template"]


def test_fingerprint_depends_on_the_tokenizer_and_recipe_at_a_path(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "own.py").write_text("RULES = 1")
    config = load_config(EvaluateConfig, None, [f"data.tokenizer.path={tmp_path}", f"recipe={tmp_path}/own.py:OWN"])
    before = checkpoint_fingerprint(config)
    assert checkpoint_fingerprint(config) == before
    for name, key in (("tokenizer.json", "data.tokenizer.path"), ("own.py", "recipe")):
        (tmp_path / name).write_text("[1]")
        assert checkpoint_fingerprint(config)[key] != before[key]


def two_questions(folder: Path) -> list[Example]:
    """Make two questions, each on its own database."""
    for name in "ab":
        with closing(sqlite3.connect(folder / name)) as connection:
            connection.execute("PRAGMA journal_mode = wal")
            connection.execute("CREATE TABLE t (x)")
    return [Example(name, name, str(folder / name), "How many?", "SELECT count(*) FROM t") for name in "ab"]


@pytest.mark.parametrize(
    "change",
    [
        {"question": "What?"}, {"evidence": "Known."}, {"gold_sql": "SELECT 1"}, {"other_golds": ("SELECT 1",)},
        {"options": {"ignore_order": True}}, {"dialect": "mysql"}, {"answerable": False}, {"suite": (__file__,)},
    ],
)  # fmt: skip
def test_question_digest_depends_on_its_fields_only(change: dict[str, Any], tmp_path: Path) -> None:
    item, other = two_questions(tmp_path)
    before, after = digests([item, other]), digests([dataclasses.replace(item, **change), other])
    assert before["a"] != after["a"]
    assert before["b"] == after["b"] != before["a"]
    assert set_digest([item, other]) != set_digest([dataclasses.replace(item, **change), other])


def test_question_digest_depends_on_database_rows(tmp_path: Path) -> None:
    examples = two_questions(tmp_path)
    before = digests(examples)
    with closing(sqlite3.connect(f"file:{tmp_path}/a?mode=ro", uri=True)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchall() == [(0,)]
    assert (tmp_path / "a-wal").exists()
    assert digests(examples) == before, "reading a database changed its digest"
    with closing(sqlite3.connect(tmp_path / "a")) as connection:
        connection.execute("INSERT INTO t VALUES (1)")
        connection.commit()
        after = digests(examples)
        assert (tmp_path / "a-wal").stat().st_size > 0
    assert (after["a"] != before["a"], after["b"] == before["b"]) == (True, True)


def test_question_digest_depends_on_its_duckdb_file(tmp_path: Path) -> None:
    (question, _), copy = two_questions(tmp_path), tmp_path / "a.duckdb"
    copy.write_text("rows")
    example = dataclasses.replace(question, dialect="duckdb", engine_url=f"duckdb:{copy}")
    before = digests([example])
    assert digests([example]) == before
    copy.write_text("other rows")
    assert digests([example]) != before


def test_set_digest_depends_on_predictions(tmp_path: Path) -> None:
    examples = two_questions(tmp_path)
    result = {set_digest(examples, sqls) for sqls in ({}, {"a": "SELECT 1"}, {"b": "SELECT 1"}, {"b": None})}
    assert len(result) == 3
    assert set_digest(examples, {"other": "SELECT 1"}) == set_digest(examples)


def test_records_of_changed_questions_are_dropped() -> None:
    digests_by_id = {"a": "1", "b": "2"}
    records = [
        {"id": "a", "asked": "1"},
        {"id": "b", "asked": "1"},
        {"id": "b"},
        {"id": "c"},
        {"id": "c", "asked": "1"},
    ]
    assert select_unchanged(records, digests_by_id) == records[:1]
    assert describe_changes(records, digests_by_id).startswith("asked again: 1 question ")
    assert describe_changes([*records, {"id": "b", "asked": "2"}], digests_by_id) == ""
