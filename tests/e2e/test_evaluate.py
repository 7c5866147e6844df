"""The command that judges, from end to end: predictions of others without jax, and small shipped models' answers."""

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

from jaxrl_sql.data.benchmarks import load_split
from jaxrl_sql.data.prompts import make_prompts
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.evals.submission import NOTHING
from jaxrl_sql.evaluate import main
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.recipes import RECIPES
from sqlexec_rs import cli

CONFIGS = Path(__file__).parents[2] / "configs"
MODEL = CONFIGS / "quickstart_start"
LIMITS = ("executor.vm_steps=100000", "executor.timeout_ms=60000", "run.display=plain")
ENDLESS = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT count(*) FROM c"
Write = Callable[[dict[str, str | None]], Path]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(folder, SynthSpec(seed=5, train_dbs=2, dev_dbs=2, unseen_dbs=1, train_questions=4, dev_questions=5))
    return folder


@pytest.fixture(scope="module")
def golds(data: Path) -> dict[str, str | None]:
    return {one["id"]: one["sql"] for one in lines(data / "dev/questions.jsonl")}


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
    found: dict[str, float] = json.loads((out / "metrics.json").read_text())
    return found


def judge(folder: Path, predictions: Path, out: Path, *more: str) -> int:
    """Judge predictions, which are for the most part golds here: that they are meant is said by the field's name."""
    files = ["--predictions", str(predictions), "--field", "sql", "--out", str(out)]
    return main(["--data", str(folder), *files, *LIMITS, *more])


