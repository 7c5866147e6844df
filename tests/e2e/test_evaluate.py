"""The evaluate command with predictions: scoring without jax, scoring again, and comparisons."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.evaluate import main
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.inference.benchmark_evaluation import answer_settings, judge_settings
from jaxrl_sql.inference.benchmark_sets import open_sets
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import undocumented_names
from jaxrl_sql.text2sql.evals.submission import NO_SQL_PLACEHOLDER
from sqlexec_rs import cli

CONFIGS = Path(__file__).parents[2] / "configs"
LIMITS = ("executor.vm_steps=100000", "executor.timeout_ms=60000", "run.display=plain")
DOUBLED = "SELECT x FROM t UNION ALL SELECT x FROM t"  # bird compares sets of rows, refined counts them
GOLD = "SELECT x FROM t"
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
Write = Callable[[dict[str, str | None]], Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(folder, SynthSpec(seed=5, train_dbs=2, dev_dbs=2, unseen_dbs=1, train_questions=4, dev_questions=5))
    return folder


@pytest.fixture(scope="module")
def golds(data: Path) -> dict[str, str | None]:
    return {line["id"]: line["sql"] for line in lines(data / "dev/questions.jsonl")}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(sqls: dict[str, str | None]) -> Path:
        path = tmp_path / "predictions.jsonl"
        path.write_text("".join(json.dumps({"id": uid, "sql": sql}) + "\n" for uid, sql in sqls.items()))
        return path

    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def numbers(out: Path) -> dict[str, float]:
    result: dict[str, float] = json.loads((out / "metrics.json").read_text())
    assert undocumented_names(result, EVALUATION) == [], "add a row to jaxrl_sql/runtime/evaluation_metrics.py"
    return result


def judge(folder: Path, predictions: Path, out: Path, *more: str) -> int:
    """Judge predictions, most of them golds; `--field` confirms that this is intended."""
    files = ["--predictions", str(predictions), "--field", "sql", "--out", str(out)]
    return main(["--data", str(folder), *files, *LIMITS, *more])


def test_golds_score_full_accuracy_without_jax(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    files = ["--predictions", str(write(golds)), "--field", "sql", "--out", str(out)]
    command = ["--data", str(data), "--split", "dev", *files, *LIMITS]
    program = (
        "import sys\nfrom jaxrl_sql.commands.evaluate import main\ncode = main(sys.argv[1:])\n"
        "print([name for name in ('jax', 'torch', 'transformers') if name in sys.modules])\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "accuracy 100.0 % of 10 questions" in done.stdout
    result = numbers(out)
    assert result["accuracy"] == result["bird"] == result["refined"] == result["test_suite"] == 1.0
    assert (result["count"], result["missing"], result["gold_failures"]) == (10, 0, 0)
    records = lines(out / "records.jsonl")
    assert [item["id"] for item in records] == list(golds)
    for record in records:
        assert record["sql"] == record["gold_sql"] == golds[record["id"]]
        assert record["results"]["prediction"] == record["results"]["gold"]
        assert (record["status"], record["scores"]["bird"]) == ("ok", 1.0)
    assert {line["id"]: line["sql"] for line in lines(out / "predictions.jsonl")} == golds
    assert (out / "config.yaml").is_file()


@pytest.mark.parametrize(
    "name", ["generated_sql", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("model_output", "query"))]
)
def test_files_with_golds_in_the_sql_field_are_refused(
    name: str, data: Path, golds: dict[str, str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands refuse a file with golds in `sql` and answers in another field, with the same message."""
    root, path, out = data / "dev/databases", tmp_path / "p.jsonl", tmp_path / "out"
    begun = ["--data", str(data / "dev"), "--predictions", str(path), *LIMITS, "--out", str(out)]
    score = ["score", "--pred", str(path), "--gold", str(data / "dev/questions.jsonl"), "--db-root", str(root)]
    for answer, error in (("SELECT 1", f"hold different SQL in sql and {name}"), ("I give up", "are the golds")):
        entries = [{"id": uid, "sql": sql, name: answer} for uid, sql in golds.items()]
        path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
        assert main(begun) == 2
        ours = capsys.readouterr().err
        assert cli.main(score) == 2
        assert capsys.readouterr().err.partition(": ")[2] == ours.partition(": ")[2]
        assert f"{path}: 10 of 10" in ours
        assert error in ours
        assert "--field NAME" in ours
        assert f"of the fields id, sql, {name}" in ours
    assert not out.exists()
    assert main([*begun, "--field", name]) == 0
    assert numbers(out)["accuracy"] == 0.0
    assert cli.main([*score, "--field", "sql"]) == 0
    assert ["all", "10", "100.0"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def hurt(data: Path, tmp_path: Path) -> Path:
    """Return a set with a gold that does not terminate and a gold that fails."""
    folder = tmp_path / "hurt"
    shutil.copytree(data / "dev", folder)
    questions = lines(folder / "questions.jsonl")
    questions[0]["sql"], questions[1]["sql"] = ENDLESS, "SELECT x FROM nowhere"
    (folder / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    return folder


def test_failed_golds_and_predictions_are_counted_separately(
    hurt: Path, golds: dict[str, str | None], write: Write, tmp_path: Path
) -> None:
    ids = list(golds)
    sqls = {**golds, ids[2]: ENDLESS, ids[3]: "SELECT", ids[4]: None, ids[5]: "SELECT nothing_there"}
    out = tmp_path / "out"
    assert judge(hurt, write(sqls), out) == 0
    result = numbers(out)
    assert result["gold_timeouts"] == 1
    assert result["gold_failures"] == 2
    assert result["status/timeout"] == result["status/syntax_error"] == result["status/no_sql"] == 1
    assert result["status/schema_error"] == 1
    assert result["status/ok"] == 6
    assert (result["bird"], result["bird/count"]) == (0.5, 8)  # two golds have no result
    assert result["accuracy"] == 0.4  # the leaderboard's count
    records = {line["id"]: line for line in lines(out / "records.jsonl")}
    assert records[ids[0]]["gold_status"] == "timeout"
    assert records[ids[0]]["scores"] == {}
    assert records[ids[2]]["results"]["prediction"]["error"].startswith("timeout")


def test_missing_predictions_are_refused_or_counted_separately(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = list(golds)
    some = write({uid: golds[uid] for uid in ids[:5]})
    assert judge(data / "dev", some, tmp_path / "out") == 2
    assert "5 of 10 questions have no prediction" in capsys.readouterr().err
    assert not (tmp_path / "out/metrics.json").exists()
    assert judge(data / "dev", some, tmp_path / "out", "--allow-missing") == 0
    result = numbers(tmp_path / "out")
    assert (result["missing"], result["count"], result["accuracy"], result["accuracy/with_missing"]) == (5, 5, 1.0, 0.5)
    assert "5 questions have no prediction and are skipped" in capsys.readouterr().out
    assert judge(data / "dev", write({**golds, "other": "SELECT 1"}), tmp_path / "more") == 2
    assert "--allow-extra" in capsys.readouterr().err
    assert judge(data / "dev", write({**golds, "other": "SELECT 1"}), tmp_path / "more", "--allow-extra") == 0
    assert numbers(tmp_path / "more")["extra"] == 1


def test_an_interrupted_evaluation_resumes_to_equal_metrics(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sqls = {uid: sql if at % 2 else "SELECT 1" for at, (uid, sql) in enumerate(golds.items())}
    assert judge(data / "dev", write(sqls), tmp_path / "whole") == 0
    assert judge(data / "dev", write(sqls), tmp_path / "torn") == 0
    torn = tmp_path / "torn/journal.jsonl"
    written = torn.read_text().splitlines()
    torn.write_text("\n".join(written[:4]) + "\n" + written[4][:50])
    for name in ("metrics.json", "records.jsonl"):
        (tmp_path / "torn" / name).unlink()
    capsys.readouterr()
    assert judge(data / "dev", write(sqls), tmp_path / "torn") == 0
    assert "3 answers are judged already" in capsys.readouterr().out
    for name in ("metrics.json", "predictions.jsonl"):
        assert (tmp_path / "torn" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    remaining = (tmp_path / "torn/config.yaml").read_bytes()
    assert judge(data / "dev", write(golds), tmp_path / "torn", "seed=7") == 2
    assert "was started with other sets (different: dev)" in capsys.readouterr().err
    assert (tmp_path / "torn/config.yaml").read_bytes() == remaining
    assert judge(data / "dev", write(sqls), tmp_path / "torn", "executor.vm_steps=99") == 2


def test_benchmarks_are_weighted_by_size(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen = {line["id"]: "SELECT 1" for line in lines(data / "dev_unseen/questions.jsonl")}
    other = tmp_path / "unseen.json"
    other.write_text(json.dumps(unseen))
    out = tmp_path / "out"
    assert judge(data / "dev", write(golds), out, "--data", str(data / "dev_unseen")) == 2
    assert "1 files of predictions for 2 folders" in capsys.readouterr().err
    more = ("--data", str(data / "dev_unseen"), "--predictions", str(other))
    assert judge(data / "dev", write(golds), out, *more) == 0
    result = numbers(out)
    assert result["dev/accuracy"] == 1.0
    assert result["dev_unseen/accuracy"] == 0.0
    assert result["count"] == 10 + len(unseen)
    assert result["accuracy"] == pytest.approx(10 / (10 + len(unseen)))
    assert (result["macro/accuracy"], result["macro/refined"]) == (0.5, 0.5)
    assert {item["set"] for item in lines(out / "records.jsonl")} == {"dev", "dev_unseen"}
    assert len(lines(out / "dev_unseen/predictions.jsonl")) == len(unseen)
    shown = capsys.readouterr().out
    assert "mean, weighted by size" in shown
    assert "mean of the benchmarks" in shown


def test_compare_prints_two_evaluations(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, first, second = list(golds), tmp_path / "first", tmp_path / "second"
    assert judge(data / "dev", write({**golds, ids[0]: "SELECT 1", ids[1]: "SELECT 1"}), first) == 0
    assert judge(data / "dev", write({**golds, ids[1]: None, ids[2]: "SELECT x FROM y"}), second) == 0
    assert main(["--compare", str(first), str(second), "--out", str(tmp_path / "beside")]) == 0
    result = json.loads((tmp_path / "beside/compare.json").read_text())
    bird = result["rules"]["bird"]
    assert (bird["first"], bird["second"], bird["p_value"], bird["p_mcnemar"]) == (0.8, 0.8, 1.0, 1.0)
    assert bird["databases"] == 2
    assert (bird["better"], bird["worse"]) == ([ids[0]], [ids[2]])
    assert [item["id"] for item in result["changed"]] == [ids[0], ids[2]]
    assert result["changed"][1]["second"]["status"] == "schema_error"
    text = (tmp_path / "beside/compare.md").read_text()
    assert ids[0] in text
    assert "SELECT x FROM y" in text
    assert "2 databases: the interval is useless and the sign-flip p is at least 0.5" in text
    assert "| 95 % interval | sign-flip p |" in text
    assert "| of | McNemar's p |" in text
    shown = capsys.readouterr().out
    assert "2 questions changed by bird" in shown
    assert "2 databases: the interval is useless and the sign-flip p is at least 0.5" in shown
    assert main(["--compare", str(first), str(first)]) == 0
    assert f"\n0 questions changed by bird\n{first / 'compare.md'}\n" in capsys.readouterr().out  # without a table
    assert main(["--compare", str(first), str(data)]) == 2
    assert "no finished evaluation" in capsys.readouterr().err
    assert main(["--compare", str(first), str(second), "--out", "/dev/null/out"]) == 2
    assert "--out /dev/null/out cannot be written" in capsys.readouterr().err
    assert main(["--compare", str(first), str(second), "--data", str(data), "seed=1"]) == 2
    assert "accepts only --out, not data, overrides" in capsys.readouterr().err


def test_unrelated_files_are_not_overwritten(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions, run = write(golds), tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 7\n")
    (run / "metrics.jsonl").write_text("{}\n")
    assert judge(data / "dev", predictions, run) == 2
    assert "has metrics.jsonl of another command" in capsys.readouterr().err
    assert (run / "config.yaml").read_text() == "seed: 7\n"
    assert judge(data / "dev", predictions, tmp_path) == 2
    assert "has the predictions" in capsys.readouterr().err


def test_spider_prediction_lines_keep_their_positions_after_a_missing_database(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spider's folder with the database of one question removed, and Spider's prediction format."""
    spider, questions = tmp_path / "spider", lines(data / "dev/questions.jsonl")
    shutil.copytree(data / "dev/databases", spider / "database")
    rows = [
        {"db_id": question["db_id"], "question": question["question"], "query": question["sql"]}
        for question in questions
    ]
    rows.insert(3, {"db_id": "gone", "question": "?", "query": "SELECT 1"})
    (spider / "dev.json").write_text(json.dumps(rows))
    (spider / "tables.json").write_text("[]")
    path = tmp_path / "pred.sql"
    path.write_text("".join(f"{item['query']}\n" for item in rows))
    out = tmp_path / "out"
    assert judge(spider, path, out) == 0
    result = numbers(out)
    assert (result["accuracy"], result["count"], result["left_out"]) == (1.0, 10, 1)
    shown = capsys.readouterr().out
    assert "skipped 1 (" in shown
    assert "predictions are for questions that cannot be judged" in shown
    written = (out / "predictions.sql").read_text().splitlines()
    assert written == [request["query"] if request["db_id"] != "gone" else NO_SQL_PLACEHOLDER for request in rows]
    path.write_text("SELECT 1\n" * 10)
    assert judge(spider, path, tmp_path / "other") == 2
    assert "10 lines for 11 questions" in capsys.readouterr().err


def test_spider2_is_judged_by_result_tables_and_written_in_its_format(data: Path, tmp_path: Path) -> None:
    question = lines(data / "dev/questions.jsonl")[0]
    folder, predictions = tmp_path / "spider2", tmp_path / "given"
    for name in ("resource/databases/spider2-localdb", "evaluation_suite/gold/exec_result"):
        (folder / name).mkdir(parents=True)
    predictions.mkdir()
    db = folder / "resource/databases/spider2-localdb/Shop.sqlite"
    shutil.copy(data / f"dev/databases/{question['db_id']}/{question['db_id']}.sqlite", db)
    with closing(sqlite3.connect(db)) as connection:
        connection.executescript("CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    questions = [{"instance_id": f"local00{i}", "db": "Shop", "question": "Which?"} for i in range(3)]
    (folder / "spider2-lite.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    sqls = ("SELECT b, a FROM t ORDER BY a DESC", "SELECT b FROM t", "SELECT c FROM t")
    for i, sql in enumerate(sqls):
        (folder / f"evaluation_suite/gold/exec_result/local00{i}.csv").write_text("a\n1\n2\n")
        (predictions / f"local00{i}.sql").write_text(sql)
    out = tmp_path / "out"
    assert judge(folder, predictions, out) == 0
    assert [line["scores"]["spider2"] for line in lines(out / "records.jsonl")] == [1.0, 0.0, 0.0]
    assert numbers(out)["accuracy"] == pytest.approx(1 / 3)
    assert (out / "submission/local001.sql").read_text() == f"{sqls[1]}\n"
    assert (out / "submission_csv/local000.csv").read_text() == "b,a\ny,2\nx,1\n"
    assert not (out / "submission_csv/local002.csv").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "set exactly one of: --predictions FILE"),
        (
            ["--predictions", "P", "--model", str(CONFIGS / "quickstart_start")],
            "set exactly one of: --predictions FILE",
        ),
        (["--predictions", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--model", "nowhere"], "model nowhere: no such folder"),
        (["--predictions", "P", "evaluate.rules=[bird, best]"], "rules 'best'"),
        (["--predictions", "P", "evaluate.runs=2"], "would all be equal"),
        (["--predictions", "P", "evaluate.runs=2", "evaluate.sampling.temperature=1"], "need a model"),
        (["--predictions", "P", "evaluate.vote=loud"], "is not one of result, soft"),
        (["--predictions", "P", "--split", "moon"], "moon"),
        (["--predictions", "P", "--out", "/dev/null/out"], "--out /dev/null/out cannot be written"),
    ],
)
def test_invalid_input_is_reported_in_one_line(
    command: list[str], message: str, data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = str(write({**golds, next(iter(golds)): "SELECT 1"}))
    chosen = [
        "--data",
        str(data / "dev"),
        "--out",
        str(tmp_path / "out"),
        *(path if item == "P" else item for item in command),
    ]
    assert main(chosen) == 2
    output = capsys.readouterr().err
    assert output.startswith("error: ")
    assert output.count("\n") == 1
    assert message in output


def test_a_missing_folder_argument_is_reported(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--predictions", str(write({"a": "SELECT 1"}))]) == 2
    assert "--data is missing" in capsys.readouterr().err


def make_set(folder: Path, sqls: tuple[str, str], asks: str = "") -> list[str]:
    """Write a benchmark of two questions and their predictions; return the arguments of `evaluate`."""
    (folder / "databases/d").mkdir(parents=True)
    with closing(sqlite3.connect(folder / "databases/d/d.sqlite")) as connection:
        connection.executescript("CREATE TABLE t (x INT); INSERT INTO t VALUES (1), (2);")
    records = [
        {"id": str(i), "db_id": "d", "question": f"{asks}{i}?", "sql": GOLD, "pred_sql": sql}
        for i, sql in enumerate(sqls)
    ]
    write_lines(folder / "questions.jsonl", [{k: v for k, v in line.items() if k != "pred_sql"} for line in records])
    write_lines(
        folder.with_suffix(".predictions"), [{"id": line["id"], "pred_sql": line["pred_sql"]} for line in records]
    )
    return ["--data", str(folder), "--predictions", str(folder.with_suffix(".predictions"))]


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def judge_sets(out: Path, *arguments: str) -> int:
    return main([*arguments, "--field", "pred_sql", "--out", str(out), *LIMITS])


def records(out: Path) -> list[dict[str, Any]]:
    return lines(out / "records.jsonl")


def test_reordered_sets_keep_their_answers(tmp_path: Path) -> None:
    right, wrong = make_set(tmp_path / "right", (GOLD, GOLD)), make_set(tmp_path / "wrong", ("SELECT 9", "SELECT 8"))
    assert judge_sets(tmp_path / "out", *right, *wrong) == 0
    before = numbers(tmp_path / "out")
    assert (before["right/accuracy"], before["wrong/accuracy"]) == (1.0, 0.0)
    assert judge_sets(tmp_path / "out", *wrong, *right) == 0
    assert numbers(tmp_path / "out") == before
    assert {(record["set"], record["sql"]) for record in records(tmp_path / "out")} == {
        ("right", GOLD), ("wrong", "SELECT 9"), ("wrong", "SELECT 8"),
    }  # fmt: skip


@pytest.mark.parametrize("mode", [pytest.param("delete", marks=pytest.mark.nightly), "wal"])
def test_verdicts_on_a_changed_database_are_not_reused(
    mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = make_set(tmp_path / "a", (GOLD, "SELECT x FROM t WHERE x < 3"))
    with closing(sqlite3.connect(tmp_path / "a/databases/d/d.sqlite")) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        assert judge_sets(tmp_path / "out", *command) == 0
        assert numbers(tmp_path / "out")["accuracy"] == 1.0
        assert judge_sets(tmp_path / "out", *command) == 0
        capsys.readouterr()
        connection.execute("INSERT INTO t VALUES (3)")
        connection.commit()
        assert judge_sets(tmp_path / "out", *command) == 2
        assert "was started with other sets (different: a)" in capsys.readouterr().err
        assert judge_sets(tmp_path / "new", *command) == 0
        assert numbers(tmp_path / "new")["accuracy"] == 0.5


@pytest.mark.parametrize("rule", ["r_ves", "r_ves_alternate"])
def test_a_timed_rule_can_be_the_rule_of_the_benchmark(rule: str, tmp_path: Path) -> None:
    command = make_set(tmp_path / "a", (GOLD, "SELECT 9"))
    assert judge_sets(tmp_path / "out", *command, f"evaluate.rule={rule}") == 0
    item, other = records(tmp_path / "out")
    assert (item["own"], other["own"]) == (rule, rule)
    assert item["scores"][rule] > other["scores"][rule] == 0.0


def test_records_are_judged_again_by_another_rule(tmp_path: Path) -> None:
    command = make_set(tmp_path / "a", (GOLD, DOUBLED))
    assert judge_sets(tmp_path / "out", *command, "evaluate.rule=bird") == 0
    assert (numbers(tmp_path / "out")["accuracy"], records(tmp_path / "out")[0]["own"]) == (1.0, "bird")
    assert judge_sets(tmp_path / "out", *command, "evaluate.rule=refined") == 0
    assert (numbers(tmp_path / "out")["accuracy"], records(tmp_path / "out")[0]["own"]) == (0.5, "refined")


def test_the_rule_is_fixed_only_for_multiple_answers(tmp_path: Path) -> None:
    make_set(tmp_path / "a", (GOLD, GOLD))

    def settings(rule: str, samples: int) -> tuple[dict[str, Any], dict[str, Any]]:
        overrides = [f"evaluate.data=[{tmp_path / 'a'}]", f"evaluate.rule={rule}", f"evaluate.samples={samples}"]
        config = load_config(EvaluateConfig, None, [*overrides, "evaluate.sampling.temperature=1.0"])
        policy, cfg, limits = policy_spec(config), config.evaluate, config.executor
        sets = open_sets(cfg, policy.recipe, limits, [], [])
        return answer_settings(policy, cfg, limits, sets), judge_settings(cfg, sets)

    assert settings("bird", 1) == settings("refined", 1)
    (answers, judged), (same, others) = settings("bird", 4), settings("refined", 4)
    assert answers == same
    assert judged != others


def test_set_of_a_question_file_has_the_name_of_the_file(tmp_path: Path) -> None:
    arguments = make_set(tmp_path / "a", (GOLD, GOLD))
    for name in ("dev.jsonl", "test.jsonl"):
        shutil.copyfile(tmp_path / "a/questions.jsonl", tmp_path / "a" / name)
    files = [f"--data={tmp_path / 'a' / name}" for name in ("dev.jsonl", "test.jsonl")]
    assert judge_sets(tmp_path / "out", *files, *arguments[2:], *arguments[2:]) == 0
    assert {record["set"] for record in records(tmp_path / "out")} == {"dev.jsonl", "test.jsonl"}


def test_compare_skips_questions_that_only_share_an_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert judge_sets(tmp_path / "one", *make_set(tmp_path / "a", (GOLD, GOLD))) == 0
    assert judge_sets(tmp_path / "two", *make_set(tmp_path / "b", ("SELECT 9", "SELECT 9"), "Reworded ")) == 0
    capsys.readouterr()
    assert main(["--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0  # golds and databases are the same
    assert "2 questions changed by bird" in capsys.readouterr().out

    first, second = records(tmp_path / "two")
    write_lines(tmp_path / "two/records.jsonl", [first, {**second, "gold_sql": "SELECT 9"}])
    assert main(["--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    shown = capsys.readouterr().out
    assert f"1 question differs in {tmp_path / 'two'}, without comparison (1)" in shown
    assert "1 question changed by bird" in shown
    write_lines(tmp_path / "two/records.jsonl", [{**item, "db_id": "another"} for item in (first, second)])
    assert main(["--compare", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "have no question in common, only ids: 0, 1" in capsys.readouterr().err


@pytest.mark.data
def test_real_golds_in_bird_format_are_right(real_data: Path, tmp_path: Path) -> None:
    questions = lines(real_data / "bird_superhero/questions.jsonl")
    numbered = {
        str(i): f"{question['sql']}\t----- bird -----\t{question['db_id']}" for i, question in enumerate(questions)
    }
    path = tmp_path / "predict_dev.json"
    path.write_text(json.dumps(numbered))
    out = tmp_path / "out"
    files = ["--predictions", str(path), "--field", "sql", "--out", str(out)]
    assert main(["--data", str(real_data / "bird_superhero"), *files]) == 0
    result = numbers(out)
    assert (result["count"], result["bird"], result["refined"], result["test_suite"]) == (129, 1.0, 1.0, 1.0)
