"""Turn a request for an evaluation, or for answers, into the layers of its configuration.

From lowest to highest priority, the layers are defaults (such as those of a model's folder), configuration files, the
values of command-line options, and overrides `key=value`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import EvaluateConfig, EvaluateSettings, Override, TrainConfig, load_config
from jaxrl_sql.config.load import COMMAND_LINE, apply_published_settings, check_keys, section_names
from jaxrl_sql.runtime.endpoint import endpoint_values
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import defaults_for, find_model, read_trained
from jaxrl_sql.types import Fields, InputError, Record

ONE_ANSWER_SOURCE = (
    "set exactly one of: --predictions FILE (one per --data), --model M, or --endpoint URL --model M (or "
    "evaluate.base_url=URL evaluate.model=M)"
)

LIMITS = {"vm_steps": 3_000_000_000, "timeout_ms": 30_000}
"""Limits of the executor for a person's or an agent's queries."""

# For several answers to a question, which would be equal at temperature 0.
_TEMPERATURE = 0.8


class Layers(NamedTuple):
    """The layers of a configuration other than its files, as `load_config` takes them.

    `defaults` and `option_values` are nested by section: {"evaluate": {"split": "dev"}}.
    """

    overrides: Sequence[Override]
    defaults: Fields
    option_values: Fields


@dataclass(frozen=True)
class EvaluationRequest:
    """A request for an evaluation; an empty value leaves the choice to the configuration's files and overrides.

    `data` names folders of benchmarks and `split` the part of each. `predictions` are files, one per folder, with the
    SQL in `sql_field`. Otherwise `model` answers: a folder, a file, or a name on the hub; with `endpoint`, the URL of a
    server, the name of a model there. `recipe` names the prompt and the parsing of its answers. `system` names a
    published system, and selects its paper's prompt, sampling and rule. `allow_missing` skips questions without a
    prediction, `allow_extra` predictions without a question. `out` is the output folder.
    """

    data: Sequence[str] = ()
    split: str = ""
    predictions: Sequence[str] = ()
    sql_field: str = ""
    model: str = ""
    endpoint: str = ""
    system: str = ""
    recipe: str = ""
    out: str = ""
    allow_missing: bool = False
    allow_extra: bool = False


def evaluation_layers(
    request: EvaluationRequest,
    overrides: Sequence[Override] = (),
    files: Sequence[Path] | None = None,
    origin: str = COMMAND_LINE,
) -> Layers:
    """Return the layers of an evaluation: a model's own settings are defaults, the request gives option values.

    `origin` is the name of overrides in errors. Raises InputError as `load_config` does, for a missing model, and if
    there are neither predictions nor a model or endpoint.
    """
    overrides = [*_endpoint_overrides(request.endpoint), *overrides]
    check_keys(EvaluateConfig, files, overrides, origin)  # before a model is searched on the hub
    model, chat = "" if request.endpoint else request.model, {"data": {"prompt": "chat"}}
    if model:
        defaults = defaults_for(model)
    else:
        # The files or an override may name a model. The configuration is loaded without the model's defaults, only to
        # find the name; the defaults then have a lower priority than files and overrides.
        sampling = validation_sampling(files) if request.endpoint else {}
        published = _with_system_defaults(request, sampling, exclude=("max_prompt_tokens",))
        published |= {} if request.system else chat
        preliminary = load_config(EvaluateConfig, files, overrides, published, origin=origin)
        model, has_endpoint = preliminary.model.checkpoint, bool(preliminary.evaluate.base_url)
        if not (model or has_endpoint or request.predictions or preliminary.evaluate.predictions):
            raise InputError(ONE_ANSWER_SOURCE)
        defaults = defaults_for(model) | (chat | validation_sampling(files) if has_endpoint else {})
    defaults = _with_system_defaults(request, defaults)
    option_values: Record = {}
    names = ("split", "sql_field", "allow_missing", "allow_extra", "out")
    option_values["evaluate"] = {name: getattr(request, name) for name in names if getattr(request, name)}
    option_values["evaluate"] |= {
        name: list(getattr(request, name)) for name in ("data", "predictions") if getattr(request, name)
    }
    option_values["evaluate"] |= {"model": request.model} if request.endpoint and request.model else {}
    option_values |= {"recipe": request.recipe} if request.recipe else {}
    option_values |= {"model": {"checkpoint": defaults["model"]["checkpoint"]}} if "model" in defaults else {}
    return Layers(overrides, defaults, option_values)


def ask_layers(
    model: str,
    overrides: Sequence[Override] = (),
    files: Sequence[Path] | None = None,
    *,
    endpoint: str | None = None,
    recipe: str | None = None,
    samples: int | None = None,
) -> Layers:
    """Return the layers for asking a model: a path or a hub name, or the name of a model at `endpoint`.

    Prompt settings come from the model's folder, `data.database` from its run. For an endpoint, sampling comes from
    `validation` in `files`, and no checkpoint is needed. `recipe` and `samples` take priority over files. More than one
    sample sets a temperature. Raises InputError for a missing model.
    """
    defaults = defaults_for("" if endpoint else model)
    defaults["executor"] |= LIMITS
    option_values: Record = {"recipe": recipe} if recipe else {}
    if endpoint:
        option_values["evaluate"] = {"model": model}
        defaults |= {"data": {"prompt": "chat"}} | validation_sampling(files)
        overrides = [*_endpoint_overrides(endpoint), *overrides]
    else:
        option_values["model"] = {"checkpoint": defaults["model"]["checkpoint"]}
        run = find_model(model)[1]
        defaults["data"] |= {"database": read_trained(run / CONFIG).data.database} if run is not None else {}
    if samples is not None:
        option_values["evaluate"] = option_values.get("evaluate", {}) | {"samples": samples}
        if samples > 1:
            settings = defaults.setdefault("evaluate", {})
            settings["sampling"] = settings.get("sampling", {}) | {"temperature": _TEMPERATURE}
    return Layers(overrides, defaults, option_values)


def prompt_warning(cfg: EvaluateSettings, prompt: str) -> str:
    """Return a warning for an endpoint, which gets chats, if `prompt` (`data.prompt`) has another form; else ""."""
    if not cfg.base_url or prompt in ("auto", "chat", "given"):
        return ""
    return (
        f"warning: an endpoint gets chats, not the prompts of data.prompt={prompt}: for a model that was trained with "
        "these, name its run or folder by --model, without an endpoint; for a chat model set data.prompt=chat"
    )


def _endpoint_overrides(url: str) -> list[Override]:
    """Return overrides for an endpoint's URL; the model and the tokenizer of a configuration are not looked up."""
    return [*endpoint_values("evaluate", url), {"model.checkpoint": "", "data.tokenizer.path": ""}] if url else []


