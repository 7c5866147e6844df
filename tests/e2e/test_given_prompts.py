"""The prompts of released rows in training, evaluation, filtering and distillation."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import jaxrl_sql as jx
from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.distill import main as distill
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.filter_data import main as filter_data
from jaxrl_sql.commands.verbal import main as verbal
from jaxrl_sql.models.formats.hf import load_tokenizer

Start = Callable[..., list[str]]
SYSTEM, BEGUN = "Help with SQL.\n", "<think>"


@pytest.fixture
def rows(small_data: Path, tmp_path: Path) -> Path:
    """Write questions as rows of verl, with a text of a whole chat as in SQL-R1's rows."""
    folder = tmp_path / "rows"
    folder.mkdir()
    for split, source in (("train", "train"), ("dev", "dev_unseen")):
        lines = (small_data / source / "questions.jsonl").read_text().splitlines()
        records = [row(json.loads(line)) for line in lines]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        for database in (small_data / source / "databases").iterdir():
            (folder / "databases").mkdir(exist_ok=True)
            (folder / "databases" / database.name).symlink_to(database)
    return folder


def row(question: dict[str, Any]) -> dict[str, Any]:
    text = f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{asked(question['question'])}<|im_end|>\n"
    text += f"<|im_start|>assistant\n{BEGUN}"
    return {
        "id": question["id"],
        "prompt": [{"role": "user", "content": text}],
        "reward_model": {"ground_truth": {"db_id": question["db_id"], "sql": question["sql"]}},
        "extra_info": {"question": question["question"]},
    }


def asked(question: str) -> str:
    return f"Question:\n{question}\n"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_rows_prompts_are_used_by_each_command(
    rows: Path,
    arguments: Start,
    small_data: Path,
    chat_server: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row_prompts = (f"data.dir={rows}", "data.prompt=given", "recipe=sql_r1")
    few = ("data.evals=[dev]", "sft.steps=1", "grpo.steps=1")
    run = jx.train(None, *arguments(tmp_path / "run", *row_prompts, *few))
    assert run.exit_code == 0
    tokenizer = load_tokenizer(small_data / "tokenizer")
    records = lines(rows / "train.jsonl")
    questions = {record["extra_info"]["question"] for record in records}
    sample = next(line for line in lines(tmp_path / "run/samples.jsonl") if line["phase"] == "grpo")
    assert sample["question"] in questions
    model_settings = (tmp_path / "run/model/jaxrl_sql.yaml").read_text()
    assert "prompt: given" in model_settings

    model, out = tmp_path / "run/model", tmp_path / "out"
    few = ("evaluate.sampling.max_new_tokens=12", "evaluate.max_num_seqs=4", "data.select.limit_eval=2")
    assert evaluate(["--data", str(rows), "--split", "dev", "--model", str(model), "--out", str(out), *few]) == 0
    records = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked(records[0]["question"])}]
    text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) + BEGUN
    assert records[0]["prompt"] == text

    command = [
        *row_prompts,
        "data.source=folder",
        f"data.tokenizer.path={small_data}/tokenizer",
        "data.max_prompt_tokens=40",
    ]
    assert filter_data([*command, f"filter.out={tmp_path}/chosen", "filter.long_prompts=true"]) == 0
    long = [line for line in lines(tmp_path / "chosen/dropped.jsonl") if "tokens" in line]
    assert long
    for line in long:
        record = next(record for record in lines(rows / "train.jsonl") if record["id"] == line["id"])
        assert line["tokens"] == len(tokenizer.encode(record["prompt"][0]["content"], add_special_tokens=False))

    def teacher(_number: int, body: dict[str, Any]) -> Any:
        system, user = body["messages"]
        assert (system["role"], system["content"]) == ("system", SYSTEM)
        assert user["content"] in {asked(question) for question in questions}
        return chat_server.assistant("<think>\nso\n</think>\n<answer>\n```sql\nSELECT 1\n```\n</answer>")

    with chat_server.serve_script(teacher) as (url, seen):
        settings = ["distill.model=m", f"distill.base_url={url}", f"distill.out={tmp_path}/traces", "distill.samples=1"]
        settings.append("distill.key_env=")
        assert distill([*row_prompts, *settings, "data.select.limit_train=3", "data.select.drop_empty_gold=false"]) == 0
        assert len(seen) == 3

    capsys.readouterr()
    database = next((rows / "databases").iterdir())
    assert ask(["--db", str(database / f"{database.name}.sqlite"), "--model", str(model), "How many?"]) == 2
    assert "data.prompt=given needs a row that carries its prompt" in capsys.readouterr().err
    assert verbal([*row_prompts, f"verbal.out={tmp_path}/verbal", f"model.checkpoint={model}"]) == 2
    assert "data.prompt=given is for train, evaluate, data filter and distill" in capsys.readouterr().err
