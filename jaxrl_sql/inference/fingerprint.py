"""What decides answers and verdicts, settings and questions: a journal that was begun under others is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, reduce
from pathlib import Path
from typing import Any, Literal

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.config.check import flatten
from jaxrl_sql.runtime.model_locator import asked_by, files_identity
from jaxrl_sql.text2sql.prompts.template import template_file
from jaxrl_sql.types import Example

# What of the executor no verdict depends on.
_FREE = ("threads", "isolation")

TEACHER = ("distill.model", "distill.temperature", "distill.max_tokens")
"""What the answers of the endpoint that the section `distill` names depend on, beside their prompts."""


def fingerprint(
    config: TrainConfig,
    about: Mapping[str, Any],
    keys: Iterable[str],
    model: Literal["checkpoint", "endpoint", ""],
) -> dict[str, Any]:
    """Return by key what the answers of a command and their verdicts depend on.

    Those are `about`, the questions; `keys`, the command's own; the executor's limits; and of a `model` that answers
    the prompts and, where it is a checkpoint, its weights and the types that they are computed in.
    """
    data = asked_by(config.data)
    if not config.data.retrieve:
        del data["matched"], data["synonyms"]
    if not config.data.date:
        del data["date"]
    if model == "checkpoint":
        # A longer prompt is left out and no other: whether that matters is the command's to say.
        prompt = [f"data.{name}" for name in data if name != "max_prompt_tokens"]
        asked = ["recipe", *prompt, "sampling.stop", "model.dtype", "model.compute_dtype"]
        about = {**about, "model": f"{config.model.checkpoint} {files_identity(config.model.checkpoint)}"}
    elif model == "endpoint":  # it is asked in a chat of its own
        put = ("schema", "thinking", "template", "retrieve", "matched", "synonyms", "schema_budget")
        asked = ["recipe", *(f"data.{name}" for name in data if name in put)]
    else:
        asked = []
    names = [*keys, *asked, *keys_of(config, "executor", but=_FREE), *(["data.hide"] if config.data.hide else [])]
    found = {**about, **{name: reduce(getattr, name.split("."), config) for name in names}}
    files: dict[str, str | Path] = {
        "recipe": config.recipe.rpartition(":")[0],
        "data.template": template_file(config.data.template),
        "data.synonyms": config.data.synonyms,
        "data.tokenizer": config.data.tokenizer,
    }
    named = {name: path for name, path in files.items() if path and found.get(name)}
    return found | {name: f"{found[name]} {files_identity(path)}" for name, path in named.items()}


def keys_of(config: TrainConfig, section: str, but: Collection[str] = ()) -> list[str]:
    """Return the keys of a section and of those in it, without some of its own."""
    values = dataclasses.asdict(reduce(getattr, section.split("."), config))
    return [
        key for name, value in values.items() if name not in but for key, _ in flatten({name: value}, f"{section}.")
    ]


def digests(examples: Iterable[Example]) -> dict[str, str]:
    """Return by id a short word for a question, its golds and its databases: others give another."""

    @cache
    def database(path: str) -> list[str]:
        # What is written to a database is in its log until that is merged; to read it leaves an empty one.
        log = Path(f"{path}-wal")
        return [files_identity(path), files_identity(log) if log.is_file() and log.stat().st_size else ""]

    found = {}
    for one in examples:
        asked = (one.uid, one.db_id, one.question, one.evidence, one.dialect, one.answerable)
        judged = (str(one.golds), str(sorted(one.options.items())))
        files = (one.db_path, *one.suite, *([url] if (url := one.engine_url.partition("duckdb:")[2]) else []))
        found[one.uid] = digest_of([*asked, *judged, *map(database, dict.fromkeys(files))])
    return found


def set_digest(examples: Sequence[Example], sqls: Mapping[str, str | None] | None = None) -> str:
    """Return a short word for all questions of a set as `digests` knows them, and for predictions of them."""
    predicted = [(sqls or {}).get(one.uid) for one in examples]
    return f"{len(examples)} questions, {digest_of([digests(examples), predicted])}"


def as_asked(records: Iterable[dict[str, Any]], asked: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the records of questions that are still what they were, by the digest `asked` in each."""
    return [one for one in records if one["id"] in asked and one.get("asked") == asked[one["id"]]]


def changed_since(records: Sequence[dict[str, Any]], asked: Mapping[str, str]) -> str:
    """Return a line on the questions whose records `as_asked` leaves out; nothing where there are none."""
    known = {one["id"] for one in as_asked(records, asked)}
    count = len({one["id"] for one in records if one["id"] in asked} - known)
    return f"asked again: {count} questions of which the text, a gold or the database has changed" if count else ""


def digest_of(what: Any) -> str:
    """Return a short word for what JSON can write."""
    return hashlib.sha256(json.dumps(what).encode()).hexdigest()[:16]
