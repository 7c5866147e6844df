"""Hub models: download from a hub on loopback, resumption, caching, waits, and errors of one line."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.runtime.hub import find_name_and_revision, is_hub_name

MODEL = Path(__file__).parents[3] / "configs/quickstart_start"
FILES = {path.name: path.read_bytes() for path in MODEL.iterdir()}
NOT_NEEDED = {
    name: bytes(100)
    for name in ("pytorch_model.bin", "model.pth", "consolidated.safetensors", "q4.gguf", "onnx/a.json")
}
MIB = 1 << 20
BIG = {**FILES, "model.safetensors": random.Random(0).randbytes(12 * MIB)}
NOT_FETCHED = "not a local folder, and the hub did not provide it: "
CODE = """
import json, os, sys
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.runtime.model_locator import with_downloads
from jaxrl_sql.types import InputError

for has_weights, *overrides in json.loads(sys.argv[1]):
    try:
        config = with_downloads(load_config(TrainConfig, None, ["data.dir=here", *overrides]), has_weights)
        folder = config.model.checkpoint
        print(json.dumps([folder, config.data.tokenizer.path, sorted(os.listdir(folder))]))
    except InputError as error:
        print(json.dumps(f"refused: {error}"))
"""


def start(endpoint: str, home: Path, *calls: tuple[bool | str, ...], **environment: str) -> subprocess.Popen[str]:
    """Start a process that makes calls (with weights, overrides): the hub's package reads its environment once."""
    there = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    there |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1", **environment}
    command = [sys.executable, "-W", "error", "-c", CODE, json.dumps(calls)]
    return subprocess.Popen(command, env=there, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def fetch(endpoint: str, home: Path, *calls: tuple[bool | str, ...], **environment: str) -> tuple[list[Any], str]:
    """Return (folder, tokenizer, file names) or the error of each call, and the text on standard error."""
    with start(endpoint, home, *calls, **environment) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "Traceback" not in errors
    return [json.loads(line) for line in out.splitlines()], errors


def model(name: str) -> tuple[bool, str]:
    """Return the call that downloads a whole model."""
    return True, f"model.checkpoint={name}"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_hub_model_is_downloaded_once_and_cached(hub: Any, tmp_path: Path) -> None:
    sha = hub.commit("org/tiny", FILES | NOT_NEEDED)
    tiny, other = "model.checkpoint=org/tiny", "model.checkpoint=org/other"
    calls = ((False, tiny, "data.tokenizer.path=org/tiny"), (True, tiny), (True, other))
    (about, whole, refused), shown = fetch(hub.url, tmp_path, *calls)
    folder = Path(about[0])
    assert about == [str(folder), str(folder), sorted(FILES.keys() - {"model.safetensors"})]
    assert (whole[0], whole[2]) == (str(folder), sorted(FILES))
    assert contents(whole[0]) == FILES
    assert folder.name == sha
    assert refused.startswith(f"refused: model org/other: {NOT_FETCHED}")
    assert "\n" not in refused
    assert not [request for name in NOT_NEEDED for request in hub.of(name)]
    assert f"model org/tiny from {hub.url}\ndownloading 1 file: 3 MiB\nmodel org/tiny: commit {sha}" in shown
    downloads = len(hub.of("resolve"))
    ((again,), shown) = fetch(hub.url, tmp_path, model("org/tiny"))
    assert (again[0], shown) == (str(folder), "")
    assert len(hub.of("resolve")) == downloads
    (cached, refused), shown = fetch("http://127.0.0.1:9", tmp_path, (True, tiny), (True, other))
    assert cached[0] == str(folder)
    assert f"the hub cannot be reached; the cache has commit {sha}" in shown
    assert refused == (
        f"refused: model org/other: {NOT_FETCHED}the hub cannot be reached, and the cache has no complete copy: "
        "give the path of a model's folder or GGUF file on this machine"
    )
    ((cached,), shown) = fetch(hub.url, tmp_path, (True, tiny), HF_HUB_OFFLINE="1")
    assert (cached[0], shown) == (str(folder), "")


def test_a_killed_download_continues_where_it_stopped(hub: Any, tmp_path: Path) -> None:
    hub.commit("org/big", BIG)
    hub.stall = 5 * MIB
    part = tmp_path / "hub/models--org--big/blobs" / f"{sha256(BIG['model.safetensors'])}.incomplete"
    with start(hub.url, tmp_path, model("org/big")) as process:
        until = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size >= 5 * MIB):
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    ((refused,), _) = fetch("http://127.0.0.1:9", tmp_path, model("org/big"))
    assert "the cache has no complete copy" in refused
    hub.stall = 0
    hub.released.set()
    ((whole,), shown) = fetch(hub.url, tmp_path, model("org/big"))
    assert contents(whole[0]) == BIG
    first, second = hub.of("model.safetensors?X-Signature")
    assert (first.range, second.range) == (None, f"bytes={5 * MIB}-")
    assert "files: 13 MiB" in shown


