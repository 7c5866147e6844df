"""Checks of a run before its questions are read or generated, cheapest first.

This module checks files, addresses, the model's configuration and weights, the tokenizer and the targets of adapters.
Later, `preflight` checks mesh, memory and disk space, and lengths once the questions are known.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.config import DataConfig, ModelConfigSection, RunConfig
from jaxrl_sql.config.executor import DatabasesConfig
from jaxrl_sql.inference.questions import CallerQuestions, model_config
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.formats.hf import check_weights, load_tokenizer
from jaxrl_sql.models.lora import resolve_targets
from jaxrl_sql.models.shapes import new_config, published_config
from jaxrl_sql.text2sql.benchmarks import check_split, make_unique_name
from jaxrl_sql.text2sql.env.address import is_address, parse_address
from jaxrl_sql.text2sql.prompts.template import template_file
from jaxrl_sql.training.preflight import check_best
from jaxrl_sql.types import InputError

_CONNECT_TIMEOUT_S = 10.0


class CheckedInputs(NamedTuple):
    """The model's configuration and tokenizer; None if they depend on the training data.

    A new model without `data.tokenizer.path` gets a tokenizer that is trained on the data.
    """

    model: ModelConfig | None = None
    tokenizer: Any = None


def check_inputs(
    run: RunConfig,
    data: DataConfig,
    model: ModelConfigSection,
    databases: DatabasesConfig,
    caller_questions: CallerQuestions,
) -> CheckedInputs:
    """Check the inputs of a run before devices are opened and questions are read.

    Raises InputError for the first error.
    """
    check_best(run, _names_of_evals(data, caller_questions))
    check_files(data, caller_questions)
    servers = {f"executor.databases.{dialect}": url for dialect, url in asdict(databases).items()}
    check_addresses({"data.database": data.database, **servers})
    if model.checkpoint:
        check_weights(model.checkpoint)
    tokenizer_name = data.tokenizer.path or model.checkpoint
    tokenizer = load_tokenizer(tokenizer_name) if tokenizer_name else None
    config = model_config(model, tokenizer) if tokenizer is not None else None
    if model.lora.rank:
        resolve_targets(config or assumed_config(model, 1), model.lora.targets)
    return CheckedInputs(config, tokenizer)


def assumed_config(model: ModelConfigSection, vocab_size: int) -> ModelConfig:
    """Return the configuration of the published model `model.shape`, else of a new model with `vocab_size` tokens."""
    return published_config(model.shape) if model.shape else new_config(model, vocab_size)


def _names_of_evals(data: DataConfig, caller_questions: CallerQuestions) -> list[str]:
    """Return the names of the held-out sets in metrics: the last parts of their paths, made unique."""
    names: dict[str, None] = {}
    for split in dict.fromkeys(data.evals if caller_questions.evals is None else caller_questions.evals):
        names[make_unique_name(Path(split).name or split, names)] = None
    return [*names]


def check_files(data: DataConfig, caller_questions: CallerQuestions) -> None:
    """Check that the named files exist, and that the splits have a known format; raises InputError."""
    for key, path in (
        ("data.tokenizer.path", data.tokenizer.path),
        ("data.chat.template", template_file(data.chat.template) if data.chat.template else ""),
        ("data.retrieval.synonyms", data.retrieval.synonyms),
        ("data.select.include_ids", data.select.include_ids),
        ("data.traces", data.traces),
    ):
        if path and not Path(path).exists():
            raise InputError(f"{key}: {path}: no such file or folder")
    if data.database and not is_address(data.database) and not Path(data.database.removeprefix("duckdb:")).exists():
        raise InputError(f"data.database={data.database}: no such file or folder")
    if data.source == "synth":
        if data.database:
            raise InputError(
                f"data.database={data.database} is for your own files, and data.source=synth generates databases: set "
                "data.source=folder and data.dir"
            )
        return
    splits = [data.train] if caller_questions.train is None else []
    for split in dict.fromkeys([*splits, *(data.evals if caller_questions.evals is None else ())]):
        check_split(data.dir, split)


def check_addresses(urls: Mapping[str, str]) -> None:
    """Check that each server among `urls`, databases by the key of their setting, accepts connections.

    Files and sockets are not checked. Raises InputError.
    """
    for key, url in urls.items():
        address = parse_address(url) if is_address(url) else None
        if address is None or not address.port or address.host.startswith("/"):
            continue
        try:
            socket.create_connection((address.host, address.port), _CONNECT_TIMEOUT_S).close()
        except OSError as error:
            raise InputError(f"{key}: {address.shown} cannot be reached: {error.strerror or error}") from error
