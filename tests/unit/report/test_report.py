"""A run folder becomes one page, whatever is missing in it."""

from __future__ import annotations

import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from jaxrl_sql.report import write_report
from jaxrl_sql.report.load import load_run, series, split_results
from jaxrl_sql.report.plots import charts, draw, smooth
from jaxrl_sql.types import InputError


def evaluation(step: int, accuracy: float, easy: float) -> dict[str, Any]:
    start = "eval/dev"
    return {
        "step": step,
        "phase": "eval",
        f"{start}/accuracy": accuracy,
        f"{start}/count": 40.0,
        f"{start}/valid": 0.5,
        f"{start}/accuracy/easy": easy,
        f"{start}/count/easy": 10.0,
    }


def grpo(step: int, reward: float) -> dict[str, Any]:
    times = {"time/rollout": 1.0, "time/sql_wait": 0.02, "time/update": 0.98, "time/step": 2.0}
    return {"step": step, "phase": "grpo", "reward/mean": reward, "status/ok": 0.75, "status/no_sql": 0.25, **times}


FULL = [
    {"step": 1, "phase": "sft", "sft/loss": 2.0},
    evaluation(1, 0.1, 0.2),
    {"step": 2, "phase": "sft", "sft/loss": 1.5},
    evaluation(2, 0.2, 0.4),
    *(grpo(step, step / 100) for step in range(3, 63)),
    evaluation(62, 0.35, 0.5),
]
SAMPLE = {
    "step": 3,
    "question": "is 1 < 2 & <b>?",
    "sql": "SELECT '<x>'",
    "gold": "SELECT 1",
    "status": "ok",
    "reward": 0.1,
}


def write_run(folder: Path, rows: list[dict[str, Any]], samples: list[dict[str, Any]]) -> Path:
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if samples:
        (folder / "samples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in samples))
    return folder


class Page(HTMLParser):
    """Collect a page's words, its addresses, and the tags that were not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if self.open:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data.split()


def test_page_stands_alone_and_says_what_the_run_did(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 12345\n")
    path = write_report(write_run(tmp_path, FULL, [SAMPLE, {"step": 4, "sql": None, "status": "no_sql"}]))
    assert path == tmp_path / "report.html"
    page = Page(path.read_text(encoding="utf-8"))
    text = " ".join(page.words)
    assert page.open == []
    assert all(address.startswith("#") for address in page.addresses)
    assert "dev 20.0 % (8) 35.0 % (14) +15.0 points 40 50.0 %" in text
    assert "easy 40.0 % (4) 50.0 % (5) +10.0 points 10" in text
    assert "waiting for SQL 1.00 % of their time" in text
    assert "is 1 < 2 & <b>? SELECT '<x>' gold SELECT 1 ok 0.1" in text
    assert "seed: 12345" in text


def test_results_compare_the_last_evaluation_before_grpo_with_the_last(tmp_path: Path) -> None:
    (result,) = split_results(load_run(write_run(tmp_path, FULL, [])))
    assert (result.split, result.before, result.after, result.count) == ("dev", 0.2, 0.35, 40)
    assert result.grades == {"easy": (0.4, 0.5, 10)}


def test_run_without_grpo_is_compared_with_its_first_evaluation(tmp_path: Path) -> None:
    (result,) = split_results(load_run(write_run(tmp_path, FULL[:4], [])))
    assert (result.before, result.after) == (0.1, 0.2)


def test_evaluation_that_follows_grpo_alone_is_both_ends(tmp_path: Path) -> None:
    (result,) = split_results(load_run(write_run(tmp_path, FULL[4:], [])))
    assert (result.before, result.after) == (0.35, 0.35)


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        ([], []),
        (FULL[:1], ["SFT loss"]),
        ([grpo(1, 0.5)], ["Reward", "What became of the SQL", "Seconds of a GRPO step"]),
        ([evaluation(0, 0.1, 0.1)], ["Greedy accuracy"]),
        ([{"step": 1, "phase": "grpo", "policy/entropy": None, "policy/kl": 0.5}], ["KL"]),
    ],
)
def test_only_curves_with_numbers_are_drawn(tmp_path: Path, rows: list[dict[str, Any]], titles: list[str]) -> None:
    run = load_run(write_run(tmp_path, rows, []))
    assert [chart.title for chart in charts(run)] == titles
    text = write_report(tmp_path).read_text(encoding="utf-8")
    assert text.count("<svg") == len(titles)
    assert Page(text).open == []


def test_charts_are_whole_svg_elements_and_the_same_each_time(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, FULL, []))
    for chart in charts(run):
        svg = draw(run, chart)
        assert ET.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"  # noqa: S314 - our own text
        assert draw(run, chart) == svg


def test_torn_line_is_counted_and_the_rest_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path, FULL, [SAMPLE])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 63, "phase": "é'.encode()[:-1])
    run = load_run(tmp_path)
    assert run.skipped == 1
    assert len(series(run, "reward/mean")) == 60
    assert "unreadable lines left out: 1" in write_report(tmp_path).read_text(encoding="utf-8")


def test_smooth_by_hand() -> None:
    assert smooth([1.0, 2.0, 6.0, 10.0], 3) == [1.0, 1.5, 3.0, 6.0]


def test_command_writes_the_page_or_says_in_one_line_why_not(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "jaxrl_sql.report"]
    missing = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=False)
    assert missing.returncode == 2
    assert missing.stderr == f"error: {tmp_path}: no metrics.jsonl there, so it is no run folder\n"
    write_run(tmp_path, FULL, [])
    done = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == f"{tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").exists()


def test_folder_that_holds_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no metrics\.jsonl"):
        load_run(tmp_path)
