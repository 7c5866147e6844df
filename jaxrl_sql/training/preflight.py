"""Checks before the first step: lengths, number of programs to compile, memory and disk space.

Nothing is compiled or sampled. `planning` estimates the memory by formula; the command `plan` reports more. Lengths are
padded to *buckets*, a few fixed lengths (`batch.bucket`), so that a run compiles few programs.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, Protocol

import jax

from jaxrl_sql.algo.updates import micro_batches_of
from jaxrl_sql.batch import bucket
from jaxrl_sql.config import RunConfig, TrainConfig
from jaxrl_sql.config.roots import WorkloadSections
from jaxrl_sql.inference.program_cache import cache_location
from jaxrl_sql.models import ModelConfig, param_shardings
from jaxrl_sql.models.attention import for_platform
from jaxrl_sql.models.attention.paged_kernel import kernel_for
from jaxrl_sql.parallel import processes, rules
from jaxrl_sql.parallel.mesh import replica_grid
from jaxrl_sql.planning.chips import device_memory, find_chip
from jaxrl_sql.planning.layout import Machine, with_layout
from jaxrl_sql.planning.memory import (
    PlannedModel,
    checkpoint_bytes,
    estimate,
    is_fused,
    with_kept_logits,
    with_kv_budget,
)
from jaxrl_sql.planning.suggestions import suggest
from jaxrl_sql.planning.units import format_bytes
from jaxrl_sql.planning.workload import Workload, find_workload, kv_budget, longest_answer
from jaxrl_sql.rollout import EngineConfig
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.evals.summary import validation_metrics
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import InputError

ENGINE_COUNTS = ("prefix_reuse", "occupancy")
"""Metrics of the engine in an evaluation: the share of prompt tokens that the prefix cache had, and of busy slots."""
PROGRAMS = frozenset({"update", "score", "measure", "prefill_chunk", "decode_chunk"})
"""Names of the jitted functions that take long to compile; a run also compiles many small programs."""
PROGRAMS_PER_ENGINE = 9
"""The approximate number of programs that an engine compiles: three to decode, and six to prefill."""


class RunPlan(Protocol):
    """The parts of a run that determine its memory: a `TrainingRun`, or a `PlannedRun` without questions."""

    @property
    def config(self) -> TrainConfig:
        """Return the settings."""

    @property
    def model(self) -> ModelConfig:
        """Return the model's configuration."""

    @property
    def mesh(self) -> jax.sharding.Mesh:
        """Return the mesh of devices."""

    @property
    def folder(self) -> Path:
        """Return the run's folder."""

    @property
    def note(self) -> Callable[[str], None]:
        """Return the function that prints a line."""


class PlannedRun(NamedTuple):
    """A run before its questions are known; `note` prints a line."""

    config: TrainConfig
    model: ModelConfig
    mesh: jax.sharding.Mesh
    folder: Path
    note: Callable[[str], None] = lambda _: None


def check_devices(run: PlannedRun) -> None:
    """Check mesh, memory and disk space, with prompts of `data.max_prompt_tokens` tokens; raises InputError."""
    check_mesh(run)
    check_memory(run, run.config.workload(run.config.data.max_prompt_tokens))


def check_attention(config: TrainConfig, model: ModelConfig, platform: str) -> None:
    """Check that the selected attention backends support a platform (JAX's name) and a model; raises InputError.

    Of `model` only the sizes of its layers are used. The engine checks later that its layout suits the backend.
    """
    for_platform(config.model.attention, model, PlannedModel(config.model, model).compute_dtype, platform)
    blocks = EngineConfig.block_size, EngineConfig.completion_block_size
    kernel_for(config.rollout.attention, model, blocks, platform, num_shards=1)


def preflight(run: TrainingRun) -> TrainConfig:
    """Check that a run fits and report its requirements, before anything is compiled.

    Return the configuration with the settings that are computed from the memory: the layout of the rollout engines
    (`rollout.mesh`), the number of KV blocks, and the memory of kept logits. Raises InputError if a check fails.
    """
    check_mesh(run)
    check_budget(run)
    report_uneven_parts(run)
    check_positions(run)
    check_best(run.config.run, run.questions.evals)
    prompt_sets = [
        *run.questions.evals.values(),
        *([run.questions.train] if run.config.grpo.steps or run.config.sft.steps else []),
    ]
    lengths = [length for prompt_set in prompt_sets for length in prompt_set.lengths()]
    count = sum(len(prompt_set.prompts) for prompt_set in prompt_sets)
    run.note(f"prompts: {count:,}, {min(lengths):,} to {max(lengths):,} tokens each; {_describe_programs(run)}")
    _report_answer_limits(run)
    config = find_kv_blocks(run, find_layout(run, max(lengths)), max(lengths))
    config = find_kept_logits(run, config, max(lengths))
    check_memory(replace(run, config=config), config.workload(max(lengths)))
    return config


