"""Hub models: download from a small local hub, caching, and errors of one line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.runtime.hub import is_hub_name

MODEL = Path(__file__).parents[3] / "configs/quickstart_start"
SHA = "5" * 40
CODE = """
import json, os, sys
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.runtime.model_locator import fetched
from jaxrl_sql.types import InputError

for has_weights, *overrides in json.loads(sys.argv[1]):
    try:
        config = fetched(load_config(TrainConfig, None, ["data.dir=here", *overrides]), has_weights)
        folder = config.model.checkpoint
        print(json.dumps([folder, config.data.tokenizer.path, sorted(os.listdir(folder))]))
    except InputError as error:
        print(json.dumps(f"refused: {error}"))
"""


class Hub(BaseHTTPRequestHandler):
    """The hub endpoints of a download: one model, org/tiny, with a folder that is not needed."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        files = {path.name: path.read_bytes() for path in MODEL.iterdir()} | {"onnx/model.json": b"{}"}
        where, headers = self.path.partition("?")[0], {}
        if where == "/api/models/org/tiny/revision/main":
            body = json.dumps(
                {"id": "org/tiny", "sha": SHA, "siblings": [{"rfilename": file} for file in files]}
            ).encode()
        elif where.startswith(f"/api/models/org/tiny/tree/{SHA}"):
            rows = [{"type": "file", "path": name, "size": len(data), "oid": name} for name, data in files.items()]
            body = json.dumps(rows).encode()
        elif (name := where.removeprefix(f"/org/tiny/resolve/{SHA}/")) in files:
            body = files[name]
            headers = {"ETag": f'"{hashlib.sha1(body, usedforsecurity=False).hexdigest()}"', "X-Repo-Commit": SHA}
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        for key, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *message: object) -> None:
        """Log nothing."""


@pytest.fixture
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetch(endpoint: str, home: Path, *calls: tuple[bool | str, ...]) -> list[Any]:
    """Return (folder, tokenizer, file names) or the error of each call (with weights, overrides).

    The calls run in a new process, because the hub's package reads its environment once.
    """
    there = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-W", "error", "-c", CODE, json.dumps(calls)]
    done = subprocess.run(command, env=there, cwd=home, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_hub_model_is_downloaded_once_and_cached(endpoint: str, tmp_path: Path) -> None:
    tiny, other = "model.checkpoint=org/tiny", "model.checkpoint=org/other"
    calls = ((False, tiny, "data.tokenizer.path=org/tiny"), (True, tiny), (True, other))
    about, whole, refused = fetch(endpoint, tmp_path, *calls)
    files = {path.name: path.read_bytes() for path in MODEL.iterdir()}
    folder = Path(about[0])
    assert about == [str(folder), str(folder), sorted(files.keys() - {"model.safetensors"})]
    assert (whole[0], whole[2]) == (str(folder), sorted(files))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert refused.startswith("refused: model org/other: not a local folder, and the hub did not provide it: ")
    assert "\n" not in refused
    cached, refused = fetch("http://127.0.0.1:9", tmp_path, (True, tiny), (True, other))
    assert cached[0] == str(folder)
    assert refused == (
        "refused: model org/other: not a local folder, and the hub did not provide it: the hub cannot be "
        "reached, and the cache has no copy"
    )


def test_local_path_is_never_requested_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert is_hub_name("org/name")
    assert is_hub_name("org/name@v1.0")
    for path in ("runs/gone", "./name", "../name", "/org/name", "name", "org/name/model", "org/name.gguf", "runs"):
        assert not is_hub_name(path), path
