"""Write the pages of docs/results from the stored results of the benchmarks.

`python scripts/write_results.py`; with `--check` it writes nothing and fails if a page differs.

`docs/results/pages.toml` lists the pages and their tables: title, sentence above the table, conclusions, and the name
of a file of `docs/results/data`. Such a file is the JSON result of a benchmark (`--json`, see `harness.py`): one row
per figure, with `name`, `median` or `text`, and optionally `column`, `std`, `spread`, `unit`, `goal` and `is_met`.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
Row = Mapping[str, Any]
# The rule `test_suite` has the comparison of Spider's script on one database; `suite` is test-suite accuracy.
_RULE_LABELS = {"test_suite": "execution (`test_suite`)", "suite": "test suite (`suite`)"}
NOTE = "<!-- Written by scripts/write_results.py from docs/results/pages.toml and docs/results/data. -->"


def pages(folder: Path = RESULTS) -> dict[str, str]:
    """Return the text of each page by file name, with the index."""
    specification = tomllib.loads((folder / "pages.toml").read_text(encoding="utf-8"))
    results = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("data/*.json")}
    texts = {f"{page['name']}.md": page_text(page, results) for page in specification["page"]}
    named = {table["data"] for page in specification["page"] for table in page["table"]}
    if unused := sorted(set(results) - named):
        raise ValueError(f"no page has a table for {', '.join(unused)}")
    return texts | {"index.md": index_text(specification, results)}


def page_text(page: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return a page: its introduction and its tables."""
    tables = (table_text(table, results[table["data"]]) for table in page["table"])
    return "\n\n".join([f"# {page['title']}", NOTE, page["about"].strip(), *tables]) + "\n"


def index_text(specification: Mapping[str, Any], results: Mapping[str, Any]) -> str:
    """Return the page that lists all tables."""
    lines = []
    for page in specification["page"]:
        for table in page["table"]:
            result = results[table["data"]]
            link = f"[{table['title']}]({page['name']}.md#{anchor(table['title'])})"
            lines.append(_line([link, command_text(result), result["date"]]))
    head = [_line(["table", "command", "date"]), "|---|---|---|"]
    return (
        "\n\n".join([f"# {specification['title']}", NOTE, specification["about"].strip(), "\n".join(head + lines)])
        + "\n"
    )