def test_a_damaged_part_of_a_file_is_downloaded_again(hub: Any, tmp_path: Path) -> None:
    sha = hub.commit("org/big", BIG)
    blobs = tmp_path / "hub/models--org--big/blobs"
    blobs.mkdir(parents=True)
    large = hub.commits["org/big"][sha]["model.safetensors"]
    part = blobs / f"{sha256(large)}.incomplete"
    part.write_bytes(bytes(3 * MIB))
    ((whole,), shown) = fetch(hub.url, tmp_path, model("org/big"))
    assert contents(whole[0]) == BIG
    assert [request.range for request in hub.of("X-Signature")] == [f"bytes={3 * MIB}-", None]
    assert "or its checksum differs" in shown


def test_a_broken_connection_is_continued_and_busy_answers_are_repeated(hub: Any, tmp_path: Path) -> None:
    hub.commit("org/big", BIG)
    hub.cuts.extend([("model.safetensors", 3 * MIB), ("model.safetensors", 2 * MIB)])
    wait = {"Retry-After": "1"}
    hub.busy.extend(
        [("/api/models/", 429, wait), ("/resolve/", 429, wait), ("/tokenizer.json", 429, wait), ("X-Sig", 503, {})]
    )
    ((whole,), shown) = fetch(hub.url, tmp_path, model("org/big"))
    assert contents(whole[0]) == BIG
    assert [request.range for request in hub.of("X-Signature")] == [
        None,
        None,
        f"bytes={3 * MIB}-",
        f"bytes={5 * MIB}-",
    ]
    assert shown.count("the hub limits requests (429): repeated in 1 s (1 of 5)") >= 2
    assert shown.count("the connection to the hub broke") == 2
    assert not hub.busy


def test_a_wait_beyond_the_limit_ends_in_one_line(hub: Any, tmp_path: Path) -> None:
    for repo in ("org/long", "org/files", "org/window"):
        hub.commit(repo, FILES)
    hub.busy.extend(
        [
            ("models/org/long/", 429, {"Retry-After": "3600"}),
            ("org/files/resolve", 429, {"Retry-After": "7200"}),
            ("models/org/window", 429, {"RateLimit": '"api";r=0;t=900'}),
        ]
    )
    answers, _ = fetch(hub.url, tmp_path, model("org/long"), model("org/files"), model("org/window"))
    for answer, seconds in zip(answers, ("3,600", "7,200", "900"), strict=True):
        assert f"the hub limits requests (429) and asks to wait {seconds} s: repeat the command then" in answer
        assert "\n" not in answer


