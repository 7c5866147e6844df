"""What asks a policy holds no more of a device than it may."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest

from jaxrl_sql.config import load_config
from jaxrl_sql.ops.rng import Purpose
from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.planning.chips import device_memory
from jaxrl_sql.run.policy_client import open_policy_client
from jaxrl_sql.sqlenv.executor import make_executor
from jaxrl_sql.types import InputError

START = Path(__file__).parents[3] / "configs" / "quickstart_start"


def test_the_cache_of_a_command_is_bounded_by_its_share_of_the_memory() -> None:
    """A block of 64 tokens takes 512 KiB of this model: 4 slots of 320 + 96 tokens need 40 + 12 halves of them."""

    have = device_memory(make_mesh(devices=jax.devices()[:1]))

    def budget(mebibytes: float) -> tuple[int, ...]:
        memory = mebibytes * (1 << 20) / have
        config = load_config(
            None, [f"model.checkpoint={START}", "data.max_prompt_tokens=320", f"rollout.memory={memory}"]
        )
        with (
            make_executor(config.executor) as executor,
            open_policy_client(config, executor, 4, Purpose.EVAL, 96) as client,
        ):
            found = client.engine.config.budget
            assert found is not None
            return found

    prompts, completions, prefix = budget(400)
    assert (prompts >= 40, completions >= 12, prefix > 0) == (True, True, True)
    smaller = budget(40)
    assert smaller[:2] == (prompts, completions), "the cache of prefixes gives way first"
    assert smaller[2] < prefix
    with pytest.raises(InputError, match=r"rollout\.memory: .* hold no longest prompt and completion"):
        budget(0.1)
