"""The filter-data command with real golds and answers sampled from the quickstart's small model."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.filter_data import main
from jaxrl_sql.config import DatabasesConfig, DataConfig, SelectConfig, TrainConfig, load_config
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.inference.policy_client import style_for
from jaxrl_sql.inference.training_set import training_questions
from jaxrl_sql.models.formats.hf import load_checkpoint, load_tokenizer
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES

SMALL = Path(__file__).parents[1] / "small.yaml"

MODEL = Path(__file__).parents[2] / "configs/quickstart_start"
Start = Callable[..., list[str]]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    generate(folder, SynthSpec(seed=5, train_dbs=2, dev_dbs=1, unseen_dbs=1, train_questions=5, dev_questions=2))
    return folder


@pytest.fixture
def arguments(data: Path, tmp_path: Path) -> Start:
    def build(*overrides: str) -> list[str]:
        return ["data.source=folder", f"data.dir={data}", f"filter.out={tmp_path}/out", *overrides]

    return build


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_each_question_is_kept_or_dropped_with_a_reason(
    arguments: Start, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = tmp_path / "data/train"
    shutil.copytree(data / "train", split)
    questions = lines(split / "questions.jsonl")
    first = questions[0]
    questions += [
        {**first, "id": "again", "question": first["question"].upper() + " "},
        {**first, "id": "fails", "question": "a", "sql": "SELECT x FROM nowhere"},
        {**first, "id": "empty", "question": "b", "sql": "SELECT 1 WHERE 0"},
        {**first, "id": "long", "question": "c", "sql": "SELECT 1" + " " * 500 + ", 2"},
        {**first, "id": "noisy", "question": "d"},
        {**first, "id": "lost", "question": "e", "db_id": "nowhere"},
    ]
    (split / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "noisy").write_text("noisy\n")
    command = arguments(
        f"data.dir={tmp_path}/data", f"filter.noisy={tmp_path}/noisy", "filter.max_sql_characters=500",
        f"data.tokenizer.path={MODEL}", "filter.long_prompts=true", "filter.subsample_every=2",
    )  # fmt: skip
    assert main(command) == 0
    remaining = [line["id"] for line in lines(tmp_path / "out/kept.jsonl")]
    dropped = {item["id"]: item for item in lines(tmp_path / "out/dropped.jsonl")}
    assert sorted([*remaining, *dropped]) == sorted(entry["id"] for entry in questions)
    assert {uid: dropped[uid]["reason"] for uid in ("again", "fails", "empty", "long", "noisy", "lost")} == {
        "again": "asked before",
        "fails": "gold fails: schema_error",
        "empty": "gold empty",
        "long": "gold over 500 characters",
        "noisy": "noisy gold",
        "lost": "cannot be read: no database nowhere",
    }
    assert dropped["long"]["characters"] == 511
    counts = json.loads((tmp_path / "out/counts.json").read_text())
    assert counts["kept"] == len(remaining) == -(-(counts["kept"] + counts["dropped"]["not one in 2"]) // 2)
    assert counts["dropped"] == dict(Counter(element["reason"] for element in dropped.values()))
    shown = capsys.readouterr().out
    assert f"questions {len(questions)} 100.0 %" in " ".join(shown.split())
    assert "gold fails: schema_error" in shown
    again = (tmp_path / "out/kept.jsonl").read_bytes()
    assert main(command) == 0
    assert (tmp_path / "out/kept.jsonl").read_bytes() == again
    chosen = DataConfig("folder", f"{tmp_path}/data", select=SelectConfig(include_ids=f"{tmp_path}/out/kept.jsonl"))
    assert [example.uid for example in training_questions(chosen, DatabasesConfig()).examples] == remaining


SAMPLED = (
    f"model.checkpoint={MODEL}", "data.prompt=compact", "data.max_prompt_tokens=384",
    "model.compute_dtype=same", "filter.samples=4", "filter.low=0.25", "filter.high=0.75", "filter.repeats=false",
    "sampling.max_new_tokens=32", "rollout.max_num_seqs=8",
)  # fmt: skip


@pytest.fixture(scope="module")
def rated(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished filter run with sampled answers."""
    out = tmp_path_factory.mktemp("rated") / "out"
    assert main(["data.source=folder", f"data.dir={data}", f"filter.out={out}", *SAMPLED]) == 0
    return out


def by_hand(data: Path) -> dict[str, int]:
    """Count right answers with the engine and SQLite only, for the first draw of the same seed."""
    examples = load_split(data, "train").examples
    style = RECIPES["arctic"].style("compact")
    config, params = load_checkpoint(MODEL, "float32")
    tokenizer = load_tokenizer(MODEL)
    prompts = make_prompts(examples, style, tokenizer, 10_000).prompts
    right: Counter[str] = Counter()
    for sample in Engine(config, params, tokenizer, EngineConfig(8, Purpose.DATA)).generate(
        prompts, SamplingParams(temperature=1.0, max_new_tokens=32, n=4, seed=0)
    ):
        example = examples[sample.prompt_index]
        right[example.uid] += rows(example.db_path, sample.text) == rows(example.db_path, example.gold_sql)
    return {example.uid: right[example.uid] for example in examples}


