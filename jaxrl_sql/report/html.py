"""The pages: `report.html` of a run, which stands alone, and the page of a folder of answers, which loads its pieces.

Both are the page `page/shell.html` with the same scripts. In a report they stand in the page itself, with the run's
numbers; in a folder beside it. A browser runs nothing else: the page's policy names the scripts, so a text that looks
like one stays a text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from jaxrl_sql.report.charts import chart_data
from jaxrl_sql.report.facts import Evaluations, accuracies, changes, first_and_last, health, key_numbers, what_ran
from jaxrl_sql.report.groups import RUN, ResultFolder, last_evaluations
from jaxrl_sql.report.load import Run, load_run
from jaxrl_sql.runtime.plain import exact
from jaxrl_sql.types import Fields, InputError, Json, Record

PAGE = Path(__file__).parent / "page"
VEGA = "vendor/vega.js"
SCRIPTS = ("vendor/preact.js", "data.js", "charts.js", "answers.js", "run.js", "groups.js", "app.js")
STYLE = "page.css"
SAMPLES_SHOWN = 12
_LONG = re.compile(r"(?<![\d.])\d{16,}(?![\d.eE])")  # in JSON: a whole number that a double may round


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` of a run folder and return its path; raises InputError when there is no run."""
    run = load_run(run_dir)
    try:
        evaluations: Evaluations = last_evaluations(ResultFolder(run.folder, RUN))
    except InputError:  # a run that kept no answers
        evaluations = {}
    return write_text(run.folder / "report.html", render(run, evaluations))


def render(run: Run, evaluations: Evaluations) -> str:
    """Return the page of a run that stands alone."""
    scripts = [_asset(name) for name in (VEGA, *SCRIPTS)]
    head = {"title": run.folder.resolve().name, "runs": [run_data(run, evaluations)], "alone": True, "live": False}
    sources = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return _shell().render(
        title=head["title"],
        policy=f"script-src {sources}; style-src 'unsafe-inline'",
        style=_asset(STYLE),
        scripts=scripts,
        data=in_page(head),
    )


def folder_page(title: str) -> str:
    """Return the page of a folder of answers; scripts and style stand in its folder `page`."""
    return _shell().render(
        title=title,
        policy="script-src 'self' file:; style-src 'self' file: 'unsafe-inline'",
        addresses=[f"page/{name}" for name in SCRIPTS],
        style_address=f"page/{STYLE}",
    )


def run_data(run: Run, evaluations: Evaluations) -> Record:
    """Return what the first page shows of a run."""
    return {
        "name": run.folder.resolve().name,
        "kind": RUN,
        "steps": max((row["step"] for row in run.metrics), default=0),
        "ran": what_ran(run),
        "numbers": key_numbers(run),
        "ends": first_and_last(run),
        "accuracies": accuracies(run, evaluations),
        "changes": changes(evaluations),
        "health": health(run),
        "charts": chart_data(run),
        "samples": [_sample(one) for one in list(reversed(run.samples))[:SAMPLES_SHOWN]],
        "kept": len(run.samples),
        "config": run.config,
    }


def as_json(value: Json, **options: Any) -> str:
    """Return a value as JSON for a browser, which rounds no whole number of it."""
    text = json.dumps(value, allow_nan=False, **options)
    return json.dumps(exact(value), allow_nan=False, **options) if _LONG.search(text) else text


def in_page(value: Json) -> str:
    """Return a value as JSON that ends no element of a page, whatever is in it."""
    text = as_json(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_text(path: Path, text: str) -> Path:
    """Write a file whole, or leave the one that is there."""
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
    return path


def _sample(one: Fields) -> Record:
    names = ("step", "phase", "uid", "question", "gold", "sql", "status", "reward", "text")
    return {name: one.get(name) for name in names}


def _shell() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(PAGE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("shell.html")


@cache
def _asset(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return what a page's policy knows a script in the page by."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
