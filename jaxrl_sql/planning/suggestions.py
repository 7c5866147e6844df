"""Suggest settings by formula: those that make a run fit into memory, or larger batches if memory is left.

A change is a text of overrides, such as "model.remat=full". The total of a run is its peak memory, in bytes on the
fullest device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from jaxrl_sql.config import GrpoConfig, WorkloadSections, replace_values
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.memory import PlannedModel, abstract_mesh, estimate, is_fused, with_kv_budget
from jaxrl_sql.planning.workload import Workload, find_workload, kv_budget
from jaxrl_sql.types import InputError

MAX_MEMORY_SHARE = 0.95
"""Share of a device's memory that larger batches may use, as the formula is an estimate."""
MAX_CACHE_SHARE = 0.9
"""Largest share of a device's memory that is suggested for the KV cache."""


class Suggestion(NamedTuple):
    """A change as overrides, and the total with it."""

    change: str
    total: int


class _Candidate(NamedTuple):
    """A run after a change.

    change: the change's overrides, empty for none; sizes: sizes of the mesh; device_bytes: memory of a device;
    platform: JAX's name, or empty (`suggest`).
    """

    change: str
    sections: WorkloadSections
    model: PlannedModel
    sizes: Mapping[str, int]
    device_bytes: int
    platform: str

    @property
    def work(self) -> Workload:
        """Return the run's workload."""
        return find_workload(self.model.section, self.sections, num_batch_shards(self.sizes))

    @property
    def total(self) -> int:
        """Return the total bytes; a huge number if the mesh does not divide the weights."""
        fused = is_fused(self.model, self.platform) if self.platform else None
        mesh, run = abstract_mesh(**self.sizes), self
        try:
            # If the share of memory has no room for a cache, count all blocks that could be used.
            with suppress(InputError):
                rollout = with_kv_budget(self.sections, self.model, mesh, self.device_bytes)
                run = self._replace(sections=self.sections._replace(rollout=rollout))
            return estimate(self.model, mesh, run.work, fused).total
        except InputError:
            return 1 << 62

    def after(self, values: Mapping[str, Any]) -> _Candidate:
        """Return the run with other values by their keys (`section.name`)."""
        sections, model = self.sections, self.model
        for key, value in values.items():
            section, _, name = key.partition(".")
            if section == "model":
                model = model._replace(section=replace_values(model.section, {name: value}))
            else:
                sections = sections._replace(**{section: replace_values(getattr(sections, section), {name: value})})
        change = " ".join(f"{key}={value}" for key, value in values.items())
        return self._replace(change=change, sections=sections, model=model)


def suggest(
    sections: WorkloadSections, model: PlannedModel, sizes: Mapping[str, int], device_bytes: int, platform: str = ""
) -> list[Suggestion]:
    """Return changes that make a run fit `device_bytes` bytes per device, the least expensive first.

    `platform` determines the attention backend (empty: one that writes no scores unless `model.attention` is `xla`).
    Numbers of KV blocks that `sections` do not set follow from `device_bytes`. Each change is tried alone. If none
    suffices, they are combined in order, on this mesh and on each other mesh that divides the batch. If that does not
    suffice either, the list has the best combination, with a total above `device_bytes`.
    """
    run = _Candidate("", sections, model, sizes, device_bytes, platform)
    changes = list(_changes(run))
    alone = [Suggestion(candidate.change, candidate.total) for candidate in changes]
    if fitting := [suggestion for suggestion in alone if suggestion.total <= device_bytes]:
        return fitting
    meshes = [run, *(candidate for candidate in changes if candidate.sizes != run.sizes)]
    combined = [_combine_changes(candidate, device_bytes) for candidate in meshes]
    fitting = [suggestion for suggestion in combined if suggestion.total <= device_bytes]
    return fitting or [min(combined, key=lambda suggestion: suggestion.total)]