def rows(db: str, sql: str) -> object:
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
        try:
            return set(connection.execute(sql).fetchall())
        except sqlite3.Error as error:
            return repr(error)


def test_pass_rates_are_computed_and_cached(
    arguments: Start, rated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shutil.copytree(rated, tmp_path / "out")
    rates = {line["id"]: line["right"] for line in lines(out / "rates.jsonl")[1:]}
    assert 0 < sum(rates.values()) < 4 * len(rates), "a model that is always right or always wrong tests nothing"
    truncated = [rate["truncated"] for rate in lines(out / "rates.jsonl")[1:]]
    assert all(0 <= count <= 4 for count in truncated)
    assert json.loads((out / "counts.json").read_text())["truncated"] == sum(truncated)
    remaining = [item["id"] for item in lines(out / "kept.jsonl")]
    assert remaining == [uid for uid, right in rates.items() if 1 <= right <= 3]
    reasons = {entry["id"]: entry["reason"] for entry in lines(out / "dropped.jsonl")}
    assert {reasons[uid] for uid, right in rates.items() if right == 0} <= {"seldom right"}

    capsys.readouterr()
    assert main(arguments(*SAMPLED, "filter.samples=5")) == 2
    assert "was started with filter.samples=4, not 5" in capsys.readouterr().err
    assert main(arguments(*SAMPLED, "model.compute_dtype=bfloat16")) == 2
    assert "was started with model.compute_dtype='same', not 'bfloat16'" in capsys.readouterr().err
    assert main(arguments(*SAMPLED, "executor.vm_steps=1000")) == 2
    assert "was started with executor.vm_steps=300000000, not 1000" in capsys.readouterr().err
    assert main(arguments(*SAMPLED, "filter.low=0", "filter.high=1", "executor.threads=1")) == 0
    shown = capsys.readouterr().out
    assert "answered" not in shown, "known answers were sampled again"
    assert ("are truncated at the token limit: raise sampling.max_new_tokens above " in shown) == (sum(truncated) > 0)


@pytest.mark.slow
def test_pass_rates_match_direct_engine_calls(data: Path, rated: Path) -> None:
    rates = {rate["id"]: rate["right"] for rate in lines(rated / "rates.jsonl")[1:]}
    expected = by_hand(data)
    assert rates == {uid: expected[uid] for uid in rates}


@pytest.mark.slow
def test_an_interrupted_filter_resumes_to_equal_rates(arguments: Start, rated: Path, tmp_path: Path) -> None:
    out = shutil.copytree(rated, tmp_path / "out")
    chosen = (out / "kept.jsonl").read_bytes()
    written = (out / "rates.jsonl").read_text().splitlines()
    (out / "rates.jsonl").write_text("\n".join(written[:5]) + "\n" + written[5][:9])
    assert main(arguments(*SAMPLED)) == 0
    assert (out / "rates.jsonl").read_text().splitlines() == written
    assert (out / "kept.jsonl").read_bytes() == chosen


def test_rates_of_changed_questions_are_not_reused(
    arguments: Start, data: Path, rated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = data / "train/questions.jsonl"
    before, questions = file.read_text(), lines(file)
    shutil.copytree(rated, tmp_path / "out")
    command = arguments(*SAMPLED, "filter.low=0", "filter.high=1")
    first = questions[0]["id"]
    questions[0]["question"] = "How many?"
    rates = tmp_path / "out/rates.jsonl"
    forged = [{**line, "right": 4} if line.get("id") == first else line for line in lines(rates)]
    with Journal(tmp_path / "forged", forged[0]["settings"]) as journal:
        for record in forged[1:]:
            journal.add({name: value for name, value in record.items() if name != "crc"})
    (tmp_path / "forged").replace(rates)
    try:
        file.write_text("".join(json.dumps(question) + "\n" for question in questions[:-1]))
        assert main(command) == 0
        error = capsys.readouterr().err
        assert "asked again: 1 question whose text, gold or database has changed\n" in error
        assert [entry["id"] for entry in lines(rates)[1:]] == [*(item["id"] for item in forged[1:]), first]
        assert [element["right"] for element in lines(rates)[1:] if element["id"] == first] == [4, 0]
        counts = json.loads((tmp_path / "out/counts.json").read_text())
        assert sum(counts["right"].values()) == counts["kept"] == len(forged) - 2, "one question was not sampled again"
        assert main(command) == 0
        assert "answered" not in capsys.readouterr().out, "known answers were sampled again"
    finally:
        file.write_text(before)


def test_answers_are_parsed_with_the_thought_opened_by_the_template() -> None:
    class Thinker:
        """A tokenizer whose template opens a thought."""

        def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
            return "".join(message["content"] for message in messages) + "<think>\n"

    config = load_config(TrainConfig, SMALL, ["recipe=sql_r1", "data.prompt=chat"])
    style = style_for(config.recipe, config.data, Thinker())
    answer = "so</think><answer>```sql\nSELECT 1\n```</answer>"
    assert RECIPES["sql_r1"].parse(answer, style).well_formed
