"""Write the pages: the self-contained `report.html` of a run, and the page of a folder of answers, which loads parts.

Both use `page/shell.html` with the same scripts. A report embeds them with the run's data; a folder has them in files.
The page's content security policy allows only these scripts, so a text that looks like a script is not executed.
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
from jaxrl_sql.report.facts import accuracies, changes, describe_run, first_and_last, health, key_numbers
from jaxrl_sql.report.groups import RUN, ResultFolder, last_evaluations
from jaxrl_sql.report.intervals import Evaluations
from jaxrl_sql.report.load import RunFiles, load_run
from jaxrl_sql.report.outcome import first_sentence, stop_lines, view_command
from jaxrl_sql.runtime.plain import exact
from jaxrl_sql.types import Fields, InputError, Json, Record

PAGE = Path(__file__).parent / "page"
"""The folder of the pages' scripts and styles."""
VEGA = "vendor/vega.js"
SCRIPTS = ("vendor/preact.js", "data.js", "charts.js", "answers.js", "run.js", "groups.js", "app.js")
STYLE = "page.css"
SAMPLES_SHOWN = 12
_LONG = re.compile(r"(?<![\d.])\d{16,}(?![\d.eE])")  # an integer in JSON that a double may round


def write_report(run_dir: str | Path) -> Path:
    """Write `report.html` of a run folder and return its path; raises InputError if there is no run."""
    run = load_run(run_dir)
    try:
        evaluations: Evaluations = last_evaluations(ResultFolder(run.folder, RUN))
    except InputError:  # a run that kept no answers
        evaluations = {}
    return write_text(run.folder / "report.html", render(run, evaluations))


def render(run: RunFiles, evaluations: Evaluations) -> str:
    """Return the self-contained page of a run.

    `head` has the same form as in a folder of answers; `alone` marks a page without such a folder.
    """
    scripts = [_asset(name) for name in (VEGA, *SCRIPTS)]
    head = {"title": run.folder.resolve().name, "runs": [run_data(run, evaluations)], "alone": True, "live": False}
    sources = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return _shell().render(
        title=head["title"],
        policy=f"script-src {sources}; style-src 'unsafe-inline'",
        style=_asset(STYLE),
        scripts=scripts,
        data=script_json(head),
    )


def folder_page(title: str) -> str:
    """Return the page of a folder of answers; scripts and styles are in its folder `page`."""
    return _shell().render(
        title=title,
        policy="script-src 'self' file:; style-src 'self' file: 'unsafe-inline'",
        addresses=[f"page/{name}" for name in SCRIPTS],
        style_address=f"page/{STYLE}",
    )


def run_data(run: RunFiles, evaluations: Evaluations) -> Record:
    """Return the data of a run's overview page, which `page/run.js` shows.

    `ran` is the description of the run, `ends` the headings of its two columns of accuracies, and `kept` the number of
    its saved samples, of which the newest are in `samples`.
    """
    rows = accuracies(run, evaluations)
    return {
        "name": run.folder.resolve().name,
        "kind": RUN,
        "sentence": first_sentence(run, rows),
        "stop": stop_lines(run),
        "view": view_command(run),
        "steps": max((row["step"] for row in run.metrics), default=0),
        "ran": describe_run(run),
        "numbers": key_numbers(run),
        "ends": first_and_last(run),
        "accuracies": rows,
        "changes": changes(evaluations),
        "health": health(run),
        "charts": chart_data(run, evaluations),
        "samples": [_sample(sample) for sample in list(reversed(run.samples))[:SAMPLES_SHOWN]],
        "kept": len(run.samples),
        "config": run.config,
    }


def as_json(value: Json, **options: Any) -> str:
    """Return a value as JSON for a browser; integers that a double would round become text."""
    text = json.dumps(value, allow_nan=False, **options)
    return json.dumps(exact(value), allow_nan=False, **options) if _LONG.search(text) else text


def script_json(value: Json) -> str:
    """Return a value as JSON that is safe inside an HTML script element."""
    text = as_json(value)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def write_text(path: Path, text: str) -> Path:
    """Write a file atomically."""
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(text, encoding="utf-8")
    scratch.replace(path)
    return path


def _sample(sample: Fields) -> Record:
    names = ("step", "phase", "uid", "question", "gold", "sql", "status", "reward", "right", "text")
    return {name: sample.get(name) for name in names}


def _shell() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(PAGE)
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("shell.html")


@cache
def _asset(name: str) -> str:
    return (PAGE / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the hash of an embedded script for the page's content security policy."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
