"""What asks a policy holds no more of a device than it may, and as much as it can use."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.ops.rng import Purpose
from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.planning.chips import device_memory
from jaxrl_sql.rollout import SamplingParams
from jaxrl_sql.run.policy_client import open_policy_client
from jaxrl_sql.sqlenv.executor import make_executor

START = Path(__file__).parents[3] / "configs" / "quickstart_start"


@pytest.mark.parametrize(
    ("mebibytes", "budget", "refused"),
    [(400, (1200, 12, 392), []), (8, (16, 12, 8), [2000]), (0.1, (0, 0, 0), [100, 2000])],
)
def test_the_cache_of_a_command_is_bounded_by_its_share_of_the_memory(
    mebibytes: float, budget: tuple[int, ...], refused: list[int]
) -> None:
    """A block of 64 tokens takes 256 KiB of this model. Prompts that no setting bounds have all that others leave."""
    share = mebibytes * (1 << 20) / device_memory(make_mesh(devices=jax.devices()[:1]))
    config = load_config(None, [f"model.checkpoint={START}", "data.max_prompt_tokens=320", f"rollout.memory={share}"])
    lengths = [100, 2000]
    with (
        make_executor(config.executor) as executor,
        open_policy_client(config, executor, 4, Purpose.EVAL, 96) as client,
    ):
        assert client.engine.config.budget == budget
        prompts, sampling = [[5] * length for length in lengths], SamplingParams(max_new_tokens=4)
        samples = list(client.engine.generate(prompts, sampling))
    assert sorted(lengths[one.prompt_index] for one in samples if "needs more than the" in one.error) == refused
    assert sum(one.finish_reason in {"stop", "length"} for one in samples) == 2 - len(refused)