def table_text(table: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return a section: heading, measured quantity, command, date, machine, table, conclusions."""
    source = ", ".join(filter(None, [command_text(result), result["date"], machine_text(result["machine"])]))
    parts = [f"## {table['title']}", f"{table['about'].strip()} {source[0].upper()}{source[1:]}."]
    parts += ["\n".join(lines_of(result["rows"])), commands_text(result), table.get("conclusions", "").strip()]
    return "\n\n".join(filter(None, parts))


def command_text(result: Mapping[str, Any]) -> str:
    """Return the command in code marks, or an empty string for a removed script."""
    return f"`{result['command']}`" if result.get("command") else ""


def commands_text(result: Mapping[str, Any]) -> str:
    """Return a block with the commands of the rows, or an empty string."""
    lines = []
    for command, _, comment in (text.partition(" # ") for text in result.get("commands", ())):
        joined = re.sub(r"(--[\w-]+) (?!--)", r"\1\0", command)  # an option stays with its value
        parts = textwrap.wrap(joined, 104, break_on_hyphens=False, break_long_words=False)
        lines += [f"# {comment}", " \\\n    ".join(parts).replace("\0", " ")]
    block = "\n".join(lines)
    return f"<!-- not run: each takes up to minutes -->\n```sh\n{block}\n```" if lines else ""


def machine_text(machine: Mapping[str, Any]) -> str:
    """Return the processor and cores, the accelerator if there is one, and the note."""
    cores = f"{machine['cores']} cores" if machine.get("cores") else ""
    device = machine.get("device", "")
    parts = [cores, machine.get("processor", ""), "" if device == "cpu" else device, machine.get("note", "")]
    return ", ".join(filter(None, parts))


def lines_of(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table: a line per name, with a column per column of the rows or per field.

    Rows without a column follow in a table of their own.
    """
    columns = list(dict.fromkeys(row["column"] for row in rows if "column" in row))
    if len({(row["name"], row.get("column")) for row in rows}) < len(rows):
        raise ValueError("two figures have the same name and column")
    in_columns, alone = ([row for row in rows if ("column" in row) == wanted] for wanted in (True, False))
    yield from _wide(in_columns, columns) if columns else ()
    yield from [""] if columns and alone else ()
    yield from _narrow(alone) if alone else ()


def _narrow(rows: Sequence[Row]) -> Iterator[str]:
    table = [[row["name"], value_text(row), spread_text(row), row.get("goal", ""), verdict_text(row)] for row in rows]
    heads = ["", "median", "smallest to largest", "goal", ""]
    shown = [column for column in range(len(heads)) if column < 2 or any(line[column] for line in table)]
    if shown == [0, 1]:
        heads[1] = ""
    yield _line([heads[column] for column in shown])
    yield "|" + "---|" * len(shown)
    for line in table:
        yield _line([line[column] for column in shown])


def _wide(rows: Sequence[Row], columns: Sequence[str]) -> Iterator[str]:
    cells: dict[str, dict[str, Row]] = {}
    for row in rows:
        cells.setdefault(row["name"], {})[row["column"]] = row
    units = {column: _find_common_unit(row for row in rows if row["column"] == column) for column in columns}
    yield _line(["", *(", ".join(filter(None, [column_label(column), units[column]])) for column in columns)])
    yield "|---|" + "---|" * len(columns)
    for name, line in cells.items():
        unit = "" if any(units.values()) else _find_common_unit(line.values())
        hidden = {column: units[column] or unit for column in columns}
        texts = [_cell(line[column], hidden[column]) if column in line else "" for column in columns]
        yield _line([f"{name} ({unit})" if unit else name, *texts])


def column_label(column: str) -> str:
    """Return a column's name, with rules that are easily confused named as in the literature."""
    return re.sub(r"\b(test_suite|suite)\b", lambda match: _RULE_LABELS[match[0]], column)


def _cell(row: Row, hidden_unit: str) -> str:
    goal = f"({row['goal']}: {verdict_text(row)})" if "goal" in row else ""
    low_high = f"({spread_text(row)})" if "spread" in row else ""
    return " ".join(filter(None, [value_text(row, hidden_unit), low_high, goal]))


def _find_common_unit(rows: Iterable[Row]) -> str:
    """Return the unit that all figures have; none for ratios, whose unit is written at the number."""
    units = {row.get("unit", "") for row in rows if "median" in row}
    return units.pop() if len(units) == 1 and "x" not in units else ""


def value_text(row: Row, hidden_unit: str = "") -> str:
    """Return a figure with its standard deviation and its unit, or the row's text."""
    if "text" in row:
        return str(row["text"])
    unit = row.get("unit", "")
    deviation = f" ± {number(row['std'], '')}" if "std" in row else ""
    written = "" if unit == hidden_unit or not unit else unit if unit == "x" else f" {unit}"
    return f"{number(row['median'], unit)}{deviation}{written}"


def spread_text(row: Row) -> str:
    """Return the smallest and largest value or the interval of a figure, or an empty string."""
    low_high = [number(value, row.get("unit", "")) for value in row.get("spread", ())]
    return " to ".join(low_high) if row.get("unit") == "points" or len("".join(low_high)) > 10 else "–".join(low_high)


def verdict_text(row: Row) -> str:
    """Return whether a figure meets its goal, or an empty string."""
    return {None: "", True: "met", False: "missed"}[row.get("is_met")]


def number(value: float, unit: str) -> str:
    """Return a number with separators of thousands: ratios with two decimals, differences in points with a sign."""
    if unit == "x" and isinstance(value, float):
        return f"{value:,.2f}"
    text = f"{value:+,}" if unit == "points" else f"{value:,}"
    return text.replace("e-0", "e-")


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter in "-_")


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    """Write the pages or compare them; the exit code is 1 if one differs or has no table."""
    is_check = "--check" in sys.argv[1:]
    texts = pages()
    stale = sorted({path.name for path in RESULTS.glob("*.md")} - set(texts))
    for name, text in texts.items():
        page = RESULTS / name
        if not is_check:
            page.write_text(text, encoding="utf-8")
        elif not page.exists() or page.read_text(encoding="utf-8") != text:
            stale.append(name)
    if stale:
        print(f"{', '.join(stale)}: out of date: run python scripts/write_results.py")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
