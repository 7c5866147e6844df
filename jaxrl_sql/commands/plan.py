"""Report whether a run fits TPUs, GPUs or other chips, and estimate its speed.

The run's programs are compiled ahead of time for the topology, without its chips: `pip install 'jaxrl_sql[tpu-plan]'`
installs the compiler for TPUs, and `jaxrl_sql[gpu-plan]`, in a separate environment, the one for NVIDIA GPUs. The model
is not allocated, and published models are not downloaded. With `--compile none`, or without a compiler for the
topology, all numbers are computed by formula. If memory is left, larger batches that fit are suggested.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from jaxrl_sql.commands.arguments import Parser, add_config
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import PlanConfig, load_config, replace_values
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.planning.gpus import is_absent_gpu, run_in_child
from jaxrl_sql.runtime.hub import is_hub_name
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError

PROGRAMS = ("update", "score", "prefill", "decode")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, print the plan, and return the exit code: 0, also if nothing fits; 2 for bad input."""
    parser = Parser(description=__doc__)
    add_config(parser, PlanConfig, "exit codes: 0, also if nothing fits; 2 for bad input")
    description = "the chips to plan for: v5p:4x4x2, v5e:8x8, v6e:4x4, h100:8, cpu, …"
    parser.add_argument("--topology", required=True, metavar="NAME", help=description)
    parser.add_argument(
        "--mesh",
        nargs="+",
        action="extend",
        metavar="DxFxT",
        help="sizes of the mesh, data x fsdp x tensor, of one plan or several (default: the configuration's mesh)",
    )
    for name in ("answer", "prompt"):
        description = (
            f"tokens of {name}s: a mean, MEAN:MAX, or a file with a number per line (default: the maximum for all)"
        )
        parser.add_argument(f"--{name}-tokens", default="", metavar="LENGTHS", help=description)
    description = "tokens of a schema shared by the grpo.questions prompts of an update (default: none)"
    parser.add_argument("--schema-tokens", type=int, default=0, metavar="N", help=description)
    description = f"programs to compile, which takes minutes each: all, none, or some of {','.join(PROGRAMS)}"
    parser.add_argument("--compile", default="all", metavar="WHICH", help=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    args = parser.parse_intermixed_args(arguments)
    # argparse reads overrides after `--mesh` as meshes.
    overrides = [*args.overrides, *(word for word in args.mesh or () if "=" in word)]

    def work() -> int:
        config, programs = load_config(PlanConfig, args.config, overrides), _compile_options(args.compile)
        # Compiling for absent GPUs needs a child process with other settings of JAX; in that child, `code` is None.
        if programs and is_absent_gpu(args.topology):
            code = run_in_child(["plan", *(sys.argv[2:] if arguments is None else arguments)])
            if code is not None:
                return code
        prepare_process()
        if not args.print_config:
            config = _with_known_shape(config)
        return run_or_print(lambda cfg: _plan(cfg, args, programs), config, args, with_weights=False)

    return report_errors(work)


def _with_known_shape(config: PlanConfig) -> PlanConfig:
    """Set `model.shape` if the checkpoint is a published model of the hub, so that nothing is downloaded."""
    from jaxrl_sql.models.shapes import name_of_hub_model

    shape = "" if config.model.shape else name_of_hub_model(config.model.checkpoint)
    return replace_values(config, {"model.shape": shape}) if shape and is_hub_name(config.model.checkpoint) else config


def _plan(config: PlanConfig, options: argparse.Namespace, programs: tuple[str, ...]) -> int:
    from jaxrl_sql.planning.chips import find_topology
    from jaxrl_sql.planning.memory import PlannedModel
    from jaxrl_sql.planning.plan import make_plan, mesh_sizes, model_shape, step_lengths
    from jaxrl_sql.planning.show import all_as_json, as_text, comparison
    from jaxrl_sql.text2sql.recipes import find_recipe

    topology = find_topology(options.topology)
    model = PlannedModel(config.model, model_shape(config.model, config.data.tokenizer.vocab_size))
    loss, mesh = find_recipe(config.recipe).loss, config.mesh
    sections = config.workload(config.data.max_prompt_tokens)
    lengths = step_lengths(sections, options.answer_tokens, options.prompt_tokens, options.schema_tokens)
    meshes = [word for word in options.mesh or () if "=" not in word] or [f"{mesh.data}x{mesh.fsdp}x{mesh.tensor}"]
    plans = []
    for sizes in [mesh_sizes(text, topology.chips) for text in meshes]:
        plans.append(make_plan(sections, model, topology, sizes, lengths, programs, loss))
        if not options.json:
            print_text(as_text(plans[-1]) + "\n")
    if options.json:
        print_text(json.dumps(all_as_json(plans), indent=2))
    elif len(plans) > 1:
        print_text(comparison(plans))
    return 0


def _compile_options(text: str) -> tuple[str, ...]:
    """Return the names of the programs that the option `--compile` selects."""
    if text in {"all", "none"}:
        return PROGRAMS if text == "all" else ()
    names = tuple(text.split(","))
    if unknown := [name for name in names if name not in PROGRAMS]:
        raise InputError(f"--compile {text}: {unknown[0]!r} is not one of all, none, {', '.join(PROGRAMS)}")
    return names
