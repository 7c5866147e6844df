"""Each command of docs/tutorials/own_gpu.md runs: PostgreSQL, a chat model of a hub on this machine, a CPU."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, load_tokenizer, save_checkpoint
from jaxrl_sql.text2sql.env.address import parse_address
from sqlexec_rs.servers import Server

pytestmark = [pytest.mark.servers, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tutorials/own_gpu.md"
NAME = "Qwen/Qwen2.5-Coder-1.5B-Instruct"
SCRIPT = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, country text);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers(id),
  ordered_on date, price numeric(8, 2));
INSERT INTO customers SELECT i, 'name ' || i, CASE i % 3 WHEN 0 THEN 'Chile' ELSE 'Peru' END
FROM generate_series(1, 30) AS i;
INSERT INTO orders SELECT i, nullif(i % 31, 0), date '2024-01-01' + i, i * 1.5 FROM generate_series(1, 200) AS i;
"""
# (question, gold) with a number; PostgreSQL's casts, dates and names.
QUESTIONS = (
    ("Which name has customer {}?", "SELECT name::varchar FROM customers WHERE id = {}"),
    ("How many orders has customer {}?", "SELECT count(*) FROM orders WHERE customer_id = {}"),
    ("Which orders came on day {} of 2024?", "SELECT id FROM orders WHERE ordered_on - date '2023-12-31' = {}"),
    ("Give the mean price for customer {}?", "SELECT avg(price)::float8 FROM orders WHERE customer_id = {}"),
)  # fmt: skip
# Overrides for a small run; the page's own numbers are for a real model.
ALL = ["data.schema=compact", "data.max_prompt_tokens=1800", "model.dtype=float32", "run.pad_to_max=true"]
ANSWERS = [*ALL, "evaluate.sampling.max_new_tokens=8", "evaluate.max_num_seqs=8"]
TRAINS = [
    *ALL, "model.lora.rank=2", "validation.sampling.max_new_tokens=8", "validation.max_num_seqs=8",
    "sampling.max_new_tokens=8", "sft.max_completion_tokens=1200", "grpo.steps=10", "grpo.prompts=2",
    "grpo.num_generations=2", "grpo.max_tokens_per_device=8192", "rollout.max_num_seqs=4", "validation.every=5",
]  # fmt: skip
SMALLER = {
    "ask": ANSWERS,
    "data synth": ["--n", "24"],
    "evaluate": ANSWERS,
    "sft": TRAINS,
    "train": TRAINS,
}
CODE = """
import json, sys
from jaxrl_sql.__main__ import main

for words in json.loads(sys.argv[1]):
    print("command", json.dumps([words, main(words)]), flush=True)
"""


