"""Evaluate a published system's released model on Spider's dev set, and print its accuracy next to the paper's.

    python scripts/evaluate_released.py SYSTEM MODEL SPIDER_DEV OUT [settings…]

SYSTEM is a key of PUBLISHED. MODEL is the weights' folder, GGUF file or hub name, SPIDER_DEV a folder of the set; its
test suite is `SPIDER_DEV_testsuite`, next to it. Prompt, sampling and vote are those of `evaluate --as SYSTEM`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.commands.evaluate import main as evaluate


class Published(NamedTuple):
    """A published accuracy in percent: the model, the rule that it is measured by, and its source."""

    model: str
    accuracy: float
    rule: str
    source: str


PUBLISHED = {
    "omnisql": Published("seeklhy/OmniSQL-7B", 81.2, "suite", "PaVeRL-SQL, Table III, and SkyRL-SQL, Table 2"),
    "sql_r1": Published("MPX0222forHF/SQL-R1-7B", 87.6, "test_suite", "SQL-R1, Table 1; a vote of 8"),
}
"""Figures of spider_dev by system. Arctic-Text2SQL-R1 has none: its paper reports Spider's test set."""


def comparison(published: Published, metrics: dict[str, float]) -> str:
    """Return the line that compares a measured accuracy with the published one."""
    rule = published.rule if published.rule in metrics else "test_suite"
    measured, low, high = (100 * metrics[name] for name in (rule, f"{rule}/low", f"{rule}/high"))
    return (
        f"{rule} {measured:.1f} ({low:.1f} to {high:.1f}, {metrics['count']:.0f} questions); published "
        f"{published.accuracy} ({published.source}): {measured - published.accuracy:+.1f}"
    )


def main() -> int:
    """Evaluate and print the comparison."""
    if len(sys.argv) < 5 or sys.argv[1] not in PUBLISHED:
        print(__doc__ + "".join(f"\n    {name}: {entry.model}" for name, entry in PUBLISHED.items()))
        return 2
    system, model, data, out, *settings = sys.argv[1:]
    code = evaluate(["--as", system, "--model", model, "--data", data, "--out", out, *settings])
    if code == 0:
        metrics = json.loads((Path(out) / "metrics.json").read_text(encoding="utf-8"))
        print(f"{system}, {Path(data).name}: {comparison(PUBLISHED[system], metrics)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
