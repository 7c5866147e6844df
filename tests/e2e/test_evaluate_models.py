"""Evaluation of models: small shipped ones, an endpoint, and published systems by `--as SYSTEM`."""

from __future__ import annotations

import io
import json
import re
import shutil
import sqlite3
from contextlib import closing, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands.evaluate import main
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.config.load import SYSTEMS
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.inference.evaluation_config import EvaluationRequest, evaluation_layers
from jaxrl_sql.inference.trained_questions import save_trained_questions
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import undocumented_names
from jaxrl_sql.text2sql.benchmarks import load_folder, load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES, find_recipe

CONFIGS = Path(__file__).parents[2] / "configs"
MODEL = CONFIGS / "quickstart_start"
LIMITS = ("executor.vm_steps=100000", "executor.timeout_ms=60000", "run.display=plain")
RIGHT, OTHER, WIDE = "SELECT x FROM t", "SELECT 7", "SELECT x, y, x + y FROM t"


def write_set(folder: Path, names: tuple[str, ...]) -> Path:
    database = folder / "databases/a/a.sqlite"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE t(x INTEGER, y INTEGER); INSERT INTO t VALUES (1, 5), (2, 6);")
    questions = [{"id": name, "db_id": "a", "question": f"<{name}>", "sql": RIGHT} for name in names]
    (folder / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    return folder


@pytest.fixture
def four(tmp_path: Path) -> Path:
    """Return a set of four questions."""
    return write_set(tmp_path / "data", ("q1", "q2", "q3", "q4"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def numbers(out: Path) -> dict[str, float]:
    result: dict[str, float] = json.loads((out / "metrics.json").read_text())
    assert undocumented_names(result, EVALUATION) == [], "add a row to jaxrl_sql/runtime/evaluation_metrics.py"
    return result


def judge(folder: Path, sqls: dict[str, str], out: Path, *more: str) -> int:
    path = out.with_suffix(".json")
    path.write_text(json.dumps(sqls))
    return main(
        ["--data", str(folder), "--predictions", str(path), "--field", "sql", "--out", str(out), *LIMITS, *more]
    )


def test_a_list_of_ids_selects_questions(four: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sample in CHESS's format for BIRD: the questions' records in one JSON list."""
    ids, every = tmp_path / "sub_sampled.json", {"q1": RIGHT, "q2": OTHER, "q3": OTHER, "q4": RIGHT}
    ids.write_text(json.dumps([{"question_id": "q4", "db_id": "a"}, {"question_id": "q2"}, {"question_id": "none"}]))
    chosen = f"evaluate.include_ids={ids}"
    assert judge(four, every, tmp_path / "all", chosen) == 0
    assert "2 of 4 questions are selected (evaluate.include_ids)" in capsys.readouterr().out
    result = numbers(tmp_path / "all")
    assert (result["count"], result["accuracy"], result["missing"]) == (2, 0.5, 0)
    assert judge(four, {"q4": RIGHT, "q2": RIGHT}, tmp_path / "some", chosen) == 0, "other predictions are not needed"
    assert numbers(tmp_path / "some")["accuracy"] == 1.0
    assert judge(four, {"q4": RIGHT}, tmp_path / "few", chosen) == 2
    assert "1 of the 2 questions has no prediction, such as q2" in capsys.readouterr().err
    assert judge(four, {"q4": RIGHT}, tmp_path / "few", chosen, "--allow-missing") == 0
    assert (numbers(tmp_path / "few")["missing"], numbers(tmp_path / "few")["count"]) == (1, 1)
    ids.write_text("q9\n")
    assert judge(four, every, tmp_path / "none", chosen) == 2
    assert "none of its 1 ids is a question of this set" in capsys.readouterr().err


def test_unanswerable_questions_can_be_excluded(tmp_path: Path) -> None:
    """EHRSQL as reported by OmniSQL and later papers."""
    home = tmp_path / "ehrsql" / "mimic_iii"
    home.mkdir(parents=True)
    shutil.copy(write_set(tmp_path / "x", ("q",)) / "databases/a/a.sqlite", home.parent / "mimic_iii.sqlite")
    questions = [{"id": f"e{i}", "db_id": "mimic_iii", "question": f"{i}?", "is_impossible": i == 1} for i in range(3)]
    records = [request | {"query": "nan" if request["is_impossible"] else RIGHT} for request in questions]
    (home / "valid.json").write_text(json.dumps(records))
    sqls = {"e0": RIGHT, "e1": OTHER, "e2": OTHER}
    assert judge(tmp_path / "ehrsql", sqls, tmp_path / "all") == 0
    assert judge(tmp_path / "ehrsql", sqls, tmp_path / "some", "evaluate.answerable_only=true") == 0
    every, some = numbers(tmp_path / "all"), numbers(tmp_path / "some")
    assert (every["count"], every["accuracy"]) == (3, pytest.approx(1 / 3))
    assert (some["count"], some["accuracy"]) == (2, 0.5)
    assert "reliability/0" not in some


def test_surplus_columns_are_limited(four: Path, tmp_path: Path) -> None:
    sqls, shares = dict.fromkeys(("q1", "q2", "q3", "q4"), WIDE), []
    for k in (0, 2, 3):
        more = (f"evaluate.surplus_columns={k}", "evaluate.rules=[bird, ex_b]")
        assert judge(four, sqls, tmp_path / f"k{k}", *more) == 0
        shares.append(numbers(tmp_path / f"k{k}")["ex_b"])
    assert shares == [1.0, 0.0, 1.0], "two surplus columns are within a limit of three"


QUICK = ("data.prompt=compact", "evaluate.sampling.max_new_tokens=48", "evaluate.max_num_seqs=16")


def ask_model(folder: Path, out: Path, *more: str, model: Path = MODEL) -> int:
    return main(["--data", str(folder), "--model", str(model), "--out", str(out), *LIMITS, *more])


def rows(db: Path, sql: str | None) -> object:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        try:
            return set(connection.execute(sql or "").fetchall())
        except sqlite3.Error as error:
            return repr(error)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return generated questions, 10 on known databases."""
    folder = tmp_path_factory.mktemp("data")
    generate(folder, SynthSpec(seed=5, train_dbs=2, dev_dbs=2, unseen_dbs=1, train_questions=4, dev_questions=5))
    return folder


@pytest.fixture(scope="module")
def answered(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished evaluation in two parts; `shown.txt` next to it has its output."""
    out = tmp_path_factory.mktemp("answered") / "out"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as shown:
        patch.setattr("jaxrl_sql.inference.benchmark_evaluation._MAX_QUESTIONS", 5)
        assert ask_model(data / "dev", out, *QUICK) == 0
    (out.parent / "shown.txt").write_text(shown.getvalue())
    return out


def test_a_model_answers_greedily(data: Path, answered: Path) -> None:
    accuracy, records = numbers(answered)["accuracy"], lines(answered / "records.jsonl")
    cut = [record["id"] for record in records if record["finish_reason"] == "length"]
    assert {record["finish_reason"] for record in records} <= {"stop", "length"}
    assert numbers(answered)["truncated"] == len(cut) / 10
    for record in records:
        db = data / f"dev/databases/{record['db_id']}/{record['db_id']}.sqlite"
        is_right = rows(db, record["sql"]) == rows(db, record["gold_sql"])
        assert record["scores"]["bird"] == float(is_right), record["sql"]
        assert record["answer"].strip() == record["sql"]
        assert record["question"] in record["prompt"]
    assert accuracy == sum(record["scores"]["bird"] for record in records) / 10
    assert accuracy > 0
    speed = json.loads((answered / "speed.json").read_text())
    assert speed["questions"] == 10
    assert speed["tokens"] > sum(len(record["sql"].split()) for record in records)
    assert speed["speed/tokens_per_s"] == pytest.approx(speed["tokens"] / speed["time/answering"])
    assert speed["time/total"] > speed["time/answering"]
    assert speed["memory/peak"] > 100 << 20
    shown = (answered.parent / "shown.txt").read_text()
    assert all(word in shown for word in ("tokens generated", "tokens/s", "peak memory, GiB"))
    warning = (
        f"warning: {len(cut)} of 10 answers ({len(cut) / 10:.1%}) are truncated at the token limit: raise evaluate."
    )
    assert (f"{warning}sampling.max_new_tokens" in shown) == bool(cut)


@pytest.mark.slow
def test_an_interrupted_evaluation_resumes_to_the_same_numbers(
    data: Path, answered: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(answered, tmp_path / "out")
    written = (out / "journal.jsonl").read_text().splitlines()
    (out / "journal.jsonl").write_text("\n".join(written[:6]) + "\n" + written[6][:9])
    before = {name: (out / name).read_bytes() for name in ("metrics.json", "predictions.jsonl")}
    (out / "metrics.json").unlink()
    assert ask_model(data / "dev", out, *QUICK) == 0
    assert "5 answers are judged already" in capsys.readouterr().out
    assert {name: (out / name).read_bytes() for name in before} == before
    assert (
        judge(data / "dev", {line["id"]: line["sql"] for line in lines(out / "predictions.jsonl")}, tmp_path / "again")
        == 0
    )
    assert numbers(tmp_path / "again")["accuracy"] == numbers(answered)["accuracy"]


@pytest.mark.slow
def test_schema_settings_limit_the_prompt(data: Path, answered: Path, tmp_path: Path) -> None:
    part = ("data.schema_budget=40", "evaluate.sampling.max_new_tokens=8")
    assert ask_model(data / "dev", tmp_path / "part", *QUICK, *part) == 0
    shown = {
        name: {record["id"]: record["prompt"] for record in lines(out / "records.jsonl")}
        for name, out in (("whole", answered), ("part", tmp_path / "part"))
    }
    asks = {line["id"]: line["question"] for line in lines(tmp_path / "part/records.jsonl")}
    tokenizer = load_tokenizer(str(MODEL))
    schemas = {
        name: {key: prompt[: prompt.index(asks[key])] for key, prompt in of.items()} for name, of in shown.items()
    }
    assert max(len(tokenizer.encode(text)) for text in schemas["whole"].values()) > 60
    assert all(len(tokenizer.encode(text)) <= 45 for text in schemas["part"].values())
    assert len(set(schemas["part"].values())) > len(set(schemas["whole"].values()))


@pytest.mark.slow
def test_votes_and_repeated_runs_are_scored(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    warm = ("evaluate.sampling.temperature=1.0", "evaluate.samples=4", "evaluate.runs=2", "evaluate.limit=6")
    assert ask_model(data / "dev", out, *QUICK, *warm) == 0
    result = numbers(out)
    assert (result["count"], result["runs"]) == (6, 2)
    assert result["pass/1"] == pytest.approx(result["vote/1"], abs=0.35)  # both are a mean of one sample
    assert result["pass/1"] <= result["pass/2"] <= result["pass/4"]
    assert result["vote/4"] == pytest.approx(result["bird"])
    records = lines(out / "records.jsonl")
    assert {record["run"] for record in records} == {0, 1}
    assert all(item["samples"] == 4 and len(item["votes"]) <= 4 for item in records)
    means = [sum(entry["scores"]["bird"] for entry in records if entry["run"] == run) / 6 for run in (0, 1)]
    assert result["accuracy"] == pytest.approx(sum(means) / 2)
    assert result["accuracy/std"] == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    assert "votes by number of samples" in capsys.readouterr().out


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the folder of a run trained on dialogues, as training writes it."""
    folder = tmp_path / "run"
    folder.mkdir()
    shutil.copytree(CONFIGS / "recipes_start", folder / "model")
    (folder / "config.yaml").write_text(
        "recipe: skyrl_sql\ndata: {prompt: tagged, max_prompt_tokens: 320}\n"
        "sampling: {turns: 3, max_new_tokens: 96, max_total_tokens: 320}\n"
        "validation: {sampling: {max_new_tokens: 96}, max_num_seqs: 16}\n"
    )
    return folder


@pytest.mark.slow
def test_evaluation_uses_the_prompt_settings_of_the_run(
    data: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    save_trained_questions(run, load_folder(data / "dev", limit=3).examples)
    assert ask_model(data / "dev", out, "evaluate.limit=4", model=run) == 0
    result, records = numbers(out), lines(out / "records.jsonl")
    dialogues = [item for item in records if isinstance(item["answer"], list)]
    assert dialogues, "no answer queried the database"
    assert any(role == "environment" for role, _ in dialogues[0]["answer"])
    assert result["turns/mean"] > 1
    assert result["dialogue/queries"] > 0
    for record in records:
        answer, reason = record["answer"], record["finish_reason"]
        written = [answer] if isinstance(answer, str) else [text for role, text in answer if role == "assistant"]
        assert reason in {"stop", "length", "turns"}
        assert (reason == "stop") == written[-1].endswith("</solution>")
        assert reason != "turns" or len(written) == 3
    assert sum(value for name, value in result.items() if name.startswith("count/turns/")) == 4
    shown = capsys.readouterr().out
    assert "turns" in shown
    assert "\nwarning: 3 of 4 questions of dev are in the training of the model: " in shown
    assert ask_model(data / "dev", tmp_path / "one", "evaluate.limit=4", "--recipe", "arctic", model=run / "model") == 2
    assert "arctic answers in one turn" in capsys.readouterr().err


@pytest.mark.slow
def test_overlong_questions_count_as_wrong_and_are_reported(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = "data.max_prompt_tokens=10"
    assert ask_model(data / "dev", tmp_path / "out", *QUICK, lengths) == 2
    assert "no prompt fits data.max_prompt_tokens=10" in capsys.readouterr().err
    result = make_prompts(
        load_split(data, "dev").examples, RECIPES["arctic"].style("compact"), load_tokenizer(MODEL), 9999
    ).prompts
    longest = max(len(prompt.token_ids) for prompt in result)
    fitting = [prompt.uid for prompt in result if len(prompt.token_ids) < longest]
    assert ask_model(data / "dev", tmp_path / "some", *QUICK, f"data.max_prompt_tokens={longest - 1}") == 0
    results, records = numbers(tmp_path / "some"), lines(tmp_path / "some/records.jsonl")
    assert [record["id"] for record in records if record["status"] != "not_asked"] == fitting
    assert results["status/not_asked"] == 10 - len(fitting)
    assert all(item["scores"]["bird"] == 0.0 for item in records if item["status"] == "not_asked")
    assert "too long and count as wrong" in capsys.readouterr().out


class Server:
    """A model that explores, then solves; q2 takes one turn, q3 never ends, q4 is refused at its second turn."""

    def __init__(self, chat_server: ModuleType) -> None:
        self.assistant, self.busy = chat_server.assistant, False

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        first, *rest = body["messages"]
        result = re.search(r"Question:\s+<(\w+)>", first["content"])
        assert result
        name = result[1]
        if rest:
            assert [item["role"] for item in rest] == ["assistant", "user"] * (len(rest) // 2)
            assert rest[-1]["content"].startswith("<observation>")
        if name == "q4" and rest:
            return 400, {}, "too long"
        if name == "q1" and rest and self.busy:
            return 503, {}, "busy"
        solution = f"<think>so</think><solution>{RIGHT}</solution>"
        if name == "q2" or (name == "q1" and rest):
            return self.assistant(solution)
        # Text that it invents after the end of its turn is ignored.
        return self.assistant(f"<think>look</think><sql>SELECT y FROM t</sql><observation>9</observation>{solution}")


def ask_endpoint(url: str, four: Path, out: Path, *more: str) -> int:
    to = (f"evaluate.base_url={url}", "evaluate.model=m", "evaluate.key_env=''", "evaluate.retries=0")
    return main(["--data", str(four), "--out", str(out), "--as", "skyrl_sql", *to, *LIMITS, *more])


def test_an_endpoint_model_is_evaluated_in_several_turns(
    four: Path, tmp_path: Path, chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    out, script = tmp_path / "out", Server(chat_server)
    with chat_server.serve_script(script) as (url, seen):
        script.busy = True
        assert ask_endpoint(url, four, out, "evaluate.sampling.turns=3") == 1
        assert "repeat the command to resume" in capsys.readouterr().err
        count = len(seen)
        script.busy = False
        assert ask_endpoint(url, four, out, "evaluate.sampling.turns=3", "evaluate.max_requests=10") == 0
        assert len(seen) == count + 2, "finished questions are not requested again"
        assert "10 of 10 requests" in capsys.readouterr().out
        assert {entry["temperature"] for entry in seen} == {0.0}
        assert {element["max_tokens"] for element in seen} == {3072}
        assert not any("top_k" in request or "stop" in request for request in seen)
    result = numbers(out)
    records = {item["id"]: item for item in map(json.loads, (out / "records.jsonl").read_text().splitlines())}
    assert {name: record["status"] for name, record in records.items()} == {
        "q1": "ok", "q2": "ok", "q3": "no_sql", "q4": "not_asked"
    }  # fmt: skip
    assert [role for role, _ in records["q1"]["answer"]] == ["assistant", "environment", "assistant"]
    assert records["q1"]["answer"][0][1].endswith("</sql>")
    assert "5\n6" in records["q1"]["answer"][1][1]
    assert (result["accuracy"], result["bird"], result["turns/mean"] > 1) == (0.5, 0.5, True)
    assert [records[name]["finish_reason"] for name in ("q1", "q2", "q3", "q4")] == ["stop", "stop", "turns", ""]
    assert (result["truncated"], result["finish_reason/turns"]) == (0.0, 1.0)
    assert "HTTP 400 too long" in records["q4"]["error"]


def test_configured_stop_strings_end_endpoint_answers(four: Path, tmp_path: Path, chat_server: ModuleType) -> None:
    out = tmp_path / "out"
    with chat_server.serve_script(Server(chat_server)) as (url, _):
        assert ask_endpoint(url, four, out, "evaluate.sampling.turns=1", "evaluate.sampling.stop=[look]") == 0
    answers = {record["id"]: record["answer"] for record in lines(out / "records.jsonl")}
    assert [answers[name] for name in ("q1", "q3", "q4")] == ["<think>look"] * 3
    assert answers["q2"].endswith("</solution>")


def test_truncated_endpoint_answers_are_counted_after_resume(
    four: Path, tmp_path: Path, chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """Truncated right SQL stays right; q4 has no answer in the first call."""
    reasons, is_busy = {"q1": "length", "q2": "content_filter", "q3": "stop", "q4": "length"}, [True]

    def script(_number: int, body: dict[str, Any]) -> Any:
        name = re.findall(r"<(q\d)>", body["messages"][-1]["content"])[-1]
        if name == "q4" and is_busy:
            return 503, {}, "busy"
        return chat_server.assistant(f"```sql\n{RIGHT}\n```", finish_reason=reasons[name])

    out = tmp_path / "out"
    with chat_server.serve_script(script) as (url, seen):
        to = (f"evaluate.base_url={url}", "evaluate.model=m", "evaluate.key_env=''", "evaluate.retries=0")
        command = ["--data", str(four), "--out", str(out), "--as", "omnisql", *to, *LIMITS]
        assert main(command) == 1
        is_busy.clear()
        assert main(command) == 0
        assert len(seen) == 4 + 1
    assert {record["id"]: record["finish_reason"] for record in lines(out / "records.jsonl")} == reasons
    metrics = numbers(out)
    assert (metrics["truncated"], metrics["accuracy"], metrics["finish_reason/content_filter"]) == (0.5, 1.0, 1.0)
    shown = capsys.readouterr().out
    assert (
        "warning: 2 of 4 answers (50.0%) are truncated at the token limit: raise evaluate.sampling.max_new_tokens "
        "above 2,048" in shown
    )
    assert "warning: 1 of 4 answers (25.0%) is truncated by the server's content filter" in shown


def test_requests_are_repeated_without_an_unsupported_temperature(
    four: Path, tmp_path: Path, chat_server: ModuleType
) -> None:
    with chat_server.serve_script(lambda _, __: chat_server.assistant(f"```sql\n{RIGHT}\n```")) as (url, seen):
        more = ("evaluate.send_temperature=false", "evaluate.runs=2", "evaluate.token_limit=max_completion_tokens")
        to = (f"evaluate.base_url={url}", "evaluate.model=m", "evaluate.key_env=''")
        command = ["--data", str(four), "--out", str(tmp_path / "out"), "--as", "omnisql", *to, *LIMITS, *more]
        assert main([*command, "evaluate.reasoning_effort=low"]) == 0
        assert main([*command, "evaluate.reasoning_effort=high"]) == 2, "answers of another effort are not mixed in"
    assert len(seen) == 8
    assert {entry["reasoning_effort"] for entry in seen} == {"low"}
    assert not any("temperature" in entry for entry in seen)
    assert {item["max_completion_tokens"] for item in seen} == {2048}
    assert (numbers(tmp_path / "out")["runs"], numbers(tmp_path / "out")["accuracy"]) == (2, 1.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--as", "arctic", "evaluate.sampling.turns=2"], "recipe arctic answers in one turn"),
        (["--as", "arctic", "data.shots=2"], "examples are not supported with an endpoint"),
        (["--as", "arctic", "--model", str(MODEL)], "set exactly one of: --predictions FILE"),
        (["evaluate.base_url=''", "--model", str(MODEL), "evaluate.send_temperature=false"], "is for an endpoint"),
        (
            ["evaluate.base_url=''", "--model", str(MODEL), "evaluate.reasoning_effort=high"],
            "evaluate.reasoning_effort=high is for an endpoint",
        ),
        (["evaluate.reasoning_effort=much"], "evaluate.reasoning_effort='much' is not one of"),
        (["evaluate.max_cost=1"], "evaluate.max_cost=1.0 needs evaluate.prompt_price"),
        (["evaluate.include_ids=nowhere"], "nowhere: No such file"),
    ],
)
def test_an_invalid_question_is_reported_in_one_line(
    more: list[str], message: str, four: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = ("evaluate.base_url=http://127.0.0.1:9/v1", "evaluate.model=m", "evaluate.key_env=''")
    assert main(["--data", str(four), "--out", str(tmp_path / "out"), *to, *LIMITS, *more]) == 2
    output = capsys.readouterr().err
    assert output.count("\n") == 1
    assert message in output


def test_a_system_sets_prompt_and_scoring_settings(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    shutil.copytree(MODEL, run / "model")
    (run / "config.yaml").write_text(
        "recipe: skyrl_sql\ndata: {prompt: tagged, retrieval: {top_k: 3}}\n"
        "sampling: {turns: 3, max_total_tokens: 320, stop: [x]}\n"
    )

    def load(system: str, *overrides: str) -> Any:
        request = EvaluationRequest(data=["d"], model=str(run), system=system)
        return load_config(EvaluateConfig, None, *evaluation_layers(request, overrides))

    result = {system: load(system) for system in SYSTEMS}
    for config in result.values():
        assert (config.data.prompt, config.evaluate.sampling.stop) == ("chat", [])
        assert config.model.checkpoint == str(run / "model")
        style = find_recipe(config.recipe).style_for(config.data)
        assert style.show is find_recipe(config.recipe).schema
    systems = {
        name: (item.recipe, item.evaluate.sampling.temperature, item.evaluate.samples) for name, item in result.items()
    }
    assert systems == {
        "omnisql": ("omnisql", 0.0, 1), "arctic": ("arctic", 0.0, 1), "sql_r1": ("sql_r1", 0.8, 8),
        "paverl": ("paverl", 0.0, 1), "think2sql": ("think2sql", 0.6, 1), "qwen3": ("omnisql", 0.7, 1),
        "qwen3_thinking": ("omnisql", 0.6, 1), "skyrl_sql": ("skyrl_sql", 0.0, 1),
    }  # fmt: skip
    assert (result["think2sql"].evaluate.rule, result["think2sql"].evaluate.runs) == ("refined", 3)
    assert (result["skyrl_sql"].evaluate.sampling.turns, result["skyrl_sql"].evaluate.rule) == (5, "bird")
    assert (result["qwen3"].data.chat.thinking, result["qwen3"].evaluate.sampling.top_p) == ("no_think", 0.8)
    retrieved = {name: result[name].data.retrieval.top_k for name in ("arctic", "omnisql", "sql_r1")}
    assert retrieved == {"arctic": 20, "omnisql": 20, "sql_r1": 0}
    assert load("arctic", "evaluate.sampling.temperature=0.5").evaluate.sampling.temperature == 0.5, (
        "overrides take precedence"
    )


@pytest.mark.slow
def test_a_small_model_is_evaluated_as_a_system(four: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    small = ("evaluate.sampling.max_new_tokens=8", "evaluate.runs=2", "evaluate.max_num_seqs=4", "evaluate.limit=2")
    model = ["--model", str(MODEL), "data.chat.thinking=template"]
    assert main(["--data", str(four), *model, "--as", "think2sql", "--out", str(out), *LIMITS, *small]) == 0
    result, written = numbers(out), load_config(EvaluateConfig, out / "config.yaml")
    assert (result["runs"], result["count"], "refined/std" in result) == (2, 2, True)
    sampling = written.evaluate.sampling
    assert (written.recipe, written.evaluate.rule, sampling.temperature) == ("think2sql", "refined", 0.6)


def test_an_unknown_system_is_reported_with_the_nearest_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--data", str(tmp_path), "--predictions", "file", "--out", str(tmp_path / "out"), "--as", "artic"]
    assert main(command) == 2
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("\n") == 1
    assert captured.err.startswith("error: --as artic: not one of arctic, omnisql, ")
    assert captured.err.endswith("the nearest is arctic\n")
