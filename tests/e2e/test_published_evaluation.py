"""Evaluation as the papers report it: chosen questions, means over sets, a model behind an endpoint, `--as SYSTEM`."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.config.load import SYSTEMS
from jaxrl_sql.evaluate import configuration, main
from jaxrl_sql.recipes import find_recipe
from jaxrl_sql.run.session import eval_rule

MODEL = Path(__file__).parents[2] / "configs" / "quickstart_start"
LIMITS = ("executor.vm_steps=100000", "executor.timeout_ms=60000", "run.display=plain")
RIGHT, OTHER, WIDE = "SELECT x FROM t", "SELECT 7", "SELECT x, y, x + y FROM t"


def write_set(folder: Path, names: tuple[str, ...]) -> Path:
    database = folder / "databases/a/a.sqlite"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE t(x INTEGER, y INTEGER); INSERT INTO t VALUES (1, 5), (2, 6);")
    asked = [{"id": name, "db_id": "a", "question": f"<{name}>", "sql": RIGHT} for name in names]
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_set(tmp_path / "data", ("q1", "q2", "q3", "q4"))


def numbers(out: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((out / "metrics.json").read_text())
    return found


def judge(folder: Path, sqls: dict[str, str], out: Path, *more: str) -> int:
    path = out.with_suffix(".json")
    path.write_text(json.dumps(sqls))
    return main(
        ["--data", str(folder), "--predictions", str(path), "--field", "sql", "--out", str(out), *LIMITS, *more]
    )


def test_a_list_of_ids_chooses_what_is_asked(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sample as CHESS publishes BIRD's: the questions' records in one JSON list."""
    ids, every = tmp_path / "sub_sampled.json", {"q1": RIGHT, "q2": OTHER, "q3": OTHER, "q4": RIGHT}
    ids.write_text(json.dumps([{"question_id": "q4", "db_id": "a"}, {"question_id": "q2"}, {"question_id": "none"}]))
    chosen = f"evaluate.include_ids={ids}"
    assert judge(data, every, tmp_path / "all", chosen) == 0
    assert "2 of 4 questions are asked (evaluate.include_ids)" in capsys.readouterr().out
    found = numbers(tmp_path / "all")
    assert (found["count"], found["accuracy"], found["missing"]) == (2, 0.5, 0)
    assert judge(data, {"q4": RIGHT, "q2": RIGHT}, tmp_path / "some", chosen) == 0, "no more than is asked is needed"
    assert numbers(tmp_path / "some")["accuracy"] == 1.0
    assert judge(data, {"q4": RIGHT}, tmp_path / "few", chosen) == 2
    assert "1 of the 2 questions that are asked for have no prediction, such as q2" in capsys.readouterr().err
    assert judge(data, {"q4": RIGHT}, tmp_path / "few", chosen, "--allow-missing") == 0
    assert (numbers(tmp_path / "few")["missing"], numbers(tmp_path / "few")["count"]) == (1, 1)
    ids.write_text("q9\n")
    assert judge(data, every, tmp_path / "none", chosen) == 2
    assert "none of its 1 ids is a question of this set" in capsys.readouterr().err


def test_questions_with_an_answer_alone(tmp_path: Path) -> None:
    """EHRSQL as OmniSQL and those after it report it."""
    home = tmp_path / "ehrsql" / "mimic_iii"
    home.mkdir(parents=True)
    shutil.copy(write_set(tmp_path / "x", ("q",)) / "databases/a/a.sqlite", home.parent / "mimic_iii.sqlite")
    asked = [{"id": f"e{i}", "db_id": "mimic_iii", "question": f"{i}?", "is_impossible": i == 1} for i in range(3)]
    records = [one | {"query": "nan" if one["is_impossible"] else RIGHT} for one in asked]
    (home / "valid.json").write_text(json.dumps(records))
    sqls = {"e0": RIGHT, "e1": OTHER, "e2": OTHER}
    assert judge(tmp_path / "ehrsql", sqls, tmp_path / "all") == 0
    assert judge(tmp_path / "ehrsql", sqls, tmp_path / "some", "evaluate.answerable_only=true") == 0
    every, some = numbers(tmp_path / "all"), numbers(tmp_path / "some")
    assert (every["count"], every["accuracy"]) == (3, pytest.approx(1 / 3))
    assert (some["count"], some["accuracy"]) == (2, 0.5)
    assert "reliability/0" not in some


def test_sets_are_averaged_by_size_and_plainly(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"r1": RIGHT}))
    more = ("--data", str(write_set(tmp_path / "small", ("r1",))), "--predictions", str(other))
    assert judge(data, dict.fromkeys(("q1", "q2", "q3", "q4"), OTHER), tmp_path / "out", *more) == 0
    found = numbers(tmp_path / "out")
    assert (found["accuracy"], found["macro/accuracy"], found["macro/refined"]) == (pytest.approx(0.2), 0.5, 0.5)
    shown = capsys.readouterr().out
    assert "mean, weighted by size" in shown
    assert "mean of the benchmarks" in shown