def test_refused_access_and_unknown_names_say_what_to_do(hub: Any, tmp_path: Path) -> None:
    for repo in ("org/gated", "org/private", "org/open"):
        hub.commit(repo, FILES)
    hub.gated.add("org/gated")
    hub.private.add("org/private")
    calls = [model(name) for name in ("org/gated", "org/private", "org/open@v2", "org/none")]
    answers, _ = fetch(hub.url, tmp_path, *calls)
    login = "set HF_TOKEN, or log in with `hf auth login`"
    wrong = f"the hub refuses access (401): the name is wrong, or the model is private: {login}"
    terms = f"accept its terms at {hub.url}/org/gated, then {login}"
    assert answers == [
        f"refused: model org/gated: {NOT_FETCHED}it is gated, and the hub refuses access (401): {terms}",
        f"refused: model org/private: {NOT_FETCHED}{wrong}",
        f"refused: model org/open@v2: {NOT_FETCHED}it has no revision v2 (404)",
        f"refused: model org/none: {NOT_FETCHED}{wrong}",
    ]
    answers, _ = fetch(hub.url, tmp_path, *calls[-1:], *calls[:2], HF_TOKEN=hub.token)
    assert answers[0] == f"refused: model org/none: {NOT_FETCHED}the hub has no such model (404)"
    assert [contents(answer[0]) for answer in answers[1:]] == [FILES, FILES]
    assert all(request.token is None for request in hub.requests if request.server == "storage")
    assert any(request.token == f"Bearer {hub.token}" for request in hub.of("gated/resolve", "HEAD"))
    ((refused,), _) = fetch(hub.url, tmp_path, model("org/open"), HF_TOKEN="hf_wrong")  # noqa: S106 - of this server
    assert refused == f"refused: model org/open: {NOT_FETCHED}the hub refuses the token (401): {login}"


def test_a_revision_is_a_commit_and_main_moves(hub: Any, tmp_path: Path) -> None:
    old = hub.commit("org/tiny", FILES)
    ((first,), _) = fetch(hub.url, tmp_path, model("org/tiny"))
    new = hub.commit("org/tiny", FILES | {"README.md": b"# new"})
    (pinned, moved), _ = fetch(hub.url, tmp_path, model(f"org/tiny@{old}"), model("org/tiny"))
    assert [Path(answer[0]).name for answer in (first, pinned, moved)] == [old, old, new]
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text(f"model: {{checkpoint: {first[0]}}}\ndata: {{dir: here}}\n")
    of_run = ["model.checkpoint=org/tiny", f"run.dir={run}"]
    (resumed, anew), _ = fetch(hub.url, tmp_path, (True, *of_run, "run.resume=true"), (True, *of_run))
    assert [Path(answer[0]).name for answer in (resumed, anew)] == [old, new]
    gone = pinned[0].replace("tiny", "other").replace(old, hub.commit("org/other", FILES))
    ((restored,), _) = fetch(hub.url, tmp_path, model(gone))
    assert contents(restored[0]) == FILES


def test_a_repository_without_safetensors_or_config_is_refused_before_its_files(hub: Any, tmp_path: Path) -> None:
    hub.commit("org/bin", {"config.json": b"{}", "pytorch_model.bin": bytes(10)})
    hub.commit("org/gguf", {"q4.gguf": bytes(10), "README.md": b"#"})
    (no_weights, neither), _ = fetch(hub.url, tmp_path, model("org/bin"), model("org/gguf"))
    end = "; name a model in transformers' format, or download a GGUF file and give its path"
    assert no_weights == f"refused: model org/bin: its repository has no weights in *.safetensors{end}"
    assert neither == f"refused: model org/gguf: its repository has no config.json and no weights in *.safetensors{end}"
    assert not hub.of("resolve")


def test_local_path_is_never_requested_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_hub_name("org/name")
    assert is_hub_name("org/name@v1.0")
    for path in ("runs/gone", "./name", "../name", "/org/name", "name", "org/name/model", "org/name.gguf", "runs"):
        assert not is_hub_name(path), path


def test_other_programs_load_a_model_by_its_hub_name_or_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789" * 4
    cached = tmp_path / "hub/models--Qwen--Qwen2.5-0.5B/snapshots" / commit
    assert find_name_and_revision(str(cached)) == ("Qwen/Qwen2.5-0.5B", commit)
    assert find_name_and_revision("Qwen/Qwen2.5-0.5B") == ("Qwen/Qwen2.5-0.5B", "")
    (tmp_path / "runs/shop_sft/model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_name_and_revision("runs/shop_sft/model") == (str(tmp_path / "runs/shop_sft/model"), "")
    assert find_name_and_revision("") == ("", "")
