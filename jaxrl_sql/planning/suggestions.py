"""What would make a run fit that does not: the settings that cost least, tried by formula in that order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jaxrl_sql.config import GrpoConfig, TrainConfig, changed
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.planning.memory import abstract_mesh, estimate
from jaxrl_sql.types import InputError


class Suggestion(NamedTuple):
    """A change and what it would lead to: words as a user writes them, bytes in all on the fullest device."""

    words: str
    total: int


def suggest(
    config: TrainConfig,
    model: ModelConfig,
    sizes: Mapping[str, int],
    longest: int,
    have: int,
    fused: bool | None = None,
) -> list[Suggestion]:
    """Return changes that make a run fit `have` bytes a device, the gentlest first.

    Each is tried alone; where none does, they are added up in their order until together they do, on this mesh and on
    each other one that divides the batch. Where even that is too much, the list holds the most that was tried, with a
    total above `have`.
    """
    alone = [
        Suggestion(words, _total(changed, model, mesh, longest, fused))
        for words, changed, mesh in _changes(config, sizes)
    ]
    if fitting := [one for one in alone if one.total <= have]:
        return fitting
    meshes = [("", sizes), *((words, mesh) for words, _, mesh in _changes(config, sizes) if words.startswith("--mesh"))]
    together = [_added_up(words, config, model, mesh, longest, have, fused) for words, mesh in meshes]
    return [one for one in together if one.total <= have] or [min(together, key=lambda one: one.total)]


def _added_up(
    said: str,
    config: TrainConfig,
    model: ModelConfig,
    sizes: Mapping[str, int],
    longest: int,
    have: int,
    fused: bool | None,
) -> Suggestion:
    """Add up changes on a mesh that `said` names until the run fits, or there are no more.

    What one change leads to may hide what another would, since phases do not need their memory at the same time: so
    the gentler ones are gone through again until none helps, before one more is taken.
    """
    words, total = {"": said}, _total(config, model, sizes, longest, fused)
    taken = 1
    while total > have and taken <= len(ORDER):
        for name in ORDER[:taken]:
            tried = [
                (_total(changed, model, sizes, longest, fused), change, changed)
                for change, changed, _ in _changes(config, sizes)
                if change.startswith(f"{name}=")
            ]
            if less := [one for one in tried if one[0] < total]:
                fitting = next((one for one in less if one[0] <= have), None)
                total, words[name], config = fitting or min(less, key=lambda one: one[0])
                break  # from the gentlest again
        else:
            taken += 1
    return Suggestion(" ".join(filter(None, words.values())), total)


ORDER = (
    "grpo.max_tokens_per_device",
    "grpo.gradient_accumulation_steps",
    "sft.gradient_accumulation_steps",
    "model.remat",
    "grpo.optim.moments",
    "sft.optim.moments",
    "rollout.max_num_seqs",
    "validation.max_num_seqs",
    "model.lora.rank",
)


def _changes(config: TrainConfig, sizes: Mapping[str, int]) -> Iterator[tuple[str, TrainConfig, Mapping[str, int]]]:
    """Yield (words, configuration, mesh sizes) of each change that can be made alone, in the order of `ORDER`."""

    def one(key: str, value: Any) -> tuple[str, TrainConfig, Mapping[str, int]]:
        return f"{key}={value}", changed(config, {key: value}), sizes

    grpo, sft, ways = config.grpo, config.sft, sizes["data"] * sizes["fsdp"]
    update = grpo.prompts // grpo.minibatches // grpo.questions
    for key, value in _less_at_once(grpo, update, ways):
        yield one(key, value)
    for more in _more_parts(sft.databases, sft.gradient_accumulation_steps, ways):
        yield one("sft.gradient_accumulation_steps", more)
    if config.model.remat != "full":
        yield one("model.remat", "full")
    # Of two phases the larger optimizer counts, so that one alone may change nothing.
    phases = (("grpo", grpo.steps, grpo.optim), ("sft", sft.steps or sft.epochs, sft.optim))
    wide = [x for x, steps, optim in phases if steps and optim.kind == "adamw" and optim.moments != "bfloat16"]
    if keys := [f"{name}.optim.moments" for name in wide]:
        yield " ".join(f"{key}=bfloat16" for key in keys), changed(config, dict.fromkeys(keys, "bfloat16")), sizes
    chips = ways * sizes["tensor"]
    for tensor in (1, 2, 4, 8):
        spread = {"data": 1, "fsdp": chips // tensor, "tensor": tensor}
        is_divided = chips % tensor == 0 and update // grpo.gradient_accumulation_steps % spread["fsdp"] == 0
        is_divided = is_divided and not ((sft.steps or sft.epochs) and sft.databases % spread["fsdp"])
        if is_divided and spread != dict(sizes):
            yield f"--mesh=1x{spread['fsdp']}x{tensor}", config, spread
    for section, slots, least, shares in (
        ("rollout", config.rollout.max_num_seqs, grpo.num_generations, (2, 4, 8)),
        ("validation", config.validation.max_num_seqs, ways, (2, 4, 8, 16)),
    ):
        for share in shares:
            if slots // share >= least:
                yield one(f"{section}.max_num_seqs", slots // share)
    if not config.model.lora.rank:
        yield one("model.lora.rank", 16)


def _less_at_once(grpo: GrpoConfig, update: int, ways: int) -> Iterator[tuple[str, int]]:
    """Yield (key, value) of what makes an update take less of its batch at a time, of so many prompts or schemas."""
    if grpo.max_tokens_per_device:
        yield from (("grpo.max_tokens_per_device", grpo.max_tokens_per_device // 2**i) for i in (1, 2, 3))
        return
    for more in _more_parts(update, grpo.gradient_accumulation_steps, ways):
        yield "grpo.gradient_accumulation_steps", more


def _more_parts(batch: int, parts: int, ways: int) -> Iterator[int]:
    """Yield into how many more parts a batch can be cut, each of which the mesh divides."""
    for more in (parts * 2**i for i in range(1, 12)):
        if batch % more == 0 and batch // more % ways == 0:
            yield more


def _total(config: TrainConfig, model: ModelConfig, sizes: Mapping[str, int], longest: int, fused: bool | None) -> int:
    """Return the bytes in all; more than any device has where the mesh does not divide the weights."""
    try:
        return estimate(config, model, abstract_mesh(**sizes), longest, fused).total
    except InputError:
        return 1 << 62
