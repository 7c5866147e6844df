"""Preparing data in their published formats, and one training step of each paper's recipe on them.

The data are generated and the model is small. Formats, mixes (configs/data), prompts (each recipe's template in a
chat) and rewards are those of the papers.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from jaxrl_sql.commands.prepare import main as prepare
from jaxrl_sql.commands.train import main as train
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.datagen.synth import SynthSpec, generate

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
Questions = list[dict[str, Any]]


@pytest.fixture(scope="module")
def prepared_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return generated questions and databases: 8 questions on each of 6 databases."""
    folder = tmp_path_factory.mktemp("made")
    generate(folder, SynthSpec(seed=5, train_dbs=6, dev_dbs=2, unseen_dbs=1, train_questions=8, dev_questions=8))
    return folder / "train"


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the small model that knows the answer formats, with positions for whole prompts."""
    folder = tmp_path_factory.mktemp("start") / "model"
    shutil.copytree(ROOT / "configs/recipes_start", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    return folder


def questions(prepared_set: Path) -> Questions:
    return [json.loads(line) for line in (prepared_set / "questions.jsonl").read_text().splitlines()]


def synsql(prepared_set: Path, home: Path) -> list[str]:
    shutil.copytree(prepared_set / "databases", home / "databases")
    labels = {"easy": "Simple", "medium": "Complex", "hard": "Complex", "extra": "Complex"}
    records = [
        {name: question[name] for name in ("db_id", "question", "sql")}
        | {"external_knowledge": "", "cot": question["reasoning"], "sql_complexity": labels[question["difficulty"]]}
        for question in questions(prepared_set)
    ]
    (home / "data.json").write_text(json.dumps(records))
    return [f"sources.synsql.dir={home}", "sources.synsql.count=8"]


def spider_and_bird(prepared_set: Path, home: Path) -> list[str]:
    """Write both sets and Gretel's, whose scripts become databases, of which a list is used."""
    shutil.copytree(prepared_set / "databases", home / "spider/database")
    shutil.copytree(prepared_set / "databases", home / "bird/train_databases")
    records = questions(prepared_set)
    spider = [
        {"db_id": request["db_id"], "question": request["question"], "query": request["sql"]} for request in records
    ]
    for name, selected in (("train_spider", spider[:24]), ("train_others", spider[24:40]), ("dev", spider[40:])):
        (home / f"spider/{name}.json").write_text(json.dumps(selected))
    (home / "spider/tables.json").write_text("[]")
    bird = [
        {"db_id": item["db_id"], "question": item["question"], "evidence": "", "SQL": item["sql"]} for item in records
    ]
    (home / "bird/train.json").write_text(json.dumps(bird))
    first = records[0]["db_id"]
    with closing(sqlite3.connect(prepared_set / f"databases/{first}/{first}.sqlite")) as connection:
        script = "\n".join(line for line in connection.iterdump() if line not in ("BEGIN TRANSACTION;", "COMMIT;"))
    rows = [
        {
            "id": i,
            "sql_prompt": entry["question"],
            "sql_context": script,
            "sql": entry["sql"],
            "sql_complexity": "joins",
        }
        for i, entry in enumerate(records[:3])
    ]
    (home / "gretel").mkdir()
    parquet.write_table(pa.Table.from_pylist(rows), home / "gretel/train-00000-of-00001.parquet")
    values = [f"sources.gretel.dir={home}/gretel", "sources.gretel.min_sql_characters=1"]
    config = str(ROOT / "configs/data/arctic_gretel.yaml")
    assert prepare(["--config", config, "--out", str(home / "made"), *values]) == 0
    (home / "ids").write_text("0\n2\n")
    folders = {"bird": "bird", "spider_train": "spider", "spider_dev": "spider", "gretel": "made/train"}
    return [
        *(f"sources.{n}.dir={home}/{folder}" for n, folder in folders.items()),
        f"sources.gretel.include_ids={home}/ids",
    ]


def spider(prepared_set: Path, home: Path) -> list[str]:
    spider_and_bird(prepared_set, home)
    return [f"sources.spider.dir={home}/spider", "count=24", "validation.questions=8", "validation.databases=1"]


def bird(prepared_set: Path, home: Path) -> list[str]:
    spider_and_bird(prepared_set, home)
    return [f"sources.bird.dir={home}/bird"]


def skyrl(prepared_set: Path, home: Path) -> list[str]:
    shutil.copytree(prepared_set / "databases", home / "db_files/data/SynSQL-2.5M/databases")

    def user_message(item: dict[str, Any]) -> str:
        return f"{{db_details}}:…;\n {{external_knowledge}}: ;\n {{question}}: {item['question']}"

    rows = [
        {
            "data_source": "synsql", "data": "synsql", "db_id": question["db_id"],
            "prompt": [{"role": "system", "content": "Task."}, {"role": "user", "content": user_message(question)}],
            "reward_spec": {"method": "rule", "ground_truth": question["sql"]}, "extra_info": {"index": 0},
        }
        for question in questions(prepared_set)[:12]
    ]  # fmt: skip
    parquet.write_table(pa.Table.from_pylist(rows), home / "train.parquet")
    return [f"sources.skyrl.dir={home}"]


SYSTEMS: dict[str, tuple[str, Callable[[Path, Path], list[str]], int]] = {
    "sql_r1": ("sql_r1", synsql, 8),
    "arctic": ("arctic", spider_and_bird, 48 + 40 + 8 + 2),
    "paverl": ("paverl", spider, 24),
    "think2sql": ("think2sql", bird, 48),
    "skyrl_sql": ("skyrl_sql", skyrl, 12),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_recipe_trains_on_its_prepared_data_with_its_template(
    name: str, prepared_set: Path, start: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    mix, write, taken = SYSTEMS[name]
    home, out, run = tmp_path / "released", tmp_path / "data", tmp_path / "run"
    home.mkdir()
    (evals,) = load_config(TrainConfig, f"configs/{name}.yaml").data.evals
    judged = [] if evals == "validation" else [f"evals.{evals}.dir={prepared_set}", f"evals.{evals}.split=''"]
    values = [*write(prepared_set, home), *judged]
    assert prepare(["--config", f"configs/data/{mix}.yaml", "--out", str(out), "repeats=false", *values]) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["written"]["train"]["questions"] == taken
    overrides = [
        "data.source=folder", f"data.dir={out}", f"data.evals=[{evals}]", f"run.dir={run}", "run.display=plain",
        f"model.checkpoint={start}", "data.prompt=chat", "data.max_prompt_tokens=4096", "data.select.limit_eval=2",
        "grpo.steps=1", "grpo.prompts=2", "grpo.num_generations=2", "grpo.minibatches=1", "second_stage.steps=0",
        "sampling.max_new_tokens=24", "validation.sampling.max_new_tokens=24", "rollout.max_num_seqs=4",
        "run.keep_best=0", "validation.every=0", "data.select.limit_train=8", "rollout.memory=0.01",
        "run.pad_to_max=false",
    ]  # fmt: skip
    assert train(["--config", f"configs/{name}-tiny.yaml", *overrides]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sum(row["phase"].startswith("grpo") for row in rows) == 1
    assert any(f"eval/{evals}/accuracy" in row for row in rows)
    assert (run / "samples.jsonl").read_text()
    if name == "paverl":
        assert manifest["written"]["validation"] | {"hash": "", "difficulty": {}} == {
            "questions": 8, "databases": 1, "hash": "", "difficulty": {}
        }  # fmt: skip
