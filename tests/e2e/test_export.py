"""Export of a run's model to a folder, model card, GGUF and hub, also from a checkpoint of an unfinished run."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxrl_sql.commands.export import main as export
from jaxrl_sql.commands.train import main
from jaxrl_sql.models import load_checkpoint, load_tokenizer
from jaxrl_sql.models.formats.hf import read_tensors
from jaxrl_sql.runtime.model_locator import read_trained
from jaxrl_sql.training.model_card import save_prompt_settings
from jaxrl_sql.types import InputError

START = Path(__file__).parents[2] / "configs" / "recipes_start"
Start = Callable[..., list[str]]
TEMPLATE = "{% block user %}{{ schema }}{{ question }}{% endblock %}"
COMMITS: list[dict[str, bytes]] = []


@pytest.fixture(scope="module")
def finished(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of a finished run into which tests may export."""
    return shutil.copytree(whole, tmp_path_factory.mktemp("export") / "run")


def same(wanted: dict[str, Any], result: dict[str, Any]) -> None:
    np.testing.assert_allclose(result["embed"], wanted["embed"], rtol=2**-8)
    for name, leaf in wanted["layers"].items():
        np.testing.assert_allclose(result["layers"][name], leaf, rtol=2**-8, err_msg=name)


def test_export_writes_the_policy_of_the_chosen_step(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (2, 5):  # supervised and GRPO
        out = tmp_path / str(step)
        assert export([str(finished), "--step", str(step), "--out", str(out)]) == 0
        config, params = load_checkpoint(out)
        assert len(load_tokenizer(out)) == config.vocab_size
        # The start of GRPO is the end of the supervised phase, which has no earlier evaluation.
        assert ("| not measured |" in (out / "README.md").read_text()) == (step == 2)
        if step == 5:
            same(load_checkpoint(finished / "model")[1], params)
    assert export([str(finished), "--step", "7", "--out", str(tmp_path / "none")]) == 2
    assert "no checkpoint of step 7; it has 1, 2, 3, 4, 5" in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkpoint_with_a_value_head_is_exported_without_it(arguments: Start, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    ppo = ("grpo.algorithm=ppo", "grpo.steps=1", "sft.steps=0", "run.display=none")
    assert main(arguments(run, *ppo)) == 0
    assert export([str(run), "--step", "1", "--out", str(out)]) == 0
    same(load_checkpoint(run / "model")[1], load_checkpoint(out)[1])


def test_export_writes_folder_card_and_gguf(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("gguf")
    assert export([str(finished), "--gguf", "f16"]) == 0
    out, file, model, card = map(Path, capsys.readouterr().out.split())
    assert (out, file.name, card.name) == (finished / "export", "export-f16.gguf", "README.md")
    # The run's prompts are plain text, sent as a message.
    assert model.read_text().startswith('FROM ./export-f16.gguf\nTEMPLATE """{{ .Prompt }}"""\nPARAMETER stop "')
    assert "PARAMETER temperature 0\n" in model.read_text()
    assert not [*out.glob("*.safetensors*")], "the weights are in the GGUF file"
    with pytest.raises(InputError, match=r"export: no model\.safetensors; give the path .*/export-f16\.gguf$"):
        load_checkpoint(out)
    remaining = dict(read_tensors(file))
    for name, tensor in read_tensors(finished / "model"):
        as_kept = tensor.astype(np.float16) if tensor.ndim > 1 else tensor
        np.testing.assert_array_equal(remaining[name], as_kept, err_msg=name)
    text = card.read_text()
    assert text.startswith("---\nlicense: other\n")
    for output in (
        "| recipe | arctic |",
        "| GRPO steps | 3 |",
        "| seed | 0 (data 0) |",
        "| base | none: new weights |",
    ):
        assert output in text
    assert "[0.0%, " in text, "an interval for an accuracy of 0"
    assert f"`{hashlib.sha256(file.read_bytes()).hexdigest()}`" in text
    assert str(finished.parent) not in text, "no local path is published"
    assert (out / "jaxrl_sql.yaml").read_text() == (finished / "model" / "jaxrl_sql.yaml").read_text()
    assert f"`{hashlib.sha256(model.read_bytes()).hexdigest()}`" in text
    assert export([str(finished)]) == 0
    assert not model.exists(), "it belongs to the earlier GGUF file"
    same(load_checkpoint(finished / "model")[1], load_checkpoint(out)[1])
    assert export([str(finished), "--gguf", "q8_0"]) == 0
    assert not [*out.glob("*.safetensors*")], "they belong to the earlier export"


def test_averaged_weights_are_exported(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = dict(read_tensors(finished / "model"))
    shift, others = {}, [tmp_path / name for name in ("up", "down")]
    for other, factor in zip(others, (1.0, -2.0), strict=True):
        shutil.copytree(finished / "model", other)
        shift[other] = {
            name: factor * np.random.default_rng(0).normal(size=entry.shape) for name, entry in policy.items()
        }
        moved = {name: (element + shift[other][name]).astype(np.float32) for name, element in policy.items()}
        save_file(moved, other / "model.safetensors")
    assert export([str(finished), "--average", str(others[0]), "--dtype", "float32"]) == 0
    assert capsys.readouterr().out.split()[0] == str(finished / "averaged")
    step = ["--step", "5", "--average", *map(str, others), "--dtype", "float32"]
    assert export([str(finished), *step]) == 0
    for count, folder in enumerate((finished / "averaged", finished / "averaged-5"), start=1):
        mean = dict(read_tensors(folder))
        assert mean.keys() == policy.keys()
        for name, item in policy.items():
            wanted = item + sum(shift[other][name] for other in others[:count]) / (count + 1)
            np.testing.assert_allclose(mean[name], wanted, atol=1e-6, err_msg=name)
    card = (finished / "averaged-5" / "README.md").read_text()
    assert "The weights are the mean of these and of up, down. No run measured its accuracy." in card
    assert "before and after" not in card
    assert export([str(finished), "--average", str(others[0]), "--out", str(others[0])]) == 2
    assert "is the model's own folder; choose another folder" in capsys.readouterr().err


def test_averaging_requires_equal_shapes_and_tokens(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export([str(finished), "--average", str(START), "--out", str(tmp_path / "none")]) == 2
    assert "its weights have other shapes" in capsys.readouterr().err
    other = tmp_path / "other"
    shutil.copytree(START, other)
    tokens = json.loads((other / "tokenizer.json").read_text())
    last = max(tokens["model"]["vocab"], key=tokens["model"]["vocab"].__getitem__)
    tokens["model"]["vocab"]["another"] = tokens["model"]["vocab"].pop(last)
    tokens["model"]["merges"] = [
        merge for merge in tokens["model"]["merges"] if "".join(merge).replace(" ", "") != last
    ]
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    assert export([str(START), "--average", str(other), "--out", str(tmp_path / "none")]) == 2
    assert "its tokens are not those of" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


class Hub(BaseHTTPRequestHandler):
    """The hub API for uploading a folder; files are part of the commit."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        where, status = self.path.partition("?")[0], 200
        answer: dict[str, Any] = {}
        if where == "/api/repos/create":
            status = 403 if b"forbidden" in body else 200
            answer = {"url": f"http://{self.headers['Host']}/org/tiny", "error": "no rights to that name"}
        elif where.endswith("/preupload/main"):
            files = json.loads(body)["files"]
            answer = {
                "files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            }
        elif where.endswith("/commit/main"):
            lines = [json.loads(line) for line in body.splitlines()]
            files = [item["value"] for item in lines if item["key"] == "file"]
            COMMITS.append({entry["path"]: base64.b64decode(entry["content"]) for entry in files})
            answer = {"commitUrl": f"http://{self.headers['Host']}/org/tiny/commit/1", "commitOid": "1" * 40}
        self.reply(status, answer)

    def do_GET(self) -> None:
        self.reply(404 if "forbidden" in self.path else 200, {"id": "org/tiny", "sha": "1" * 40, "siblings": []})

    def reply(self, status: int, answer: Any) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *message: object) -> None:
        """Print nothing."""


@pytest.fixture
def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Serve the hub, set it as this process's endpoint, and yield its address."""
    COMMITS.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        for name, value in (("HF_TOKEN", "hf_of_a_test"), ("NO_PROXY", "127.0.0.1"), ("HF_HOME", str(tmp_path))):
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield url
        server.shutdown()


def upload(out: Path, repo: str) -> int:
    return export([str(START), "--out", str(out), "--hub", repo])


def test_upload_sends_exactly_the_files_of_the_folder(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "diary.log").write_text("not for others")
    assert upload(out, "org/tiny") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{endpoint}/org/tiny/commit/1"
    (sent,) = COMMITS
    assert sent.keys() == {path.name for path in out.iterdir()} - {"diary.log", ".cache"}
    assert {"README.md", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= sent.keys()
    for name, body in sent.items():
        assert body == (out / name).read_bytes()


def test_a_hub_error_is_reported_in_one_line(endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for repo, message in (("org/forbidden", "not uploaded: "), ("nothing", "a repository's name is expected")):
        assert upload(tmp_path / "out", repo) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert message in error


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["nowhere"], "model nowhere: no such folder or file"),
        (["empty"], "empty: no config.json"),
        (["run"], "the run has no model/ yet; it is written at the run's end"),
        (["run", "--step", "3"], "no checkpoint of step 3; it has none"),
        (["empty", "--step", "3"], "not a run folder"),
        ([str(START), "--average", "nowhere"], "model nowhere: no such folder or file"),
        ([str(START), "--out", str(START)], "is the model's own folder; choose another folder"),
    ],
)
def test_invalid_export_arguments_are_reported_in_one_line(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 1\n")
    assert export(arguments) == 2
    err = capsys.readouterr().err
    assert error in err
    assert err.count("\n") == 1


@pytest.fixture
def prompted_model(tmp_path: Path) -> Path:
    """Return a model folder with its own prompt template."""
    folder = tmp_path / "asked"
    shutil.copytree(START, folder)
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    (tmp_path / "config.yaml").write_text(f"data: {{chat: {{template: '{tmp_path / 'own.jinja'}'}}, prompt: chat}}\n")
    save_prompt_settings(folder, read_trained(tmp_path / "config.yaml"))
    return folder


def names(folder: Path) -> set[str]:
    return {item.name for item in folder.iterdir()}


def list_files(folder: Path) -> set[str]:
    lines = (folder / "README.md").read_text().splitlines()
    return {line.split("`")[1] for line in lines if line.startswith("| `")}


def test_a_second_export_removes_stale_files(prompted_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = tmp_path / "out"
    assert export([str(prompted_model), "--out", str(out), "--gguf", "f16"]) == 0
    first = {"out-f16.gguf", "prompt.jinja", "jaxrl_sql.yaml", "chat_template.jinja"}
    assert first <= names(out)
    assert first <= list_files(out)
    assert export([str(prompted_model), "--out", str(out), "--gguf", "q8_0"]) == 0
    assert names(out) & {*first, "out-q8_0.gguf"} == first - {"out-f16.gguf"} | {"out-q8_0.gguf"}
    plain = tmp_path / "plain"
    shutil.copytree(START, plain)
    (plain / "chat_template.jinja").unlink()
    assert load_tokenizer(plain).chat_template is None
    assert export([str(plain), "--out", str(out)]) == 0
    assert export([str(plain), "--out", str(tmp_path / "fresh")]) == 0
    assert names(out) == names(tmp_path / "fresh")
    assert list_files(out) == list_files(tmp_path / "fresh")
    assert load_tokenizer(out).chat_template is None


def test_export_keeps_unrelated_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    others = {"out-q4_k_m.gguf", "out-f16.gguf.bak", "other-f16.gguf", "prompt.jinja", "out-q8_0.gguf", "notes.json"}
    for name in others:
        (out / name).write_text(json.dumps(name))
    (out / "README.md").write_text("# Of someone else\n")
    assert export([str(START), "--out", str(out)]) == 0
    for name in others:
        assert (out / name).read_text() == json.dumps(name)


def test_export_keeps_its_source_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    out = tmp_path / "out"
    assert export([str(START), "--out", str(out), "--gguf", "f16"]) == 0
    remaining = (out / "out-f16.gguf").read_bytes()
    assert export([str(out / "out-f16.gguf"), "--out", str(out)]) == 0
    assert (out / "out-f16.gguf").read_bytes() == remaining
