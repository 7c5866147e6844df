"""The report page of a run folder, also of an incomplete one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.report import main
from jaxrl_sql.report.charts import chart_data, charts, downsample, smooth
from jaxrl_sql.report.html import write_report
from jaxrl_sql.report.load import load_run, series, split_results
from jaxrl_sql.runtime.metric_row import find_metric
from jaxrl_sql.runtime.training_metrics import TRAINING
from jaxrl_sql.types import InputError


def evaluation(step: int, accuracy: float, easy: float) -> dict[str, Any]:
    start = "eval/dev"
    return {
        "step": step,
        "phase": "eval",
        f"{start}/accuracy": accuracy,
        f"{start}/count": 40.0,
        f"{start}/valid": 0.5,
        f"{start}/truncated": 0.25,
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
    """Collect a page's elements, the text of its scripts, and the unclosed tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.policy = ""
        self.open: list[str] = []
        self.feed(text)
        self.close()

    @property
    def head(self) -> dict[str, Any]:
        """Return the data of the page."""
        (text,) = [text for attrs, text in self.scripts if attrs.get("type") == "application/json"]
        return json.loads(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))
        if tag == "meta" and dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""
        if tag not in ("meta", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            attrs, text = self.scripts[-1]
            self.scripts[-1] = (attrs, text + data)


def head_of(path: Path) -> dict[str, Any]:
    return Page(path.read_text(encoding="utf-8")).head


def test_page_is_self_contained_and_summarizes_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("seed: 12345\nrecipe: arctic\n")
    path = write_report(write_run(tmp_path, FULL, [SAMPLE, {"step": 4, "sql": None, "status": "no_sql"}]))
    assert path == tmp_path / "report.html"
    page = Page(path.read_text(encoding="utf-8"))
    assert page.open == []
    assert page.addresses == []
    (run,) = page.head["runs"]
    (dev,) = run["accuracies"]
    assert [dev["before"]["mean"], dev["after"]["mean"], dev["count"], dev["valid"]] == [0.2, 0.35, 40, 0.5]
    assert dev["truncated"] == 0.25
    assert dev["after"]["low"] < 0.35 < dev["after"]["high"]
    assert [(grade["name"], grade["before"]["mean"], grade["after"]["mean"]) for grade in dev["grades"]] == [
        ("easy", 0.4, 0.5)
    ]
    assert ["waiting for SQL", "1.00 % of their time"] in run["numbers"]
    assert ["seed", "12345"] in run["ran"]
    assert run["config"].startswith("seed: 12345")
    assert [sample["sql"] for sample in run["samples"]] == [None, "SELECT '<x>'"]
    assert run["samples"][1]["question"] == "is 1 < 2 & <b>?"


def test_text_of_a_run_neither_ends_the_page_nor_is_executed(tmp_path: Path) -> None:
    """Every executable script is named by its digest, and data contain no tag."""
    bad = "</script><script>alert(1)</script><!-- \u2028 <img src=x onerror=alert(1)>"
    write_run(tmp_path, [{**FULL[0], "phase": bad}], [{**SAMPLE, "question": bad, "sql": bad}])
    (tmp_path / "config.yaml").write_text(f"# {bad}\n")
    page = Page(write_report(tmp_path).read_text(encoding="utf-8"))
    assert page.open == []
    assert page.head["runs"][0]["samples"][0]["sql"] == bad
    running = [text for attrs, text in page.scripts if not attrs.get("type")]
    allowed = re.findall(r"'sha256-([^']+)'", page.policy)
    assert allowed == [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in running]
    assert "'unsafe-inline'" not in page.policy.partition("script-src")[2].partition(";")[0]
    assert "default-src 'none'" in page.policy


def test_results_compare_the_last_evaluations_before_grpo_and_at_the_end(tmp_path: Path) -> None:
    (result,) = split_results(load_run(write_run(tmp_path, FULL, [])))
    assert (result.split, result.before, result.after, result.count) == ("dev", 0.2, 0.35, 40)
    assert result.by_difficulty == {"easy": (0.4, 0.5, 10)}


def test_run_without_grpo_is_compared_with_its_first_evaluation(tmp_path: Path) -> None:
    (result,) = split_results(load_run(write_run(tmp_path, FULL[:4], [])))
    assert (result.before, result.after) == (0.1, 0.2)


def test_single_evaluation_after_grpo_is_both_ends(tmp_path: Path) -> None:
    (result,) = split_results(load_run(write_run(tmp_path, FULL[4:], [])))
    assert (result.before, result.after) == (0.35, 0.35)


@pytest.mark.parametrize(
    ("rows", "titles"),
    [
        ([], []),
        (FULL[:1], ["SFT loss"]),
        ([grpo(1, 0.5)], ["Reward", "SQL by status", "Seconds per GRPO step"]),
        ([evaluation(0, 0.1, 0.1)], ["Accuracy"]),
        ([{"step": 1, "phase": "grpo", "policy/entropy": None, "policy/kl": 0.5}], ["KL"]),
    ],
)
def test_only_curves_with_numbers_are_drawn(tmp_path: Path, rows: list[dict[str, Any]], titles: list[str]) -> None:
    run = load_run(write_run(tmp_path, rows, []))
    assert [chart.title for chart in charts(run)] == titles
    (shown,) = head_of(write_report(tmp_path))["runs"]
    assert [item["title"] for item in shown["charts"]] == titles


def test_each_chart_names_its_axis_and_all_its_marks(tmp_path: Path) -> None:
    shown = {chart["title"]: chart for chart in chart_data(load_run(write_run(tmp_path, FULL, [])))}
    assert [title for title, chart in shown.items() if not chart["axis"]] == []
    assert shown["Reward"]["axis"] == "reward"
    assert shown["Reward"]["note"] == "faint: each step; line: mean of 5 steps; dotted: first step of GRPO"
    assert shown["Accuracy"]["note"] == "bars: 95 % interval; dotted: first step of GRPO"
    assert shown["SFT loss"]["note"] == "dotted: first step of GRPO"


def test_accuracy_has_an_interval_at_each_evaluation(tmp_path: Path) -> None:
    """The bars of the last two evaluations equal the intervals of the table."""
    write_run(tmp_path, FULL, [])
    (run,) = head_of(write_report(tmp_path))["runs"]
    (curve,) = next(chart for chart in run["charts"] if chart["title"] == "Accuracy")["curves"]
    assert [step for step, _, _ in curve["bounds"]] == [1, 2, 62]
    (dev,) = run["accuracies"]
    for end, (_, low, high) in zip((dev["before"], dev["after"]), curve["bounds"][1:], strict=True):
        assert (low, high) == (pytest.approx(end["low"], rel=1e-4), pytest.approx(end["high"], rel=1e-4))


def test_each_metric_of_a_chart_has_a_row(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, FULL, []))
    names = [curve.name for chart in charts(run) for curve in chart.curves]
    assert len(names) == 10
    assert [name for name in names if find_metric(name, TRAINING) is None] == []


