"""Find a model's weights and the prompt settings of its training.

A run's folder has its configuration. Each model that a run writes has the settings that determine its prompts, in
`jaxrl_sql.yaml`, so a copied folder is still prompted as in training. Settings "by key" are a mapping from dotted keys,
such as `data.chat.date`, to values.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import shlex
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
    TrainConfig,
    ValidationConfig,
    find_shipped,
    load_config,
    replace_values,
)
from jaxrl_sql.config.check import flatten, values_by_key
from jaxrl_sql.config.reading import PROMPT_FILE
from jaxrl_sql.runtime.folder import CONFIG, list_saved_steps
from jaxrl_sql.runtime.hub import fetch, is_hub_name, pinned_name
from jaxrl_sql.runtime.journal import journal_settings
from jaxrl_sql.types import Fields, InputError, Record

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")

MODEL = "model"
"""The folder of the trained model in a run folder."""
TEMPLATE = "prompt.jinja"
"""The prompt template in a model's folder, if it is a user's file."""

# About the benchmarks' limits of 30 s per query, counted in steps so that they do not depend on the load.
BENCHMARK_LIMITS = {"vm_steps": 3_000_000_000, "timeout_ms": 300_000, "max_rows": 1_000_000, "max_bytes": 256 << 20}


# Bytes per block and number of blocks that are hashed of a large file; small files are hashed in full.
_BLOCK, _BLOCKS = 16 << 10, 256

# Keys of the section `data` that select questions and do not affect the prompt of a question.
_QUESTION_KEYS = (
    "source", "dir", "database", "seed", "train", "evals", "tokenizer.vocab_size", "select.include_ids",
    "select.limit_train", "select.limit_eval", "select.drop_empty_gold", "dialects", "traces", "prune", "stream_above",
    "hide",
)  # fmt: skip
# Those of them that select the questions shown as few-shot examples, and so affect prompts with such examples.
_FEW_SHOT_KEYS = ("source", "dir", "database", "seed", "train", "select.limit_train", "select.include_ids")
PROMPT_KEYS: Mapping[str, tuple[str, ...]] = {
    "model": ("dtype", "compute_dtype", "attention"),
    "sampling": ("turns", "max_total_tokens", "stop"),
    "validation": ("sampling", "max_num_seqs"),
}
"""Keys of other sections than `data` that determine how a model is prompted, by section."""


@dataclass(frozen=True)
class TrainedModel(RootConfig):
    """The settings of a run that determine how its model is built and prompted."""

    recipe: str = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)


def read_trained(path: Path) -> TrainedModel:
    """Read a model's prompt settings from the configuration of its run, or from the file in its folder."""
    return load_config(TrainedModel, path)


def prompt_settings(data: DataConfig) -> Record:
    """Return the settings of `data`, as nested sections, that determine the prompt of a question.

    With few-shot examples (`data.shots`), the settings that select these examples are among them.
    """
    left_out = {*_QUESTION_KEYS} - {*(_FEW_SHOT_KEYS if data.shots else ())}
    return _without(dataclasses.asdict(data), left_out)


def _without(values: Fields, left_out: Collection[str], prefix: str = "") -> Record:
    """Return nested values without some dotted keys, and without empty sections."""
    kept_values = {
        name: _without(value, left_out, f"{prefix}{name}.") if isinstance(value, dict) else value
        for name, value in values.items()
        if f"{prefix}{name}" not in left_out
    }
    return {name: value for name, value in kept_values.items() if value != {}}


