"""Judge predictions or a model on a benchmark's questions, by several rules side by side.

`jaxrl-sql evaluate --data DIR --predictions FILE --out DIR` needs no model and no jax; `--model M` in place
of predictions lets one answer, and `evaluate.base_url=… evaluate.model=…` one behind an endpoint. `--as SYSTEM` sets
prompt, schema, sampling and rule as that system's paper evaluates. `--compare A B` sets two finished evaluations beside
one another. All else is in the section `evaluate` of the configuration. The folder `--out` gets metrics.json,
records.jsonl, the predictions in the benchmark's own form and config.yaml; broken off, the same command goes on from
journal.jsonl.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxrl_sql.commands.arguments import ALL, Parser, add_config, add_endpoint, endpoint_values
from jaxrl_sql.commands.running import prepare_process, report_errors, run_or_print
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.config.load import SYSTEMS, as_published, check_keys
from jaxrl_sql.runtime.folder import goes_on
from jaxrl_sql.runtime.model_locator import defaults_for
from jaxrl_sql.types import InputError

ONE_ANSWERS = (
    "give one of --predictions FILE, for each --data one, --model M, and evaluate.base_url=URL evaluate.model=M"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, judge or compare, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, (*ALL, "evaluate", "sampling", "mesh"))
    parser.add_argument(
        "--data", action="append", default=[], metavar="DIR", help="a benchmark's folder; may be repeated"
    )
    parser.add_argument("--split", help="which part of it (default: the usual one)")
    parser.add_argument("--predictions", action="append", default=[], metavar="FILE", help="one for each --data")
    field = "where predicted SQL stands in --predictions, if not in pred_sql or sql"
    parser.add_argument("--field", dest="sql_field", metavar="NAME", help=field)
    parser.add_argument("--model", help="a run folder, a Hugging Face folder, a name of the hub or a GGUF file")
    parser.add_argument(
        "--as", dest="system", metavar="SYSTEM", help=f"asked and judged as its paper evaluates: {', '.join(SYSTEMS)}"
    )
    add_endpoint(parser, "evaluate")
    parser.add_argument("--recipe", help="whose form and prompt it is asked in (default: as it was trained)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder to write; broken-off work goes on there")
    parser.add_argument("--allow-missing", action="store_true", help="leave questions without a prediction out")
    parser.add_argument("--allow-extra", action="store_true", help="leave predictions for no question out")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("A", "B"), help="two folders that this command wrote")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    given = parser.parse_intermixed_args(arguments)
    given.overrides = [*endpoint_values("evaluate", given.endpoint), *given.overrides]
    prepare_process()
    if given.compare:
        first, second = given.compare
        return report_errors(lambda: _compared(first, second, given))
    return report_errors(lambda: run_or_print(_evaluate, configuration(given), given))


def _compared(first: Path, second: Path, given: argparse.Namespace) -> int:
    """Compare, if nothing is asked that a comparison would pass over."""
    more = {name: value for name, value in vars(given).items() if name not in ("compare", "out") and value}
    if more:
        raise InputError(
            f"--compare sets two finished folders side by side and takes --out alone, not {', '.join(more)}"
        )
    from jaxrl_sql.inference.benchmark_evaluation import compare

    return compare(first, second, given.out or second)


def check_answerer(config: TrainConfig) -> None:
    """Raise InputError without a benchmark, and unless predictions, a model or an endpoint alone answer."""
    cfg = config.evaluate
    if not cfg.data:
        raise InputError("--data is missing: it names a benchmark's folder (evaluate.data)")
    if sum(map(bool, (cfg.predictions, config.model.checkpoint, cfg.base_url))) != 1:
        raise InputError(ONE_ANSWERS)


def _evaluate(config: TrainConfig) -> int:
    """Evaluate; a disk that gets full is one line."""
    check_answerer(config)
    from jaxrl_sql.inference.benchmark_evaluation import evaluate

    with goes_on(config.evaluate.out):
        return evaluate(config)


def configuration(given: argparse.Namespace) -> TrainConfig:
    """Return the configuration that a command line asks for, its options on top.

    Raises InputError where nobody answers.
    """
    check_keys(given.config, given.overrides)  # before a model is looked for on the hub
    model, chat = given.model, {"data": {"prompt": "chat"}}
    if model:
        beneath = defaults_for(model)
    else:  # the file or a value may name one, whose defaults lie beneath both
        named = load_config(given.config, given.overrides, _system(given, {}, but=("max_prompt_tokens",)) or chat)
        model, is_asked = named.model.checkpoint, bool(named.evaluate.base_url)
        if not (model or is_asked or given.predictions or named.evaluate.predictions):
            raise InputError(ONE_ANSWERS)
        beneath = defaults_for(model) | (chat if is_asked else {})
    beneath = _system(given, beneath)
    above: dict[str, Any] = {}
    names = ("data", "split", "predictions", "sql_field", "allow_missing", "allow_extra")
    above["evaluate"] = {name: getattr(given, name) for name in names if getattr(given, name)}
    above["evaluate"] |= {"out": str(given.out)} if given.out else {}
    above |= {"recipe": given.recipe} if given.recipe else {}
    above |= {"model": {"checkpoint": beneath["model"]["checkpoint"]}} if "model" in beneath else {}
    return load_config(given.config, given.overrides, beneath, above)


def _system(given: argparse.Namespace, beneath: Mapping[str, Any], but: Sequence[str] = ()) -> dict[str, Any]:
    """Return defaults with the system's over them that `--as` names, without some keys of its section `data`."""
    if not given.system:
        return dict(beneath)
    found = as_published(given.system, beneath, bool(given.predictions))
    return {**found, "data": {name: value for name, value in found.get("data", {}).items() if name not in but}}
