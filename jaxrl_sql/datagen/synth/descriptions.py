"""Read what BIRD's layout says of columns: `database_description/<table>.csv` beside the database."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

LONGEST = 40


def read_descriptions(db_path: Path) -> Mapping[tuple[str, str], str]:
    """Return short words by (table, column), both in lower case; empty where there are no descriptions.

    A column is called by its `column_name`, which spells the original out, or by its description if that is short.
    """
    folder = db_path.parent / "database_description"
    found: dict[tuple[str, str], str] = {}
    for path in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        try:
            text = path.read_bytes().decode("utf-8-sig", errors="replace")
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
        except (OSError, csv.Error):
            continue
        for row in rows:
            original = (row.get("original_column_name") or "").strip()
            for name in ("column_name", "column_description"):
                words = " ".join((row.get(name) or "").split()).rstrip(".")
                if original and words and len(words) <= LONGEST and "\ufffd" not in words:
                    found[path.stem.lower(), original.lower()] = words
                    break
    return found