def files_identity(path: str | Path) -> str:
    """Return a hash of a file or of a model's folder; "" if the path is empty or no file is there.

    Of a large file, the size and a few hundred blocks are hashed.
    """
    if not str(path):
        return ""
    digest, root = hashlib.blake2b(digest_size=8), Path(path)
    suffixes = (".safetensors", ".gguf", ".json", ".jinja")
    paths = sorted(file for file in root.iterdir() if file.suffix in suffixes) if root.is_dir() else [root]
    for file in paths:
        if not file.is_file():
            return ""
        size = file.stat().st_size
        digest.update(f"{file.name} {size}".encode())
        with file.open("rb") as stream:
            for offset in range(0, size, max(_BLOCK, size // _BLOCKS)):
                stream.seek(offset)
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def refuse_missing_model(path: Path) -> None:
    """Raise InputError, with the path of the nearest name, if a model's path does not exist."""
    if path.exists():
        return
    parent = next(folder for folder in path.absolute().parents if folder.is_dir())
    name, *rest = path.absolute().relative_to(parent).parts
    nearest = difflib.get_close_matches(name, [entry.name for entry in parent.iterdir()], n=1)
    shown = path.parents[len(rest)] / nearest[0] if nearest else None
    if shown is not None and shown.joinpath(*rest).exists():
        shown = shown.joinpath(*rest)
    raise InputError(f"model {path}: no such folder or file" + (f"; the nearest is {shown}" if shown else ""))


def _advice_without_model(run: Path) -> str:
    """Return how to get a model of a run that has not written one."""
    steps = list_saved_steps(run)
    if not steps or read_trained(run / CONFIG).model.lora.rank:  # a checkpoint of adapters cannot be exported
        return "it is written at the run's end"
    command = shlex.join(["jaxrl-sql", "export", str(run), "--step", str(steps[-1])])
    return f"`{command}` writes that of the newest checkpoint"


def find_model(name: str) -> tuple[Path, Path | None]:
    """Return the path of a model's weights, and the folder of its run or None.

    `name` is a run folder, its `model/`, a Hugging Face folder or a GGUF file. A name of the hub is returned unchanged:
    see `with_downloads`. Raises InputError for other paths.
    """
    path = find_shipped(name)
    if is_hub_name(name):
        return path, None
    refuse_missing_model(path)
    if (path / CONFIG).is_file():
        if not (path / MODEL).is_dir():
            raise InputError(f"model {name}: the run has no {MODEL}/ yet; {_advice_without_model(path)}")
        return path / MODEL, path
    run = path.resolve().parent
    return path, run if path.resolve().name == MODEL and (run / CONFIG).is_file() else None


def find_trained(name: str) -> tuple[Path, TrainedModel | None]:
    """Return the path of a model's weights, as `find_model`, and its training settings from its run or its folder.

    A hub model's settings file is downloaded. Raises InputError if there is no such model or the download fails.
    """
    path, run = find_model(name)
    if run is not None:
        return path, read_trained(run / CONFIG)
    folder = fetch(name, with_weights=False) if is_hub_name(name) else path
    if not (folder / PROMPT_FILE).is_file():
        return path, None
    return path, read_trained(folder / PROMPT_FILE)


def with_downloads(config: Settings, with_weights: bool = True) -> Settings:
    """Return a command's settings after downloading the models that `model.checkpoint` and `data.tokenizer.path` name.

    Local folders replace the names of the hub. A resumed run uses the commit that its `config.yaml` records. A folder
    of the hub's cache that is absent here is downloaded again. Raises InputError if a download fails.
    """
    values = values_by_key(config)
    recorded_values = _recorded_settings(values)
    display = values.get("run.display", "auto")
    changes: Record = {}
    for key, needs_weights in (("model.checkpoint", with_weights), ("data.tokenizer.path", False)):
        name = values.get(key, "")
        # With `model.shape`, the command `plan` reads nothing of the checkpoint.
        if not name or (key == "model.checkpoint" and values.get("model.shape")):
            continue
        source = _hub_source(name, recorded_values.get(key, ""))
        if source:
            changes[key] = str(fetch(source, needs_weights, display))
    return replace_values(config, changes)


def _recorded_settings(values: Fields) -> Fields:
    """Return, by key, the settings with which a run began, if the command resumes it; empty for a new run."""
    config_path = Path(values.get("run.dir", "")) / CONFIG
    is_resumed = values.get("run.resume") and config_path.is_file()
    return values_by_key(load_config(TrainConfig, config_path)) if is_resumed else {}


def _hub_source(name: str, recorded: str) -> str:
    """Return the hub name to download for the value `name` of a setting; "" if it is an existing path.

    `recorded` is the setting's value in the configuration of a resumed run: a folder of the hub's cache, which contains
    the commit. The result has this commit (`NAME@COMMIT`) unless `name` has a revision.
    """
    if not is_hub_name(name):
        return "" if Path(name).exists() else pinned_name(name)
    recorded_name = pinned_name(recorded)
    return recorded_name if "@" not in name and recorded_name.startswith(f"{name}@") else name


def defaults_for(name: str) -> Record:
    """Return the defaults of a command that asks a model: the benchmarks' limits, and the model's prompt settings.

    `name` is that of the model, as in `find_model`. Without a name, only the limits are returned. A model without
    settings of a training is prompted with its chat template.
    """
    if not name:
        return {"executor": dict(BENCHMARK_LIMITS)}
    checkpoint, run = find_trained(name)
    model: Record = {"checkpoint": str(checkpoint)}
    if run is None:
        data: Record = {"prompt": "chat", "max_prompt_tokens": 8192}
        return {"executor": dict(BENCHMARK_LIMITS), "model": model, "data": data}
    return {
        "executor": dict(BENCHMARK_LIMITS),
        "recipe": run.recipe,
        "data": prompt_settings(replace_values(run.data, {"tokenizer.path": ""})),
        "model": {name: getattr(run.model, name) for name in PROMPT_KEYS["model"]} | model,
        "evaluate": {
            "sampling": dataclasses.asdict(run.validation.sampling_in(run.sampling)),
            "max_num_seqs": run.validation.max_num_seqs,
        },
    }


def today() -> str:
    """Return the day, as `data.chat.date` has it."""
    return time.strftime("%Y-%m-%d")


def with_chat_date(data: DataConfig, checkpoint: str, journal: Path) -> DataConfig:
    """Return the section `data` with one date for all chat prompts of a command.

    Chat templates may print a date, so a resumed command and a trained model need the earlier date. It is
    `data.chat.date`, else the date in the settings of the resumed `journal`, else that of the training of the model
    `checkpoint`, else today's.
    """
    if data.chat.date or not data.is_chat or not checkpoint:
        return data
    trained = find_trained(checkpoint)[1]
    date = journal_settings(journal).get("data.chat.date") or (trained.data.chat.date if trained else "") or today()
    return replace_values(data, {"chat.date": date})


def prompt_differences(recipe: str, data: DataConfig, trained: TrainedModel) -> list[str]:
    """Return a text per setting by which a command's prompts differ from those of the model's training."""
    current_values, trained_values = (
        {"recipe": name} | dict(flatten({"data": prompt_settings(section)}))
        for name, section in ((recipe, data), (trained.recipe, trained.data))
    )
    # These two settings do not change a prompt's text.
    compared = trained_values.keys() - {"data.tokenizer.path", "data.max_prompt_tokens"}
    compared -= set() if trained.data.chat.date else {"data.chat.date"}
    differing = (key for key in trained_values if key in compared and current_values[key] != trained_values[key])
    return [f"{key}={current_values[key]} (trained with {trained_values[key]})" for key in differing]
