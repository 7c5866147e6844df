"""A checkpoint restores bit-equal on the same shardings or is refused in one line; a killed save is invisible."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_sql.batch import TrainState
from jaxrl_sql.models.formats.checksums import SUMS, find_damage
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.types import InputError

HOST = {"cursor": {"epoch": 1, "index": 7}, "words": ["é", "\u2028"], "nothing": None, "tenth": 0.1}


def make_state(step: int = 3) -> TrainState:
    params = {
        "embed": jnp.arange(12.0).reshape(3, 4) / 7,
        "layers": {"scale": jnp.array([1e-40, jnp.inf, -0.0, 3.0], jnp.float32), "half": jnp.ones(5, jnp.bfloat16) / 3},
    }
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.constant_schedule(0.1)))
    return TrainState(jnp.int32(step), params, None, None, optimizer.init(params))


def assert_same(left: Any, right: Any) -> None:
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        assert a.sharding == b.sharding
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def test_state_and_host_values_restore_bit_equal_in_another_manager(tmp_path: Path) -> None:
    state = make_state()
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest() is None
        checkpoints.save(3, state, HOST)
    with Checkpoints(tmp_path / "checkpoints") as checkpoints:
        assert checkpoints.latest() == 3
        restored, host, _ = checkpoints.restore(3, jax.tree.map(jnp.zeros_like, state))
    assert_same(restored, state)
    assert host == HOST


def test_reading_a_checkpoint_reports_its_progress_up_to_all_mib(tmp_path: Path) -> None:
    tasks: list[tuple[str, int, str]] = []
    reports: list[int] = []

    @contextmanager
    def task(name: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        tasks.append((name, total, unit))
        yield reports.append

    arrays = {"rollout": np.random.default_rng(0).integers(0, 255, 9 << 20, np.uint8)}
    with Checkpoints(tmp_path / "checkpoints", task=task) as checkpoints:
        checkpoints.save(3, make_state(), HOST, arrays)
        assert checkpoints.host(3) == HOST
        checkpoints.restore(3, make_state())
    ((name, total, unit),) = tasks
    assert (name, unit) == ("checking the checkpoint of step 3", "MiB")
    assert total >= 9
    assert reports == sorted(reports)
    assert len({*reports}) > 2
    assert total - 1 <= reports[-1] <= total


def test_shapes_suffice_as_restore_target(tmp_path: Path) -> None:
    state = make_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        assert_same(checkpoints.restore(1, like)[0], state)


def test_restore_uses_the_shardings_of_its_target(tmp_path: Path) -> None:
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.NamedSharding(mesh, jax.P("data"))
    like = {"w": jax.device_put(jnp.zeros(4), sharded)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, {"w": jnp.arange(4.0)}, {})
        restored, _, _ = checkpoints.restore(1, like)
    assert restored["w"].sharding == sharded
    assert restored["w"].tolist() == [0, 1, 2, 3]


def test_arrays_may_be_donated_after_save_returns(tmp_path: Path) -> None:
    overwrite = jax.jit(lambda x: x * 0 - 7, donate_argnums=0)
    arrays = {str(i): jnp.full((500, 500), float(i)) for i in range(8)}
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, arrays, {})
        arrays = {name: jax.block_until_ready(overwrite(x)) for name, x in arrays.items()}
        restored, _, _ = checkpoints.restore(1, arrays)
    assert all((restored[str(i)] == i).all() for i in range(8))


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 5):
            checkpoints.save(step, make_state(step), {"at": step})
        assert checkpoints.latest() == 5
        assert checkpoints.restore(2, make_state())[1] == {"at": 2}
        with pytest.raises(InputError, match="no checkpoint of step 1"):
            checkpoints.restore(1, make_state())


def test_best_checkpoints_are_kept_in_addition_to_the_newest(tmp_path: Path) -> None:
    worth = {1: 0.25, 2: 0.75, 3: None, 4: math.nan, 5: 0.75, 6: 0.5, 7: None}
    with Checkpoints(tmp_path, keep=2, keep_best=1) as checkpoints:
        assert checkpoints.best() is None
        for step, value in worth.items():
            checkpoints.save(step, make_state(step), {}, metrics=None if value is None else {"best_by": value})
            if step == 4:  # a step without a rating is not kept and not the best
                assert checkpoints.best() == 2
        assert checkpoints.best() == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5", "6", "7"]
    with Checkpoints(tmp_path, keep=2, keep_best=1) as checkpoints:  # another process also knows the best
        assert (checkpoints.best(), checkpoints.latest()) == (5, 7)
        checkpoints.save(8, make_state(8), {}, metrics={"best_by": 1.0})
        assert checkpoints.best() == 8
    assert sorted(path.name for path in tmp_path.iterdir()) == ["7", "8"]


@pytest.mark.parametrize("empty", [True, False])
def test_host_arrays_restore_unchanged(tmp_path: Path, empty: bool) -> None:
    arrays = {
        "tokens": np.arange(6, dtype=np.int32).reshape(2, 3),
        "scalar": np.float64(0.1),
        "nothing": np.zeros((0, 4), np.float32),
        "words/of one": np.array(["é", "", "longer"]),
        "flags": np.array([True, False]),
    }
    arrays = {} if empty else arrays
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(), HOST, arrays)
        assert checkpoints.host(1) == HOST
        got = checkpoints.restore(1, make_state())[2]
    assert list(got) == list(arrays)
    for name, array in arrays.items():
        want = np.asarray(array)
        assert (got[name].dtype, got[name].shape, got[name].tolist()) == (want.dtype, want.shape, want.tolist()), name


def test_second_save_of_a_step_keeps_the_first(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(4, make_state(), {"save": 1})
        checkpoints.save(4, make_state(), {"save": 2})
        assert checkpoints.restore(4, make_state())[1] == {"save": 1}


Change = Callable[[dict[str, Any]], dict[str, Any]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {**p, "embed": jnp.zeros((3, 5))}, r"trainable\.embed is \(3, 4\) there and \(3, 5\) here"),
        (lambda p: {**p, "embed": jnp.zeros((3, 4), jnp.bfloat16)}, r"trainable\.embed is float32 there and bfloat16"),
        (lambda p: {**p, "more": jnp.zeros(1)}, r"trainable\.more is missing there"),
        (lambda p: {"embed": p["embed"]}, r"trainable\.layers\.half is there and not here"),
    ],
)
def test_another_model_is_refused_with_the_differences(tmp_path: Path, change: Change, message: str) -> None:
    state = make_state()
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, state, {})
        with pytest.raises(InputError, match=message) as caught:
            checkpoints.restore(1, state.replace(trainable=change(state.trainable)))
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


def test_damaged_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, make_state(), {})
    (tmp_path / "1" / "state" / "_METADATA").write_text("{ torn")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(InputError, match="cannot be read") as caught:
        checkpoints.restore(1, make_state())
    assert "\n" not in str(caught.value)


def test_killed_save_is_never_the_latest(tmp_path: Path) -> None:
    saver = """
        import sys, jax.numpy as jnp
        from jaxrl_sql.training.checkpoint import Checkpoints
        checkpoints = Checkpoints(sys.argv[1], keep=50)
        for step in range(1, 1000):
            checkpoints.save(step, {"w": jnp.full((3000, 1000), float(step))}, {"at": step})
            print(step, flush=True)
    """
    command = [sys.executable, "-c", textwrap.dedent(saver), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 4:  # this save now runs in the background
                os.kill(process.pid, signal.SIGKILL)
                break
    with Checkpoints(tmp_path) as checkpoints:
        latest = checkpoints.latest()
        assert latest is not None
        assert latest >= 3
        restored, host, _ = checkpoints.restore(latest, {"w": jnp.zeros((3000, 1000))})
    assert host == {"at": latest}
    assert (restored["w"] == latest).all()


def test_close_waits_for_the_scan_thread(tmp_path: Path) -> None:
    for number in range(500):  # large enough that the scan takes measurable time
        (tmp_path / f"kept-{number}").mkdir()
    before = set(threading.enumerate())
    Checkpoints(tmp_path).close()
    late = [item.name for item in set(threading.enumerate()) - before if "_target_setting_result" in item.name]
    assert not late


def test_step_rated_later_is_a_candidate_for_the_best(tmp_path: Path) -> None:
    """A run that stops with an evaluation due makes it when it resumes."""
    with Checkpoints(tmp_path, keep=1, keep_best=1) as checkpoints:
        checkpoints.save(1, make_state(1), {}, metrics={"best_by": 0.5})
        checkpoints.save(2, make_state(2), {})
        assert checkpoints.best() == 1
        checkpoints.save(2, make_state(2), {"late": True}, metrics={"best_by": 0.9})
        assert checkpoints.best() == 2
        checkpoints.save(3, make_state(3), {})
        state, host, _ = checkpoints.restore(2, make_state(0))
    assert_same(state, make_state(2))
    assert host["late"] is True
    assert sorted(item.name for item in tmp_path.iterdir()) == ["2", "3"]  # nothing of the first save is left


@pytest.mark.parametrize("when", ["while it is written", pytest.param("when it is whole", marks=pytest.mark.slow)])
def test_kill_during_a_repeated_save_loses_nothing(tmp_path: Path, when: str) -> None:
    saver = """
        import os, signal, sys, jax.numpy as jnp
        from jaxrl_sql.training.checkpoint import Checkpoints
        checkpoints = Checkpoints(sys.argv[1], keep=1, keep_best=1)
        state = {"w": jnp.full((3000, 1000), 7.0)}
        checkpoints.save(5, state, {})
        checkpoints.save(5, state, {}, metrics={"best_by": 0.5})
        if sys.argv[2] == "when it is whole":
            checkpoints._manager.wait_until_finished()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(saver), str(tmp_path), when]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    with Checkpoints(tmp_path, keep=1, keep_best=1) as checkpoints:
        assert checkpoints.latest() == 5
        restored, _, _ = checkpoints.restore(5, {"w": jnp.zeros((3000, 1000))})
        assert when != "when it is whole" or checkpoints.best() == 5
    assert (restored["w"] == 7).all()
    assert [item.name for item in tmp_path.iterdir()] == ["5"]


