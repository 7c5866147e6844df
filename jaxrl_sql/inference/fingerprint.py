"""Fingerprints of the settings and questions that determine answers and verdicts.

A journal (a file of finished work) stores the fingerprint. A repeated command resumes from it if its own fingerprint is
equal. A fingerprint is a record of values by key, such as `data.hide`. A file is identified by a hash
(`files_identity`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_sql.config import DataConfig, DistillSettings, EndpointConfig, ExecutorConfig, ModelConfigSection
from jaxrl_sql.config.check import flatten
from jaxrl_sql.runtime.model_locator import files_identity, prompt_settings
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.env.address import is_address, public_name
from jaxrl_sql.text2sql.prompts.template import template_file
from jaxrl_sql.types import Example, Fields, Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# Keys of the executor that do not affect verdicts.
_WITHOUT_EFFECT = ("threads", "isolation")


def fingerprint(settings: Fields, data: DataConfig, executor: ExecutorConfig) -> Record:
    """Return by key the values that a command's answers and verdicts depend on.

    These are its `settings`, `data.hide`, and the executor's limits. `settings` has any keys. If it has `recipe` (a
    name, or FILE:NAME for a recipe of the user), `data.chat.template`, `data.retrieval.synonyms` or
    `data.tokenizer.path`, the identity of the file is appended to the value.
    """
    hidden = {"data.hide": data.hide} if data.hide else {}
    values = {**settings, **values_of(executor, "executor", exclude=_WITHOUT_EFFECT), **hidden}
    files: dict[str, str | Path] = {
        "recipe": values.get("recipe", "").rpartition(":")[0],
        "data.chat.template": template_file(data.chat.template),
        "data.retrieval.synonyms": data.retrieval.synonyms,
        "data.tokenizer.path": data.tokenizer.path,
    }
    paths = {name: path for name, path in files.items() if path and values.get(name)}
    return values | {name: f"{values[name]} {files_identity(path)}" for name, path in paths.items()}


def checkpoint_settings(recipe: str, data: DataConfig, model: ModelConfigSection) -> Record:
    """Return the values that a checkpoint's answers depend on: its weights, its dtypes, and the settings of prompts.

    `data.max_prompt_tokens` is not among them: it only skips longer prompts.
    """
    prompts = {f"data.{name}": value for name, value in _prompt_values(data).items() if name != "max_prompt_tokens"}
    weights = f"{model.checkpoint} {files_identity(model.checkpoint)}"
    types = {"model.dtype": model.dtype, "model.compute_dtype": model.compute_dtype}
    return {"model": weights, "recipe": recipe, **prompts, **types}


def endpoint_settings(recipe: str, data: DataConfig) -> Record:
    """Return the values that an endpoint's answers depend on: the recipe, and the settings of the chats it is sent.

    `data.chat.template` is the text of the messages. The chat template, which formats messages as tokens, is the
    server's own, so settings of the tokenizer do not matter.
    """
    prompt_keys = ("schema", "chat.thinking", "chat.template", "retrieval", "schema_budget")
    prompts = {
        key: value
        for key, value in _prompt_values(data).items()
        if key in prompt_keys or key.partition(".")[0] in prompt_keys
    }
    return {"recipe": recipe} | {f"data.{key}": value for key, value in prompts.items()}


def teacher_settings(cfg: DistillSettings) -> Record:
    """Return the values that the teacher's answers depend on in addition to its prompts."""
    values = {f"distill.{name}": getattr(cfg, name) for name in ("model", "temperature", "max_tokens")}
    return values | effort_settings(cfg, "distill")


def effort_settings(cfg: EndpointConfig, section: str) -> Record:
    """Return the effort of reasoning that is requested of an endpoint, if any."""
    return {f"{section}.reasoning_effort": cfg.reasoning_effort} if cfg.reasoning_effort else {}


def _prompt_values(data: DataConfig) -> Record:
    """Return the values of `data` that prompts depend on, by key."""
    values = dict(flatten(prompt_settings(data)))
    if not data.retrieval.top_k:
        del values["retrieval.placement"], values["retrieval.synonyms"]
    if not data.chat.date:
        del values["chat.date"]
    return values


def values_of(section: DataclassInstance, name: str, exclude: Collection[str] = ()) -> Record:
    """Return the values of the section `name` and of its subsections by key, without some of its keys."""
    values = {key: value for key, value in dataclasses.asdict(section).items() if key not in exclude}
    return dict(flatten(values, f"{name}."))


def digests(examples: Iterable[Example]) -> dict[str, str]:
    """Return by id a digest (a hash) of each question with its golds (reference queries) and databases."""

    @cache
    def database(path: str) -> list[str]:
        # SQLite keeps new rows in the write-ahead log until it copies them to the file. Reading leaves an empty log.
        log = Path(f"{path}-wal")
        return [files_identity(path), files_identity(log) if log.is_file() and log.stat().st_size else ""]

    question_digests = {}
    for example in examples:
        identity = (example.uid, example.db_id, example.question, example.evidence, example.dialect, example.answerable)
        server = public_name(example.engine_url) if is_address(example.engine_url) else ""
        prompt = [f"{role}: {text}" for role, text in example.messages]
        references = (str(example.golds), str(sorted(example.options.items())), *([server] if server else []))
        files = (
            example.db_path,
            *example.suite,
            *([url] if (url := example.engine_url.partition("duckdb:")[2]) else []),
        )
        question_digests[example.uid] = digest_of(
            [*identity, *prompt, *references, *map(database, dict.fromkeys(files))]
        )
    return question_digests


def set_digest(examples: Sequence[Example], sqls: Mapping[str, str | None] | None = None) -> str:
    """Return a digest of all questions of a set, and of the predictions `sqls` for them by id, if any."""
    predicted = [(sqls or {}).get(example.uid) for example in examples]
    return f"{len(examples)} questions, {digest_of([digests(examples), predicted])}"


def select_unchanged(records: Iterable[dict[str, Any]], question_digests: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records of unchanged questions, by the digest `asked` in each."""
    return [
        record
        for record in records
        if record["id"] in question_digests and record.get("asked") == question_digests[record["id"]]
    ]


def describe_changes(records: Sequence[dict[str, Any]], question_digests: Mapping[str, str]) -> str:
    """Return a line on the changed questions, whose records `select_unchanged` omits; "" without any."""
    unchanged = {record["id"] for record in select_unchanged(records, question_digests)}
    count = len({record["id"] for record in records if record["id"] in question_digests} - unchanged)
    return f"asked again: {quantity(count, 'questions')} whose text, gold or database has changed" if count else ""


def digest_of(value: Any) -> str:
    """Return a digest of a JSON value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