def validation_sampling(files: Sequence[Path] | None) -> Record:
    """Return the validation sampling of a training configuration as defaults; empty if `files` has no such section.

    So an endpoint is sampled like the validation of its run.
    """
    if not section_names(files) & {"sampling", "validation"}:
        return {}
    run = load_config(TrainConfig, files, is_checked=False)
    return {"evaluate": {"sampling": dataclasses.asdict(run.validation.sampling_in(run.sampling))}}


def _with_system_defaults(request: EvaluationRequest, defaults: Fields, exclude: Sequence[str] = ()) -> Record:
    """Return defaults updated by the settings of the request's published system, without some keys of `data`."""
    if not request.system:
        return dict(defaults)
    published = apply_published_settings(request.system, defaults, bool(request.predictions))
    return {
        **published,
        "data": {name: value for name, value in published.get("data", {}).items() if name not in exclude},
    }


def check_answerer(cfg: EvaluateSettings, checkpoint: str) -> None:
    """Raise InputError without a benchmark, and unless exactly one of predictions, model and endpoint is set."""
    if not cfg.data:
        raise InputError("--data is missing: it names a benchmark's folder (evaluate.data)")
    if sum(map(bool, (cfg.predictions, checkpoint, cfg.base_url))) != 1:
        raise InputError(ONE_ANSWER_SOURCE)
