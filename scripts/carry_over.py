"""Measure how far generated questions carry to databases of people: `python scripts/carry_over.py --data FOLDER`.

For each seed, the start of the quickstart goes on learning from generated questions alone: by GRPO on the quickstart's
own (`configs/quickstart.yaml`), or with `--by sft` from the grammar's (`configs/grammar_sft.yaml`). Its tokenizer reads
the names of tables and columns in lower case (`scripts/lower_names.py`), and it answers Spider's development set,
FOLDER/spider_dev, once greedily and once by a vote of sixteen answers; a schema of more than 200 tokens, as few of the
generated ones have, is shown in part. The table has the accuracy by `test_suite` and by `suite`, beside the start's own
and what answers earn that ignore the question (`scripts/blind_baseline.py`); the goals are 3 % and twice the best.

What is done is left alone when the command is given again, and a training that was stopped goes on. Words behind `--`
are settings of the training, such as `grpo.steps=40`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START = ROOT / "configs" / "quickstart_start"
RULES = ("test_suite", "suite")
GENERATED = (
    "--style=grammar --train-dbs=200 --train-questions=64 --dev-dbs=8 --unseen-dbs=7 "
    "--easy=40 --medium=40 --hard=12 --extra=8"
)
ASKED = ("data.prompt=compact", "data.max_prompt_tokens=1024", "data.schema_budget=200")
WAYS = {
    "greedy": ("evaluate.temperature=0", "evaluate.samples=1", "evaluate.max_new_tokens=96"),
    "vote of 16": ("evaluate.temperature=0.8", "evaluate.samples=16", "evaluate.max_new_tokens=64"),
}
LEAST = 3.0


def run(*words: str | Path) -> str:
    """Run a command in the repository's root with this interpreter; return what it printed."""
    done = subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def lowered(model: Path, out: Path) -> Path:
    """Return the folder of a model, or of questions, with names in lower case."""
    if not out.exists():
        run("scripts/lower_names.py", model, out)
    return out


def reinforce(seed: int, out: Path, settings: Sequence[str]) -> Path:
    """Learn from the quickstart's questions by GRPO; return the model's folder."""
    folder = out / f"grpo-{seed}"
    if not (folder / "model" / "config.json").exists():
        given = (f"seed={seed}", f"run.dir={folder}", "run.resume=true")
        run("-m", "jaxrl_sql.train", "--config", "configs/quickstart.yaml", *given, *settings)
    return lowered(folder / "model", out / f"model-{seed}")


def imitate(seed: int, out: Path, generated: Sequence[str], settings: Sequence[str]) -> Path:
    """Generate questions of the grammar and learn from their golds; return the model's folder."""
    start, made, folder = lowered(START, out / "start"), out / f"made-{seed}", out / f"sft-{seed}"
    small = out / f"small-{seed}"
    if not small.exists():
        run("-m", "jaxrl_sql.datagen.synth", f"--seed={1100 + seed}", f"--out={made}", *generated)
        lowered(made, small)
    if not (folder / "model" / "config.json").exists():
        given = (f"data.dir={small}", f"model.checkpoint={start}", f"run.dir={folder}", f"seed={seed}")
        run("-m", "jaxrl_sql.sft", "--config", "configs/grammar_sft.yaml", *given, "run.resume=true", *settings)
    return folder / "model"


def score(model: Path, data: Path, out: Path) -> dict[str, float]:
    """Have a model answer the set in both ways; return its shares in per cent by rule and way."""
    shares = {}
    for way, settings in WAYS.items():
        told = out / way.replace(" ", "-") / "metrics.json"
        if not told.exists():
            run("-m", "jaxrl_sql.evaluate", "--data", data, "--model", model, "--out", told.parent, *ASKED, *settings)
        numbers = json.loads(told.read_text(encoding="utf-8"))
        shares |= {f"{rule}, {way}": 100 * numbers[rule] for rule in RULES if rule in numbers}
    return shares


def blind(data: Path, rule: str) -> tuple[float, float]:
    """Return what the best rule and the best answers of the databases earn that ignore the question, in per cent."""
    first, second = re.findall(
        r": ([\d.]+) % \(\d+\)", run("scripts/blind_baseline.py", "--data", data, "--rule", rule)
    )
    return float(first), float(second)


def table(shares: dict[str, dict[str, float]], floors: dict[str, tuple[float, float]]) -> list[str]:
    """Return the lines of a table in Markdown, and one a column that says which goals are reached."""
    rules = list(floors)
    lines = [f"| answers | {' | '.join(rules)} |", f"|---{'|---:' * len(rules)}|"]
    for place, name in enumerate(("the best rule that ignores the question", "the best answers of each database")):
        lines.append(f"| {name} | {' | '.join(f'{floors[rule][place]:.1f} %' for rule in rules)} |")
    for name, found in shares.items():
        lines.append(f"| {name} | {' | '.join(f'{found[rule]:.1f} %' for rule in rules)} |")
    seeds = [found for name, found in shares.items() if name.startswith("seed")]
    for rule in rules:
        values = [found[rule] for found in seeds]
        mean, spread = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        goals = {
            "3 %": LEAST,
            "twice the best rule": 2 * floors[rule][0],
            "twice the best answers": 2 * floors[rule][1],
        }
        said = ", ".join(
            f"{name} ({goal:.1f}) {'reached' if mean >= goal else 'missed'}" for name, goal in goals.items()
        )
        lines.append(f"{rule}: mean {mean:.1f} %, deviation {spread:.1f}, of {len(values)} seeds: {said}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with spider_dev")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "carry_over")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--by", choices=("grpo", "sft"), default="grpo", help="how the start goes on learning")
    parser.add_argument("--generated", default=GENERATED, help="options of datagen.synth for sft, default: %(default)s")
    parser.add_argument("settings", nargs="*")
    options = parser.parse_args(arguments)
    out, data = options.out.resolve(), (options.data / "spider_dev").resolve()
    out.mkdir(parents=True, exist_ok=True)
    shares = {"the start": score(lowered(START, out / "start"), data, out / "of-the-start")}
    for seed in options.seeds:
        if options.by == "grpo":
            model = reinforce(seed, out, options.settings)
        else:
            model = imitate(seed, out, options.generated.split(), options.settings)
        shares[f"seed {seed}"] = score(model, data, out / f"{options.by}-{seed}-scores")
    blinds = {rule: blind(data, rule) for rule in RULES if any(name.startswith(rule) for name in shares["the start"])}
    floors = {name: blinds[name.split(",")[0]] for name in shares["the start"]}
    sys.stdout.write("\n".join(table(shares, floors)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
