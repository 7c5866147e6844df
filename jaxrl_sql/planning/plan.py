"""Plan a run on one mesh: by formula, and with compiled programs if there are devices to compile for.

A plan has the memory per chip, and a lower bound of the seconds of a training step. A step has phases, such as
"prefill", "decode" and "update"; each runs one program (`roofline`). A mesh has the axes `data`, `fsdp` and `tensor`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

from jaxrl_sql.config import ModelConfigSection, WorkloadSections
from jaxrl_sql.models import ModelConfig, count_params
from jaxrl_sql.models.formats.hf import load_config as load_model_config
from jaxrl_sql.models.shapes import new_config, published_config
from jaxrl_sql.parallel.mesh import AXES, make_mesh
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.chips import Topology
from jaxrl_sql.planning.gpus import fix_cudnn_version, module_costs
from jaxrl_sql.planning.hlo import collectives, largest_array, received_by_kind
from jaxrl_sql.planning.layout import Machine, with_layout
from jaxrl_sql.planning.lengths import ALL_LONGEST, StepLengths, read_lengths
from jaxrl_sql.planning.memory import (
    MemoryEstimate,
    PlannedModel,
    abstract_mesh,
    estimate,
    is_fused,
    with_kept_logits,
    with_kv_budget,
)
from jaxrl_sql.planning.programs import ProgramInputs, programs
from jaxrl_sql.planning.roofline import StepProgram, answer_tokens, phases, step_seconds
from jaxrl_sql.planning.suggestions import Suggestion, suggest, suggest_larger
from jaxrl_sql.planning.workload import (
    Workload,
    find_workload,
    longest_answer,
    with_packing,
    with_parts,
    with_schemas,
)
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.types import InputError

# The compiler refuses a program that is too large with one of two messages. They contain the bytes that it would need:
# of arguments and temporaries, or of temporaries alone.
OVERFLOW = re.compile(r"(?:Used |\()([\d.]+)([KMG])(?: of [\d.]+[KMG] hbm|\) exceeds available HBM)")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class CompiledProgram(NamedTuple):
    """The compiler's figures of a program.

    arguments: bytes of arguments on a chip.
    temporaries: bytes of temporary arrays on a chip, of results that reuse no argument, and of the program's code.
    largest: the largest array that is no argument, and its bytes.
    received: bytes that a chip receives in a run, by kind of collective.
    waits: number of executions of collectives in a run.
    flops: operations per chip by XLA, which counts the body of a loop once and fused kernels not at all.
    seconds: seconds of compiling.
    """

    arguments: int
    temporaries: int
    largest: tuple[str, int]
    received: Mapping[str, float]
    waits: float
    flops: float
    seconds: float


class Plan(NamedTuple):
    """The plan of a run on one mesh.

    sizes: sizes of the mesh's axes.
    params: number of the model's parameters.
    work: the batch and engines of a step.
    memory: bytes by formula; programs: figures of compiled programs by name.
    phases: phases of a step with their costs.
    suggestions: changes of settings that make the run fit, if it does not fit.
    tokens: answer tokens of a step.
    lengths: assumed lengths of answers and prompts.
    layout: layout of the rollout engines, a value of `rollout.mesh`.
    larger: larger batches that use the free memory, if the run fits.
    """

    topology: Topology
    sizes: Mapping[str, int]
    params: int
    work: Workload
    memory: MemoryEstimate
    phases: list[StepProgram]
    programs: Mapping[str, CompiledProgram]
    suggestions: list[Suggestion]
    tokens: float
    lengths: StepLengths
    layout: str
    larger: Suggestion | None = None

    @property
    def assumed_lengths(self) -> str:
        """Return the assumed lengths of answers and prompts as text."""
        if self.lengths == ALL_LONGEST:
            return "if all prompts and answers have the maximum length"
        assumptions = [
            f"all {name} of the maximum length"
            if distribution is None
            else f"{name} of {distribution.mean:,.0f} tokens"
            for name, distribution in (("answers", self.lengths.answers), ("prompts", self.lengths.prompts))
        ]
        return " and ".join(assumptions)

    @property
    def total(self) -> int:
        """Return the peak bytes: permanent ones and the largest temporary ones, of compiled programs or by formula."""
        memory, programs = self.memory, self.programs
        updating, decoding = memory.gradients + memory.activations, memory.decoding
        if "update" in programs:
            updating = max(programs[name].temporaries for name in ("update", "score") if name in programs)
        if "decode" in programs:
            decoding = max(programs[name].temporaries for name in ("decode", "prefill") if name in programs)
        return memory.resident + max(updating, memory.sampling + decoding)

    @property
    def fits(self) -> bool:
        """Return whether the plan fits the chip; True for a chip of unknown memory."""
        return not self.topology.chip.memory or self.total <= self.topology.chip.memory

    @property
    def seconds(self) -> float:
        """Return the lower bound of the seconds of a step."""
        return step_seconds(self.phases, self.topology.chip)

    @property
    def slowest(self) -> StepProgram:
        """Return the longest phase of a step."""
        return max(self.phases, key=lambda phase: phase.seconds(self.topology.chip))


def model_shape(model: ModelConfigSection, vocab_size: int) -> ModelConfig:
    """Return the model's architecture: named by `model.shape`, of the checkpoint, or with the section's sizes."""
    if model.shape:
        return published_config(model.shape)
    if model.checkpoint:
        return load_model_config(model.checkpoint)
    return new_config(model, vocab_size)


def step_lengths(sections: WorkloadSections, answers: str, prompts: str, schema: int) -> StepLengths:
    """Return the lengths of a step's answers and prompts from the options of the command `plan`.

    answers, prompts: values of --answer-tokens and --prompt-tokens (`read_lengths`). schema: value of --schema-tokens,
    the tokens that the prompts of a database share. Raises InputError for lengths above the maximum lengths.
    """
    if not 0 <= schema <= sections.longest:
        raise InputError(f"--schema-tokens {schema}: expected 0 to data.max_prompt_tokens={sections.longest}")
    return StepLengths(
        read_lengths(answers, "--answer-tokens", *longest_answer(sections.sampling)),
        read_lengths(prompts, "--prompt-tokens", "data.max_prompt_tokens", sections.longest),
        schema,
    )


def best_of(plans: Sequence[Plan]) -> Plan | None:
    """Return the fastest plan that fits, or None."""
    return min((plan for plan in plans if plan.fits), key=lambda plan: (plan.seconds, plan.total), default=None)


def mesh_sizes(text: str, count: int) -> dict[str, int]:
    """Parse DATAxFSDPxTENSOR; one size may be -1, for all remaining chips.

    Raises InputError unless the product is `count`, the number of chips.
    """
    parts = text.split("x")
    if len(parts) != len(AXES) or not all(re.fullmatch(r"-1|\d+", part) for part in parts):
        raise InputError(f"--mesh {text}: expected DATAxFSDPxTENSOR, such as 1x{count}x1")
    sizes = [int(part) for part in parts]
    product = -1  # of the other sizes, if one size is -1
    for size in sizes:
        product *= size
    if sizes.count(-1) == 1 and product > 0 and count % product == 0:
        sizes[sizes.index(-1)] = count // product
    if min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] != count:
        chips = quantity(count, "chips")
        raise InputError(f"--mesh {text} does not multiply to the {chips} of the topology, such as 1x{count}x1")
    return dict(zip(AXES, sizes, strict=True))


def make_plan(
    sections: WorkloadSections,
    model: PlannedModel,
    topology: Topology,
    sizes: Mapping[str, int],
    lengths: StepLengths = ALL_LONGEST,
    compiled: Collection[str] = (),
    loss: Callable[..., Any] | None = None,
) -> Plan:
    """Plan a run on a mesh of these sizes, compiling the programs whose names are in `compiled`.

    lengths: assumed lengths of answers and prompts, for programs whose cost depends on them. Programs on padded arrays
    always cost as much as with the longest. loss: the recipe's loss, if it has one (None: that of `grpo.algorithm`).
    Raises InputError if the mesh does not divide the model or the batch.
    """
    mesh, num_shards, device_bytes = abstract_mesh(**sizes), num_batch_shards(sizes), topology.chip.memory
    machine = Machine(topology.platform, topology.per_host, device_bytes, topology.chip)
    # Replace the automatic values of settings as a run does: parts of a batch, layout, KV blocks, memory for logits.
    sft, grpo = with_parts(sections.sft, sections.grpo, num_shards)
    sections = sections._replace(sft=sft, grpo=grpo)
    sections = sections._replace(rollout=with_layout(sections, model, mesh, machine))
    without_blocks = sections
    sections = sections._replace(rollout=with_kv_budget(sections, model, mesh, device_bytes))
    work = find_workload(model.section, sections, num_shards)
    check_batch(work, sizes)
    fused, initial_model = is_fused(model, topology.platform), model
    memory = estimate(initial_model, mesh, work, fused)  # without the logits that are stored in free memory
    model = model._replace(section=with_kept_logits(sections, model, mesh, device_bytes, fused))
    work = find_workload(model.section, sections, num_shards)
    if grpo.packing:
        work = with_packing(work, lengths.answers)
    work = with_schemas(work, lengths.schema)
    make_inputs = partial(ProgramInputs, sections, model, loss=loss)
    figures = {} if not compiled else _compile(make_inputs, topology, sizes, work, compiled)
    step = [_with_compiled_bytes(phase, figures.get(phase.name)) for phase in phases(model, sizes, work, lengths)]
    plan = Plan(
        topology, sizes, count_params(model.shape), work, memory, step, figures, [],
        answer_tokens(work, lengths.answers), lengths, sections.rollout.mesh,
    )  # fmt: skip
    if not plan.fits:
        suggestions = suggest(without_blocks, initial_model, sizes, device_bytes, topology.platform)
        return plan._replace(suggestions=suggestions)
    if not device_bytes:
        return plan
    return plan._replace(larger=suggest_larger(without_blocks, initial_model, sizes, device_bytes, topology.platform))


def check_batch(work: Workload, sizes: Mapping[str, int]) -> None:
    """Raise InputError for a batch of an update or of the supervised phase that the mesh does not divide."""
    num_shards = num_batch_shards(sizes)
    if work.sft_dataset is not None and work.sft_dataset.prompts % num_shards:
        raise InputError(
            f"mesh: sft.databases={work.sft_dataset.prompts} are not divisible by data x fsdp = {num_shards}"
        )
    if work.update is not None and work.update.prompts // work.update.prompts_per_schema % num_shards:
        prompts, prompts_per_schema = work.update.prompts, work.update.prompts_per_schema
        schemas = f" by grpo.questions={prompts_per_schema}" if prompts_per_schema > 1 else ""
        raise InputError(
            f"mesh: {prompts} prompts of an update (grpo.prompts={prompts * work.batches} in "
            f"grpo.minibatches={work.batches}{schemas}) are not divisible by data x fsdp = {num_shards}"
        )


def _compile(
    make_inputs: Callable[..., ProgramInputs],
    topology: Topology,
    sizes: Mapping[str, int],
    work: Workload,
    names: Collection[str],
) -> dict[str, CompiledProgram]:
    """Compile the programs of these names; return no figures if there are no devices to compile for."""
    devices = topology.devices()
    if devices is None:
        return {}
    mesh = make_mesh(sizes["data"], sizes["fsdp"], sizes["tensor"], devices)
    figures = {}
    for name, lower in programs(make_inputs(mesh=mesh), work).items():
        if name in names:
            with fix_cudnn_version() if topology.is_absent_gpu else nullcontext():
                shares = work.update.shares if work.update is not None and name in {"update", "score"} else ()
                figures[name] = _compile_program(lower, shares)
    return figures


def _compile_program(lower: Callable[[], Any], shares: tuple[float, ...] = ()) -> CompiledProgram:
    """Compile a program and return its figures; if the compiler refuses it for its size, only that size.

    lower: lowers the program. shares: frequencies of the branches of its conditionals (`hlo.collectives`).
    """
    start_time = time.perf_counter()
    lowered = lower()
    try:
        compiled = lowered.compile()
    except Exception as error:
        overflow = OVERFLOW.search(str(error))
        if overflow is None:
            raise
        used = int(float(overflow[1]) * UNITS[overflow[2]])
        return CompiledProgram(0, used, ("", 0), {}, 0, 0.0, time.perf_counter() - start_time)
    stats = compiled.memory_analysis()
    new_results = max(stats.output_size_in_bytes - stats.alias_size_in_bytes, 0)
    costs, text = compiled.cost_analysis() or module_costs(compiled), compiled.as_text()
    program_collectives = collectives(text, shares)
    return CompiledProgram(
        arguments=stats.argument_size_in_bytes,
        temporaries=stats.temp_size_in_bytes + new_results + stats.generated_code_size_in_bytes,
        largest=largest_array(text),
        received=received_by_kind(program_collectives),
        waits=sum(collective.times for collective in program_collectives),
        flops=float(costs.get("flops", 0.0)),
        seconds=time.perf_counter() - start_time,
    )


def _with_compiled_bytes(phase: StepProgram, compiled: CompiledProgram | None) -> StepProgram:
    """Replace the bytes and waits of collectives by formula with those of the compiled program."""
    if compiled is None or not compiled.received:
        return phase
    return phase._replace(cost=phase.cost._replace(link=sum(compiled.received.values()), waits=compiled.waits))
