"""A plan of a run on one mesh: by formula, and where there are devices to compile for, by the compiler's word."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.models import ModelConfig, count_params
from jaxrl_sql.models.formats.hf import load_config as load_model_config
from jaxrl_sql.models.shapes import new_shape, published_shape
from jaxrl_sql.parallel.mesh import AXES, make_mesh
from jaxrl_sql.parallel.rules import batch_ways
from jaxrl_sql.planning.chips import Topology, find_topology
from jaxrl_sql.planning.gpus import module_costs, stated_cudnn
from jaxrl_sql.planning.hlo import collectives, largest_array, received_by_kind
from jaxrl_sql.planning.layout import Machine, with_layout
from jaxrl_sql.planning.lengths import ALL_LONGEST, StepLengths, read_lengths
from jaxrl_sql.planning.memory import MemoryEstimate, abstract_mesh, estimate, is_fused, with_kv_budget
from jaxrl_sql.planning.programs import Setting, programs
from jaxrl_sql.planning.roofline import Phase, answer_tokens, phases, step_seconds
from jaxrl_sql.planning.suggestions import Suggestion, suggest
from jaxrl_sql.planning.workload import (
    Workload,
    find_workload,
    longest_answer,
    with_packing,
    with_parts,
    with_schemas,
)
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import InputError

# In either form, what a program would take in all; of arguments and temporaries together, or of the latter alone.
OVERFLOW = re.compile(r"(?:Used |\()([\d.]+)([KMG])(?: of [\d.]+[KMG] hbm|\) exceeds available HBM)")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Compiled(NamedTuple):
    """What the compiler says of a program: bytes on a chip, bytes received by kind of collective, its own seconds.

    `temporaries` are what the program needs beside its arguments, what it returns anew among them; `largest` is the
    largest single array of them; `waits` counts the collectives, as often as they run. `flops` are a chip's, with the
    body of a loop counted once and a fused kernel not.
    """

    arguments: int
    temporaries: int
    largest: tuple[str, int]
    received: Mapping[str, float]
    waits: float
    flops: float
    seconds: float


class Plan(NamedTuple):
    """What is known of a run on one mesh.

    questions: asked for a step; tokens: of its answers; lengths: of its answers and prompts; layout: how answers are
    sampled, as in `rollout.mesh`.
    """

    topology: Topology
    sizes: Mapping[str, int]
    params: int
    work: Workload
    memory: MemoryEstimate
    phases: list[Phase]
    programs: Mapping[str, Compiled]
    suggestions: list[Suggestion]
    questions: int
    tokens: float
    lengths: StepLengths
    layout: str

    @property
    def words(self) -> str:
        """Return how long answers and prompts are taken to be."""
        said = [
            f"every {name} of the longest" if found is None else f"{name}s of {found.mean:,.0f} tokens"
            for name, found in (("answer", self.lengths.answers), ("prompt", self.lengths.prompts))
        ]
        return " and ".join(said)

    @property
    def total(self) -> int:
        """Return the most bytes at a time: resident ones beside what the hungriest program needs, as far as known."""
        memory, known = self.memory, self.programs
        learning, decoding = memory.gradients + memory.activations, memory.decoding
        if "update" in known:
            learning = max(known[name].temporaries for name in ("update", "score") if name in known)
        if "decode" in known:
            decoding = max(known[name].temporaries for name in ("decode", "prefill") if name in known)
        return memory.resident + max(learning, memory.evaluation + decoding)

    @property
    def fits(self) -> bool:
        """Return whether the plan fits the chip; True for a chip of unknown memory."""
        return not self.topology.chip.memory or self.total <= self.topology.chip.memory

    @property
    def seconds(self) -> float:
        """Return the least seconds of a step."""
        return step_seconds(self.phases, self.topology.chip)

    @property
    def slowest(self) -> Phase:
        """Return the phase that a step waits for longest."""
        return max(self.phases, key=lambda phase: phase.seconds(self.topology.chip))


def make_plans(
    config: TrainConfig,
    topology: str,
    meshes: Sequence[str] = (),
    programs: Collection[str] = (),
    answer_tokens: str = "",
    prompt_tokens: str = "",
    schema_tokens: int = 0,
) -> Iterator[Plan]:
    """Yield a plan for each mesh (DATAxFSDPxTENSOR) of a topology, or for the configuration's; compile `programs`.

    `answer_tokens` and `prompt_tokens` are lengths as `read_lengths` reads them. Raises InputError for what does not
    fit together.
    """
    chips = find_topology(topology)
    model, loss = model_shape(config), find_recipe(config.recipe).loss
    key, most = longest_answer(config)
    longest = config.data.max_prompt_tokens
    if not 0 <= schema_tokens <= longest:
        raise InputError(f"--schema-tokens {schema_tokens}: expected 0 to data.max_prompt_tokens={longest}")
    lengths = StepLengths(
        read_lengths(answer_tokens, "--answer-tokens", key, most),
        read_lengths(prompt_tokens, "--prompt-tokens", "data.max_prompt_tokens", longest),
        schema_tokens,
    )
    mesh = config.mesh
    sizes = [mesh_sizes(text, chips.chips) for text in meshes or [f"{mesh.data}x{mesh.fsdp}x{mesh.tensor}"]]
    for one in sizes:
        yield make_plan(config, model, chips, one, longest, lengths, programs, loss)


def model_shape(config: TrainConfig) -> ModelConfig:
    """Return the shape to plan for: of `model.shape`, of the checkpoint, or of the numbers in the configuration."""
    if config.model.shape:
        return published_shape(config.model.shape)
    if config.model.checkpoint:
        return load_model_config(config.model.checkpoint)
    return new_shape(config.model, config.data.vocab_size)


def best_of(plans: Sequence[Plan]) -> Plan | None:
    """Return the fastest plan of those that fit; None where none does."""
    return min((one for one in plans if one.fits), key=lambda one: (one.seconds, one.total), default=None)


def mesh_sizes(text: str, count: int) -> dict[str, int]:
    """Read DATAxFSDPxTENSOR, one of them -1 for the rest; raises InputError where they do not make `count` chips."""
    parts = text.split("x")
    if len(parts) != len(AXES) or not all(re.fullmatch(r"-1|\d+", part) for part in parts):
        raise InputError(f"--mesh {text}: expected DATAxFSDPxTENSOR, such as 1x{count}x1")
    sizes = [int(part) for part in parts]
    rest = -1
    for size in sizes:
        rest *= size
    if sizes.count(-1) == 1 and rest > 0 and count % rest == 0:
        sizes[sizes.index(-1)] = count // rest
    if min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] != count:
        raise InputError(f"--mesh {text} does not multiply to the {count} chips of the topology, such as 1x{count}x1")
    return dict(zip(AXES, sizes, strict=True))


def make_plan(
    config: TrainConfig,
    model: ModelConfig,
    topology: Topology,
    sizes: Mapping[str, int],
    longest: int,
    lengths: StepLengths = ALL_LONGEST,
    compiled: Collection[str] = (),
    loss: Callable[..., Any] | None = None,
) -> Plan:
    """Plan a run on a mesh of these sizes, compiling the programs whose names are in `compiled`.

    Where a program's cost follows the lengths of answers and prompts they are as given; what is padded costs as much as
    the longest.
    Raises InputError where the mesh does not divide the model or the batch.
    """
    mesh = abstract_mesh(**sizes)
    machine = Machine(topology.platform, topology.per_host, topology.chip.memory, topology.chip)
    config = with_layout(with_parts(config, batch_ways(sizes)), model, mesh, longest, machine)
    config = with_kv_budget(config, model, mesh, longest, topology.chip.memory)
    work = find_workload(config, longest, batch_ways(sizes))
    check_batch(config, work, sizes)
    fused = is_fused(config, model, topology.platform)
    memory = estimate(config, model, mesh, longest, fused)
    if config.grpo.packing:
        work = with_packing(work, lengths.answers)
    work = with_schemas(work, lengths.schema)
    found = {} if not compiled else _compile(config, model, topology, sizes, work, compiled, loss)
    made = [_measured(phase, found.get(phase.name)) for phase in phases(config, model, sizes, work, lengths)]
    plan = Plan(
        topology, sizes, count_params(model), work, memory, made, found, [],
        config.grpo.prompts * config.grpo.oversample,
        answer_tokens(config, work, lengths.answers), lengths, config.rollout.mesh,
    )  # fmt: skip
    have = topology.chip.memory
    return plan if plan.fits else plan._replace(suggestions=suggest(config, model, sizes, longest, have, fused))


def check_batch(config: TrainConfig, work: Workload, sizes: Mapping[str, int]) -> None:
    """Refuse a batch of an update or of the supervised phase that the mesh does not divide."""
    ways = batch_ways(sizes)
    if work.sft_dataset is not None and work.sft_dataset.prompts % ways:
        raise InputError(f"mesh: sft.databases={work.sft_dataset.prompts} are not divided by data x fsdp = {ways}")
    if work.update is not None and work.update.prompts // work.update.together % ways:
        grpo, together = config.grpo, work.update.together
        schemas = f" by grpo.questions={together}" if together > 1 else ""
        raise InputError(
            f"mesh: {work.update.prompts} prompts of an update (grpo.prompts={grpo.prompts} in "
            f"grpo.minibatches={grpo.minibatches}{schemas}) are not divided by data x fsdp = {ways}"
        )


def _compile(
    config: TrainConfig,
    model: ModelConfig,
    topology: Topology,
    sizes: Mapping[str, int],
    work: Workload,
    wanted: Collection[str],
    loss: Callable[..., Any] | None,
) -> dict[str, Compiled]:
    """Compile the wanted programs, one after another; nothing where there are no devices to compile for."""
    devices = topology.devices()
    if devices is None:
        return {}
    mesh = make_mesh(sizes["data"], sizes["fsdp"], sizes["tensor"], devices)
    found = {}
    for name, lower in programs(Setting(config, model, mesh, loss), work).items():
        if name in wanted:
            with stated_cudnn() if topology.is_elsewhere else nullcontext():
                shares = work.update.shares if work.update is not None and name in {"update", "score"} else ()
                found[name] = _one(lower, shares)
    return found


def _one(lower: Callable[[], Any], shares: tuple[float, ...] = ()) -> Compiled:
    """Compile a program; one that the compiler refuses for its size is told by that size.

    `shares`: how often it takes each way where it chooses among so many (`hlo.collectives`).
    """
    began = time.perf_counter()
    lowered = lower()
    try:
        compiled = lowered.compile()
    except Exception as error:
        overflow = OVERFLOW.search(str(error))
        if overflow is None:
            raise
        used = int(float(overflow[1]) * UNITS[overflow[2]])
        return Compiled(0, used, ("", 0), {}, 0, 0.0, time.perf_counter() - began)
    said = compiled.memory_analysis()
    anew = max(said.output_size_in_bytes - said.alias_size_in_bytes, 0)
    costs, text = compiled.cost_analysis() or module_costs(compiled), compiled.as_text()
    met = collectives(text, shares)
    return Compiled(
        arguments=said.argument_size_in_bytes,
        temporaries=said.temp_size_in_bytes + anew + said.generated_code_size_in_bytes,
        largest=largest_array(text),
        received=received_by_kind(met),
        waits=sum(one.times for one in met),
        flops=float(costs.get("flops", 0.0)),
        seconds=time.perf_counter() - began,
    )


def _measured(phase: Phase, compiled: Compiled | None) -> Phase:
    """Put the bytes of a program's own collectives in the place of the formula's."""
    if compiled is None or not compiled.received:
        return phase
    return phase._replace(cost=phase.cost._replace(link=sum(compiled.received.values()), waits=compiled.waits))