def test_curves_by_hand(tmp_path: Path) -> None:
    """A stack fills a step's missing parts; a long curve has its running mean; the start of GRPO is marked."""
    rows = [
        {"step": 1, "phase": "grpo", "status/ok": 1.0},
        {"step": 2, "phase": "grpo", "status/ok": 0.5, "status/no_sql": 0.5},
    ]
    (stack,) = chart_data(load_run(write_run(tmp_path, rows, [])))
    assert stack["curves"] == [
        {"word": "ok", "points": [[1, 1.0], [2, 0.5]]}, {"word": "no_sql", "points": [[1, 0.0], [2, 0.5]]},
    ]  # fmt: skip
    assert stack["about"].startswith("status/<status>: answers with this status / answers. `ok`")
    assert stack["begins"] is None
    reward = chart_data(load_run(write_run(tmp_path, FULL, [])))[0]
    assert reward["begins"] == 3
    assert len(reward["curves"][0]["points"]) == len(reward["curves"][0]["means"]) == 60


def test_compiling_steps_are_excluded_from_times(tmp_path: Path) -> None:
    programs = {"time/programs/update": 2, "time/programs/prefill_chunk": 7}
    slow = {**grpo(3, 0.5), "time/rollout": 90.0, "time/step": 100.0, "time/compile": 80.0, **programs}
    rows = [slow, *({**grpo(step, 0.5), "time/compile": 0.0} for step in range(4, 9))]
    run = load_run(write_run(tmp_path, rows, []))
    seconds = next(item for item in chart_data(run) if item["title"] == "Seconds per GRPO step")
    assert [step for step, _ in seconds["curves"][0]["points"]] == [4, 5, 6, 7, 8]
    numbers = dict(head_of(write_report(tmp_path))["runs"][0]["numbers"])
    assert numbers["of that compiling"] == "1 min 20 s"
    assert numbers["compiled programs"] == "9: 7 prefill_chunk, 2 update"
    assert numbers["seconds per step, median"] == "2.00"


