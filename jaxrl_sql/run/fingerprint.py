"""The settings that decide answers and verdicts: a journal that was begun under others is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from functools import reduce
from typing import Any, Literal

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.config.check import flatten
from jaxrl_sql.data.template import template_file
from jaxrl_sql.runtime.model_locator import asked_by, files_identity

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
    names = [*keys, *asked, *keys_of(config, "executor", but=_FREE)]
    found = {**about, **{name: reduce(getattr, name.split("."), config) for name in names}}
    if found.get("data.template"):
        template = template_file(config.data.template)
        found["data.template"] = f"{config.data.template} {files_identity(template)}"
    if found.get("data.synonyms"):
        found["data.synonyms"] = f"{config.data.synonyms} {files_identity(config.data.synonyms)}"
    return found


def keys_of(config: TrainConfig, section: str, but: Collection[str] = ()) -> list[str]:
    """Return the keys of a section and of those in it, without some of its own."""
    values = dataclasses.asdict(reduce(getattr, section.split("."), config))
    return [
        key for name, value in values.items() if name not in but for key, _ in flatten({name: value}, f"{section}.")
    ]
