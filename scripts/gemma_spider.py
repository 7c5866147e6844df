"""Spider's training databases in three parts: `python scripts/gemma_spider.py DATA OUT`, for gemma_spider.sh.

DATA's splits are laid into OUT by links, the split `choose` and the lists sft.ids and grpo.ids beside them. Databases
of spider_train are dealt by a hash of the seed and their name: 29 of 139 to GRPO, 10 to choose a checkpoint and rates
on, the others to the supervised phase. Nothing is chosen on spider_dev.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

SEED, GRPO, CHOOSE = 0, 29 / 139, 10 / 139


def deal(names: list[str]) -> dict[str, set[str]]:
    """Return which databases each part has."""
    dealt = sorted(names, key=lambda name: hashlib.sha256(f"{SEED} {name}".encode()).hexdigest())
    grpo, choose = (max(round(share * len(names)), 1) for share in (GRPO, CHOOSE))
    return {"grpo": set(dealt[:grpo]), "choose": set(dealt[grpo : grpo + choose]), "sft": set(dealt[grpo + choose :])}


def split(data: Path, out: Path) -> None:
    """Write sft.ids, grpo.ids and the folder `choose`; the splits themselves are linked."""
    out.mkdir(parents=True, exist_ok=True)
    for folder in ("spider_train", "spider_dev", "spider_dev_testsuite", "bird_superhero"):
        if (data / folder).is_dir() and not (out / folder).exists():
            (out / folder).symlink_to((data / folder).resolve())
    lines = (data / "spider_train" / "questions.jsonl").read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    parts = deal(sorted({question["db_id"] for question in questions}))
    for name, databases in parts.items():
        chosen = [question for question in questions if question["db_id"] in databases]
        if name == "choose":
            folder = out / name
            folder.mkdir(exist_ok=True)
            kept = [line for line, one in zip(lines, questions, strict=True) if one["db_id"] in databases]
            (folder / "questions.jsonl").write_text("\n".join(kept) + "\n", encoding="utf-8")
            if not (folder / "databases").exists():
                (folder / "databases").symlink_to((data / "spider_train" / "databases").resolve())
        else:
            ids = "".join(f"{question['id']}\n" for question in chosen)
            (out / f"{name}.ids").write_text(ids, encoding="utf-8")
        print(f"{name}: {len(databases)} databases, {len(chosen)} questions")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    split(Path(sys.argv[1]), Path(sys.argv[2]))
