"""Rotary embeddings in a Hugging Face config.

transformers 5 has them in the nested object `rope_parameters`, earlier versions in `rope_scaling` and top-level fields.
Both forms are read, and must agree if a config has both. Both are written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxrl_sql.models.families.fields import HfConfig, read_number, read_section
from jaxrl_sql.models.rope import Rope, RopeScaling
from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.types import Fields, InputError

# Field of the config -> field of RopeScaling.
FACTOR = {"factor": "factor"}
BANDS = {
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "original_max_position_embeddings": "original_max_positions",
}
# Fields of each kind of scaling. In the config it may have these fields and those of ALWAYS, and no others.
FIELDS: Mapping[str, Mapping[str, str]] = {"default": {}, "linear": FACTOR, "llama3": {**FACTOR, **BANDS}}
ALWAYS = {"rope_theta", "rope_type", "type"}


def _scaling(fields: HfConfig, where: str, kinds: Sequence[str]) -> RopeScaling | None:
    """Read the scaling from a dict of rotary fields; None for the kind `default`.

    where: path of the dict in the config, for messages. Raises InputError for a kind that is not in `kinds`.
    """
    kind = fields.get("rope_type", fields.get("type", "default"))
    if kind not in ("default", *kinds):
        valid = ", ".join(repr(name) for name in ("default", *kinds))
        raise InputError(f"config.json: {where} of type {kind!r} is not supported; valid: {valid}")
    names = FIELDS[kind]
    if unknown := sorted(fields.keys() - names.keys() - ALWAYS):
        valid = ", ".join(sorted(ALWAYS | names.keys()))
        raise InputError(f"config.json: {where} of type {kind!r} has {unknown[0]}; valid: {valid}")
    if kind == "default":
        return None
    return RopeScaling(kind, **{ours: read_number(fields, name, where=where) for name, ours in names.items()})


def _common_value(values: Fields, default: Any) -> Any:
    """Return the common value of all sources, `default` without sources.

    values: the value by the name of its source. Raises InputError with two sources that contradict each other.
    """
    if not values:
        return default
    first, value = next(iter(values.items()))
    for name, other in values.items():
        if other != value:
            raise InputError(f"config.json: {name} and {first} contradict each other ({other} and {value})")
    return value


def read_rope(
    hf: HfConfig, sources: Mapping[str, HfConfig], base: str, default: float, kinds: Sequence[str] = ()
) -> Rope:
    """Read base and scaling of the rotary embeddings.

    sources: nested dicts that may hold them, by their path in the config; base: the top-level field that may hold the
    base; default: the base if no field has it; kinds: supported kinds of scaling. Raises InputError for other kinds,
    for unknown fields, and for sources that contradict each other.
    """
    present = {where: fields for where, fields in sources.items() if fields}
    scaling = _common_value({where: _scaling(fields, where, kinds) for where, fields in present.items()}, None)
    bases = {
        f"{where}.rope_theta": read_number(fields, "rope_theta", where=where)
        for where, fields in present.items()
        if fields.get("rope_theta") is not None
    }
    if hf.get(base) is not None:
        bases[base] = read_number(hf, base)
    return Rope(float(_common_value(bases, default)), scaling)


def read_flat_rope(hf: HfConfig, default: float, kinds: Sequence[str] = ()) -> Rope:
    """Read the rotary embeddings of a family in which all layers have the same rotary embeddings."""
    sources = {name: read_section(hf, name) for name in ("rope_parameters", "rope_scaling")}
    return read_rope(hf, sources, "rope_theta", default, kinds)


def scaling_fields(scaling: RopeScaling | None) -> HfConfig:
    """Return the fields of a scaling for `rope_scaling` and `rope_parameters`."""
    if scaling is None:
        return {"rope_type": "default"}
    values = {name: getattr(scaling, ours) for name, ours in FIELDS[scaling.kind].items()}
    return {"rope_type": scaling.kind, **values}


def flat_rope(config: ModelConfig) -> HfConfig:
    """Return the rotary fields, in both forms, of a family in which all layers have the same rotary embeddings."""
    scaling = scaling_fields(config.rope.scaling)
    return {
        "rope_parameters": {"rope_theta": config.rope.theta, **scaling},
        "rope_scaling": scaling if config.rope.scaling else None,
        "rope_theta": config.rope.theta,
    }
