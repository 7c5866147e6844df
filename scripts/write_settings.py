"""Write docs/settings.md, the page of all settings, and docs/from_trl_verl.md from the fields of `jaxrl_sql.config`.

`python scripts/write_settings.py`; with `--check` it writes nothing, and fails where a page differs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from jaxrl_sql.config.fields import Field, Section, Synonyms
from jaxrl_sql.config.roots import ROOTS
from jaxrl_sql.config.settings import about, all_sections, allowed, shown

DOCS = Path(__file__).resolve().parents[1] / "docs"
SETTINGS = """\
# Settings

Every value that a command can be given: as `key.sub=value` on the command line, or in a YAML file for `--config`. This
page is written by `python scripts/write_settings.py` from the fields in `jaxrl_sql/config/`; `jaxrl-sql COMMAND
--help` shows those that a command reads, and `--print-config` prints what it would run with. `evaluate`, `ask`,
`serve` and `mcp` take some defaults from the model's run instead.
"""
FROM_OTHERS = """\
# Coming from TRL or verl

The settings of TRL (`GRPOConfig`, `SFTConfig`, `PPOConfig`, and the `ModelConfig` and `ScriptArguments` of its
commands) and of verl (`ppo_trainer.yaml`, `sft_trainer.yaml`) that have a counterpart here, by our
key. An unknown key of theirs is refused with ours: `jaxrl-sql train learning_rate=1e-6` names `grpo.optim.lr`. This
page is written by `python scripts/write_settings.py` from the fields in `jaxrl_sql/config/`. [Settings](settings.md)
has the meaning of each key.
"""


def settings_page() -> str:
    """Return the page of all settings, a table for each section."""
    return "\n\n".join([SETTINGS.rstrip(), *map(_section, all_sections())]) + "\n"


def synonyms_page() -> str:
    """Return the page of other libraries' keys, a row for each of ours that has one."""
    keys: dict[Synonyms, list[str]] = {}
    for field in _fields():
        if field.synonyms is not None:
            keys.setdefault(field.synonyms, []).append(field.key)
    rows = [
        _row(_keys(", ".join(ours)), _keys(other.trl), _keys(other.verl), other.note) for other, ours in keys.items()
    ]
    head = [_row("jaxrl_sql", "TRL", "verl", "differs in"), "|---|---|---|---|"]
    return "\n".join([FROM_OTHERS, *head, *rows]) + "\n"


def _section(section: Section) -> str:
    rows = [
        _row(f"`{field.key}`", _value(shown(field.default)), allowed(field), field.help) for field in section.fields
    ]
    table = "\n".join([_row("setting", "default", "allowed", "meaning"), "|---|---|---|---|", *rows])
    readers = "; ".join(root.commands for root in ROOTS if hasattr(root(), section.name.partition(".")[0]))
    read_by = f"\n\nRead by: {readers}." if section.name and "." not in section.name else ""
    text = about(section) if section.name else "What belongs to no section."
    return f"## {section.name or 'Of the whole run'}\n\n{text}{read_by}" + (f"\n\n{table}" if rows else "")


def _fields() -> Iterator[Field]:
    for section in all_sections():
        yield from section.fields


def _keys(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", ") if name)


def _value(text: str) -> str:
    return f"`{text}`" if text else "empty"


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace(' | ', ', ').replace('|', chr(92) + '|') for cell in cells)} |"


def main() -> int:
    """Write the pages or compare them; the exit code is 1 where one differs."""
    is_stale = False
    for name, text in (("settings.md", settings_page()), ("from_trl_verl.md", synonyms_page())):
        page = DOCS / name
        if "--check" not in sys.argv[1:]:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            print(f"{name} differs from the fields of the configuration: python scripts/write_settings.py")
            is_stale = True
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
