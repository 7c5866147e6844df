"""The command `jaxrl-sql`, also `python -m jaxrl_sql`: the entry point of all commands.

A command is imported when it runs and parses its own arguments, so `jaxrl-sql --help` loads neither jax nor numpy.
"""

from __future__ import annotations

import sys

try:
    import os
    from collections.abc import Mapping, Sequence
    from difflib import get_close_matches
    from importlib import import_module
    from typing import NamedTuple

    import click
    from click.shell_completion import CompletionItem

    from jaxrl_sql.runtime.signals import EXIT_INTERRUPTED, exit_on_ctrl_c_during_imports, print_interruption
    from jaxrl_sql.runtime.terminal import print_text
except KeyboardInterrupt:
    sys.stderr.write("interrupted\n")
    raise SystemExit(130) from None


class Command(NamedTuple):
    """A command: its module in `commands`, a summary, example arguments for help, and arguments before the user's."""

    module: str
    summary: str
    example: str
    prefix: tuple[str, ...] = ()


COMPLETION = """Enable tab completion of commands and settings in bash (or zsh_source, fish_source):
  eval "$(_JAXRL_SQL_COMPLETE=bash_source jaxrl-sql)\""""
QUICKSTART = ("--config", "configs/quickstart.yaml")
GROUPS: Mapping[str, Mapping[str, Command]] = {
    "Begin": {
        "quickstart": Command(
            "train", "Train a small policy on generated data, in minutes", "grpo.steps=20", QUICKSTART
        ),
        "doctor": Command("doctor", "Check the installation, list optional dependencies", ""),
    },
    "Train": {
        "train": Command("train", "Train by GRPO or PPO", "--config configs/spider.yaml data.dir=FOLDER"),
        "sft": Command("sft", "Run supervised fine-tuning only", "--config configs/own_database.yaml data.train=more"),
        "plan": Command("plan", "Report memory fit and speed limits", "--config configs/arctic.yaml --topology h100:8"),
        "launch": Command(
            "launch", "Print a launch file for several hosts", "slurm --hosts 4 --config FILE"
        ),
        "view": Command("view", "View a run's answers in a browser", "runs/quickstart"),
        "report": Command("report", "Write a run's report", "runs/quickstart"),
    },
    "Evaluate and ask": {
        "evaluate": Command("evaluate", "Evaluate a model or predictions", "--data FOLDER --model runs/quickstart"),
        "ask": Command("ask", "Ask a database a question", '--model runs/quickstart --db FILE "How many customers?"'),
        "export": Command("export", "Export a model: folder, GGUF, hub", "runs/quickstart --gguf q8_0"),
        "serve": Command("serve", "Serve a model with an OpenAI-compatible API", "--model runs/quickstart"),
        "mcp": Command("mcp", "Serve a database to agents over MCP", "--db FILE --model runs/quickstart"),
        "verbal": Command("verbal", "Verbal RL: choose among candidates", "--config configs/verbal.yaml"),
    },
    "Data": {
        "distill": Command("distill", "Collect a teacher's reasoning", "--config configs/distill.yaml"),
        "data synth": Command("synth", "Generate databases and questions", "--out FOLDER --seed 7"),
        "data prepare": Command("prepare", "Select and merge question sets", "--config configs/data/arctic.yaml"),
        "data audit": Command("audit", "Report leakage and poor golds", "--train FOLDER --eval FOLDER"),
        "data augment": Command("augment", "Correct golds, add rows and tables", "--config configs/augment.yaml"),
        "data filter": Command("filter_data", "Filter training questions", "--config configs/filter.yaml"),
        "data copy": Command("copy", "Copy databases to other engines", "--from FOLDER --to URL --out DIR"),
    },
}  # fmt: skip


def commands() -> dict[str, Command]:
    """Return the commands by name."""
    return {name: entry for group in GROUPS.values() for name, entry in group.items()}


def run_entry(name: str, arguments: Sequence[str]) -> int:
    """Run a command with its arguments and return its exit code."""
    entry = commands()[name]
    sys.argv[0] = f"jaxrl-sql {name}"  # the program name in usage
    try:
        with exit_on_ctrl_c_during_imports():
            code: int = import_module(f"jaxrl_sql.commands.{entry.module}").main([*entry.prefix, *arguments])
    except KeyboardInterrupt:
        print_interruption()
        return EXIT_INTERRUPTED
    return code


class Commands(click.Group):
    """A click group of all commands, or of those with a prefix (`data `: the subgroup); its help has their examples."""

    def __init__(self, prefix: str = "", **options: object) -> None:
        super().__init__(prefix.strip() or "jaxrl-sql", **options)  # type: ignore[arg-type]
        self.entries = {
            name.removeprefix(prefix): entry for name, entry in commands().items() if name.startswith(prefix)
        }
        self.prefix = prefix

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return the names of commands and subgroups."""
        return list(dict.fromkeys(name.split()[0] for name in self.entries))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names; raises UsageError for an unknown command."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            (nearest,) = get_close_matches(args[0], names, n=1, cutoff=0.0)
            raise click.UsageError(f"there is no command {self.prefix}{args[0]}; the nearest is {self.prefix}{nearest}")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command or subgroup of a name; a command gets its arguments unchanged and parses them itself."""
        name = self.prefix + cmd_name
        if cmd_name not in self.entries:
            return (
                Commands(f"{name} ", help="Generate and maintain data.")
                if cmd_name in self.list_commands(ctx)
                else None
            )
        argument = click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED, shell_complete=complete)
        return click.Command(
            cmd_name,
            context_settings={"ignore_unknown_options": True, "help_option_names": []},
            params=[argument],
            callback=lambda arguments: run_entry(name, arguments),
        )

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with summary and example."""
        for title, group in GROUPS.items():
            rows = []
            for name, entry in group.items():
                if self.entries.get(short := name.removeprefix(self.prefix)) is entry:
                    rows += [(click.style(short, fg="cyan"), entry.summary), ("", f"jaxrl-sql {name} {entry.example}")]
            if rows:
                with formatter.section(click.style(title, bold=True)):
                    formatter.write_dl(rows)


def complete(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return completions of a word: settings, the package's configurations, or files."""
    from jaxrl_sql.config.load import SHIPPED
    from jaxrl_sql.config.settings import all_sections

    keys = [f"{field.key}=" for section in all_sections() for field in section.fields]
    candidates = [*keys, *sorted(f"configs/{path.name}" for path in SHIPPED.glob("*.yaml"))]
    matches = [CompletionItem(word) for word in candidates if incomplete and word.startswith(incomplete)]
    return matches or [CompletionItem(incomplete, type="file")]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name and return its exit code; 2 for an unknown command."""
    color = False if os.environ.get("NO_COLOR") else None
    group = Commands(
        help="Train language models for text-to-SQL with GRPO; rewards come from executing the SQL.",
        epilog="\b\n" + COMPLETION,
        no_args_is_help=True,
        context_settings={"color": color, "max_content_width": 120, "help_option_names": ["-h", "--help"]},
    )
    group = click.version_option(package_name="jaxrl-sql", prog_name="jaxrl-sql")(group)
    try:
        code = group.main(arguments, "jaxrl-sql", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return error.exit_code
    except click.ClickException as error:
        print_text(f"error: {' '.join(error.format_message().split())} (jaxrl-sql --help lists all)", sys.stderr)
        return error.exit_code
    except click.Abort:
        return EXIT_INTERRUPTED
    return int(code or 0)


if __name__ == "__main__":
    sys.exit(main())
