"""The generated pages of docs/reference are up to date and list each command and metric."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from jaxrl_sql.__main__ import commands
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import all_metrics
from jaxrl_sql.runtime.training_metrics import TRAINING

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def writer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("write_reference", ROOT / "scripts" / "write_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["write_reference"] = module
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(writer: ModuleType) -> None:
    pages = writer.pages()
    stale = [name for name, text in pages.items() if (REFERENCE / name).read_text(encoding="utf-8") != text]
    assert stale == [], "python scripts/write_reference.py"


def test_the_commands_page_has_each_command_with_usage_options_and_example() -> None:
    text = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in text.partition("## Exit codes")[0].split("\n### ")[1:]}
    assert set(sections) == set(commands())
    assert "`--dry-run`" in sections["train"]
    assert "grpo.steps" not in sections["train"], "settings have a separate page"
    assert "jaxrl-sql plan --topology NAME [options] [key.sub=value ...]" in sections["plan"]
    assert all(f"```text\njaxrl-sql {name}" in part and "Example: `" in part for name, part in sections.items())
    codes = re.findall(r"^\| (\d+) \| \S", text.partition("## Exit codes")[2], re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "130"]


def test_the_metrics_page_has_each_metric_with_unit_formula_and_reading() -> None:
    text = (REFERENCE / "metrics.md").read_text(encoding="utf-8")
    names = [row.name for parts in (TRAINING, EVALUATION) for row in all_metrics(parts)]
    assert re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE) == names
    assert all(
        row.when and (row.formula or row.reading) for parts in (TRAINING, EVALUATION) for row in all_metrics(parts)
    )
