"""Print the lines of Python by room of the package, and of the Rust core: `python scripts/count_lines.py`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def rooms(base: Path, ending: str) -> Counter[str]:
    """Return the lines of files with an ending by the folder of `base` that they are in; `.` is `base` itself."""
    lines: Counter[str] = Counter()
    for path in base.rglob(f"*{ending}"):
        parts = path.relative_to(base).parts
        lines[f"{parts[0]}/" if len(parts) > 1 else "."] += len(path.read_text(encoding="utf-8").splitlines())
    return lines


def main() -> int:
    """Print both tables."""
    for base, ending in (("jaxrl_sql", ".py"), ("sqlexec_rs/core/src", ".rs")):
        found = rooms(ROOT / base, ending)
        sys.stdout.write(f"{base}: {found.total():,} lines\n")
        sys.stdout.writelines(f"  {count:>6,}  {name}\n" for name, count in found.most_common())
    return 0


if __name__ == "__main__":
    sys.exit(main())