@pytest.mark.parametrize(
    ("settings", "is_shown"),
    [
        ("grpo: {num_iterations: 1, minibatches: 1, steps_per_generation: 1}", False),
        ("grpo: {num_iterations: 2, minibatches: 1, steps_per_generation: 1}", True),
        ("grpo: {num_iterations: 1}\nrollout: {exact: true}", True),
        ("", True),
    ],
)
def test_ratio_and_clipping_charts_are_omitted_for_one_update_per_batch(
    tmp_path: Path, settings: str, is_shown: bool
) -> None:
    row = {**grpo(1, 0.5), "policy/ratio_mean": 1.0, "policy/clip_fraction_low": 0.0}
    write_run(tmp_path, [row], [])
    (tmp_path / "config.yaml").write_text(settings)
    titles = [chart.title for chart in charts(load_run(tmp_path))]
    assert ("Ratio" in titles) == ("Clipped and capped" in titles) == is_shown


def test_many_points_are_thinned_to_their_means() -> None:
    points = [(step, float(step)) for step in range(1, 1001)]
    result = downsample(points, 100)
    assert len(result) == 100
    assert result[0] == (10, 5.5)
    assert result[-1] == (1000, 995.5)
    assert downsample(points[:7], 100) == points[:7]


def test_health_section_lists_good_and_bad_findings(tmp_path: Path) -> None:
    rows = [{**grpo(step, 0.5), "reward/zero_variance": 0.9, "length/truncated": 0.01} for step in range(1, 21)]
    (run,) = head_of(write_report(write_run(tmp_path, rows, [])))["runs"]
    texts = {text: tone for tone, text in run["health"]}
    span = "mean of the last 2 steps"
    assert (
        texts[f"90 % of the groups have no signal: their answers have equal rewards ({span}; bound: at most 60 %)"]
        == "bad"
    )
    assert texts[f"1 % of the answers are truncated at sampling.max_new_tokens ({span}; bound: at most 20 %)"] == "good"
    assert texts[f"75 % of the answers have SQL that runs ({span}; bound: at least 50 %)"] == "good"


@pytest.mark.parametrize(("steps", "text"), [(5, "step"), (20, "2 steps")])
def test_mean_reward_names_its_steps(steps: int, text: str, tmp_path: Path) -> None:
    rows = [grpo(step, 0.5) for step in range(1, steps + 1)]
    numbers = dict(head_of(write_report(write_run(tmp_path, rows, [])))["runs"][0]["numbers"])
    assert f"mean reward, first and last {text}" in numbers


def test_head_lists_model_times_and_machine(tmp_path: Path) -> None:
    sessions = [
        {"began": "2026-01-02T10:00:00+00:00", "ended": "2026-01-02T11:00:00+00:00", "machine": "1 x cpu"},
        {"began": "2026-01-03T10:00:00+00:00", "ended": "2026-01-03T10:30:00+00:00", "machine": "2 x cpu",
         "versions": {"jax": "9.9"}, "commit": "abc+"},
    ]  # fmt: skip
    write_run(tmp_path, FULL, [])
    (tmp_path / "about.json").write_text(json.dumps({"parameters": 1_181_312, "sessions": sessions}))
    (tmp_path / "config.yaml").write_text("recipe: arctic\nmodel: {checkpoint: Qwen, lora: {rank: 4}}\n")
    ran = dict(head_of(write_report(tmp_path))["runs"][0]["ran"])
    assert ran["model"] == "Qwen, 1.18 million parameters, adapters of rank 4"
    assert (ran["started"], ran["ended"]) == ("2026-01-02 10:00 UTC", "2026-01-03 10:30 UTC")
    assert ran["duration"] == "1 h 30 min in 2 sessions"
    assert (ran["machine"], ran["versions"], ran["commit"]) == ("2 x cpu", "jax 9.9", "abc+")


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"sessions": 3}', '{"sessions": [1, {"began": 7}]}'])
def test_broken_about_file_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "about.json").write_text(text)
    assert "started" not in dict(head_of(write_report(write_run(tmp_path, FULL, [])))["runs"][0]["ran"])


def test_incomplete_line_is_counted_and_the_rest_is_shown(tmp_path: Path) -> None:
    write_run(tmp_path, FULL, [SAMPLE])
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write('{"step": 63, "phase": "é'.encode()[:-1])
    run = load_run(tmp_path)
    assert run.skipped == 1
    assert len(series(run, "reward/mean")) == 60
    assert head_of(write_report(tmp_path))["runs"][0]["health"][0] == ["bad", "1 unreadable line was skipped"]


def test_smooth_by_hand() -> None:
    assert smooth([1.0, 2.0, 6.0, 10.0], 3) == [1.0, 1.5, 3.0, 6.0]


def test_command_writes_the_page_or_an_error_of_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: not a run folder: it has no metrics.jsonl\n"
    write_run(tmp_path, FULL, [])
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    assert (tmp_path / "report.html").exists()
    (tmp_path / "report.html.tmp").symlink_to("/dev/full")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"error: the report of {tmp_path} cannot be written: No space left on device\n"


def test_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no metrics\.jsonl"):
        load_run(tmp_path)
