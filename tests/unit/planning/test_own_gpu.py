"""Plans of configs/own_gpu.yaml and own_gpu_full.yaml by formula: four models on GPUs of 24, 40 and 80 GB."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands import plan
from jaxrl_sql.planning.chips import find_topology
from jaxrl_sql.planning.plan import CompiledProgram
from jaxrl_sql.planning.suggestions import MAX_MEMORY_SHARE
from jaxrl_sql.runtime import model_locator

ROOT = Path(__file__).parents[3]
GIB = 1 << 30


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("own_gpu_plans", ROOT / "scripts/own_gpu_plans.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()
STORED: list[dict[str, Any]] = json.loads((ROOT / "docs/results/data/own_gpu.json").read_text(encoding="utf-8"))["rows"]
# GiB that a model needs on cards of 24, 40 and 80 GB. The KV cache grows with the card until it holds all answers.
NEEDED = {
    ("adapters", "0.5B"): (5.4, 5.4, 5.4),
    ("adapters", "1.5B"): (13.6, 13.6, 13.6),
    ("adapters", "3B"): (21.6, 21.6, 21.6),
    ("adapters", "7B"): (39.9, 43.7, 43.7),
    ("all weights", "0.5B"): (7.7, 7.7, 7.7),
    ("all weights", "1.5B"): (20.3, 20.3, 20.3),
    ("all weights", "3B"): (36.3, 36.3, 36.3),
    ("all weights", "7B"): (80.4, 82.3, 82.3),
}
SMALLEST = {
    ("adapters", "0.5B"): "24 GB",
    ("adapters", "1.5B"): "24 GB",
    ("adapters", "3B"): "24 GB",
    ("adapters", "7B"): "80 GB",
    ("all weights", "0.5B"): "24 GB",
    ("all weights", "1.5B"): "24 GB",
    ("all weights", "3B"): "40 GB",
    ("all weights", "7B"): "",
}
CASES = [(weights, size, card) for weights, size in NEEDED for card in script.CARDS]


@pytest.mark.parametrize(("weights", "size", "card"), CASES)
def test_memory_of_a_model_on_a_card(weights: str, size: str, card: str) -> None:
    plan_of_card, cards = script.plan_of(weights, size, card), [*script.CARDS]
    needed, smallest = NEEDED[weights, size][cards.index(card)], SMALLEST[weights, size]
    assert plan_of_card.total / GIB == pytest.approx(needed, rel=0.02)
    assert plan_of_card.fits == (bool(smallest) and cards.index(card) >= cards.index(smallest))


@pytest.mark.parametrize("weights", script.FILES)
def test_1_5b_fits_24_gb_with_a_twentieth_to_spare(weights: str) -> None:
    plan_of_card = script.plan_of(weights, "1.5B", "24 GB")
    assert plan_of_card.total <= MAX_MEMORY_SHARE * plan_of_card.topology.chip.memory


def test_stored_table_is_that_of_the_script() -> None:
    assert [*script.rows()] == STORED, "run python scripts/own_gpu_plans.py --json docs/results/data/own_gpu.json"


def test_compiled_peak_counts_the_copy_of_the_weights_that_decoding_reads() -> None:
    """The engine slices 28 stacked layers; the tied embeddings [151936,1536] and the last norm [1536] are shared."""
    by_formula = script.plan_of("adapters", "1.5B", "24 GB")
    memory = by_formula.memory
    assert memory.rollout_weights == 2 * (1_543_714_304 - 151_936 * 1536 - 1536)
    update, decode = (CompiledProgram(0, size, ("", 0), {}, 0, 0.0, 0.0) for size in (2 * GIB, GIB // 8))
    compiled = by_formula._replace(programs={"update": update, "decode": decode})
    assert compiled.total == memory.resident + memory.evaluation + memory.rollout_weights + GIB // 8 < memory.total


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("0.5B", "494,032,768"), ("1.5B", "1,543,714,304"), ("3B", "3,085,938,688"), ("7B", "7,615,616,512")],
)
def test_hub_model_is_planned_without_the_hub(
    size: str, parameters: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_locator, "fetch", lambda name, *_: pytest.fail(f"{name} is fetched"))
    model = f"model.checkpoint=Qwen/Qwen2.5-Coder-{size}-Instruct"
    command = ["--config", "configs/own_gpu.yaml", "--topology", "h100:1", "--compile", "none"]
    assert plan.main([*command, model]) == 0
    text = capsys.readouterr().out
    assert f"{parameters} parameters" in text
    needed = script.plan_of("adapters", size, "80 GB").total / GIB
    assert re.search(rf"^peak +{needed:.1f} GiB$", text, re.MULTILINE)


def test_checkpoint_that_is_no_published_model_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[str] = []

    def fetch(name: str, *_: object) -> Path:
        fetched.append(name)
        return ROOT / "configs/quickstart_start"

    monkeypatch.setattr(model_locator, "fetch", fetch)
    command = ["--config", "configs/own_gpu.yaml", "--topology", "h100:1", "--compile", "none"]
    assert plan.main([*command, "model.checkpoint=someone/Qwen2.5-Coder-7B-Instruct"]) == 0
    assert fetched == ["someone/Qwen2.5-Coder-7B-Instruct"]


PAGE = (ROOT / "docs/howto/one_gpu.md").read_text(encoding="utf-8")


def test_commands_of_the_page_print_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"<!-- run by \S+ -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    shown = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines():
        program, name, *arguments = shlex.split(line)
        assert (program, name) == ("jaxrl-sql", "plan")
        assert plan.main(arguments) == 0
        text = capsys.readouterr().out
        assert "it fits: " in text
        if shown:
            assert shown.pop() in text, "the first command's"


def test_table_of_the_page_is_that_of_the_plans() -> None:
    lines = re.findall(r"^\| (\S+B) \| (adapters|all) \| ([\d.]+) \| (\d+ GB)", PAGE, re.MULTILINE)
    assert len(lines) == len(NEEDED)
    for size, weights, needed, card in lines:
        key = ("all weights" if weights == "all" else weights, size)
        assert float(needed) == NEEDED[key][2]
        assert card == (SMALLEST[key] or "141 GB")
        if not SMALLEST[key]:
            assert NEEDED[key][2] * GIB < find_topology("h200:1").chip.memory


def test_settings_that_the_page_names_change_the_memory_as_it_says() -> None:
    less = script.plan_of("adapters", "7B", "40 GB", "rollout.memory=0.1")
    free = less.topology.chip.memory - less.total
    assert f"40 GB with `rollout.memory=0.1`, with {free / GIB:.1f} GiB to spare" in PAGE
    factored = script.plan_of("all weights", "1.5B", "40 GB")
    for moments, added in (("float32", 11.5), ("bfloat16", 11.5 / 2)):
        settings = [f"{name}.optim.{key}" for name in ("sft", "grpo") for key in ("kind=adamw", f"moments={moments}")]
        more = script.plan_of("all weights", "1.5B", "40 GB", *settings)
        assert (more.total - factored.total) / GIB == pytest.approx(added, abs=0.05)
    sentence = "AdamW's moments add 11.5 GiB for the 1.5B in float32, half of that in bfloat16"
    assert sentence in " ".join(PAGE.split())
