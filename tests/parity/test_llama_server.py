"""A trained chat model in llama.cpp's server: its prompts are those of training, and its answers are ours."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.export import main as export
from jaxrl_sql.commands.train import main as train
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.inference.policy_client import style_for
from jaxrl_sql.models import load_tokenizer
from jaxrl_sql.models.formats.gguf_tokenizer import SPLITS
from jaxrl_sql.runtime.model_locator import read_trained
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.text2sql.prompts.prompts import make_prompt, message_texts
from jaxrl_sql.types import Example, Prompt

pytestmark = pytest.mark.parity
SERVER = shutil.which("llama-server")
if SERVER is None:
    pytest.skip("llama-server is not installed: make test-llama-cpp builds it", allow_module_level=True)

START = Path(__file__).parents[2] / "configs" / "recipes_start"
RECIPES = ("arctic", "sql_r1")  # with a prefilled answer and without one
TOKENS = 24
SETTINGS = [
    "data.prompt=chat", "data.schema=compact", "data.max_prompt_tokens=1600", "sft.steps=2", "sft.databases=1",
    "sft.questions=2", "sft.max_completion_tokens=512", "sft.optim.lr=1e-4", "grpo.steps=0", "data.evals=[dev]",
    f"validation.sampling.max_new_tokens={TOKENS}", "validation.max_num_seqs=2", "data.select.limit_eval=2",
    "run.display=none", "model.dtype=float32",
]  # fmt: skip


class Served(NamedTuple):
    """A model in llama.cpp's server: its URL and file, the recipe, and a question with its prompt of training."""

    url: str
    file: Path
    recipe: str
    example: Example
    prompt: Prompt
    message: str


def post(url: str, **body: Any) -> Any:
    request = Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})  # noqa: S310 - loopback
    with urlopen(request, timeout=300) as response:  # noqa: S310 - loopback
        return json.load(response)


def make_start(folder: Path) -> Path:
    """Return a copy of the recipes' start that splits texts as Qwen's models do, which llama.cpp implements."""
    shutil.copytree(START, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    split = pre_tokenizers.Split(Regex(SPLITS["qwen2"].pattern), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])  # type: ignore[assignment]
    tokenizer.normalizer = normalizers.NFC()  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def wait_until_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    while process.poll() is None:
        try:
            with urlopen(f"{url}/health", timeout=10) as response:  # noqa: S310 - loopback
                assert response.status == 200
                return
        except URLError:  # it does not listen yet, or answers 503 while it loads
            time.sleep(0.2)
    raise AssertionError(f"llama-server ended with {process.returncode}")


@pytest.fixture(scope="module", params=RECIPES)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder, recipe = tmp_path_factory.mktemp("served"), request.param
    data, run, out = folder / "data", folder / "run", folder / "out"
    generate(data, SynthSpec(train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=4, dev_questions=2))
    named = [
        f"recipe={recipe}",
        f"data.dir={data}",
        f"model.checkpoint={make_start(folder / 'start')}",
        f"run.dir={run}",
    ]
    assert train([*SETTINGS, *named]) == 0
    assert export([str(run), "--gguf", "f16", "--dtype", "float32", "--out", str(out)]) == 0
    tokenizer, trained = load_tokenizer(run / "model"), read_trained(run / "config.yaml")
    style = style_for(recipe, trained.data, tokenizer)
    example = load_folder(data / "dev").examples[0]
    prompt = make_prompt(example, style, tokenizer, trained.data.max_prompt_tokens)
    assert prompt is not None
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    file = out / "out-f16.gguf"
    command = [str(SERVER), "-m", str(file), "--port", str(port), "-c", "2048", "-t", "2", "--offline", "--no-webui"]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            wait_until_ready(f"http://127.0.0.1:{port}", process)
            message = "".join(message_texts(example, style))
            yield Served(f"http://127.0.0.1:{port}", file, recipe, example, prompt, message)
        finally:
            process.terminate()
            process.wait(60)


def test_prompt_of_the_server_has_the_tokens_of_training(served: Served) -> None:
    messages = [{"role": "user", "content": served.message}]
    rendered = post(f"{served.url}/apply-template", messages=messages)["prompt"]
    assert rendered == served.prompt.text
    tokens = post(f"{served.url}/tokenize", content=rendered, add_special=True, parse_special=True)["tokens"]
    assert tuple(tokens) == served.prompt.token_ids


def test_chat_completion_is_our_greedy_answer(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    messages = [{"role": "user", "content": served.message}]
    options = {"temperature": 0, "max_tokens": TOKENS, "model": "out"}
    (choice,) = post(f"{served.url}/v1/chat/completions", messages=messages, **options)["choices"]
    reply = choice["message"]
    text = (reply.get("reasoning_content") or "") + (reply.get("content") or "")
    limit = f"evaluate.sampling.max_new_tokens={TOKENS}"
    database = ["--db", served.example.db_path, served.example.question]
    settings = [f"recipe={served.recipe}", "data.prompt=chat", "data.schema=compact", limit, "--explain"]
    assert ask(["--model", str(served.file), *database, *settings]) in {0, 1}
    ours = capsys.readouterr().out
    assert len(text.strip()) > TOKENS / 2
    assert text.strip() in ours
    endpoint = ["--endpoint", f"{served.url}/v1", "--model", "out"]
    assert ask([*endpoint, *database, *settings, "evaluate.sampling.temperature=0"]) in {0, 1}
    theirs = capsys.readouterr().out
    assert text.strip() in theirs
    assert theirs.rpartition(text.strip())[2] == ours.rpartition(text.strip())[2], "SQL and result"


def test_modelfile_has_the_prompt_of_training(served: Served) -> None:
    """Fill in the Go template by hand; the tests have no ollama."""
    lines = (served.file.parent / "Modelfile").read_text()
    assert lines.startswith(f"FROM ./{served.file.name}\n")
    template = lines.partition('TEMPLATE """')[2].partition('"""')[0]
    without_system = template.partition("{{ else }}")[2].partition("{{ end }}")[0]
    assert without_system.replace("{{ .Prompt }}", served.message) == served.prompt.text
    assert f"PARAMETER num_predict {TOKENS}\n" in lines
    assert f"PARAMETER num_ctx {1600 + TOKENS}\n" in lines