def test_reader_leaves_an_unfinished_save_alone(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(3, make_state(), HOST)
    (tmp_path / "4.orbax-checkpoint-tmp").mkdir()
    (tmp_path / "2.replaced").mkdir()
    with Checkpoints(tmp_path, is_read_only=True) as reader:
        assert reader.latest() == 3
        assert reader.arrays(3)["step"] == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["2.replaced", "3", "4.orbax-checkpoint-tmp"]
    (tmp_path / "2.replaced").rmdir()
    Checkpoints(tmp_path).close()
    assert [item.name for item in tmp_path.iterdir()] == ["3"]


def flipped(path: Path, at: float, bit: int = 0) -> None:
    """Flip a bit of the byte at a fraction of a file's length."""
    raw = bytearray(path.read_bytes())
    raw[min(int(at * len(raw)), len(raw) - 1)] ^= 1 << bit
    path.write_bytes(raw)


def files_of(step: Path) -> list[Path]:
    """Return the files of a checkpoint that a resume depends on: not the time and text of Orbax's commit."""
    return [path for path in sorted(step.rglob("*")) if path.is_file() and path.name not in ORBAX_ONLY]


ORBAX_ONLY = {"_CHECKPOINT_METADATA", "commit_success.txt"}


def save_two(folder: Path) -> TrainState:
    state = make_state()
    with Checkpoints(folder, keep=2, keep_best=1) as checkpoints:
        for step in (1, 2):
            checkpoints.save(step, state, HOST, {"tokens": np.arange(4000)}, metrics={"best_by": step / 10})
    return state


@pytest.mark.slow
def test_every_flipped_bit_of_every_file_is_refused_by_name(tmp_path: Path) -> None:
    """Flip 24 bytes per file, each in another bit."""
    state = save_two(tmp_path)
    whole, read = tmp_path / "2", 0
    for path in files_of(whole):
        before = path.read_bytes()
        for number in range(24 if before else 0):
            flipped(path, number / 23, number % 8)
            error = find_damage(whole)
            assert error, (path, number)
            assert error.split()[0] in {str(path.relative_to(whole)), SUMS, str(path.relative_to(whole).parent / SUMS)}
            path.write_bytes(before)
            read += 1
    assert read > 24 * 8
    assert find_damage(whole) == ""
    with Checkpoints(tmp_path, keep=2, keep_best=1) as checkpoints:
        assert_same(checkpoints.restore(2, state)[0], state)


@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_damaged_checkpoint_is_refused_by_every_reader(how: str, tmp_path: Path) -> None:
    state = save_two(tmp_path)
    path = max((tmp_path / "2" / "state").rglob("d/*"), key=lambda path: path.stat().st_size)
    if how == "flipped":
        flipped(path, 0.5)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    error = "is missing" if how == "missing" else "does not match its checksum"
    line = rf"^{tmp_path}/2: this checkpoint cannot be read: \S+ {error}; put it back from a copy, or delete it to "
    with Checkpoints(tmp_path, keep=2, keep_best=1) as checkpoints:
        assert (checkpoints.latest(), checkpoints.best()) == (2, 2)
        for read in (lambda: checkpoints.host(2), lambda: checkpoints.restore(2, state), lambda: checkpoints.arrays(2)):
            with pytest.raises(InputError, match=rf"{line}resume from step 1$"):
                read()
        assert_same(checkpoints.restore(1, state)[0], state)
    shutil.rmtree(tmp_path / "1")
    with Checkpoints(tmp_path, is_read_only=True) as checkpoints, pytest.raises(InputError, match="or start over in"):
        checkpoints.host(2)


def test_damaged_rating_is_refused(tmp_path: Path) -> None:
    save_two(tmp_path)
    rating = tmp_path / "1" / "metrics" / "metrics"
    rating.write_text(rating.read_text().replace("0.1", "0.9"))
    with pytest.raises(InputError, match=r"/1: this checkpoint cannot be read: metrics/metrics does not match"):
        Checkpoints(tmp_path, keep=2, keep_best=1)
    (tmp_path / "1" / SUMS).unlink()  # like after a kill during the removal of a step
    with Checkpoints(tmp_path, keep=2, keep_best=1) as checkpoints:
        assert checkpoints.latest() == 2


def test_each_save_is_announced_before_it_is_complete(tmp_path: Path) -> None:
    announced = []
    with Checkpoints(
        tmp_path, on_saved=lambda step: announced.append((step, (tmp_path / str(step)).exists()))
    ) as saver:
        saver.save(3, make_state(), {})
        saver.save(4, make_state(), {})
    assert announced == [(3, False), (4, False)]