def _combine_changes(run: _Candidate, device_bytes: int) -> Suggestion:
    """Combine changes on a run's mesh until the run fits or all are tried.

    Phases do not need their memory at the same time, so one change may hide the effect of another. Cheaper changes are
    therefore tried again until none helps, before the next one is added.
    """
    changes, total = {"": run.change}, run.total  # the change of the mesh, if any, comes first
    num_tried = 1  # elements of ORDER that may change
    while total > device_bytes and num_tried <= len(ORDER):
        for name in ORDER[:num_tried]:
            candidates = [(other.total, other) for other in _changes(run) if other.change.startswith(f"{name}=")]
            if smaller := [pair for pair in candidates if pair[0] < total]:
                fitting = next((pair for pair in smaller if pair[0] <= device_bytes), None)
                total, run = fitting or min(smaller, key=lambda pair: pair[0])
                changes[name] = run.change
                break  # start again with the least expensive change
        else:
            num_tried += 1
    return Suggestion(" ".join(filter(None, changes.values())), total)


# Settings in the order in which changes are tried: those with the least effect on speed and results come first.
ORDER = (
    "grpo.max_tokens_per_device",
    "grpo.gradient_accumulation_steps",
    "sft.gradient_accumulation_steps",
    "model.remat",
    "grpo.optim.moments",
    "sft.optim.moments",
    "model.dtype",
    "rollout.memory",
    "rollout.max_num_seqs",
    "validation.max_num_seqs",
    "model.lora.rank",
)


