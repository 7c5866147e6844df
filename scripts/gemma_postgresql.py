"""Choose 500 questions of copied databases for scripts/gemma_postgresql.sh.

    python scripts/gemma_postgresql.py COPIES OUT

reads COPIES/questions.jsonl, which `jaxrl-sql data copy` wrote, and writes OUT/train.csv (375 questions) and
OUT/dev.csv (125). Questions with the same SQL are in the same file.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

SIZES = {"dev": 125, "train": 375}
SEED = 0


def choose(questions: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Return the questions of each split, which share no gold; a split is smaller if too few questions remain."""
    by_gold: dict[tuple[str, str], list[dict[str, str]]] = defaultdict(list)
    for question in questions:
        by_gold[question["db_id"], question["sql"]].append(question)
    golds = sorted(by_gold)
    random.Random(SEED).shuffle(golds)
    splits: dict[str, list[dict[str, str]]] = {name: [] for name in SIZES}
    for gold in golds:
        split = next((name for name, size in SIZES.items() if len(splits[name]) + len(by_gold[gold]) <= size), "")
        if split:
            splits[split] += by_gold[gold]
    return splits


def main() -> int:
    """Read the copied questions and write the files of questions."""
    copies, out = map(Path, sys.argv[1:])
    with (copies / "questions.jsonl").open(encoding="utf-8") as lines:
        splits = choose(map(json.loads, lines))
    out.mkdir(parents=True, exist_ok=True)
    for name, questions in splits.items():
        with (out / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ("question", "sql", "db_id"), extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(questions)
        print(f"{out}/{name}.csv: {len(questions)} questions")
    return 0


if __name__ == "__main__":
    sys.exit(main())
