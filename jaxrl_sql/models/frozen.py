"""Frozen weights: split the policy's parameters into trainable and frozen ones.

Frozen weights have no gradient and no moments, and are not in checkpoints. In a small model with a large vocabulary
the embedding table has most of the weights (Gemma 3 270M: 168 of 268 million), and so of the optimizer's memory.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, leaf_of, nest, param_specs
from jaxrl_sql.types import InputError, Record


def split_specs(config: ModelConfig, frozen: Sequence[str]) -> tuple[list[ParamSpec], list[ParamSpec]]:
    """Return the specs of trainable and of frozen weights.

    `frozen` (setting `model.frozen`): names of weights, the last components of `ParamSpec.path`, or patterns such as
    `*_norm`. Raises InputError with the valid names for a pattern without a match, and if all weights are frozen.
    """
    specs = param_specs(config)
    names = [spec.path[-1] for spec in specs]
    for pattern in frozen:
        if not fnmatch.filter(names, pattern):
            raise InputError(f"model.frozen: {pattern!r} is not a weight; valid are {', '.join(names)}, and patterns")
    frozen_names = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in frozen)}
    if len(frozen_names) == len(names):
        raise InputError(f"model.frozen={','.join(frozen)} freezes every weight: nothing would be trained")
    trainable = [spec for spec in specs if spec.path[-1] not in frozen_names]
    return trainable, [spec for spec in specs if spec.path[-1] in frozen_names]


def split(params: PyTree, config: ModelConfig, frozen: Sequence[str]) -> tuple[PyTree, PyTree]:
    """Split a tree like the parameters into (trainable, frozen); frozen is None if `frozen` is empty.

    Raises InputError as `split_specs` does.
    """
    if not frozen:
        return params, None
    trainable_specs, frozen_specs = split_specs(config, frozen)
    return (
        nest((spec, leaf_of(params, spec)) for spec in trainable_specs),
        nest((spec, leaf_of(params, spec)) for spec in frozen_specs),
    )


def merge_params(trainable: Record, frozen: Record) -> PyTree:
    """Merge the two trees of `split` into one tree of parameters, without a copy."""
    layers = {**frozen.get("layers", {}), **trainable.get("layers", {})}
    return {**frozen, **trainable, **({"layers": layers} if layers else {})}
