"""Write the generated pages of docs/reference: settings, metrics, commands, claims of papers, keys of TRL and verl.

`python scripts/write_reference.py`; with `--check` it writes nothing, and fails if a page differs.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from jaxrl_sql.__main__ import GROUPS, Command, commands
from jaxrl_sql.commands.arguments import EXIT_CODES
from jaxrl_sql.config.fields import Field, Section, Synonyms
from jaxrl_sql.config.roots import ROOTS
from jaxrl_sql.config.settings import all_sections, describe_rule, format_value, section_help
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import Metric, MetricTable
from jaxrl_sql.runtime.training_metrics import TRAINING

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
SETTINGS = """\
# Settings

Each setting with its default, allowed values and meaning. Set one as `key.sub=value` on the command line, or in a YAML
file for `--config`. `jaxrl-sql COMMAND --help` lists the settings of a command, and `--print-config` prints their
values. `evaluate`, `ask`, `serve` and `mcp` take some defaults from the run that trained the model.

`python scripts/write_reference.py` writes this page from the fields in `jaxrl_sql/config/`.
"""
FROM_OTHERS = """\
# Keys of TRL and verl

The settings of TRL (`GRPOConfig`, `SFTConfig`, `PPOConfig`, and the `ModelConfig` and `ScriptArguments` of its
commands) and of verl (`ppo_trainer.yaml`, `sft_trainer.yaml`) that have a counterpart here, by our
key. A command rejects one of their keys and names ours: `jaxrl-sql train learning_rate=1e-6` names `grpo.optim.lr`.
An empty cell means that the list has no counterpart in that library. [Settings](settings.md) has the meaning of each
key.

`python scripts/write_reference.py` writes this page from the fields in `jaxrl_sql/config/`.
"""
METRICS = """\
# Metrics

