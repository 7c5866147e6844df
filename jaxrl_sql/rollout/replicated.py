"""Replicated engines, each with a copy of the weights on its own devices: the rollout's layout on a mesh.

The weights are copied from the training mesh to a grid of replicas once per rollout. Then nothing crosses replicas:
each decodes its part of the prompts in its own slots and KV blocks. A process drives the replicas on its own devices
and yields their samples alone; `gather` collects the samples of all processes. Prompts are dealt by their tokens and
number alone, and a sample's random keys are those of its index in the call. So the numbers of replicas and processes
change nothing but the last bits of sums.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import lru_cache, reduce
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax.serialization import msgpack_restore, msgpack_serialize

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.lora import policy_shardings
from jaxrl_sql.models.stacked_layers import take_layers
from jaxrl_sql.parallel.compile_once import CompileOnce, shares_programs
from jaxrl_sql.parallel.mesh import local_replicas, replica_grid
from jaxrl_sql.parallel.processes import exchange, exchange_bytes
from jaxrl_sql.rollout.call import EngineCall
from jaxrl_sql.rollout.engine import BUSY, Engine, make_request
from jaxrl_sql.rollout.engine_config import EngineConfig
from jaxrl_sql.rollout.sampling import ASSISTANT, GenerationRequest, RequestGroup, Sample, SamplingParams
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.text2sql.env.turns import Turns
from jaxrl_sql.types import InputError, Prompt, Tokenizer, Turn

AnyEngine: TypeAlias = "Engine | ReplicatedEngine"
"""An engine that samples from a policy."""


class Replica(NamedTuple):
    """One of the grid's copies of the model: its number, its devices, and the engine that samples from it."""

    number: int
    mesh: jax.sharding.Mesh
    engine: Engine


