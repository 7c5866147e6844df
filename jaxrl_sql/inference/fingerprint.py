"""What decides answers and verdicts, settings and questions: a journal that was begun under others is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxrl_sql.config import DataConfig, DistillSettings, ExecutorConfig, ModelConfigSection
from jaxrl_sql.config.check import flatten
from jaxrl_sql.runtime.model_locator import asked_by, files_identity
from jaxrl_sql.text2sql.prompts.template import template_file
from jaxrl_sql.types import Example, Fields, Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What of the executor no verdict depends on.
_FREE = ("threads", "isolation")


def fingerprint(settings: Fields, data: DataConfig, executor: ExecutorConfig) -> Record:
    """Return by key what the answers of a command and their verdicts depend on.

    Those are its `settings`, with the identity of each file that one names, and the executor's limits.
    """
    hidden = {"data.hide": data.hide} if data.hide else {}
    values = {**settings, **values_of(executor, "executor", but=_FREE), **hidden}
    files: dict[str, str | Path] = {
        "recipe": values.get("recipe", "").rpartition(":")[0],
        "data.chat.template": template_file(data.chat.template),
        "data.retrieval.synonyms": data.retrieval.synonyms,
        "data.tokenizer.path": data.tokenizer.path,
    }
    named = {name: path for name, path in files.items() if path and values.get(name)}
    return values | {name: f"{values[name]} {files_identity(path)}" for name, path in named.items()}


def checkpoint_settings(recipe: str, data: DataConfig, model: ModelConfigSection) -> Record:
    """Return what the answers of a checkpoint depend on: its weights, the types that it computes in, and its prompts.

    The longest prompt is not among them: a longer one is left out and no other changes.
    """
    prompts = {f"data.{name}": value for name, value in _prompt_values(data).items() if name != "max_prompt_tokens"}
    weights = f"{model.checkpoint} {files_identity(model.checkpoint)}"
    types = {"model.dtype": model.dtype, "model.compute_dtype": model.compute_dtype}
    return {"model": weights, "recipe": recipe, **prompts, **types}


def endpoint_settings(recipe: str, data: DataConfig) -> Record:
    """Return what an endpoint's answers depend on: the prompts, which it gets as a chat in its own template."""
    put = ("schema", "chat.thinking", "chat.template", "retrieval", "schema_budget")
    prompts = {key: value for key, value in _prompt_values(data).items() if key in put or key.partition(".")[0] in put}
    return {"recipe": recipe} | {f"data.{key}": value for key, value in prompts.items()}


def teacher_settings(cfg: DistillSettings) -> Record:
    """Return what the answers of the endpoint of the section `distill` depend on, in addition to their prompts."""
    return {f"distill.{name}": getattr(cfg, name) for name in ("model", "temperature", "max_tokens")}


def _prompt_values(data: DataConfig) -> Record:
    """Return the values of `data` that prompts depend on, by key."""
    values = dict(flatten(asked_by(data)))
    if not data.retrieval.top_k:
        del values["retrieval.placement"], values["retrieval.synonyms"]
    if not data.chat.date:
        del values["chat.date"]
    return values


def values_of(section: DataclassInstance, name: str, but: Collection[str] = ()) -> Record:
    """Return the values of the section `name` and of those in it by key, without some of its own."""
    values = {key: value for key, value in dataclasses.asdict(section).items() if key not in but}
    return dict(flatten(values, f"{name}."))


def digests(examples: Iterable[Example]) -> dict[str, str]:
    """Return by id a short word for a question, its golds and its databases: others give another."""

    @cache
    def database(path: str) -> list[str]:
        # What is written to a database is in its log until that is merged; to read it leaves an empty one.
        log = Path(f"{path}-wal")
        return [files_identity(path), files_identity(log) if log.is_file() and log.stat().st_size else ""]

    found = {}
    for example in examples:
        asked = (example.uid, example.db_id, example.question, example.evidence, example.dialect, example.answerable)
        judged = (str(example.golds), str(sorted(example.options.items())))
        files = (
            example.db_path,
            *example.suite,
            *([url] if (url := example.engine_url.partition("duckdb:")[2]) else []),
        )
        found[example.uid] = digest_of([*asked, *judged, *map(database, dict.fromkeys(files))])
    return found


def set_digest(examples: Sequence[Example], sqls: Mapping[str, str | None] | None = None) -> str:
    """Return a short word for all questions of a set as `digests` knows them, and for predictions of them."""
    predicted = [(sqls or {}).get(example.uid) for example in examples]
    return f"{len(examples)} questions, {digest_of([digests(examples), predicted])}"


def as_asked(records: Iterable[dict[str, Any]], asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records of questions that are still what they were, by the digest `asked` in each."""
    return [record for record in records if record["id"] in asked and record.get("asked") == asked[record["id"]]]


def changed_since(records: Sequence[dict[str, Any]], asked: Mapping[str, str]) -> str:
    """Return a line on the questions whose records `as_asked` leaves out; nothing where there are none."""
    known = {one["id"] for one in as_asked(records, asked)}
    count = len({record["id"] for record in records if record["id"] in asked} - known)
    return f"asked again: {count} questions of which the text, a gold or the database has changed" if count else ""


def digest_of(what: Any) -> str:
    """Return a short word for what JSON can write."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
