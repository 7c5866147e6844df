"""Checks before the first step: lengths, programs to be compiled, and room in memory and on disk.

Nothing is compiled or sampled. The memory is `planning`'s estimate, by formula; `plan` reports more.
"""

from __future__ import annotations

import difflib
import shutil
from collections.abc import Iterator
from dataclasses import replace

import jax

from jaxrl_sql.algo.updates import micro_batches_of
from jaxrl_sql.batch import bucket
from jaxrl_sql.config import TrainConfig
from jaxrl_sql.config.roots import WorkloadSections
from jaxrl_sql.inference.program_cache import kept_in
from jaxrl_sql.models import param_shardings
from jaxrl_sql.parallel import processes, rules
from jaxrl_sql.parallel.mesh import replica_grid
from jaxrl_sql.planning.chips import device_memory, known_chip
from jaxrl_sql.planning.layout import Machine, with_layout
from jaxrl_sql.planning.memory import PlannedModel, checkpoint_bytes, estimate, is_fused, with_kv_budget
from jaxrl_sql.planning.suggestions import suggest
from jaxrl_sql.planning.units import in_bytes
from jaxrl_sql.planning.workload import Workload, find_workload, kv_budget, longest_answer
from jaxrl_sql.text2sql.evals.summary import validation_metrics
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import InputError

ENGINE_COUNTS = ("prefix_reuse", "occupancy")
"""Metrics of the engine in an evaluation, next to those of the answers."""
PROGRAMS = frozenset({"update", "score", "compared", "measure", "prefill_chunk", "decode_chunk"})
"""Programs that take long to compile, by JAX's name; a run also compiles many small ones."""


def preflight(s: TrainingRun) -> TrainConfig:
    """Refuse a run that cannot fit, before anything is compiled, and report its requirements.

    Return the configuration with the layout and KV blocks of its rollouts.
    """
    check_mesh(s)
    check_budget(s)
    tell_uneven_parts(s)
    check_positions(s)
    check_best(s)
    prompts = [*s.questions.evals.values(), *([s.questions.train] if s.config.grpo.steps or s.config.sft.steps else [])]
    lengths = [length for prompt_set in prompts for length in prompt_set.lengths()]
    count = sum(len(prompt_set.prompts) for prompt_set in prompts)
    s.note(f"prompts: {count:,} of {min(lengths)} to {max(lengths)} tokens; {_programs(s)}")
    config = find_kv_blocks(s, find_layout(s, max(lengths)), max(lengths))
    check_memory(s, config.workload(max(lengths)))
    return config


def check_memory(s: TrainingRun, sections: WorkloadSections) -> None:
    """Refuse a run without room on devices or disk, and report the memory per device of a step."""
    model = PlannedModel(s.config.model, s.model)
    work = find_workload(model.section, sections, rules.batch_ways(s.mesh.shape))
    fused = is_fused(model, s.mesh.devices.flat[0].platform)
    sizes = estimate(model, s.mesh, work, fused)
    parts = ", ".join(f"{name} {in_bytes(size)}" for name, size in sizes._asdict().items() if size)
    have = device_memory(s.mesh)
    s.note(
        f"memory a device, about: {parts}; {in_bytes(sizes.total)} of {in_bytes(have) if have else 'an unknown size'}"
    )
    always = sizes.weights + sizes.adapters + sizes.training + sizes.reference
    if have and always > have:
        raise InputError(
            f"memory: weights, gradients and optimizer need {in_bytes(always)} a device, which has {in_bytes(have)}: "
            "use more devices (mesh.fsdp), model.lora.rank, model.dtype=bfloat16, or optim.kind=adafactor"
        )
    if have and sizes.total > have:
        suggestions = suggest(sections, model, s.mesh.shape, have, fused)
        helps = ", or ".join(change for change, total in suggestions[:3] if total <= have) or "more devices"
        s.note(f"memory: may be {in_bytes(sizes.total - have)} short a device; what would make it fit: {helps}")
    check_disk(s, work)