class ReplicatedEngine:
    """Sample completions of prompts from the copies of a policy on `grid` (`parallel.mesh.replica_grid`), as `Engine`.

    `config` is that of one replica. `params` lie on any mesh of the same devices; their copies, in the compute dtype,
    are made when a call needs them and dropped by `release`.
    """

    # A process's call yields the samples of its own replicas.
    yields_all = False

    def __init__(
        self, model: ModelConfig, params: PyTree, tokenizer: Tokenizer, config: EngineConfig, grid: jax.sharding.Mesh
    ) -> None:
        self.model, self.tokenizer, self.config, self.grid = model, tokenizer, config, grid
        self.params = params
        self.replicas: list[Replica] = []
        for number, mesh in local_replicas(grid):
            with jax.set_mesh(mesh):
                self.replicas.append(Replica(number, mesh, Engine(model, None, tokenizer, config)))
        for replica in self.replicas[1:]:
            replica.engine.vocabulary = self.replicas[0].engine.vocabulary
        self._copied_params: Any = None
        self._is_generating = False

    @property
    def stats(self) -> RolloutStats:
        """Return the counts of the last call, of all replicas of this process."""
        return _merge_stats(replica.engine.stats for replica in self.replicas)

    def reset_prefix_cache(self) -> None:
        """Evict all cached prefixes."""
        for replica in self.replicas:
            replica.engine.reset_prefix_cache()

    def release(self) -> None:
        """Free the memory of the KV caches and the copied weights until the next call."""
        self._copied_params = None
        for replica in self.replicas:
            replica.engine.params = None
            replica.engine.release()

    def generate(
        self,
        prompts: Sequence[Prompt | str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        step: int = 0,
        turns: Turns | None = None,
        ahead: int | None = None,
        carried: Sequence[Sample] = (),
    ) -> Iterator[Sample]:
        """Yield the samples of this process's replicas as they finish, as `Engine.generate` does those of all.

        Every process must make the call. `turns` makes environments of this process's samples alone.
        """
        request = make_request(self.tokenizer, prompts, sampling, step, turns, ahead, carried)
        if self._is_generating:
            raise InputError(BUSY)
        self._copy_weights()
        dealt, calls = deal(request, self.grid.shape["data"]), list[tuple[Replica, EngineCall]]()
        start_time = time.perf_counter()
        self._is_generating = True
        try:
            for replica in self.replicas:
                calls.append(
                    (replica, _call_on_mesh(replica, replica.engine.begin, request.restrict(dealt[replica.number])))
                )
            yield from _run(calls, starts_next=ahead is not None)
        finally:
            for replica, _ in calls:
                replica.engine.stats.seconds = time.perf_counter() - start_time
            self._is_generating = False

    def gather(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples of all processes' calls; every process must call it with what its own yielded."""
        if jax.process_count() == 1:
            return list(samples)
        return [sample for packed in exchange_bytes(pack_samples(samples)) for sample in unpack_samples(packed)]

    def gather_stats(self) -> RolloutStats:
        """Return the counts of the last call of all processes' replicas; every process must call it."""
        return _merge_stats(RolloutStats(**counts) for counts in exchange([dataclasses.asdict(self.stats)]))

    def _copy_weights(self) -> None:
        """Copy the parameters to the replicas, unless they have them.

        Arrays are copied one at a time, and stacked ones are freed as soon as their layers are taken: no more than one
        exists twice. On CPUs it must wait for each copy: XLA has few threads there, each queued program blocks one, and
        a collective that all of them wait for would never get a thread.
        """
        if self._copied_params is self.params:
            return
        self.release()
        shardings = policy_shardings(self.model, self.params, self.grid)
        dtype = self.config.compute_dtype
        stacked, tree = jax.tree.flatten(self.params["layers"])
        layers = [
            jax.block_until_ready(take_layers(_copy_to(leaf, sharding, dtype)))
            for leaf, sharding in zip(stacked, jax.tree.leaves(shardings["layers"]), strict=True)
        ]
        rest = {name: leaf for name, leaf in self.params.items() if name != "layers"}
        rest = jax.tree.map(
            lambda leaf, sharding: _copy_to(leaf, sharding, dtype), rest, {name: shardings[name] for name in rest}
        )
        for _, mesh, engine in self.replicas:
            split = tuple(
                jax.tree.unflatten(tree, [_replica_copy(mesh, leaf) for leaf in layer])
                for layer in zip(*layers, strict=True)
            )
            engine.params = {**jax.tree.map(lambda leaf, mesh=mesh: _replica_copy(mesh, leaf), rest), "layers": split}
        self._copied_params = self.params


def _merge_stats(counted: Iterable[RolloutStats]) -> RolloutStats:
    """Return the counts of engines that worked at the same time."""
    return reduce(RolloutStats.merge, counted)


def _call_on_mesh(replica: Replica, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on a replica's mesh."""
    with jax.set_mesh(replica.mesh):
        return function(*arguments)


def _run(calls: Sequence[tuple[Replica, EngineCall]], starts_next: bool) -> Iterator[Sample]:
    """Yield the samples of all replicas: chunks are launched on all before the first log is awaited.

    Each is launched by its own thread, since the first launch compiles, for each replica's devices anew; where replicas
    can share a compiled program, the first to need it compiles it and the others wait. If the call `starts_next`, a
    replica whose own samples are finished begins the next call's until those of all are, on all processes: they all run
    the same number of rounds of chunks, whatever the time.
    """
    for _, call in calls:
        yield from call.ready_samples()
    with CompileOnce() as compile_once, ThreadPoolExecutor(max(len(calls), 1), "replica") as threads:

        def launch(pair: tuple[Replica, EngineCall]) -> list[Sample]:
            with compile_once.turns() if shares_programs() else nullcontext():
                return _call_on_mesh(pair[0], pair[1].launch)

        while _is_unfinished(calls, starts_next):
            active = [pair for pair in calls if (pair[1].has_work if starts_next else pair[1].unfinished)]
            for failed in threads.map(launch, active):
                yield from failed
            for replica, call in active:
                yield from _call_on_mesh(replica, call.read)
    for replica, call in calls:
        yield from _call_on_mesh(replica, lambda call=call: list(call.ahead_samples()))


def _is_unfinished(calls: Sequence[tuple[Replica, EngineCall]], starts_next: bool) -> bool:
    """Return whether a call has samples to come; if it `starts_next`, that of any process."""
    is_unfinished = any(call.unfinished for _, call in calls)
    return any(exchange([is_unfinished])) if starts_next else is_unfinished


def deal(request: GenerationRequest, replicas: int) -> list[list[RequestGroup]]:
    """Deal the prompts of a call to replicas, by their tokens and the samples of each alone.

    Prompts with a common prefix go to the same replica, whose prefix cache then has it, and each replica has its share
    of all samples. A prompt's samples are divided only if there are fewer prompts than replicas. The next call's
    prompts are dealt as that call will deal them.
    """
    ahead = len(request.prompts) if request.ahead is None else request.ahead
    first, rest = (
        _deal(request, prompt_indices, replicas)
        for prompt_indices in (range(ahead), range(ahead, len(request.prompts)))
    )
    return [[*groups, *more] for groups, more in zip(first, rest, strict=True)]


def _deal(request: GenerationRequest, prompt_indices: range, replicas: int) -> list[list[RequestGroup]]:
    """Deal these prompts of a call."""
    order = sorted(prompt_indices, key=lambda i: request.prompts[i].token_ids)
    total, divides_samples = sum(request.samplings[i].n for i in prompt_indices), len(order) < replicas
    bounds = [total * number // replicas for number in range(replicas + 1)]
    dealt: list[list[RequestGroup]] = [[] for _ in range(replicas)]
    offset = 0
    for i in order:
        n = request.samplings[i].n
        if divides_samples:
            for number, (low, high) in enumerate(pairwise(bounds)):
                first, last = max(low - offset, 0), min(high - offset, n)
                if first < last:
                    dealt[number].append(RequestGroup(i, first, last))
        else:  # its middle decides its replica
            dealt[(2 * offset + n) * replicas // (2 * total)].append(RequestGroup(i, 0, n))
        offset += n
    return dealt


@lru_cache(maxsize=64)
def _make_copier(sharding: jax.sharding.NamedSharding, dtype: Any) -> Callable[[jax.Array], jax.Array]:
    """Return a program that copies an array to a sharding, in a dtype (None: its own)."""
    return jax.jit(lambda x: x if dtype is None else x.astype(dtype), out_shardings=sharding)


def _copy_to(leaf: Any, sharding: jax.sharding.NamedSharding, dtype: Any) -> jax.Array:
    """Copy an array to the grid and wait for it; an array on a mesh of the same devices is copied by one program."""
    current = getattr(leaf, "sharding", None)
    if isinstance(current, jax.NamedSharding) and current.device_set == sharding.device_set:
        return jax.block_until_ready(_make_copier(sharding, dtype)(leaf))
    return jax.device_put(leaf if dtype is None else jnp.asarray(leaf, dtype), sharding)


def _replica_copy(mesh: jax.sharding.Mesh, x: jax.Array) -> jax.Array:
    """Return a replica's copy of an array on the grid, which is not copied for it."""
    sharding: Any = x.sharding
    data_of = {shard.device: shard.data for shard in x.addressable_shards}
    shards = [data_of[device] for device in mesh.devices.flat]
    return jax.make_array_from_single_device_arrays(x.shape, jax.NamedSharding(mesh, sharding.spec), shards)


def pack_samples(samples: Sequence[Sample]) -> bytes:
    """Write samples as bytes: numbers as arrays, bit for bit, and the rest as JSON."""
    headers = [
        (sample.prompt_index, sample.index, sample.text, sample.finish_reason, sample.error,
         [(turn.role, len(turn.token_ids), turn.text) for turn in sample.turns])
        for sample in samples
    ]  # fmt: skip
    dtypes = (("token_ids", np.int32), ("logprobs", np.float32), ("behavior_logprobs", np.float32))
    arrays = {name: np.array([x for sample in samples for x in getattr(sample, name)], dtype) for name, dtype in dtypes}
    return msgpack_serialize({"told": json.dumps(headers), **arrays})


def unpack_samples(packed: bytes) -> list[Sample]:
    """Return the samples that `pack_samples` wrote."""
    stored = msgpack_restore(packed)
    numbers = [stored[name].tolist() for name in ("token_ids", "logprobs", "behavior_logprobs")]
    samples, offset = [], 0
    for prompt, index, text, reason, error, turn_heads in json.loads(stored["told"]):
        turns, start = [], offset
        for role, count, turn_text in turn_heads:
            ids, logprobs, behavior = (tuple(all_[offset : offset + count]) for all_ in numbers)
            is_own = role == ASSISTANT
            turns.append(Turn(role, ids, logprobs if is_own else (), behavior if is_own else (), turn_text))
            offset += count
        ids, logprobs, behavior = (tuple(all_[start:offset]) for all_ in numbers)
        samples.append(Sample(prompt, index, ids, logprobs, behavior, text, reason, tuple(turns), error))
    return samples


def make_engine(
    model: ModelConfig,
    params: PyTree,
    tokenizer: Tokenizer,
    config: EngineConfig,
    mesh: jax.sharding.Mesh,
    layout: tuple[int, int] | None,
) -> AnyEngine:
    """Return an engine on a mesh that is set: one over all of it (`layout` None), or (replicas, tensor) of its devices.

    Raises InputError for a layout that does not match the devices.
    """
    if layout is None:
        return Engine(model, params, tokenizer, config)
    return ReplicatedEngine(model, params, tokenizer, config, replica_grid(mesh, *layout))