def _changes(run: _Candidate) -> Iterator[_Candidate]:
    """Yield the run after each single change, in the order of `ORDER`; other meshes precede `rollout.memory`."""
    sections, model, sizes = run.sections, run.model.section, run.sizes
    grpo, sft, num_shards = sections.grpo, sections.sft, num_batch_shards(sizes)
    # Prompts of an update, or schemas with `grpo.questions` prompts each: the mesh must divide their number.
    batch = grpo.prompts // grpo.minibatches // grpo.questions
    for key, value in _smaller_micro_batches(grpo, batch, num_shards):
        yield run.after({key: value})
    for num_parts in _finer_splits(sft.databases, sft.gradient_accumulation_steps, num_shards):
        yield run.after({"sft.gradient_accumulation_steps": num_parts})
    if model.remat != "full":
        yield run.after({"model.remat": "full"})
    yield from _with_bfloat16(run)
    chips = num_shards * sizes["tensor"]
    for tensor in (1, 2, 4, 8):
        # Without copies of the weights along `data`.
        new_sizes = {"data": 1, "fsdp": chips // tensor, "tensor": tensor}
        is_divided = chips % tensor == 0 and batch // grpo.gradient_accumulation_steps % new_sizes["fsdp"] == 0
        is_divided = is_divided and not ((sft.steps or sft.epochs) and sft.databases % new_sizes["fsdp"])
        if is_divided and new_sizes != dict(sizes):
            yield run._replace(change=f"--mesh=1x{new_sizes['fsdp']}x{tensor}", sizes=new_sizes)
    if kv_budget(sections.rollout) is None:  # with a smaller cache prompts and answers wait
        yield from (run.after({"rollout.memory": round(sections.rollout.memory / divisor, 3)}) for divisor in (2, 4))
    for section, slots, min_slots, divisors in (
        ("rollout", sections.rollout.max_num_seqs, grpo.num_generations, (2, 4, 8)),
        ("validation", sections.validation.max_num_seqs, num_shards, (2, 4, 8, 16)),
    ):
        for divisor in divisors:
            if slots // divisor >= min_slots:
                yield run.after({f"{section}.max_num_seqs": slots // divisor})
    if not model.lora.rank:
        yield run.after({"model.lora.rank": 16})


def _with_bfloat16(run: _Candidate) -> Iterator[_Candidate]:
    """Yield the run with the optimizer's moments in bfloat16, and the run with weights in bfloat16."""
    grpo, sft, model = run.sections.grpo, run.sections.sft, run.model.section
    # The larger optimizer of two phases counts, so changing one phase may have no effect.
    phases = (("grpo", grpo.steps, grpo.optim), ("sft", sft.steps or sft.epochs, sft.optim))
    float32_phases = [
        name for name, steps, optim in phases if steps and optim.kind == "adamw" and optim.moments != "bfloat16"
    ]
    if float32_phases:
        yield run.after({f"{name}.optim.moments": "bfloat16" for name in float32_phases})
    if model.dtype != "bfloat16":
        compute_keys = ["model.compute_dtype"] if model.compute_dtype == "float32" else []
        yield run.after(dict.fromkeys(["model.dtype", *compute_keys], "bfloat16"))


def _smaller_micro_batches(grpo: GrpoConfig, batch: int, num_shards: int) -> Iterator[tuple[str, int]]:
    """Yield (key, value) of settings with which an update computes less of its batch of `batch` prompts at a time."""
    if grpo.max_tokens_per_device:
        yield from (("grpo.max_tokens_per_device", grpo.max_tokens_per_device // 2**i) for i in (1, 2, 3))
        return
    for num_parts in _finer_splits(batch, grpo.gradient_accumulation_steps, num_shards):
        yield "grpo.gradient_accumulation_steps", num_parts


def _finer_splits(batch: int, parts: int, num_shards: int) -> Iterator[int]:
    """Yield larger numbers of equal parts of a batch, such that the mesh divides each part."""
    for num_parts in (parts * 2**i for i in range(1, 12)):
        if batch % num_parts == 0 and batch // num_parts % num_shards == 0:
            yield num_parts


def suggest_larger(
    sections: WorkloadSections, model: PlannedModel, sizes: Mapping[str, int], device_bytes: int, platform: str = ""
) -> Suggestion | None:
    """Return larger batches that use up to MAX_MEMORY_SHARE of `device_bytes` per device; None if nothing larger fits.

    The changes are added in this order, each as large as fits: more decode slots with the KV cache that they need,
    activations that are stored instead of recomputed, more tokens of an update at a time. Numbers of KV blocks that
    `sections` do not set follow from `device_bytes`.
    """
    start = run = _Candidate("", sections, model, sizes, device_bytes, platform)
    total, max_bytes, changes = 0, int(MAX_MEMORY_SHARE * device_bytes), dict[str, str]()
    for grow in (_more_slots, _less_remat, _larger_micro_batches, _larger_sft_micro_batches):
        for values in grow(start):
            candidate = run.after(values)
            candidate_total = candidate.total
            if candidate_total > max_bytes:
                break
            total, run = candidate_total, candidate
            changes[grow.__name__] = candidate.change
    return Suggestion(" ".join(changes.values()), total) if changes else None


def _more_slots(run: _Candidate) -> Iterator[Mapping[str, Any]]:
    """Yield larger numbers of decode slots, up to all answers of a rollout, with the share of memory for their KV."""
    grpo, rollout = run.sections.grpo, run.sections.rollout
    answers = grpo.prompts * grpo.dynamic_sampling.oversample * grpo.num_generations * grpo.steps_per_generation
    slots = rollout.max_num_seqs if grpo.steps and kv_budget(rollout) is None else answers
    while slots < answers:
        slots = min(2 * slots, answers)
        values: dict[str, Any] = {"rollout.max_num_seqs": slots}
        memory = estimate(run.model, abstract_mesh(**run.sizes), run.after(values).work)
        cache_share = memory.caches / run.device_bytes
        if cache_share > MAX_CACHE_SHARE:
            return
        if cache_share > rollout.memory:  # rounded up to a multiple of 0.05
            values["rollout.memory"] = math.ceil(20 * cache_share) / 20
        yield values


def _less_remat(run: _Candidate) -> Iterator[Mapping[str, Any]]:
    """Yield the setting that recomputes nothing."""
    if run.model.section.remat != "none":
        yield {"model.remat": "none"}


def _larger_micro_batches(run: _Candidate) -> Iterator[Mapping[str, Any]]:
    """Yield settings with which an update has fewer passes, each computing more of the batch."""
    grpo, update = run.sections.grpo, run.work.update
    if update is None:
        return
    passes, tokens, parts = update.passes, grpo.max_tokens_per_device, grpo.gradient_accumulation_steps
    while tokens and passes > 1:
        tokens *= 2
        values = {"grpo.max_tokens_per_device": tokens}
        larger = run.after(values).work.update
        if larger is not None and larger.passes < passes:
            passes = larger.passes
            yield values
    while not tokens and parts % 2 == 0:
        parts //= 2
        yield {"grpo.gradient_accumulation_steps": parts}


def _larger_sft_micro_batches(run: _Candidate) -> Iterator[Mapping[str, Any]]:
    """Yield smaller numbers of parts of a supervised batch."""
    parts = run.sections.sft.gradient_accumulation_steps if run.work.sft_dataset else 1
    while parts % 2 == 0:
        parts //= 2
        yield {"sft.gradient_accumulation_steps": parts}