def check_budget(s: TrainingRun) -> None:
    """Refuse a budget of tokens without room for an answer, or for the questions of a schema, which stay together.

    It must not cut a group for a recipe's own loss, which needs whole groups.
    """
    grpo = s.config.grpo
    if not (grpo.steps and grpo.max_tokens_per_device):
        return
    prompt, answer = bucket(max(s.questions.train.lengths())), bucket(longest_answer(s.config.sampling)[1])
    rows = micro_batches_of(grpo).at_once(1, prompt, grpo.num_generations, answer)[1]
    least = max(s.questions.train.lengths()) + grpo.questions * (1 if grpo.packing else grpo.num_generations) * answer
    if grpo.questions > 1 and least > grpo.max_tokens_per_device:
        raise InputError(
            f"grpo.max_tokens_per_device={grpo.max_tokens_per_device} has no room for {grpo.questions} questions with "
            f"their schema and answers, {least} tokens at least: allow as many, or fewer grpo.questions"
        )
    if s.task.recipe.loss is not None and rows < grpo.num_generations:
        need = prompt + grpo.num_generations * answer
        raise InputError(
            f"grpo.max_tokens_per_device={grpo.max_tokens_per_device} cuts a group of {need} tokens, whose loss is the "
            f"recipe {s.config.recipe}'s own: allow as many, or use grpo.gradient_accumulation_steps"
        )