def commands(database: str) -> list[list[str]]:
    """Return the arguments of `jaxrl-sql` in the page's commands that the page says this file runs."""
    text = PAGE.read_text(encoding="utf-8")
    mark = rf"<!-- run by {Path(__file__).relative_to(ROOT)} -->\n"
    blocks = re.findall(rf"{mark}```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    assert all(line.startswith("jaxrl-sql ") for line in lines)
    return [shlex.split(line.removeprefix("jaxrl-sql ").replace("$DB", database)) for line in lines]


def name_of(command: list[str]) -> str:
    return " ".join(command[: 2 if command[0] == "data" else 1])


def with_overrides(command: list[str]) -> list[str]:
    return [*command, *([] if "--compare" in command else SMALLER.get(name_of(command), []))]


@pytest.fixture
def folder(hub: Any, tmp_path: Path) -> Path:
    """Return a folder with the project's configurations and 60 questions; the hub has a chat model of one layer."""
    tokenizer = load_tokenizer(ROOT / "configs/quickstart_start")
    model = ModelConfig("qwen3", len(tokenizer), 32, 1, 2, 1, 16, 64, Rope(1e4), Norms(), True, True, False, 4096)
    save_checkpoint(tmp_path / "made", model, init_params(model, jax.random.key(0)), tokenizer)
    hub.commit(NAME, {path.name: path.read_bytes() for path in (tmp_path / "made").iterdir() if path.is_file()})
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    rows = [tuple(text.format(i) for text in pair) for i in range(1, 16) for pair in QUESTIONS]
    (tmp_path / "shop").mkdir()
    for split, part in (("train", rows[:45]), ("dev", rows[45:])):
        lines = [f'"{question}","{sql}"' for question, sql in part]
        (tmp_path / f"shop/{split}.csv").write_text("\n".join(["question,sql", *lines]) + "\n")
    return tmp_path


def test_commands_of_the_page_run(
    hub: Any, folder: Path, server_database: Callable[[str, str], Server], capfd: pytest.CaptureFixture[str]
) -> None:
    address = parse_address(f"{server_database('postgresql', SCRIPT).reader}?roles=16")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hub"),
        "NO_PROXY": "127.0.0.1",
        "PGPASSWORD": address.password,
    }
    page = commands(address.public_url(address.database))
    serve = [name_of(command) for command in page].index("serve")
    before = [with_overrides(command) for command in page[:serve]]
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(before)],
        env=environment, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    ended = [json.loads(line.partition(" ")[2]) for line in done.stdout.splitlines() if line.startswith("command ")]
    assert "Traceback" not in done.stderr, done.stderr
    # The small model may write SQL that fails.
    codes = [(name_of(command), code) for command, code in ended if code != 0 and name_of(command) != "ask"]
    assert (len(ended), codes) == (len(before), []), done.stderr
    assert [name_of(command) for command in before] == [
        "ask", "data synth", "data audit", "plan", "evaluate", "sft", "train", "evaluate", "evaluate", "view",
        "export", "export",
    ]  # fmt: skip
    audited = json.loads((folder / "runs/shop_audit/audit.json").read_text())["sets"]
    assert {name: entry["questions"] for name, entry in audited.items()} == {"train.csv": 45, "more": 24, "dev.csv": 15}
    assert not any("fails" in kind for entry in audited.values() for kind in entry["findings"])
    for name in ("before", "after"):
        assert json.loads((folder / f"runs/shop_{name}/metrics.json").read_text())["count"] == 15
    lines = [json.loads(line) for line in (folder / "runs/shop/metrics.jsonl").read_text().splitlines()]
    assert sum(line["phase"] == "grpo" for line in lines) == 10
    assert any(line["phase"] == "sft" for line in lines)  # on the user's own questions
    assert list((folder / "runs/shop_gguf").glob("*.gguf"))
    assert (folder / "runs/shop_gguf/Modelfile").read_text().startswith("FROM ./shop_gguf-q8_0.gguf\nTEMPLATE ")
    assert (folder / "runs/shop_model/model.safetensors").is_file()
    base = json.loads((folder / "runs/shop/adapters/adapter_config.json").read_text())["base_model_name_or_path"]
    assert base == str(folder / "runs/shop_sft/model"), "PEFT runs in any folder"
    stored = [path for path in (folder / "runs").rglob("*") if path.is_file()]
    assert not [path for path in stored if address.password.encode() in path.read_bytes()]
    check_serving(page[serve], page[serve + 1], folder, environment)


def check_serving(serve: list[str], ask: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Start the server of the page on a free port, and ask it as the page does, with the settings of the training."""
    assert serve[-2:] == ["--port", "8000"]
    command = [sys.executable, "-m", "jaxrl_sql", *serve[:-1], "0", "run.pad_to_max=true"]
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "loading; " in process.stdout.readline()
            line = process.stdout.readline()
            assert " serves " in line
            arguments = [line.split()[0] if word.startswith("http") else word for word in ask]
            done = subprocess.run(
                [sys.executable, "-m", "jaxrl_sql", *arguments],
                env=environment, cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            assert done.returncode in (0, 1), done.stderr
            assert "SQL" in done.stdout + done.stderr
            assert "error" not in done.stderr
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(300)
