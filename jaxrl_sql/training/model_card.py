"""Descriptions in the folder of a trained model: its card, and the prompt format for programs."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from jaxrl_sql.config import TrainConfig, load_config, replace_values
from jaxrl_sql.config.reading import PROMPT_FILE
from jaxrl_sql.models.formats.gguf import is_gguf
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.report.load import RunFiles, load_run, metric_names
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.hub import license_of, repo_of
from jaxrl_sql.runtime.model_locator import PROMPT_KEYS, TEMPLATE, TrainedModel, find_model, prompt_settings
from jaxrl_sql.text2sql.evals.interval import share_interval
from jaxrl_sql.text2sql.prompts.template import template_file, template_names
from jaxrl_sql.training.trained_chat import MODELFILE
from jaxrl_sql.types import InputError

CARD = "README.md"
_MAX_LINEAGE = 9
_HASHED = (".safetensors", ".gguf", ".json", ".jinja", ".yaml")


def save_prompt_settings(folder: Path, trained: TrainedModel) -> None:
    """Write a model's prompt settings to its folder: recipe, prompt, stops, turns and lengths of its run.

    `model_locator.find_trained` reads it. Paths of this machine are left out: a custom template is copied, and paths of
    custom recipes, few-shot examples and word vectors are cut to their last name.
    """
    section, template = trained.data, trained.data.chat.template
    last_names = {
        key: Path(path).name
        for key, path in (
            ("dir", section.dir),
            ("select.include_ids", section.select.include_ids),
            ("retrieval.synonyms", section.retrieval.synonyms),
        )
    }
    if template and template not in template_names():
        shutil.copyfile(template_file(template), folder / TEMPLATE)
        template = TEMPLATE
    data = prompt_settings(replace_values(section, {**last_names, "chat.template": template, "tokenizer.path": ""}))
    source, colon, name = trained.recipe.rpartition(":")
    settings: dict[str, Any] = {"recipe": f"{Path(source).name}:{name}" if colon else trained.recipe, "data": data}
    for key, fields in PROMPT_KEYS.items():
        values = dataclasses.asdict(getattr(trained, key))
        settings[key] = {name: values[name] for name in fields}
    comment = "# The prompt settings of this model's training, read by jaxrl-sql.\n"
    (folder / PROMPT_FILE).write_text(comment + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")


def write_card(folder: Path, run: Path | None, step: int | None = None, averaged: Sequence[str] = ()) -> Path:
    """Write README.md to the folder of an exported model and return its path.

    run: the folder of the training, None if unknown; step: the checkpoint's, None for the end; averaged: the models
    whose weights are in the mean, so that the run's accuracies are not this model's. Paths of this machine are left
    out: the card has only the last name of folders.
    """
    bases = _lineage(run)
    front = _front(bases)
    lines = ["---", *front, "---", "", f"# {folder.resolve().name}", ""]
    if run is None:
        lines += ["How this model was trained is not known to who wrote this card.", ""]
    else:
        lines += _training(run, bases, step)
    if averaged:
        names_of = ", ".join(_name(path) for path in averaged)
        lines += [f"The weights are the mean of these and of {names_of}. No run measured its accuracy.", ""]
    elif run is not None:
        lines += _accuracies(run, step)
    lines += ["## Files", "", "| file | bytes | SHA-256 |", "|---|---|---|"]
    files = sorted(path for path in folder.iterdir() if path.suffix in _HASHED or path.name == MODELFILE)
    lines += [f"| `{path.name}` | {path.stat().st_size} | `{_sha256(path)}` |" for path in files]
    path = folder / CARD
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _lineage(run: Path | None) -> list[str]:
    """Return the paths and names of a run's bases, from its own to one that no run here trained."""
    bases: list[str] = []
    with suppress(InputError):  # a base is missing
        while run is not None and len(bases) < _MAX_LINEAGE:
            base = load_config(TrainConfig, run / CONFIG).model.checkpoint
            if not base:
                break
            bases.append(base)
            run = find_model(base)[1]
    return bases


def _license(bases: Sequence[str]) -> str:
    """Return the licence of the first base that names one."""
    return next((license_name for base in bases if (license_name := license_of(base) or _license_in(base))), "")


def _license_in(base: str) -> str:
    """Return the licence in a GGUF file's metadata, as the hub writes it; empty without one."""
    path = Path(base)
    if not path.is_file() or not is_gguf(path):
        return ""
    license_name = str(read_header(path).metadata.get("general.license", ""))
    return license_name if re.fullmatch(r"[\w.+-]+", license_name) else ""


