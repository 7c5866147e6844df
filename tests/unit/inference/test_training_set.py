"""The training set: commands and training load the same questions through one function."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.config import (
    DatabasesConfig,
    DataConfig,
    DialectsConfig,
    EvaluateConfig,
    ExecutorConfig,
    FilterConfig,
    TokenizerConfig,
    TrainConfig,
    load_config,
    replace_values,
)
from jaxrl_sql.inference.benchmark_sets import open_sets
from jaxrl_sql.inference.filtering import filter_data, make_filter_prompts
from jaxrl_sql.inference.questions import CallerQuestions, load_questions, open_tokenizer
from jaxrl_sql.inference.training_set import training_questions
from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.runtime.metrics import find_metric_value
from jaxrl_sql.text2sql.benchmarks import benchmark_of, load_benchmark
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"

CONFIGS = Path(__file__).parents[3] / "configs"
MODEL = CONFIGS / "quickstart_start"
STYLE = compact_style()


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    database(tmp_path / "train" / "databases" / "d" / "d.sqlite")
    questions = [{"id": f"q{i}", "db_id": "d", "question": f"Which {i}?", "sql": "SELECT x FROM t"} for i in range(12)]
    (tmp_path / "train" / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    return DataConfig(
        prompt="compact",
        source="folder",
        dir=str(tmp_path),
        evals=["train"],
        dialects=DialectsConfig(0.5, mysql=0.5),
        tokenizer=TokenizerConfig(path=str(MODEL)),
    )


@pytest.mark.parametrize("keep", ["", "q1\nq2\nq5\nq6\n"])
def test_share_of_mysql_equals_that_of_training(data: DataConfig, keep: str, tmp_path: Path) -> None:
    if keep:
        (tmp_path / "ids").write_text(keep)
        data = replace_values(data, {"select.include_ids": str(tmp_path / "ids")})
    config = TrainConfig(data=data, executor=ExecutorConfig(1, databases=DatabasesConfig(mysql="translated")))
    with make_executor(config.executor) as executor:
        trained, _ = load_questions(config.data, config.sft, config.executor, executor, make_display("none", 0, ""))
    assert {item.dialect for item in trained} == {"sqlite", "mysql"}
    chosen = training_questions(data, config.executor.databases).examples
    assert list(chosen) == list(trained)
    policy = policy_spec(FilterConfig(data=data))
    is_mysql = {prompt.uid: "MySQL" in prompt.text for prompt in make_filter_prompts(policy, chosen).prompts}
    assert is_mysql == {entry.uid: entry.dialect == "mysql" for entry in trained}


@pytest.mark.parametrize(
    ("evals", "names"),
    [
        (["train", "train"], ["train"]),
        (["copies/dev"], ["dev"]),
        (["{here}/copies/dev", "train"], ["dev", "train"]),
        (["train", "copies/train", "copies/train_2"], ["train", "train_2", "train_2_2"]),
    ],
)
def test_evaluation_set_is_named_by_the_last_part_of_its_path(
    data: DataConfig, tmp_path: Path, evals: list[str], names: list[str]
) -> None:
    for name in ("dev", "train", "train_2"):
        shutil.copytree(tmp_path / "train", tmp_path / "copies" / name)
    evals = [split.format(here=tmp_path) for split in evals]
    config = TrainConfig(data=dataclasses.replace(data, evals=evals, dialects=DialectsConfig()))
    with make_executor(ExecutorConfig(threads=1)) as executor:
        _, questions = load_questions(config.data, config.sft, config.executor, executor, make_display("none", 0, ""))
    assert {name: len(item.examples) for name, item in questions.items()} == dict.fromkeys(names, 12)
    assert find_metric_value("accuracy", {f"eval/{name}/accuracy": 0.5 for name in questions}) == 0.5


def test_gold_that_fails_is_named_by_file_and_line_with_the_message(tmp_path: Path) -> None:
    database(tmp_path / "databases/d/d.sqlite")
    (tmp_path / "train.csv").write_text("question,sql\nA?,SELECT x FROM t\nB?,SELECT y FROM t\n,SELECT x FROM t\n")
    data = DataConfig(source="folder", dir=str(tmp_path), evals=["train"])
    stream = io.StringIO()
    with make_executor(ExecutorConfig(threads=1)) as executor, make_display("plain", 0, "", stream) as display:
        train, _ = load_questions(data, TrainConfig().sft, ExecutorConfig(), executor, display)
    path = tmp_path / "train.csv"
    assert len(train) == 1
    assert f"train: skipped 1 (gold fails: schema_error), such as {path}:3 (no such column: y)\n" in stream.getvalue()
    assert re.search(rf"train: skipped 1 \(no question.*\), such as {path}:4\n", stream.getvalue())


def test_tokenizer_of_an_earlier_start_with_other_settings_is_replaced(data: DataConfig, tmp_path: Path) -> None:
    scratch = replace_values(data, {"tokenizer.path": "", "tokenizer.vocab_size": 262})
    examples = load_benchmark(tmp_path / "train").examples
    run = tmp_path / "run"
    sizes = [
        len(open_tokenizer(replace_values(scratch, {"tokenizer.vocab_size": size}), "", run, examples, STYLE, is_new))
        for size, is_new in ((262, False), (270, False), (270, True))
    ]
    assert sizes == [262, 262, 270]


def test_training_split_is_evaluated_up_to_its_limit(data: DataConfig) -> None:
    config = TrainConfig(data=replace_values(data, {"select.limit_eval": 3, "dialects": DialectsConfig()}))
    with make_executor(ExecutorConfig(threads=1)) as executor:
        train, evals = load_questions(config.data, config.sft, config.executor, executor, make_display("none", 0, ""))
    assert (len(train), [example.uid for example in evals["train"].examples]) == (12, ["q0", "q1", "q2"])


def test_passed_sets_obey_selection_and_hidden_columns(data: DataConfig, tmp_path: Path) -> None:
    """Ids, limits, dialects and hidden columns apply to lists, and only the sets that are not passed are read."""
    examples = load_benchmark(tmp_path / "train").examples
    (tmp_path / "ids").write_text("q1\nq2\nq5\nq6\n")
    chosen = replace_values(
        data, {"select.include_ids": str(tmp_path / "ids"), "select.limit_train": 3, "select.limit_eval": 2}
    )
    config = TrainConfig(data=chosen, executor=ExecutorConfig(1, databases=DatabasesConfig(mysql="translated")))
    passed = CallerQuestions(benchmark_of(examples, "examples"), {"mine": benchmark_of(examples[4:], "evals: mine")})
    nowhere = dataclasses.replace(config, data=dataclasses.replace(chosen, dir=str(tmp_path / "nowhere")))
    with make_executor(config.executor) as executor:
        display = make_display("none", 0, "")
        train, evals = load_questions(nowhere.data, config.sft, config.executor, executor, display, passed)
        folder = load_questions(config.data, config.sft, config.executor, executor, display)[0]
        mixed = load_questions(config.data, config.sft, config.executor, executor, display, passed._replace(train=None))
    assert [*train] == [*folder] == [*mixed[0]]
    assert [item.uid for item in train] == ["q1", "q2", "q5"]
    assert [example.uid for example in evals["mine"].examples] == ["q4", "q5"]
    assert mixed[1].keys() == {"mine"}
    hidden = dataclasses.replace(nowhere, data=dataclasses.replace(nowhere.data, hide=["t.x"]))
    with (
        make_executor(config.executor) as executor,
        pytest.raises(InputError, match=r"data\.hide=\[t\.x\]: no question"),
    ):
        load_questions(hidden.data, config.sft, config.executor, executor, display, passed)


@pytest.mark.parametrize("of", ["train", "dev", "streamed", "filter", "evaluate"])
def test_sqlite_version_with_translated_questions_is_rejected(data: DataConfig, tmp_path: Path, of: str) -> None:
    shutil.copytree(tmp_path / "train", tmp_path / "dev")
    questions = tmp_path / ("dev" if of == "dev" else "train") / "questions.jsonl"
    first, *others = questions.read_text().splitlines()
    questions.write_text("\n".join([json.dumps({**json.loads(first), "dialect": "mysql"}), *others]) + "\n")
    overrides = [
        f"data.dir={tmp_path}",
        "data.source=folder",
        "data.evals=[dev]",
        f"data.stream_above={5 if of == 'streamed' else 0}",
        f"data.tokenizer.path={MODEL}",
    ]

    def load(*more: str) -> None:
        if of == "evaluate":
            judged = load_config(EvaluateConfig, None, [f"evaluate.data=[{tmp_path / 'train'}]", *more])
            open_sets(judged.evaluate, judged.recipe, judged.executor, judged.data.hide, [])
        elif of == "filter":
            chosen = load_config(FilterConfig, SMALL, [*overrides, f"filter.out={tmp_path / 'out'}", *more])
            filter_data(policy_spec(chosen), chosen.filter, chosen.sampling, chosen.executor)
        else:
            config = load_config(TrainConfig, SMALL, [*overrides, *more])
            with make_executor(ExecutorConfig(threads=1)) as executor:
                load_questions(config.data, config.sft, config.executor, executor, make_display("none", 0, ""))[0][0]

    load()
    shutil.rmtree(tmp_path / "out", ignore_errors=True)
    with pytest.raises(InputError, match=r"q0 asks for MySQL, .* executor.sqlite_version=3.40.1: leave that empty"):
        load("executor.sqlite_version=3.40.1")
    questions.write_text("\n".join([first, *others]) + "\n")
    load("executor.sqlite_version=3.40.1")


def database(path: Path) -> None:
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1);")


def published(folder: Path) -> None:
    """Write a small set in Spider's published layout."""
    database(folder / "database" / "d" / "d.sqlite")
    (folder / "tables.json").write_text(json.dumps([{"db_id": "d"}]))
    for number, name in enumerate(("train_spider", "train_others", "dev")):
        questions = [{"db_id": "d", "question": f"Which {number}?", "query": f"SELECT x, {number} FROM t"}]
        (folder / f"{name}.json").write_text(json.dumps(questions))


def plain(folder: Path) -> None:
    """Write the same questions in the plain layout."""
    for split, numbers in (("spider_train", (0, 1)), ("spider_dev", (2,))):
        database(folder / split / "databases" / "d" / "d.sqlite")
        questions = [
            {"id": f"q{i}", "db_id": "d", "question": f"Which {i}?", "sql": f"SELECT x, {i} FROM t"} for i in numbers
        ]
        (folder / split / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))


@pytest.mark.parametrize(("name", "write"), [("spider", published), ("spider_plain", plain)])
def test_spiders_configurations_read_its_layouts(name: str, write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    config = load_config(TrainConfig, CONFIGS / f"{name}.yaml", [f"data.dir={tmp_path}"])
    with make_executor(ExecutorConfig(threads=1)) as executor:
        train, evals = load_questions(config.data, config.sft, config.executor, executor, make_display("none", 0, ""))
    assert [item.question for item in train] == ["Which 0?", "Which 1?"]
    assert [example.question for result in evals.values() for example in result.examples] == ["Which 2?"]