def test_golds_are_right_without_jax(data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = ["--predictions", str(write(golds)), "--field", "sql", "--out", str(out)]
    command = ["--data", str(data), "--split", "dev", *files, *LIMITS]
    program = (
        "import sys\nfrom jaxrl_sql.evaluate import main\ncode = main(sys.argv[1:])\n"
        "print([name for name in ('jax', 'torch', 'transformers') if name in sys.modules])\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
    assert "accuracy 100.0 % of 10 questions" in done.stdout
    found = numbers(out)
    assert found["accuracy"] == found["bird"] == found["refined"] == found["test_suite"] == 1.0
    assert (found["count"], found["missing"], found["gold_failures"]) == (10, 0, 0)
    records = lines(out / "records.jsonl")
    assert [one["id"] for one in records] == list(golds)
    for one in records:
        assert one["sql"] == one["gold_sql"] == golds[one["id"]]
        assert one["results"]["prediction"] == one["results"]["gold"]
        assert (one["status"], one["scores"]["bird"]) == ("ok", 1.0)
    assert {one["id"]: one["sql"] for one in lines(out / "predictions.jsonl")} == golds
    assert (out / "config.yaml").is_file()


@pytest.mark.parametrize("name", ["generated_sql", "model_output", "query"])
def test_golds_are_scored_for_nobody(
    name: str, data: Path, golds: dict[str, str | None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both commands refuse a file with the gold in `sql` and the answer elsewhere, in the same words."""
    root, path, out = data / "dev/databases", tmp_path / "p.jsonl", tmp_path / "out"
    begun = ["--data", str(data / "dev"), "--predictions", str(path), *LIMITS, "--out", str(out)]
    score = ["score", "--pred", str(path), "--gold", str(data / "dev/questions.jsonl"), "--db-root", str(root)]
    for answer, told in (("SELECT 1", f"hold one thing in sql and another in {name}"), ("I give up", "are the golds")):
        entries = [{"id": uid, "sql": sql, name: answer} for uid, sql in golds.items()]
        path.write_text("".join(json.dumps(one) + "\n" for one in entries))
        assert main(begun) == 2
        ours = capsys.readouterr().err
        assert cli.main(score) == 2
        assert capsys.readouterr().err.partition(": ")[2] == ours.partition(": ")[2]
        assert f"{path}: 10 of 10" in ours
        assert told in ours
        assert "--field NAME" in ours
        assert f"of the fields id, sql, {name}" in ours
    assert not out.exists()
    assert main([*begun, "--field", name]) == 0
    assert numbers(out)["accuracy"] == 0.0
    assert cli.main([*score, "--field", "sql"]) == 0
    assert ["all", "10", "100.0"] in [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.fixture
def hurt(data: Path, tmp_path: Path) -> Path:
    """Return a set with a gold that does not end and one that fails."""
    folder = tmp_path / "hurt"
    shutil.copytree(data / "dev", folder)
    questions = lines(folder / "questions.jsonl")
    questions[0]["sql"], questions[1]["sql"] = ENDLESS, "SELECT x FROM nowhere"
    (folder / "questions.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    return folder


def test_what_fails_is_told_apart(hurt: Path, golds: dict[str, str | None], write: Write, tmp_path: Path) -> None:
    ids = list(golds)
    sqls = {**golds, ids[2]: ENDLESS, ids[3]: "SELECT", ids[4]: None, ids[5]: "SELECT nothing_there"}
    out = tmp_path / "out"
    assert judge(hurt, write(sqls), out) == 0
    found = numbers(out)
    assert found["gold_timeouts"] == 1
    assert found["gold_failures"] == 2
    assert found["status/timeout"] == found["status/syntax_error"] == found["status/no_sql"] == 1
    assert found["status/schema_error"] == 1
    assert found["status/ok"] == 6
    assert (found["bird"], found["bird/count"]) == (0.5, 8)  # two golds say nothing
    assert found["accuracy"] == 0.4  # as the leaderboard counts
    records = {one["id"]: one for one in lines(out / "records.jsonl")}
    assert records[ids[0]]["gold_status"] == "timeout"
    assert records[ids[0]]["scores"] == {}
    assert records[ids[2]]["results"]["prediction"]["error"].startswith("timeout")


def test_missing_predictions_are_refused_or_counted_apart(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = list(golds)
    some = write({uid: golds[uid] for uid in ids[:5]})
    assert judge(data / "dev", some, tmp_path / "out") == 2
    assert "5 of 10 questions have no prediction" in capsys.readouterr().err
    assert not (tmp_path / "out/metrics.json").exists()
    assert judge(data / "dev", some, tmp_path / "out", "--allow-missing") == 0
    found = numbers(tmp_path / "out")
    assert (found["missing"], found["count"], found["accuracy"], found["accuracy/with_missing"]) == (5, 5, 1.0, 0.5)
    assert "5 questions have no prediction and are in no share" in capsys.readouterr().out
    assert judge(data / "dev", write({**golds, "other": "SELECT 1"}), tmp_path / "more") == 2
    assert "--allow-extra" in capsys.readouterr().err
    assert judge(data / "dev", write({**golds, "other": "SELECT 1"}), tmp_path / "more", "--allow-extra") == 0
    assert numbers(tmp_path / "more")["extra"] == 1


def test_broken_off_work_goes_on_to_the_same_numbers(
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
    kept = (tmp_path / "torn/config.yaml").read_bytes()
    assert judge(data / "dev", write(golds), tmp_path / "torn", "seed=7") == 2
    assert "was begun with sets=" in capsys.readouterr().err
    assert (tmp_path / "torn/config.yaml").read_bytes() == kept
    assert judge(data / "dev", write(sqls), tmp_path / "torn", "executor.vm_steps=99") == 2


def test_several_benchmarks_are_weighted_by_their_size(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unseen = {one["id"]: "SELECT 1" for one in lines(data / "dev_unseen/questions.jsonl")}
    other = tmp_path / "unseen.json"
    other.write_text(json.dumps(unseen))
    out = tmp_path / "out"
    assert judge(data / "dev", write(golds), out, "--data", str(data / "dev_unseen")) == 2
    assert "1 files of predictions for 2 folders" in capsys.readouterr().err
    more = ("--data", str(data / "dev_unseen"), "--predictions", str(other))
    assert judge(data / "dev", write(golds), out, *more) == 0
    found = numbers(out)
    assert found["dev/accuracy"] == 1.0
    assert found["dev_unseen/accuracy"] == 0.0
    assert found["count"] == 10 + len(unseen)
    assert found["accuracy"] == pytest.approx(10 / (10 + len(unseen)))
    assert {one["set"] for one in lines(out / "records.jsonl")} == {"dev", "dev_unseen"}
    assert len(lines(out / "dev_unseen/predictions.jsonl")) == len(unseen)
    assert "weighted by size" in capsys.readouterr().out


def test_two_evaluations_side_by_side(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, first, second = list(golds), tmp_path / "first", tmp_path / "second"
    assert judge(data / "dev", write({**golds, ids[0]: "SELECT 1", ids[1]: "SELECT 1"}), first) == 0
    assert judge(data / "dev", write({**golds, ids[1]: None, ids[2]: "SELECT x FROM y"}), second) == 0
    assert main(["--compare", str(first), str(second), "--out", str(tmp_path / "beside")]) == 0
    made = json.loads((tmp_path / "beside/compare.json").read_text())
    bird = made["rules"]["bird"]
    assert (bird["first"], bird["second"], bird["p_value"]) == (0.8, 0.8, 1.0)
    assert (bird["better"], bird["worse"]) == ([ids[0]], [ids[2]])
    assert [one["id"] for one in made["changed"]] == [ids[0], ids[2]]
    assert made["changed"][1]["second"]["status"] == "schema_error"
    text = (tmp_path / "beside/compare.md").read_text()
    assert ids[0] in text
    assert "SELECT x FROM y" in text
    assert "2 questions changed by bird" in capsys.readouterr().out
    assert main(["--compare", str(first), str(data)]) == 2
    assert "no finished evaluation" in capsys.readouterr().err
    assert main(["--compare", str(first), str(second), "--out", "/dev/null/out"]) == 2
    assert "--out /dev/null/out cannot be written" in capsys.readouterr().err
    assert main(["--compare", str(first), str(second), "--data", str(data), "seed=1"]) == 2
    assert "takes --out alone, not data, overrides" in capsys.readouterr().err


def test_other_files_are_not_written_over(
    data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    predictions, run = write(golds), tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("seed: 7\n")
    (run / "metrics.jsonl").write_text("{}\n")
    assert judge(data / "dev", predictions, run) == 2
    assert "holds metrics.jsonl, so it is another command's folder" in capsys.readouterr().err
    assert (run / "config.yaml").read_text() == "seed: 7\n"
    assert judge(data / "dev", predictions, tmp_path) == 2
    assert "is where the predictions are" in capsys.readouterr().err


def test_spiders_lines_keep_their_places_behind_what_cannot_be_judged(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spider's own folder, in which one question's database is gone, and its own form of predictions."""
    spider, questions = tmp_path / "spider", lines(data / "dev/questions.jsonl")
    shutil.copytree(data / "dev/databases", spider / "database")
    asked = [{"db_id": one["db_id"], "question": one["question"], "query": one["sql"]} for one in questions]
    asked.insert(3, {"db_id": "gone", "question": "?", "query": "SELECT 1"})
    (spider / "dev.json").write_text(json.dumps(asked))
    (spider / "tables.json").write_text("[]")
    path = tmp_path / "pred.sql"
    path.write_text("".join(f"{one['query']}\n" for one in asked))
    out = tmp_path / "out"
    assert judge(spider, path, out) == 0
    found = numbers(out)
    assert (found["accuracy"], found["count"], found["left_out"]) == (1.0, 10, 1)
    shown = capsys.readouterr().out
    assert "skipped 1 (" in shown
    assert "predictions are for questions that cannot be judged" in shown
    written = (out / "predictions.sql").read_text().splitlines()
    assert written == [one["query"] if one["db_id"] != "gone" else NOTHING for one in asked]
    path.write_text("SELECT 1\n" * 10)
    assert judge(spider, path, tmp_path / "other") == 2
    assert "10 lines for 11 questions" in capsys.readouterr().err


def test_spider2_is_judged_by_its_tables_and_written_as_it_asks(data: Path, tmp_path: Path) -> None:
    question = lines(data / "dev/questions.jsonl")[0]
    folder, given = tmp_path / "spider2", tmp_path / "given"
    for name in ("resource/databases/spider2-localdb", "evaluation_suite/gold/exec_result"):
        (folder / name).mkdir(parents=True)
    given.mkdir()
    db = folder / "resource/databases/spider2-localdb/Shop.sqlite"
    shutil.copy(data / f"dev/databases/{question['db_id']}/{question['db_id']}.sqlite", db)
    with closing(sqlite3.connect(db)) as connection:
        connection.executescript("CREATE TABLE t(a, b); INSERT INTO t VALUES (1, 'x'), (2, 'y');")
    asked = [{"instance_id": f"local00{i}", "db": "Shop", "question": "Which?"} for i in range(3)]
    (folder / "spider2-lite.jsonl").write_text("".join(json.dumps(one) + "\n" for one in asked))
    sqls = ("SELECT b, a FROM t ORDER BY a DESC", "SELECT b FROM t", "SELECT c FROM t")
    for i, sql in enumerate(sqls):
        (folder / f"evaluation_suite/gold/exec_result/local00{i}.csv").write_text("a\n1\n2\n")
        (given / f"local00{i}.sql").write_text(sql)
    out = tmp_path / "out"
    assert judge(folder, given, out) == 0
    assert [one["scores"]["spider2"] for one in lines(out / "records.jsonl")] == [1.0, 0.0, 0.0]
    assert numbers(out)["accuracy"] == pytest.approx(1 / 3)
    assert (out / "submission/local001.sql").read_text() == f"{sqls[1]}\n"
    assert (out / "submission_csv/local000.csv").read_text() == "b,a\ny,2\nx,1\n"
    assert not (out / "submission_csv/local002.csv").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ([], "give one of --predictions FILE"),
        (["--predictions", "P", "--model", str(CONFIGS / "quickstart_start")], "give one of --predictions FILE"),
        (["--predictions", "nowhere.jsonl"], "nowhere.jsonl: No such file"),
        (["--model", "nowhere"], "model nowhere: no such folder"),
        (["--predictions", "P", "evaluate.rules=[bird, best]"], "rules 'best'"),
        (["--predictions", "P", "evaluate.runs=2"], "would all be the same"),
        (["--predictions", "P", "evaluate.runs=2", "evaluate.temperature=1"], "sample from a model"),
        (["--predictions", "P", "evaluate.vote=loud"], "is none of result, soft"),
        (["--predictions", "P", "--split", "moon"], "moon"),
        (["--predictions", "P", "--out", "/dev/null/out"], "--out /dev/null/out cannot be written"),
    ],
)
def test_what_cannot_be_judged_is_one_line(
    command: list[str], words: str, data: Path, golds: dict[str, str | None], write: Write, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    path = str(write({**golds, next(iter(golds)): "SELECT 1"}))
    chosen = [
        "--data",
        str(data / "dev"),
        "--out",
        str(tmp_path / "out"),
        *(path if one == "P" else one for one in command),
    ]
    assert main(chosen) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1
    assert words in said


def test_no_folder_is_named(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--predictions", str(write({"a": "SELECT 1"}))]) == 2
    assert "--data is missing" in capsys.readouterr().err


QUICK = ("data.prompt=compact", "evaluate.max_new_tokens=48", "evaluate.max_num_seqs=16")


def ask_model(folder: Path, out: Path, *more: str, model: Path = MODEL) -> int:
    return main(["--data", str(folder), "--model", str(model), "--out", str(out), *LIMITS, *more])


def rows(db: Path, sql: str | None) -> object:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        try:
            return set(connection.execute(sql or "").fetchall())
        except sqlite3.Error as error:
            return repr(error)


def test_a_model_answers_greedily_and_goes_on(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxrl_sql.run.benchmark_evaluation._MOST_QUESTIONS", 4)
    out = tmp_path / "out"
    assert ask_model(data / "dev", out, *QUICK) == 0
    found = numbers(out)
    records = lines(out / "records.jsonl")
    for one in records:
        db = data / f"dev/databases/{one['db_id']}/{one['db_id']}.sqlite"
        is_right = rows(db, one["sql"]) == rows(db, one["gold_sql"])
        assert one["scores"]["bird"] == float(is_right), one["sql"]
        assert one["answer"].strip() == one["sql"]
        assert one["question"] in one["prompt"]
    assert found["accuracy"] == sum(one["scores"]["bird"] for one in records) / 10
    assert found["accuracy"] > 0
    speed = json.loads((out / "speed.json").read_text())
    assert speed["questions"] == 10
    assert speed["tokens"] > sum(len(one["sql"].split()) for one in records)
    assert speed["speed/tokens_per_s"] == pytest.approx(speed["tokens"] / speed["time/answering"])
    assert speed["time/total"] > speed["time/answering"]
    assert speed["memory/peak"] > 100 << 20
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("tokens written", "tokens/s", "peak memory, GiB"))

    written = (out / "journal.jsonl").read_text().splitlines()
    (out / "journal.jsonl").write_text("\n".join(written[:6]) + "\n" + written[6][:9])
    before = {name: (out / name).read_bytes() for name in ("metrics.json", "predictions.jsonl")}
    (out / "metrics.json").unlink()
    capsys.readouterr()
    assert ask_model(data / "dev", out, *QUICK) == 0
    assert "5 answers are judged already" in capsys.readouterr().out
    assert {name: (out / name).read_bytes() for name in before} == before

    assert judge(data / "dev", out / "predictions.jsonl", tmp_path / "again") == 0
    assert numbers(tmp_path / "again")["accuracy"] == found["accuracy"]


def test_a_model_is_shown_as_much_of_a_schema_as_was_asked_for(data: Path, tmp_path: Path) -> None:
    shown = {}
    for name, budget in (("whole", ()), ("part", ("data.schema_budget=40",))):
        assert ask_model(data / "dev", tmp_path / name, *QUICK, *budget) == 0
        shown[name] = {one["id"]: one["prompt"] for one in lines(tmp_path / name / "records.jsonl")}
    asks = {one["id"]: one["question"] for one in lines(tmp_path / "part/records.jsonl")}
    tokenizer = load_tokenizer(str(MODEL))
    schemas = {
        name: {key: prompt[: prompt.index(asks[key])] for key, prompt in of.items()} for name, of in shown.items()
    }
    assert max(len(tokenizer.encode(text)) for text in schemas["whole"].values()) > 60
    assert all(len(tokenizer.encode(text)) <= 45 for text in schemas["part"].values())
    assert len(set(schemas["part"].values())) > len(set(schemas["whole"].values()))


@pytest.mark.slow
def test_votes_and_runs(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    warm = ("evaluate.temperature=1.0", "evaluate.samples=4", "evaluate.runs=2", "evaluate.limit=6")
    assert ask_model(data / "dev", out, *QUICK, *warm) == 0
    found = numbers(out)
    assert (found["count"], found["runs"]) == (6, 2)
    assert found["pass/1"] == pytest.approx(found["vote/1"], abs=0.35)  # both the mean of one sample, one by drawing
    assert found["pass/1"] <= found["pass/2"] <= found["pass/4"]
    assert found["vote/4"] == pytest.approx(found["bird"])
    records = lines(out / "records.jsonl")
    assert {one["run"] for one in records} == {0, 1}
    assert all(one["samples"] == 4 and len(one["votes"]) <= 4 for one in records)
    means = [sum(one["scores"]["bird"] for one in records if one["run"] == run) / 6 for run in (0, 1)]
    assert found["accuracy"] == pytest.approx(sum(means) / 2)
    assert found["accuracy/std"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    assert "votes by their size" in capsys.readouterr().out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run that was trained in dialogues, as training leaves it."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copytree(CONFIGS / "recipes_start", folder / "model")
    (folder / "config.yaml").write_text(
        "recipe: skyrl_sql\ndata: {prompt: tagged, max_prompt_tokens: 320}\n"
        "sampling: {turns: 3, max_new_tokens: 96, max_total_tokens: 320}\n"
        "validation: {max_new_tokens: 96, max_num_seqs: 16}\n"
    )
    return folder


def test_a_run_is_asked_as_it_was_trained(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert ask_model(data / "dev", out, "evaluate.limit=4", model=run) == 0
    found, records = numbers(out), lines(out / "records.jsonl")
    dialogues = [one for one in records if isinstance(one["answer"], list)]
    assert dialogues, "no answer asked the database"
    assert any(role == "environment" for role, _ in dialogues[0]["answer"])
    assert found["turns/mean"] > 1
    assert found["dialogue/queries"] > 0
    assert sum(value for name, value in found.items() if name.startswith("count/turns/")) == 4
    assert "turns" in capsys.readouterr().out
    assert ask_model(data / "dev", tmp_path / "one", "evaluate.limit=4", "--recipe", "arctic", model=run / "model") == 2
    assert "arctic answers in one turn" in capsys.readouterr().err


@pytest.mark.slow
def test_questions_that_are_too_long_are_wrong_and_told(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = "data.max_prompt_tokens=10"
    assert ask_model(data / "dev", tmp_path / "out", *QUICK, lengths) == 2
    assert "no prompt fits data.max_prompt_tokens=10" in capsys.readouterr().err
    made = make_prompts(
        load_split(data, "dev").examples, RECIPES["arctic"].style("compact"), load_tokenizer(MODEL), 9999
    ).prompts
    longest = max(len(prompt.token_ids) for prompt in made)
    fitting = [prompt.uid for prompt in made if len(prompt.token_ids) < longest]
    assert ask_model(data / "dev", tmp_path / "some", *QUICK, f"data.max_prompt_tokens={longest - 1}") == 0
    found, records = numbers(tmp_path / "some"), lines(tmp_path / "some/records.jsonl")
    assert [one["id"] for one in records if one["status"] != "not_asked"] == fitting
    assert found["status/not_asked"] == 10 - len(fitting)
    assert all(one["scores"]["bird"] == 0.0 for one in records if one["status"] == "not_asked")
    assert "prompts that are too long count as wrong" in capsys.readouterr().out


@pytest.mark.data
def test_real_golds_in_birds_form_are_right(real_data: Path, tmp_path: Path) -> None:
    questions = lines(real_data / "bird_superhero/questions.jsonl")
    numbered = {str(i): f"{one['sql']}\t----- bird -----\t{one['db_id']}" for i, one in enumerate(questions)}
    path = tmp_path / "predict_dev.json"
    path.write_text(json.dumps(numbered))
    out = tmp_path / "out"
    files = ["--predictions", str(path), "--field", "sql", "--out", str(out)]
    assert main(["--data", str(real_data / "bird_superhero"), *files]) == 0
    found = numbers(out)
    assert (found["count"], found["bird"], found["refined"], found["test_suite"]) == (129, 1.0, 1.0, 1.0)
