"""Published wheels install without a compiler, and the quickstart trains from them in another folder."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from contextlib import closing
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT_JAX = """
import importlib.util, pkgutil, jaxrl_sql as jx
assert importlib.util.find_spec("jax") is None
assert jx.RECIPES and callable(jx.load_benchmark)
for package in ("text2sql", "datagen", "databases", "report", "runtime", "config"):
    root = importlib.import_module(f"jaxrl_sql.{package}")
    for module in pkgutil.walk_packages(root.__path__, f"{root.__name__}."):
        if not module.name.endswith((".openenv", ".verifiers")):
            importlib.import_module(module.name)
"""
OURS = ("jaxrl", "sqlexec", "__editable__", "distutils-precedence")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of both packages, ours built from its source distribution as in a release."""
    out = tmp_path_factory.mktemp("dist")

    def build(kind: str, package: Path) -> None:
        code = f"import build_backend; build_backend.build_{kind}({str(out)!r})"
        subprocess.run([sys.executable, "-c", code], cwd=package, check=True)

    build("wheel", ROOT / "sqlexec_rs")
    build("sdist", ROOT)
    (packed,) = out.glob("*.tar.gz")
    with tarfile.open(packed) as tar:
        tar.extractall(out, filter="data")
    build("wheel", out / packed.name.removesuffix(".tar.gz"))
    return out


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of an environment with the extra `train` and without a compiler."""
    return install(tmp_path_factory.mktemp("bare"), dist, "jaxrl-sql[train]")


def install(folder: Path, dist: Path, requirement: str, without: tuple[str, ...] = ()) -> Path:
    """Create an environment and return its programs: our wheels, with pip and the dependencies linked from here."""
    venv.create(folder)
    (site,) = folder.glob("lib/python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith((*OURS, *without)) and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    run(folder / "bin", folder, "python", "-m", "pip", "install", "--no-index", "--find-links", str(dist), requirement)
    return folder / "bin"


def run(programs: Path, folder: Path, program: str, *arguments: str) -> str:
    """Run a program with an environment's programs as its only PATH, and return its output."""
    bare = {"PATH": str(programs), "HOME": str(folder)} | {
        name: os.environ[name] for name in ("JAX_PLATFORMS", "XLA_FLAGS")
    }
    command = [str(programs / program), *arguments]
    done = subprocess.run(command, cwd=folder, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_quickstart_trains_from_wheels_without_a_compiler(bare: Path, tmp_path: Path) -> None:
    code = "import jaxrl_sql, sqlexec_rs; print(jaxrl_sql.__file__, sqlexec_rs.__file__)"
    assert all(Path(path).is_relative_to(bare.parent) for path in run(bare, tmp_path, "python", "-c", code).split())
    few = ["--train-dbs=3", "--dev-dbs=1", "--unseen-dbs=1", "--train-questions=24", "--dev-questions=4"]
    run(bare, tmp_path, "jaxrl-sql", "data", "synth", "--out", "data", *few)
    small = ["data.source=folder", "data.dir=data", "data.select.limit_train=24", "grpo.steps=2", "grpo.prompts=4"]
    small += ["rollout.max_num_seqs=16", "validation.max_num_seqs=16", "run.pad_to_max=true"]
    assert "a worker process ran SELECT 1" in run(bare, tmp_path, "jaxrl-sql", "doctor")
    run(bare, tmp_path, "jaxrl-sql", "quickstart", *small)
    lines = (tmp_path / "runs/quickstart/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["step"] for line in lines if json.loads(line)["phase"] == "grpo"] == [1, 2]
    assert (tmp_path / "runs/quickstart/model/model.safetensors").is_file()


@pytest.mark.slow
def test_rewards_prompts_and_evaluation_work_without_jax(dist: Path, tmp_path: Path) -> None:
    programs = install(tmp_path / "light", dist, "jaxrl-sql", without=("jax", "flax", "optax", "orbax"))
    with closing(sqlite3.connect(tmp_path / "pop.sqlite")) as connection:
        connection.execute("CREATE TABLE singer(name)")
    (tmp_path / "dev.csv").write_text("question,sql,db_path\nHow many?,SELECT count(*) FROM singer,pop.sqlite\n")
    page = (ROOT / "docs/howto/trl_environment.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    code = f"{example}\nassert observation is not None and reward == -1.0, (observation, reward)\n" + WITHOUT_JAX
    run(programs, tmp_path, "python", "-W", "error", "-c", code)
    (tmp_path / "predictions.jsonl").write_text('{"id": "dev_0", "pred_sql": "SELECT 0"}\n')
    options = ["--data", "dev.csv", "--predictions", "predictions.jsonl", "--out", "scores"]
    run(programs, tmp_path, "jaxrl-sql", "evaluate", *options)
    assert json.loads((tmp_path / "scores/metrics.json").read_text())["count"] == 1
    command = [str(programs / "jaxrl-sql"), "quickstart", "grpo.steps=1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, "pip install 'jaxrl-sql[train]'" in done.stderr) == (2, True), done.stderr


@pytest.mark.slow
def test_wheels_contain_required_files(dist: Path) -> None:
    version = tomllib.loads((ROOT / "Cargo.toml").read_text(encoding="utf-8"))["workspace"]["package"]["version"]
    wheels = {path.name.split("-")[0]: path for path in dist.glob("*.whl")}
    assert set(wheels) == {"jaxrl_sql", "sqlexec_rs"}
    names, metadata = {}, {}
    for name, path in wheels.items():
        with zipfile.ZipFile(path) as wheel:
            names[name] = set(wheel.namelist())
            metadata[name] = Parser().parsestr(wheel.read(f"{name}-{version}.dist-info/METADATA").decode())
        assert metadata[name]["Version"] == version
        assert metadata[name]["License-Expression"] == "MIT"
        assert {f"{name}/py.typed", f"{name}-{version}.dist-info/licenses/LICENSE"} <= names[name]
    assert re.search(r"-cp311-abi3-", wheels["sqlexec_rs"].name)
    assert "sqlexec_rs/sqlexec-worker" in names["sqlexec_rs"]
    assert f"sqlexec_rs-{version}.dist-info/licenses/THIRD_PARTY_NOTICES.txt" in names["sqlexec_rs"]
    (requirement,) = [line for line in metadata["jaxrl_sql"].get_all("Requires-Dist") if line.startswith("sqlexec-rs")]
    assert "@" not in requirement, "a published wheel requires the published executor"
    files = [path.relative_to(ROOT / "configs") for path in (ROOT / "configs").rglob("*") if path.is_file()]
    assert {f"jaxrl_sql/config/shipped/{path.as_posix()}" for path in files} <= names["jaxrl_sql"]


@pytest.mark.slow
@pytest.mark.parametrize("settings", [None, {"executor": "installed"}])
def test_a_clone_requires_its_local_executor_by_default(tmp_path: Path, settings: dict[str, str] | None) -> None:
    code = f"import build_backend as b; b.prepare_metadata_for_build_editable({str(tmp_path)!r}, {settings})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
    (path,) = tmp_path.glob("*.dist-info/METADATA")
    (requirement,) = [
        item for item in Parser().parsestr(path.read_text()).get_all("Requires-Dist") if item.startswith("sqlexec")
    ]
    assert requirement == ("sqlexec-rs<0.2,>=0.1" if settings else f"sqlexec-rs @ {(ROOT / 'sqlexec_rs').as_uri()}")
