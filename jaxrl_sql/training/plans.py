"""Plans of a run for meshes of a topology, as text or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.inference.questions import new_shape
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.formats.hf import load_config as load_model_config
from jaxrl_sql.models.shapes import published_shape
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.lengths import StepLengths, read_lengths
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.show import as_json, as_text
from jaxrl_sql.planning.units import in_bytes, in_seconds
from jaxrl_sql.planning.workload import longest_answer
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.text2sql.recipes import find_recipe
from jaxrl_sql.types import InputError


def plan(config: TrainConfig, given: argparse.Namespace, programs: tuple[str, ...]) -> int:
    """Plan each of the meshes of a command line, of whose programs some are compiled, and name the best."""
    asked = [word for word in given.mesh or () if "=" not in word]
    topology = find_topology(given.topology)
    model, loss = model_shape(config), find_recipe(config.recipe).loss
    key, most = longest_answer(config)
    longest = config.data.max_prompt_tokens
    if not 0 <= given.schema_tokens <= longest:
        raise InputError(f"--schema-tokens {given.schema_tokens}: expected 0 to data.max_prompt_tokens={longest}")
    lengths = StepLengths(
        read_lengths(given.answer_tokens, "--answer-tokens", key, most),
        read_lengths(given.prompt_tokens, "--prompt-tokens", "data.max_prompt_tokens", longest),
        given.schema_tokens,
    )
    mesh = config.mesh
    meshes = [mesh_sizes(text, topology.chips) for text in asked or [f"{mesh.data}x{mesh.fsdp}x{mesh.tensor}"]]
    plans = list[Plan]()
    for sizes in meshes:
        plans.append(make_plan(config, model, topology, sizes, longest, lengths, programs, loss))
        if not given.json:
            print_text(as_text(plans[-1]) + "\n")
    if given.json:
        best = best_of(plans)
        said = {"plans": [as_json(one) for one in plans], "best": dict(best.sizes) if best else None}
        sys.stdout.write(json.dumps(said, indent=2) + "\n")
    elif len(plans) > 1:
        print_text(_choice(plans))
    return 0


def model_shape(config: TrainConfig) -> ModelConfig:
    """Return the shape to plan for: of `model.shape`, of the checkpoint, or of the numbers in the configuration."""
    if config.model.shape:
        return published_shape(config.model.shape)
    if config.model.checkpoint:
        return load_model_config(config.model.checkpoint)
    return new_shape(config, config.data.vocab_size)


def best_of(plans: Sequence[Plan]) -> Plan | None:
    """Return the fastest plan of those that fit; None where none does."""
    return min((one for one in plans if one.fits), key=lambda one: (one.seconds, one.total), default=None)


def _choice(plans: Sequence[Plan]) -> str:
    best = best_of(plans)
    if best is None:
        return "none of these meshes fits"
    lines = ["of these meshes:"]
    for one in plans:
        name = "x".join(map(str, one.sizes.values()))
        fits = "fits" if one.fits else "does not fit"
        mark = ", the best" if one is best else ""
        lines.append(f"  {name}: {in_bytes(one.total)} a chip, {fits}; a step {in_seconds(one.seconds)} at best{mark}")
    return "\n".join(lines)