def check_memory(run: RunPlan, sections: WorkloadSections) -> None:
    """Check memory and disk space, and report the memory per device of a step.

    `sections` are the parts of the configuration that determine the memory, and the maximum prompt length. Raises
    InputError if the weights and the optimizer's state alone do not fit, or the disk has no space for a checkpoint.
    Other shortages are only reported, because the memory is an estimate.
    """
    model = PlannedModel(run.config.model, run.model)
    work = find_workload(model.section, sections, rules.num_batch_shards(run.mesh.shape))
    platform = run.mesh.devices.flat[0].platform
    sizes = estimate(model, run.mesh, work, is_fused(model, platform))
    parts = ", ".join(
        f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in sizes._asdict().items() if size
    )
    device_bytes = device_memory(run.mesh)
    run.note(
        f"memory per device, about: {parts}; {format_bytes(sizes.total)} of "
        f"{format_bytes(device_bytes) if device_bytes else 'an unknown size'}"
    )
    permanent_bytes = sizes.weights + sizes.adapters + sizes.training + sizes.reference
    if device_bytes and permanent_bytes > device_bytes:
        raise InputError(
            f"memory: weights, gradients and optimizer need {format_bytes(permanent_bytes)} per device, which has "
            f"{format_bytes(device_bytes)}: use more devices (mesh.fsdp), model.lora.rank, model.dtype=bfloat16, or "
            "optim.kind=adafactor"
        )
    if device_bytes and sizes.total > device_bytes:
        suggestions = suggest(sections, model, run.mesh.shape, device_bytes, platform)
        advice = ", or ".join(change for change, total in suggestions[:3] if total <= device_bytes) or "more devices"
        run.note(
            f"memory: about {format_bytes(sizes.total - device_bytes)} per device may be missing; "
            f"changes that make it fit: {advice}"
        )
    check_disk(run, work)


def check_budget(run: TrainingRun) -> None:
    """Check that the token budget of a micro-batch, `grpo.max_tokens_per_device`, is not too small.

    It must be enough for a prompt with one answer. Questions that share a schema (`grpo.questions` above 1) are in one
    micro-batch with all their answers. A recipe with a loss of its own needs whole groups in a micro-batch. Raises
    InputError.
    """
    grpo = run.config.grpo
    if not (grpo.steps and grpo.max_tokens_per_device):
        return
    prompt, answer = bucket(max(run.questions.train.lengths())), bucket(longest_answer(run.config.sampling)[1])
    # The answers of a group that fit into one micro-batch; raises InputError if not even one fits.
    answers_at_once = micro_batches_of(grpo).chunk_sizes(1, prompt, grpo.num_generations, answer)[1]
    min_tokens = (
        # Packed answers of a question need at least one row.
        max(run.questions.train.lengths()) + grpo.questions * (1 if grpo.packing else grpo.num_generations) * answer
    )
    if grpo.questions > 1 and min_tokens > grpo.max_tokens_per_device:
        raise InputError(
            f"grpo.max_tokens_per_device={grpo.max_tokens_per_device} is too small for {grpo.questions} questions with "
            f"their schema and answers: it must be at least {min_tokens}; raise it, or lower grpo.questions"
        )
    if run.prompt_format.recipe.loss is not None and answers_at_once < grpo.num_generations:
        group_tokens = prompt + grpo.num_generations * answer
        raise InputError(
            f"grpo.max_tokens_per_device={grpo.max_tokens_per_device} splits a group of {group_tokens} tokens, but the "
            f"loss of recipe {run.config.recipe} needs whole groups: raise it to {group_tokens}, or use "
            "grpo.gradient_accumulation_steps"
        )


