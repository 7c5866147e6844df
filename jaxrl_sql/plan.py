"""Find out whether a run fits a TPU pod, GPUs, or other chips, and how fast it can be, before paying for it.

The programs that the run would run are compiled ahead of time for the topology, on this machine, which needs none of
its chips: `pip install 'jaxrl_sql[tpu-plan]'` brings the compiler for TPUs, and in an environment of its own
`jaxrl_sql[gpu-plan]` the one for NVIDIA's GPUs. Nothing of the model is allocated. With `--compile
none`, and where there is nothing to compile for, all is by formula.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.models.formats.hf import load_config as load_model_config
from jaxrl_sql.models.shapes import published_shape
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.gpus import is_elsewhere, run_again
from jaxrl_sql.planning.lengths import StepLengths, read_lengths
from jaxrl_sql.planning.memory import in_bytes
from jaxrl_sql.planning.plan import Plan, make_plan, mesh_sizes
from jaxrl_sql.planning.show import as_json, as_text, in_seconds
from jaxrl_sql.planning.workload import longest_answer
from jaxrl_sql.recipes import find_recipe
from jaxrl_sql.run.command import TRAINED, add_config, prepare_process, report_errors, run_or_print
from jaxrl_sql.run.questions import new_shape
from jaxrl_sql.runtime.arguments import Parser
from jaxrl_sql.types import InputError

PROGRAMS = ("update", "score", "prefill", "decode")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print the plan, and return the exit code: 0, also where nothing fits; 2 for bad input."""
    parser = Parser(description=__doc__)
    add_config(parser, (*TRAINED, "rollout", "grpo"), "exit codes: 0, also where nothing fits; 2 for bad input")
    parser.add_argument("--topology", required=True, metavar="NAME", help="v5p:4x4x2, v5e:8x8, v6e:4x4, h100:8, cpu, …")
    parser.add_argument(
        "--mesh", nargs="+", action="extend", metavar="DxFxT", help="data x fsdp x tensor, one or more; else the file's"
    )
    for name in ("answer", "prompt"):
        words = f"tokens of {name}s: a mean, MEAN:MAX, or a file with a number a line; else all are of the longest"
        parser.add_argument(f"--{name}-tokens", default="", metavar="LENGTHS", help=words)
    words = "tokens of a schema, which run once for grpo.questions prompts of an update; else nothing is in common"
    parser.add_argument("--schema-tokens", type=int, default=0, metavar="N", help=words)
    parser.add_argument(
        "--compile", default="all", metavar="WHICH", help=f"all, none, or some of {','.join(PROGRAMS)}; minutes each"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    given = parser.parse_intermixed_args(arguments)
    if given.compile != "none" and is_elsewhere(given.topology):
        code = run_again("jaxrl_sql.plan", sys.argv[1:] if arguments is None else arguments)
        if code is not None:
            return code
    prepare_process()
    # Overrides that follow `--mesh` are read as meshes.
    overrides = [*given.overrides, *(word for word in given.mesh or () if "=" in word)]
    return report_errors(
        lambda: run_or_print(lambda config: plan(config, given), load_config(given.config, overrides), given, False)
    )


def plan(config: TrainConfig, given: argparse.Namespace) -> int:
    """Plan each of the meshes asked for, and say which is best."""
    asked = [word for word in given.mesh or () if "=" not in word]
    topology, wanted = find_topology(given.topology), _wanted(given.compile)
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
        plans.append(make_plan(config, model, topology, sizes, longest, lengths, wanted, loss))
        if not given.json:
            sys.stdout.write(as_text(plans[-1]) + "\n\n")
    if given.json:
        best = best_of(plans)
        said = {"plans": [as_json(one) for one in plans], "best": dict(best.sizes) if best else None}
        sys.stdout.write(json.dumps(said, indent=2) + "\n")
    elif len(plans) > 1:
        sys.stdout.write(_choice(plans) + "\n")
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


def _wanted(text: str) -> tuple[str, ...]:
    """Read `--compile`."""
    if text in {"all", "none"}:
        return PROGRAMS if text == "all" else ()
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PROGRAMS]:
        raise InputError(f"--compile {text}: {unknown[0]!r} is none of all, none, {', '.join(PROGRAMS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