def test_a_bound_on_columns_beside_the_gold_s(data: Path, tmp_path: Path) -> None:
    sqls, shares = dict.fromkeys(("q1", "q2", "q3", "q4"), WIDE), []
    for k in (0, 2, 3):
        more = (f"evaluate.surplus_columns={k}", "evaluate.rules=[bird, ex_b]")
        assert judge(data, sqls, tmp_path / f"k{k}", *more) == 0
        shares.append(numbers(tmp_path / f"k{k}")["ex_b"])
    assert shares == [1.0, 0.0, 1.0], "two columns beside the gold's are fewer than three"


class Server:
    """A model that looks, then solves; q2 in one turn, q3 never, q4 is refused at its second turn."""

    def __init__(self, chat_server: ModuleType) -> None:
        self.said, self.busy = chat_server.said, False

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        first, *rest = body["messages"]
        found = re.search(r"Question:\s+<(\w+)>", first["content"])
        assert found
        name = found[1]
        if rest:
            assert [one["role"] for one in rest] == ["assistant", "user"] * (len(rest) // 2)
            assert rest[-1]["content"].startswith("<observation>")
        if name == "q4" and rest:
            return 400, {}, "too long"
        if name == "q1" and rest and self.busy:
            return 503, {}, "busy"
        solution = f"<think>so</think><solution>{RIGHT}</solution>"
        if name == "q2" or (name == "q1" and rest):
            return self.said(solution)
        # What it invents behind the end of its turn is not read.
        return self.said(f"<think>look</think><sql>SELECT y FROM t</sql><observation>9</observation>{solution}")


def ask_endpoint(url: str, data: Path, out: Path, *more: str) -> int:
    to = (f"evaluate.base_url={url}", "evaluate.model=m", "evaluate.key_env=''", "evaluate.retries=0")
    return main(["--data", str(data), "--out", str(out), "--as", "skyrl_sql", *to, *LIMITS, *more])


def test_an_endpoint_s_model_is_evaluated_in_several_turns(
    data: Path, tmp_path: Path, chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    out, script = tmp_path / "out", Server(chat_server)
    with chat_server.serving(script) as (url, seen):
        script.busy = True
        assert ask_endpoint(url, data, out, "evaluate.turns=3") == 1
        assert "given again, the command goes on" in capsys.readouterr().err
        asked = len(seen)
        script.busy = False
        assert ask_endpoint(url, data, out, "evaluate.turns=3", "evaluate.max_requests=10") == 0
        assert len(seen) == asked + 2, "what had ended is not asked again"
        assert "10 of 10 requests" in capsys.readouterr().out
        assert {one["temperature"] for one in seen} == {0.0}
        assert {one["max_tokens"] for one in seen} == {3072}
        assert not any("top_k" in one or "stop" in one for one in seen)
    found = numbers(out)
    records = {one["id"]: one for one in map(json.loads, (out / "records.jsonl").read_text().splitlines())}
    assert {name: one["status"] for name, one in records.items()} == {
        "q1": "ok", "q2": "ok", "q3": "no_sql", "q4": "not_asked"
    }  # fmt: skip
    assert [role for role, _ in records["q1"]["answer"]] == ["assistant", "environment", "assistant"]
    assert records["q1"]["answer"][0][1].endswith("</sql>")
    assert "5\n6" in records["q1"]["answer"][1][1]
    assert (found["accuracy"], found["bird"], found["turns/mean"] > 1) == (0.5, 0.5, True)
    assert "HTTP 400 too long" in records["q4"]["fault"]


def test_a_model_that_takes_no_temperature_is_asked_anew(data: Path, tmp_path: Path, chat_server: ModuleType) -> None:
    with chat_server.serving(lambda _, __: chat_server.said(f"```sql\n{RIGHT}\n```")) as (url, seen):
        more = ("evaluate.send_temperature=false", "evaluate.runs=2", "evaluate.token_limit=max_completion_tokens")
        to = (f"evaluate.base_url={url}", "evaluate.model=m", "evaluate.key_env=''")
        assert main(["--data", str(data), "--out", str(tmp_path / "out"), "--as", "omnisql", *to, *LIMITS, *more]) == 0
    assert len(seen) == 8
    assert not any("temperature" in one for one in seen)
    assert {one["max_completion_tokens"] for one in seen} == {2048}
    assert (numbers(tmp_path / "out")["runs"], numbers(tmp_path / "out")["accuracy"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--as", "arctic", "evaluate.turns=2"], "recipe arctic answers in one turn"),
        (["--as", "arctic", "data.shots=2"], "examples are not shown to an endpoint"),
        (["--as", "arctic", "--model", str(MODEL)], "give one of --predictions FILE"),
        (["evaluate.base_url=''", "--model", str(MODEL), "evaluate.send_temperature=false"], "is for an endpoint"),
        (["evaluate.max_cost=1"], "evaluate.max_cost=1.0 needs evaluate.prompt_price"),
        (["evaluate.include_ids=nowhere"], "nowhere: No such file"),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    more: list[str], words: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("evaluate.base_url=http://127.0.0.1:9/v1", "evaluate.model=m", "evaluate.key_env=''")
    assert main(["--data", str(data), "--out", str(tmp_path / "out"), *to, *LIMITS, *more]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert words in said


def test_a_system_says_how_it_is_asked_and_judged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(MODEL, run / "model")
    (run / "config.yaml").write_text(
        "recipe: skyrl_sql\ndata: {prompt: tagged, retrieve: 3}\n"
        "sampling: {turns: 3, max_total_tokens: 320, stop: [x]}\n"
    )

    def asked(system: str, *overrides: str) -> Any:
        given = argparse.Namespace(
            model=str(run), system=system, recipe="", config=None, overrides=list(overrides), out=None, data=["d"],
            split="", predictions=[], sql_field="", allow_missing=False, allow_extra=False,
        )  # fmt: skip
        return configuration(given)

    made = {system: asked(system) for system in SYSTEMS}
    for config in made.values():
        assert (config.data.prompt, config.sampling.stop) == ("chat", []), "nothing of the run's own prompt is left"
        assert config.model.checkpoint == str(run / "model")
        style = find_recipe(config.recipe).style_for(config.data)
        assert style.show is find_recipe(config.recipe).schema
    told = {name: (one.recipe, one.evaluate.temperature, one.evaluate.samples) for name, one in made.items()}
    assert told == {
        "omnisql": ("omnisql", 0.0, 1), "arctic": ("arctic", 0.0, 1), "sql_r1": ("sql_r1", 0.8, 8),
        "paverl": ("paverl", 0.0, 1), "think2sql": ("think2sql", 0.6, 1), "qwen3": ("omnisql", 0.7, 1),
        "qwen3_thinking": ("omnisql", 0.6, 1), "skyrl_sql": ("skyrl_sql", 0.0, 1),
    }  # fmt: skip
    assert (made["think2sql"].evaluate.rule, made["think2sql"].evaluate.runs) == ("refined", 3)
    assert (made["skyrl_sql"].evaluate.turns, made["skyrl_sql"].evaluate.rule) == (5, "bird")
    assert (made["qwen3"].data.thinking, made["qwen3"].evaluate.top_p) == ("no_think", 0.8)
    assert (made["arctic"].data.retrieve, made["omnisql"].data.retrieve) == (0, 20)
    assert asked("arctic", "evaluate.temperature=0.5").evaluate.temperature == 0.5, "what is said comes last"


@pytest.mark.slow
def test_a_small_model_is_evaluated_as_a_system(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = ("evaluate.max_new_tokens=8", "evaluate.runs=2", "evaluate.max_num_seqs=4", "evaluate.limit=2")
    model = ["--model", str(MODEL), "data.thinking=template"]
    assert main(["--data", str(data), *model, "--as", "think2sql", "--out", str(out), *LIMITS, *small]) == 0
    found, written = numbers(out), load_config(out / "config.yaml")
    assert (found["runs"], found["count"], "refined/std" in found) == (2, 2, True)
    assert (written.recipe, written.evaluate.rule, written.evaluate.repetition_penalty) == ("think2sql", "refined", 1.1)


def test_training_judges_by_the_recipe_s_rule_and_the_best_is_kept_by_it() -> None:
    def rule(recipe: str, own: str = "bird", *overrides: str) -> str:
        return eval_rule(load_config(None, overrides), find_recipe(recipe), own)

    judged = {name: rule(name) for name in ("arctic", "sql_r1", "paverl", "think2sql", "skyrl_sql")}
    assert judged == {
        "arctic": "bird", "sql_r1": "test_suite", "paverl": "bird", "think2sql": "refined", "skyrl_sql": "bird"
    }  # fmt: skip
    assert [rule(name, "test_suite") for name in ("arctic", "paverl", "skyrl_sql")] == [
        "test_suite",
        "test_suite",
        "bird",
    ]
    assert [rule("think2sql", own) for own in ("spider2", "ehrsql")] == ["spider2", "ehrsql"]
    assert rule("think2sql", "spider2", "validation.rule=bird") == "bird"
    with pytest.raises(Exception, match="rules 'ex': there are"):
        rule("arctic", "bird", "validation.rule=ex")


def test_a_system_that_is_none_is_one_line_with_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--data", str(tmp_path), "--predictions", "file", "--out", str(tmp_path / "out"), "--as", "artic"]
    assert main(asked) == 2
    said = capsys.readouterr()
    assert (said.out + said.err).count("\n") == 1
    assert said.err.startswith("error: --as artic: none of arctic, omnisql, ")
    assert said.err.endswith("the nearest is arctic\n")
