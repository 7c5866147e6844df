"""Where a model lies, and how it was trained to be asked.

A run's folder has its configuration, and each model that a run writes has what of it says how the model is asked, in
`jaxrl_sql.yaml`: wherever the folder is copied to, it is asked as it was taught.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from jaxrl_sql.config import (
    DataConfig,
    ModelConfigSection,
    RootConfig,
    SamplingConfig,
    ValidationConfig,
    changed,
    load_config,
    shipped,
)
from jaxrl_sql.config.check import flatten, values_by_key
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.hub import ASKED, fetch, is_hub_name
from jaxrl_sql.runtime.journal import begun_with
from jaxrl_sql.types import Fields, InputError, Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")

MODEL = "model"
TEMPLATE = "prompt.jinja"
"""The prompt's template in a model's folder, where it was a file and none of ours."""

# Benchmarks' own limits, or nearly: 30 s a query, counted in steps so that they do not depend on the load.
BENCHMARK_LIMITS = {"vm_steps": 3_000_000_000, "timeout_ms": 300_000, "max_rows": 1_000_000, "max_bytes": 256 << 20}


# So much of a file is read to tell its content, and at so many places: all of one that is small.
_BLOCK, _BLOCKS = 16 << 10, 256

# What of the section `data` says which questions there are, and not how one is put.
_CHOOSES = (
    "source", "dir", "seed", "train", "evals", "tokenizer.vocab_size", "select.include_ids", "select.limit_train",
    "select.limit_eval", "select.drop_empty_gold", "dialects", "traces", "prune", "stream_above", "hide",
)  # fmt: skip
# Of those, what says which questions are shown as examples.
_SHOWN = ("source", "dir", "seed", "train", "select.limit_train", "select.include_ids")
ASKED_TOO: Mapping[str, tuple[str, ...]] = {
    "model": ("dtype", "compute_dtype", "attention"),
    "sampling": ("turns", "max_total_tokens", "stop"),
    "validation": ("sampling", "max_num_seqs"),
}
"""What of other sections than `data` says how a model is asked, which `defaults_for` reads."""


@dataclass(frozen=True)
class TrainedModel(RootConfig):
    """The settings of a run that decide how its model is built and asked."""

    recipe: str = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)


def read_trained(path: Path) -> TrainedModel:
    """Read how a model is asked from the configuration of its run, or from the file in its folder."""
    return load_config(TrainedModel, path)


def asked_by(data: DataConfig) -> Record:
    """Return what of the section `data` says how a question is put to a model, and where shown examples come from."""
    left_out = {*_CHOOSES} - {*(_SHOWN if data.shots else ())}
    return _without(dataclasses.asdict(data), left_out)


def _without(values: Fields, left_out: Collection[str], prefix: str = "") -> Record:
    """Return nested values without some dotted keys, and without sections of which nothing is left."""
    rest = {
        name: _without(value, left_out, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in left_out
    }
    return {name: value for name, value in rest.items() if value != {}}


def files_identity(path: str | Path) -> str:
    """Return a hash of a file, or of a model's folder; large ones are read at a few hundred places. Empty for none."""
    if not str(path):
        return ""
    whole, root = hashlib.blake2b(digest_size=8), Path(path)
    kinds = (".safetensors", ".gguf", ".json", ".jinja")
    files = sorted(one for one in root.iterdir() if one.suffix in kinds) if root.is_dir() else [root]
    for one in files:
        if not one.is_file():
            return ""
        size = one.stat().st_size
        whole.update(f"{one.name} {size}".encode())
        with one.open("rb") as file:
            for place in range(0, size, max(_BLOCK, size // _BLOCKS)):
                file.seek(place)
                whole.update(file.read(_BLOCK))
    return whole.hexdigest()


def find_model(given: str) -> tuple[Path, Path | None]:
    """Return where the weights of a run folder, its `model/`, a Hugging Face folder or a GGUF file are, and the run.

    The run is its folder, None where there is none. A name of the hub is returned as it is: see `fetched`.
    Raises InputError for a path that is none of these.
    """
    path = shipped(given)
    if is_hub_name(given):
        return path, None
    if not path.exists():
        raise InputError(f"model {given}: no such folder or file")
    if (path / CONFIG).is_file():
        if not (path / MODEL).is_dir():
            raise InputError(
                f"model {given}: the run has no {MODEL}/ yet; `jaxrl-sql export {given} --step N` writes a checkpoint's"
            )
        return path / MODEL, path
    run = path.resolve().parent
    return path, run if path.resolve().name == MODEL and (run / CONFIG).is_file() else None


def find_asked(given: str) -> tuple[Path, TrainedModel | None]:
    """Return where a model's weights are, as `find_model` does, and how it is asked, by its run or its folder.

    Of a model of the hub that file is fetched. Raises InputError for what is no model, and cannot be fetched.
    """
    path, run = find_model(given)
    if run is not None:
        return path, read_trained(run / CONFIG)
    folder = fetch(given, with_weights=False) if is_hub_name(given) else path
    if not (folder / ASKED).is_file():
        return path, None
    trained = read_trained(folder / ASKED)
    own = folder / TEMPLATE
    is_copied = trained.data.chat.template == TEMPLATE
    return path, changed(trained, {"data.chat.template": str(own)}) if is_copied else trained


def fetched(config: Settings, with_weights: bool = True) -> Settings:
    """Return the settings of a command with folders for `model.checkpoint` and `data.tokenizer.path` of the hub.

    Raises InputError for what cannot be fetched.
    """
    values = values_by_key(config)
    checkpoint = "" if values.get("model.shape") else values.get("model.checkpoint", "")  # a plan has no use for both
    tokenizer = values["data.tokenizer.path"]
    named = {"model.checkpoint": (checkpoint, with_weights), "data.tokenizer.path": (tokenizer, False)}
    return changed(config, {key: str(fetch(*asked)) for key, asked in named.items() if is_hub_name(asked[0])})


def defaults_for(given: str) -> Record:
    """Return what lies beneath a command's configuration: limits as benchmarks have them, and a model as it was taught.

    One whose training is not known is asked in a chat.
    """
    if not given:
        return {"executor": dict(BENCHMARK_LIMITS)}
    checkpoint, run = find_asked(given)
    model: Record = {"checkpoint": str(checkpoint)}
    if run is None:
        data: Record = {"prompt": "chat", "max_prompt_tokens": 8192}
        return {"executor": dict(BENCHMARK_LIMITS), "model": model, "data": data}
    return {
        "executor": dict(BENCHMARK_LIMITS),
        "recipe": run.recipe,
        "data": asked_by(changed(run.data, {"tokenizer.path": ""})),
        "model": {name: getattr(run.model, name) for name in ASKED_TOO["model"]} | model,
        "evaluate": {
            "sampling": dataclasses.asdict(run.validation.sampling_in(run.sampling)),
            "max_num_seqs": run.validation.max_num_seqs,
        },
    }


def today() -> str:
    """Return the day, as `data.chat.date` has it."""
    return time.strftime("%Y-%m-%d")


def with_date(data: DataConfig, checkpoint: str, journal: Path) -> DataConfig:
    """Return the section `data` with the one date of all prompts that a command asks a checkpoint in a chat.

    That is `data.chat.date`, else the date of the journal that is continued, else of the model's training, else
    today's.
    """
    if data.chat.date or data.prompt != "chat" or not checkpoint:
        return data
    trained = find_asked(checkpoint)[1]
    date = begun_with(journal).get("data.chat.date") or (trained.data.chat.date if trained else "") or today()
    return changed(data, {"chat.date": date})


def asked_otherwise(recipe: str, data: DataConfig, trained: TrainedModel) -> list[str]:
    """Return each setting by which a command's prompts differ from those of the model's training, one per line."""
    now, then = (
        {"recipe": name} | dict(flatten({"data": asked_by(section)}))
        for name, section in ((recipe, data), (trained.recipe, trained.data))
    )
    heard = then.keys() - {"data.tokenizer.path", "data.max_prompt_tokens"}  # by these no word of a prompt is another
    heard -= set() if trained.data.chat.date else {"data.chat.date"}
    differ = (name for name in then if name in heard and now[name] != then[name])
    return [f"{name}={now[name]} (trained with {then[name]})" for name in differ]
