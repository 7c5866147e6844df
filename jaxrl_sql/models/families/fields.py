"""Read and write the fields of a Hugging Face config (config.json) that families of models share.

A field whose value is not supported and would change the computation raises an error with its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from jaxrl_sql.models.spec import ModelConfig, SlidingWindow
from jaxrl_sql.types import Fields, InputError, Json, Record

HfConfig = Record


class Family(NamedTuple):
    """A family of models.

    read, write: convert a Hugging Face config to a ModelConfig and back.
    switches: fields of ModelConfig that all its models share. Only norms.eps is a default, which a config.json may
    change.
    new_sliding: number of layers -> the sliding window of a new model; None: the family has none.
    """

    read: Callable[[HfConfig], ModelConfig]
    write: Callable[[ModelConfig], HfConfig]
    switches: Fields
    new_sliding: Callable[[int], SlidingWindow] | None = None


def read_number(hf: HfConfig, name: str, default: float | None = None, where: str = "") -> Json:
    """Return a number field, or `default` if it is absent or null; raises InputError with the field's name.

    `where`: name of a nested dict `hf`, for messages.
    """
    value = hf.get(name)
    if value is None:
        if default is None:
            raise InputError(f"config.json: field {_path(where, name)} is missing")
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"config.json: field {_path(where, name)} is {value!r}, must be a number")
    return value


def read_count(hf: HfConfig, name: str, default: int | None = None) -> int:
    """Return a field that must be a whole number of at least 1, as `read_number` does."""
    return check_count(read_number(hf, name, default), f"config.json: field {name}")


def check_count(value: Json, what: str) -> int:
    """Return a value; raises InputError, which calls it `what`, unless it is a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{what} is {value!r}, must be a whole number of at least 1")
    return value


def _path(where: str, name: str) -> str:
    """Return the path of a field in the config, for messages; `where`: that of the object that has it, or ""."""
    return f"{where}.{name}" if where else name


def read_optional_number(hf: HfConfig, name: str) -> float | None:
    """Return a number field, or None if it is absent or null; raises InputError with the field's name."""
    return None if hf.get(name) is None else float(read_number(hf, name))


def read_section(hf: HfConfig, name: str, where: str = "") -> HfConfig:
    """Return an object field, empty if it is absent or null; raises InputError with the field's name."""
    value = hf.get(name)
    if not isinstance(value, dict | None):
        raise InputError(f"config.json: field {_path(where, name)} is {value!r}, must be an object")
    return value or {}


def require_value(hf: HfConfig, name: str, supported: Json) -> None:
    """Raise InputError if a field is present and its value is not `supported`."""
    value = hf.get(name)
    if value is not None and value != supported:
        raise InputError(f"config.json: {name} is {value!r}; supported is {supported!r}")


def require_no_windows(hf: HfConfig) -> None:
    """Raise InputError for a config with sliding windows in some layer."""
    kinds = {kind for kind in hf.get("layer_types") or () if kind != "full_attention"}
    if hf.get("use_sliding_window") and (kinds or not hf.get("layer_types")):
        raise InputError("config.json: use_sliding_window is True; supported is False")
    if kinds:
        raise InputError(f"config.json: layer_types has {min(kinds)!r}; supported is 'full_attention'")


def common_values(hf: HfConfig, switches: Fields, *, is_tied: bool, max_positions: int) -> Record:
    """Return a family's switches and the fields of ModelConfig that every family reads the same way.

    `is_tied` and `max_positions` are defaults of tie_word_embeddings and max_position_embeddings. The default of
    rms_norm_eps is the eps of the switches' norms.
    """
    norms = switches["norms"]
    return {
        **switches,
        "vocab_size": read_count(hf, "vocab_size"),
        "d_model": read_count(hf, "hidden_size"),
        "n_layers": read_count(hf, "num_hidden_layers"),
        "n_heads": read_count(hf, "num_attention_heads"),
        "d_ff": read_count(hf, "intermediate_size"),
        "norms": replace(norms, eps=read_number(hf, "rms_norm_eps", norms.eps)),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", is_tied)),
        "max_positions": read_count(hf, "max_position_embeddings", max_positions),
    }


def common_fields(config: ModelConfig) -> HfConfig:
    """Return the fields of config.json that every family writes the same way."""
    return {
        "attention_dropout": 0.0,
        "hidden_size": config.d_model,
        "initializer_range": 0.02,
        "intermediate_size": config.d_ff,
        "max_position_embeddings": config.max_positions,
        "num_attention_heads": config.n_heads,
        "num_hidden_layers": config.n_layers,
        "num_key_value_heads": config.n_kv_heads,
        "rms_norm_eps": config.norms.eps,
        "tie_word_embeddings": config.tie_embeddings,
        "use_cache": True,
        "vocab_size": config.vocab_size,
    }