def tell_uneven_parts(s: TrainingRun) -> None:
    """Report the cost of parts of a batch with fewer prompts than the mesh has shards."""
    grpo, sft, ways = s.config.grpo, s.config.sft, rules.batch_ways(s.mesh.shape)
    for name, steps, prompts, parts in (
        ("grpo", grpo.steps, grpo.prompts // grpo.minibatches, grpo.gradient_accumulation_steps),
        ("sft", sft.steps, sft.databases, sft.gradient_accumulation_steps),
    ):
        part = prompts // parts
        if steps and part % ways:
            times = -(-part // ways) * ways / part
            s.note(
                f"{name}.gradient_accumulation_steps={parts}: parts of {part} prompts do not divide over {ways} shards "
                f"(mesh.data x mesh.fsdp), which compute up to {times:.1f} times as much; "
                f"{prompts // ways} or fewer parts, each a multiple of {ways} prompts, do not"
            )


def find_layout(s: TrainingRun, longest: int) -> TrainConfig:
    """Return the configuration with a layout for `rollout.mesh=auto`, found once per run and saved in its folder."""
    device, wanted = s.mesh.local_devices[0], s.config.rollout.mesh
    have = min(processes.exchange([device_memory(s.mesh)]))
    turns = max(s.config.sampling.turns, s.config.validation.sampling.turns)
    machine = Machine(device.platform, len(s.mesh.local_devices), have, known_chip(device))
    is_shared = turns > 1 and jax.process_count() > 1
    sections, model = s.config.workload(longest), PlannedModel(s.config.model, s.model)
    rollout = with_layout(sections, model, s.mesh, machine, is_shared)
    layout = rollout.mesh
    if layout != "training":
        replica_grid(s.mesh, *map(int, layout.split("x")))  # refuses a layout that does not match the devices
    elif is_shared:
        raise InputError(
            "several turns on several processes need copies of the model, which do not fit: give a process more devices"
        )
    if layout != wanted:
        s.keep_config(rollout=rollout)
    if s.mesh.size > 1:
        layout_text = "on the mesh that trains" if layout == "training" else f"by copies, replicas x tensor = {layout}"
        s.note(f"answers are sampled {layout_text} (rollout.mesh)")
    return replace(s.config, rollout=rollout)


def find_kv_blocks(s: TrainingRun, config: TrainConfig, longest: int) -> TrainConfig:
    """Return a configuration with KV blocks for `rollout.memory`, found once per run and saved in its folder."""
    if kv_budget(config.rollout) is not None:
        return config
    have = min(processes.exchange([device_memory(s.mesh)]))
    sections, model = config.workload(longest), PlannedModel(config.model, s.model)
    rollout = with_kv_budget(sections, model, s.mesh, have)
    s.keep_config(rollout=rollout)
    return replace(config, rollout=rollout)


def check_mesh(s: TrainingRun) -> None:
    """Refuse weights and batches that the mesh does not divide evenly."""
    param_shardings(s.model, s.mesh)
    grpo, sft = s.config.grpo, s.config.sft
    updates = f"grpo.prompts={grpo.prompts} in grpo.minibatches={grpo.minibatches}"
    updates += f" by grpo.questions={grpo.questions}" if grpo.questions > 1 else ""
    for steps, rows, what in (
        (grpo.steps, grpo.prompts // grpo.minibatches // grpo.questions, updates),
        (sft.steps, sft.databases, f"sft.databases={sft.databases}"),
    ):
        if steps:
            rules.spec_of(s.mesh, ("batch",), (rows,), what)


def check_positions(s: TrainingRun) -> None:
    """Refuse texts that are longer than the model's positions."""
    longest = max(
        length for prompt_set in (s.questions.train, *s.questions.evals.values()) for length in prompt_set.lengths()
    )
    for name, answer in _answers(s):
        need = bucket(longest) + bucket(answer)
        if need > s.model.max_positions:
            raise InputError(
                f"{name}={answer} after prompts of up to {longest} tokens (data.max_prompt_tokens="
                f"{s.config.data.max_prompt_tokens}) needs {need} positions with padding; the model has max_positions "
                f"{s.model.max_positions}"
            )


def check_best(s: TrainingRun) -> None:
    """Refuse to keep the best checkpoints by an unknown metric, before the first evaluation.

    A full name may be that of a status or a level of difficulty, which only the evaluation knows.
    """
    name, names = s.config.run.best_by, (*validation_metrics((), ()), *ENGINE_COUNTS)
    is_whole = name.startswith(tuple(f"eval/{split}/" for split in s.questions.evals)) or name == "time/eval"
    if s.config.run.keep_best and not (is_whole or name in names):
        (nearest,) = difflib.get_close_matches(name, names, n=1, cutoff=0.0)
        raise InputError(
            f"run.best_by={name!r} names no number of an evaluation: it is {', '.join(names)}, or a whole name such as "
            f"eval/{next(iter(s.questions.evals), 'dev')}/{nearest}"
        )


def _answers(s: TrainingRun) -> Iterator[tuple[str, int]]:
    """Yield (key, tokens) of the longest answers of each of the run's phases."""
    if s.config.grpo.steps:
        yield longest_answer(s.config.sampling)
    if s.config.sft.steps:
        yield "sft.max_completion_tokens", s.config.sft.max_completion_tokens
    key, tokens = longest_answer(s.config.validation.sampling_in(s.config.sampling))
    yield f"validation.{key}", tokens


def _programs(s: TrainingRun) -> str:
    """Return the widths that prompts and completions are padded to, and the number of programs.

    The display expects this number of compilations from then on.
    """
    few = s.config.run.pad_to_max
    widths = [bucket(s.max_prompt_bucket)] if few else _widths(s.questions.train)
    greedy = (
        {bucket(s.max_prompt_bucket)}
        if few
        else {width for prompt_set in s.questions.evals.values() for width in _widths(prompt_set)}
    )
    facts, updates, engines = [], 0, 0
    if s.config.sft.steps:
        width, most = bucket(max(widths)), s.config.sft.max_completion_tokens
        facts.append(f"sft pads schemas to {width} at most and answers to {bucket(most)}")
        updates += 1 if few or s.config.sft.packing else len({bucket(answer) for answer in range(1, most + 1)})
    if s.config.grpo.steps:
        facts.append(f"grpo pads to {_as_text(widths)} + {bucket(longest_answer(s.config.sampling)[1])}")
        updates += len(widths)
        engines += len(widths)
    engines += len(greedy)
    s.compiled.expect(PROGRAMS, updates + 5 * engines)
    facts.append(f"compiles up to {updates} updates and about {5 * engines} programs that sample answers")
    where = kept_in()
    return "; ".join(facts) + (f", kept in {where}" if where else "; run.compilation_cache keeps them for other runs")


def _widths(prompt_set: PromptSet) -> list[int]:
    return sorted({bucket(length) for length in prompt_set.lengths()})


def _as_text(widths: list[int]) -> str:
    return ", ".join(map(str, widths)) if len(widths) <= 4 else f"{len(widths)} widths from {widths[0]} to {widths[-1]}"


def check_disk(s: TrainingRun, work: Workload) -> None:
    """Refuse a disk without room for a checkpoint; warn if not all kept checkpoints will fit."""
    size = checkpoint_bytes(PlannedModel(s.config.model, s.model), work)
    free, run = shutil.disk_usage(s.folder).free, s.config.run
    if size > free:
        raise InputError(f"run.dir: a checkpoint takes {in_bytes(size)}, and {s.folder} has room for {in_bytes(free)}")
    most = (run.keep_checkpoints + run.keep_best + 1) * size
    if most > free:
        s.note(f"disk: checkpoints will take up to {in_bytes(most)}, and {s.folder} has room for {in_bytes(free)}")