def _front(bases: Sequence[str]) -> list[str]:
    """Return the block that the hub reads: the licence is the base's, or `other` without one."""
    front = [
        f"license: {_license(bases) or 'other'}",
        "pipeline_tag: text-generation",
        "tags: [text-to-sql, jaxrl-sql]",
    ]
    repo = next((name for base in bases if (name := repo_of(base))), "")
    return [*front, f"base_model: {repo}"] if repo else front


def _name(model: str) -> str:
    """Return a model's name on the hub, or its folder's name."""
    return repo_of(model) or Path(model.removesuffix("/model")).name


def _training(run: Path, bases: Sequence[str], step: int | None) -> list[str]:
    """Return a table of the base models, the data and the settings of the training."""
    config = load_config(TrainConfig, run / CONFIG)
    names_of = [_name(base) for base in bases]
    data, grpo, sft, again = config.data, config.grpo, config.sft, config.second_stage.steps
    rows: dict[str, Any] = {
        "made by": f"jaxrl-sql {version('jaxrl-sql')}",
        "recipe": config.recipe,
        "base": ", which was trained from ".join(names_of) or "none: new weights",
        "licence of the base": (_license(bases) or "it names none: ask its authors") if bases else "no base",
        "data": f"{data.source}: {Path(data.dir).name}" + (f", split {data.train}" if data.train else ""),
        "seed": f"{config.seed} (data {data.seed})",
        "supervised steps": f"those of {sft.epochs} epochs" if sft.epochs else sft.steps,
        "GRPO steps": f"{grpo.steps}, then {again} of a second stage" if again else grpo.steps,
    }
    if grpo.steps:
        rows["algorithm"] = grpo.algorithm
        rows["prompts × answers a step"] = f"{grpo.prompts} × {grpo.num_generations}"
    rates = {"GRPO": grpo.optim.lr if grpo.steps else 0, "supervised": sft.optim.lr if sft.steps or sft.epochs else 0}
    rows |= {
        "learning rate": ", ".join(f"{rate:g} ({phase})" for phase, rate in rates.items() if rate) or "no training",
        "adapters": f"rank {config.model.lora.rank}, merged" if config.model.lora.rank else "none",
        "weights of": "the end of the run" if step is None else f"step {step}",
    }
    table = [f"| {name} | {_plain(value)} |" for name, value in rows.items()]
    return ["## Training", "", "| | |", "|---|---|", *table, ""]


def _accuracies(folder: Path, step: int | None) -> list[str]:
    """Return the accuracy of each split before and after, with intervals of 95 %."""
    try:
        run: RunFiles | None = load_run(folder)
    except InputError:  # the folder has no metrics
        run = None
    rows = [row for split in _splits(run) for row in _split_rows(run, split, step)] if run is not None else []
    if not rows:
        return ["The run recorded no accuracy on held-out questions.", ""]
    head = ["## Accuracy on held-out questions", "", "Before and after training; in brackets Wilson's 95 % intervals."]
    table = ["| split | questions | before | after |", "|---|---|---|---|", *rows]
    return [
        *head,
        "They treat questions as independent. Questions on one database are not, so the intervals are too narrow.",
        "",
        *table,
        "",
    ]


def _splits(run: RunFiles) -> list[str]:
    return [name.split("/")[1] for name in metric_names(run, "eval/", "/accuracy")]


def _split_rows(run: RunFiles, split: str, step: int | None) -> list[str]:
    key = f"eval/{split}/accuracy"
    rows = [record for record in run.metrics if isinstance(record.get(key), int | float)]
    rows = [record for record in rows if step is None or record["step"] <= step]
    if not rows:
        return []
    count = int(rows[-1].get(f"eval/{split}/count", 0))
    last = step or max(record["step"] for record in run.metrics)
    only = rows[0]["step"] if len(rows) == 1 else None  # the start's, or the end's
    before, after = (_score(record, split, count) for record in (rows[0], rows[-1]))
    before, after = "not measured" if only == last else before, after if only in (None, last) else "not measured"
    return [f"| {_plain(split)} | {count} | {before} | {after} |"]


def _score(row: Mapping[str, Any], split: str, count: int) -> str:
    """Return an accuracy with its interval and its step."""
    accuracy, right = float(row[f"eval/{split}/accuracy"]), np.zeros(count)
    right[: round(accuracy * count)] = 1.0
    low, high = share_interval(right, [""] * count)
    return f"{accuracy:.1%} [{low:.1%}, {high:.1%}], step {row['step']}"


def _plain(value: object) -> str:
    """Return a text that stays within its cell of a table."""
    return " ".join(str(value).replace("|", "\\|").split())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