def report_uneven_parts(run: TrainingRun) -> None:
    """Warn if the number of prompts of a micro-batch is not a multiple of the mesh's shards."""
    grpo, sft, num_shards = run.config.grpo, run.config.sft, rules.num_batch_shards(run.mesh.shape)
    for name, steps, prompts, parts in (
        ("grpo", grpo.steps, grpo.prompts // grpo.minibatches, grpo.gradient_accumulation_steps),
        ("sft", sft.steps, sft.databases, sft.gradient_accumulation_steps),
    ):
        micro_batch = prompts // parts
        if steps and micro_batch % num_shards:
            # The shards compute padded prompts up to the next multiple of their number.
            overhead = -(-micro_batch // num_shards) * num_shards / micro_batch
            run.note(
                f"{name}.gradient_accumulation_steps={parts}: parts of {micro_batch} prompts do not divide over "
                f"{num_shards} shards (mesh.data x mesh.fsdp), which compute up to {overhead:.1f} times as much; "
                f"{prompts // num_shards} or fewer parts, each a multiple of {num_shards} prompts, do not"
            )


def find_layout(run: TrainingRun, longest: int) -> TrainConfig:
    """Return the configuration with `rollout.mesh=auto` replaced by a layout, which is saved in the run's folder.

    A layout is `training` (one engine on the training mesh) or `replicas x tensor`. `longest` is the number of tokens
    of the longest prompt. Raises InputError for a layout that is impossible.
    """
    device, mesh_setting = run.mesh.local_devices[0], run.config.rollout.mesh
    device_bytes = min(processes.exchange([device_memory(run.mesh)]))
    turns = max(run.config.sampling.turns, run.config.validation.sampling.turns)
    machine = Machine(device.platform, len(run.mesh.local_devices), device_bytes, find_chip(device))
    # An engine over several processes cannot serve dialogues: observations would arrive at different times in them.
    needs_replicas = turns > 1 and jax.process_count() > 1
    sections, model = run.config.workload(longest), PlannedModel(run.config.model, run.model)
    rollout = with_layout(sections, model, run.mesh, machine, needs_replicas)
    layout = rollout.mesh
    if layout != "training":
        replica_grid(run.mesh, *map(int, layout.split("x")))  # refuses a layout that does not match the devices
    elif needs_replicas:
        raise InputError(
            "multi-turn rollouts on several processes need replicas of the model, which do not fit: use more devices "
            "per process"
        )
    if layout != mesh_setting:
        run.write_config(rollout=rollout)
    if run.mesh.size > 1:
        layout_text = "on the training mesh" if layout == "training" else f"by replicas (replicas x tensor = {layout})"
        run.note(f"answers are sampled {layout_text} (rollout.mesh)")
    return replace(run.config, rollout=rollout)


def find_kv_blocks(run: TrainingRun, config: TrainConfig, longest: int) -> TrainConfig:
    """Return the configuration with the number of KV blocks that `rollout.memory` allows, saved in the run's folder.

    A resumed run already has the number and keeps it.
    """
    if kv_budget(config.rollout) is not None:
        return config
    device_bytes = min(processes.exchange([device_memory(run.mesh)]))
    sections, model = config.workload(longest), PlannedModel(config.model, run.model)
    rollout = with_kv_budget(sections, model, run.mesh, device_bytes)
    run.write_config(rollout=rollout)
    return replace(config, rollout=rollout)


def find_kept_logits(run: TrainingRun, config: TrainConfig, longest: int) -> TrainConfig:
    """Return the configuration with `model.kept_logits_mib` (the memory for logits), saved in the run's folder.

    A resumed run already has the value and keeps it.
    """
    if config.model.kept_logits_mib:
        return config
    device_bytes = min(processes.exchange([device_memory(run.mesh)]))
    sections, model = config.workload(longest), PlannedModel(config.model, run.model)
    fused = is_fused(model, run.mesh.devices.flat[0].platform)
    section = with_kept_logits(sections, model, run.mesh, device_bytes, fused)
    run.write_config(model=section)
    return replace(config, model=section)


def check_mesh(run: RunPlan) -> None:
    """Check that the mesh divides weights and batches evenly; raises InputError."""
    param_shardings(run.model, run.mesh)
    grpo, sft = run.config.grpo, run.config.sft
    updates = f"grpo.prompts={grpo.prompts} in grpo.minibatches={grpo.minibatches}"
    updates += f" by grpo.questions={grpo.questions}" if grpo.questions > 1 else ""
    for steps, rows, batch_name in (
        (grpo.steps, grpo.prompts // grpo.minibatches // grpo.questions, updates),
        (sft.steps, sft.databases, f"sft.databases={sft.databases}"),
    ):
        if steps:
            rules.spec_of(run.mesh, ("batch",), (rows,), batch_name)


def check_positions(run: TrainingRun) -> None:
    """Check that prompts and answers fit the model's positions; raises InputError."""
    longest = max(
        length for prompt_set in (run.questions.train, *run.questions.evals.values()) for length in prompt_set.lengths()
    )
    for name, answer in _answer_limits(run):
        need = bucket(longest) + bucket(answer)
        if need > run.model.max_positions:
            raise InputError(
                f"{name}={answer} after prompts of up to {longest} tokens (data.max_prompt_tokens="
                f"{run.config.data.max_prompt_tokens}) needs {need} positions with padding; the model has "
                f"max_positions {run.model.max_positions}"
            )


def check_best(run: RunConfig, evals: Collection[str]) -> None:
    """Check that `run.best_by` is a metric of an evaluation on the sets `evals`; raises InputError.

    A full name such as `eval/dev/accuracy` is checked only up to the set: the rest may contain a status or a
    difficulty, which only the evaluation knows.
    """
    name, names = run.best_by, (*validation_metrics((), ()), *ENGINE_COUNTS)
    is_full_name = name.startswith(tuple(f"eval/{split}/" for split in evals)) or name == "time/eval"
    if run.keep_best and not (is_full_name or name in names):
        (nearest,) = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        raise InputError(
            f"run.best_by={name!r} is not a metric of an evaluation: use {', '.join(names)}, or a full name such as "
            f"eval/{next(iter(evals), 'dev')}/{nearest}"
        )


def _answer_limits(run: TrainingRun) -> Iterator[tuple[str, int]]:
    """Yield (key, tokens) of the settings that limit the tokens of an answer in each phase of the run."""
    if run.config.grpo.steps:
        yield longest_answer(run.config.sampling)
    if run.config.sft.steps:
        yield "sft.max_completion_tokens", run.config.sft.max_completion_tokens
    key, tokens = longest_answer(run.config.validation.sampling_in(run.config.sampling))
    yield f"validation.{key}", tokens


def _report_answer_limits(run: TrainingRun) -> None:
    """Report the limits of an answer's tokens in GRPO and in evaluations if they differ."""
    key, tokens = longest_answer(run.config.sampling)
    validation_key, validation_tokens = longest_answer(run.config.validation.sampling_in(run.config.sampling))
    if run.config.grpo.steps and tokens != validation_tokens:
        run.note(f"answers: {key}={tokens} in GRPO, validation.{validation_key}={validation_tokens} in evaluations")


def _describe_programs(run: TrainingRun) -> str:
    """Return the padded lengths of prompts and completions and the number of programs, as text.

    The display is also given the expected number of compilations.
    """
    pads_to_max = run.config.run.pad_to_max
    widths = [bucket(run.max_prompt_bucket)] if pads_to_max else _prompt_buckets(run.questions.train)
    facts, updates = [], 0
    if run.config.sft.steps:
        width, max_tokens = bucket(max(widths)), run.config.sft.max_completion_tokens
        facts.append(f"sft pads schemas to {width} at most and answers to {bucket(max_tokens)}")
        updates += (
            1 if pads_to_max or run.config.sft.packing else len({bucket(answer) for answer in range(1, max_tokens + 1)})
        )
    if run.config.grpo.steps:
        facts.append(f"grpo pads to {_format_widths(widths)} + {bucket(longest_answer(run.config.sampling)[1])}")
        updates += len(widths)
    engines = 2 if run.config.grpo.steps else 1  # the engine of validation, and that of rollouts
    sampling = engines * (2 if pads_to_max else PROGRAMS_PER_ENGINE)
    run.compile_stats.expect(PROGRAMS, updates + sampling)
    facts.append(f"compiles up to {quantity(updates, 'update programs')} and about {sampling} sampling programs")
    cache_folder = cache_location()
    return "; ".join(facts) + (f", cached in {cache_folder}" if cache_folder else "; run.compilation_cache caches them")


def _prompt_buckets(prompt_set: PromptSet) -> list[int]:
    """Return the distinct padded lengths of the prompts of a set."""
    return sorted({bucket(length) for length in prompt_set.lengths()})


def _format_widths(widths: list[int]) -> str:
    return ", ".join(map(str, widths)) if len(widths) <= 4 else f"{len(widths)} widths from {widths[0]} to {widths[-1]}"


def check_disk(run: RunPlan, work: Workload) -> None:
    """Check the disk space for one checkpoint; warn if not all kept checkpoints will fit. Raises InputError."""
    size = checkpoint_bytes(PlannedModel(run.config.model, run.model), work)
    free, cfg = shutil.disk_usage(run.folder).free, run.config.run
    if size > free:
        raise InputError(
            f"run.dir: a checkpoint takes {format_bytes(size)}, but {run.folder} has only {format_bytes(free)} free"
        )
    num_bytes = (cfg.keep_checkpoints + cfg.keep_best + 1) * size  # one more while the next is being saved
    if num_bytes > free:
        run.note(
            f"disk: checkpoints need up to {format_bytes(num_bytes)}, but {run.folder} has only "
            f"{format_bytes(free)} free"
        )