Each metric with its unit, formula and reading: of [training](#training) in `metrics.jsonl` of a run, and of
[evaluation](#evaluation) in `metrics.json` of `jaxrl-sql evaluate` and `jaxrl-sql verbal`. `jaxrl-sql view RUN` draws
those of training. A share is between 0 and 1. A placeholder such as `<set>` stands for a name.

`python scripts/write_reference.py` writes this page from `jaxrl_sql/runtime/training_metrics.py` and
`jaxrl_sql/runtime/evaluation_metrics.py`.
"""
COMMANDS = """\
# Commands

Each command of `jaxrl-sql` with its usage, options and an example. A command that reads settings takes
`key.sub=value` and `--config FILE`; [settings](settings.md) has their meaning.

`python scripts/write_reference.py` writes this page from the parsers in `jaxrl_sql/commands/`.
"""
CLAIMS = """\
# Claims of the papers

The accuracies that the five papers claim, in percent, with the commands of `jaxrl-sql` that measure them. MODEL is the
result of the training command, such as `runs/arctic/model`; DATA and SPLIT are a set's folder and split
([datasets](datasets.md)). Training commands need the machines of [what a 7B needs](../howto/7b.md).
[Recipes](../explanation/recipes.md) has the deviations of each recipe. No number of this page was measured here:
[results](../results/models.md) has those that were.

`python scripts/evaluate_released.py omnisql MODEL SPIDER_DEV OUT` evaluates OmniSQL's released 7B model, or with
`sql_r1` SQL-R1's, and prints its accuracy on Spider's dev set next to the paper's. It was rehearsed with a small
model only.

`python scripts/write_reference.py` writes this page from `docs/reference/claims.toml`.
"""


def settings_page() -> str:
    """Return the page of all settings, a table for each section."""
    return "\n\n".join([SETTINGS.rstrip(), *map(_section, all_sections())]) + "\n"


def synonyms_page() -> str:
    """Return the page of other libraries' keys, with a row for each of our keys that has a counterpart."""
    keys: dict[Synonyms, list[str]] = {}
    for field in _fields():
        if field.synonyms is not None:
            keys.setdefault(field.synonyms, []).append(field.key)
    rows = [(_keys(", ".join(ours)), _keys(other.trl), _keys(other.verl), other.note) for other, ours in keys.items()]
    return f"{FROM_OTHERS}\n{_table(('jaxrl_sql', 'TRL', 'verl', 'differs in'), rows)}\n"


def metrics_page() -> str:
    """Return the page of all metrics."""
    training = ["## Training", *(_part(part, "lines") for part in TRAINING)]
    evaluation = ["## Evaluation", *(_part(part, "written for") for part in EVALUATION)]
    return "\n\n".join([METRICS.rstrip(), *training, *evaluation]) + "\n"


def commands_page() -> str:
    """Return the page of the commands."""
    page = [COMMANDS.rstrip()]
    for title, entries in GROUPS.items():
        page.append(f"## {title}")
        for name, entry in entries.items():
            page += [f"### {name}", *_command(name, entry, parser_of(name))]
    codes = [part.strip().partition(" ") for part in EXIT_CODES.partition(": ")[2].replace("\n", " ").split(";")]
    page += ["## Exit codes", _table(("code", "meaning"), [(code, meaning) for code, _, meaning in codes])]
    return "\n\n".join(page) + "\n"


def claims_page() -> str:
    """Return the page of the papers' claims, a table for each paper."""
    papers = tomllib.loads((REFERENCE / "claims.toml").read_text(encoding="utf-8"))["paper"]
    head = ("claim", "percent", "commands", "missing")
    parts = [f"## {paper['title']}\n\n{_table(head, map(_claim, paper['claim']))}" for paper in papers]
    return "\n\n".join([CLAIMS.rstrip(), *parts]) + "\n"


def _claim(claim: Mapping[str, str]) -> tuple[str, ...]:
    commands_ = [f"`jaxrl-sql {claim[name]}`" for name in ("train", "evaluate") if name in claim]
    return f"{claim['where']}: {claim['what']}", claim["numbers"], "<br>".join(commands_), claim["missing"]


class ReadError(Exception):
    """Raised when a command has created its parser, before it reads arguments."""


def parser_of(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command without running the command."""
    parsers: list[argparse.ArgumentParser] = []

    def stop(parser: argparse.ArgumentParser, *_: Any) -> None:
        parsers.append(parser)
        raise ReadError

    module = import_module(f"jaxrl_sql.commands.{commands()[name].module}")
    both = mock.patch.multiple(argparse.ArgumentParser, parse_args=stop, parse_intermixed_args=stop)
    with both, contextlib.suppress(ReadError):
        module.main([])
    return parsers[0]


def _command(name: str, entry: Command, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield a command's sentence, its usage with an example, the rest of its description, and its arguments."""
    actions = [action for action in parser._actions if action.dest != "help"]  # noqa: SLF001 - nothing public lists them
    options = [action for action in actions if action.option_strings]
    message = [_invocation(action) for action in actions if not action.option_strings]
    required = [_invocation(action) for action in options if action.required]
    has_more = ["[options]"] if len(options) > len(required) else []
    usage = " ".join(["jaxrl-sql", name, *required, *has_more, *message])
    example = f"jaxrl-sql {name} {entry.example}".strip()
    yield f"{entry.summary}."
    yield f"```text\n{usage}\n```\n\nExample: `{example}`"
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", " ".join((parser.description or "").split()), maxsplit=1)
    yield from sentences[1:]  # the first repeats the command's sentence
    if actions:
        yield _table(("argument", "meaning"), [(f"`{_invocation(action)}`", _help(action)) for action in actions])
    epilog = parser.epilog or ""
    if "settings, as key.sub=value" in epilog:
        yield "Reads [settings](settings.md) as `key.sub=value`."
    elif epilog:
        yield f"```text\n{epilog.strip()}\n```"


def _invocation(action: argparse.Action) -> str:
    """Return the notation of an argument."""
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    names = value if isinstance(value, tuple) else (value,)
    many = {"*": f"[{names[0]} ...]", "+": f"{names[0]} [{names[0]} ...]", "?": f"[{names[0]}]", 0: ""}
    message = many.get(action.nargs or "", " ".join(names)) if action.nargs != 0 else ""
    return f"{', '.join(action.option_strings)} {message}".strip()


def _help(action: argparse.Action) -> str:
    """Return the meaning of an argument, with its default."""
    values = {**vars(action), "prog": "jaxrl-sql"}
    return re.sub(r"\s+", " ", (action.help or "") % values).strip()


def _part(part: MetricTable, when: str) -> str:
    rows = [_metric(row) for row in part.rows]
    table = _table(("metric", "unit", "formula", "how to read it", when), rows)
    return "\n\n".join(text for text in (f"### {part.title}", part.about, table) if text)


def _metric(row: Metric) -> tuple[str, ...]:
    return f"`{row.name}`", row.unit, row.formula, row.reading, row.when


def _section(section: Section) -> str:
    rows = [
        (f"`{field.key}`", _value(format_value(field.default)), describe_rule(field), field.help)
        for field in section.fields
    ]
    readers = "; ".join(root.commands for root in ROOTS if hasattr(root(), section.name.partition(".")[0]))
    read_by = f"\n\nRead by: {readers}." if section.name and "." not in section.name else ""
    text = section_help(section) if section.name else "What belongs to no section."
    table = f"\n\n{_table(('setting', 'default', 'allowed', 'meaning'), rows)}" if rows else ""
    return f"## {section.name or 'Of the whole run'}\n\n{text}{read_by}{table}"


def _fields() -> Iterator[Field]:
    for section in all_sections():
        yield from section.fields


def _keys(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", ") if name)


def _value(text: str) -> str:
    return f"`{text}`" if text else "empty"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    return "\n".join([_row(head), "|---" * len(head) + "|", *map(_row, rows)])


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cell.replace(' | ', ', ').replace('|', chr(92) + '|') for cell in cells)} |"


def pages() -> Mapping[str, str]:
    """Return the text of each page by its file's name."""
    return {
        "settings.md": settings_page(),
        "from_trl_verl.md": synonyms_page(),
        "metrics.md": metrics_page(),
        "commands.md": commands_page(),
        "claims.md": claims_page(),
    }


def main() -> int:
    """Write the pages or compare them; the exit code is 1 if one differs."""
    is_stale = False
    for name, text in pages().items():
        page = REFERENCE / name
        if "--check" not in sys.argv[1:]:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"docs/reference/{name} is out of date: python scripts/write_reference.py")
            is_stale = True
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
