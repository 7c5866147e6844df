"""Weights that a run keeps as they are: the policy's tree in two, what moves and what does not.

What does not move has no gradient, no moments and no place in checkpoints. Of a small model with a large vocabulary
the table is most of the weights (Gemma 3 270M: 168 of 268 million), so that this is most of the optimizer's memory.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models.spec import ModelConfig, ParamSpec, leaf_of, nest, param_specs
from jaxrl_sql.types import InputError, Record


def split_specs(config: ModelConfig, frozen: Sequence[str]) -> tuple[list[ParamSpec], list[ParamSpec]]:
    """Return the table's weights that move and those that `frozen`, names or patterns such as `*_norm`, keep.

    Raises InputError, with the valid names, where one fits none, and where nothing moves.
    """
    specs = param_specs(config)
    names = [spec.path[-1] for spec in specs]
    for pattern in frozen:
        if not fnmatch.filter(names, pattern):
            raise InputError(f"model.frozen: {pattern!r} is no weight; valid are {', '.join(names)}, and patterns")
    kept = {name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in frozen)}
    if len(kept) == len(names):
        raise InputError(f"model.frozen={','.join(frozen)} keeps every weight as it is: nothing would be trained")
    moving = [spec for spec in specs if spec.path[-1] not in kept]
    return moving, [spec for spec in specs if spec.path[-1] in kept]


def split(params: PyTree, config: ModelConfig, frozen: Sequence[str]) -> tuple[PyTree, PyTree]:
    """Return parameters, or any tree of their form, as (trainable, frozen); raises InputError as `split_specs` does."""
    if not frozen:
        return params, None
    moving, kept = (nest((spec, leaf_of(params, spec)) for spec in part) for part in split_specs(config, frozen))
    return moving, kept


def joined(trainable: Record, frozen: Record) -> PyTree:
    """Return the whole parameters of both parts, without a copy."""
    layers = {**frozen.get("layers", {}), **trainable.get("layers", {})}
    return {**frozen, **trainable, **({"layers": layers} if layers else {})}
