"""Several turns in one cache: each token's author, the environment's observations, and equality with one sequence."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.inference.policy_client import EnvStates
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.rollout import SQL_STOPS, Action, Engine, EngineConfig, Sample, SamplingParams, SqlTurns
from jaxrl_sql.text2sql.env.executor import Executor, Limits
from jaxrl_sql.text2sql.env.observe import observe
from jaxrl_sql.text2sql.env.turns import Observation, PendingObservation
from jaxrl_sql.types import InputError, Prompt

CONFIG = ModelConfig("qwen3", 24, 32, 1, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))
# Full-size pools from the start and one maximal answer length: all calls share a decode program.
SIZES: dict[str, Any] = {
    "completion_block_size": 8, "block_size": 8, "chunk_steps": 4, "prefill_tokens": 64, "longest_prompt": 16,
    "pads_to_max": True, "prefix_cache_tokens": 64,
}  # fmt: skip
LONGEST = 60


class Letters:
    """A tokenizer of 24 letters; the model never emits its end token."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        return {**{chr(97 + i): i for i in range(24)}, "end": 24}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [ord(c) - 97 for c in text]

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


class Slow:
    """A slow observation."""

    def __init__(self, text: str, seconds: float) -> None:
        self.text, self.at = text, time.monotonic() + seconds

    def done(self) -> bool:
        return time.monotonic() >= self.at

    def result(self) -> str:
        return self.text


class Echo:
    """Answers each of the first turns with its own letters, and records its inputs."""

    def __init__(self, number: int, turns: int, seconds: float = 0.0) -> None:
        self.number, self.turns, self.seconds = number, turns, seconds
        self.heard: list[Action] = []

    def next(self, action: Action) -> PendingObservation | None:
        self.heard.append(action)
        if len(self.heard) == self.turns:
            return None
        text = "uvw"[self.number % 3] * (3 + len(self.heard)) + "abc"
        return Slow(text, self.seconds) if self.seconds else Observation(text)


def converse(
    sampling: SamplingParams, seconds: float = 0.0, slots: int = 4
) -> tuple[list[Prompt], dict[Any, Sample], Any]:
    r = np.random.default_rng(0)
    prompts = [Prompt(str(i), tuple(r.integers(0, 24, 5 + i).tolist()), "") for i in range(3)]
    policies: dict[tuple[int, int], Echo] = {}

    def begin(prompt: int, sample: int) -> Echo:
        return policies.setdefault((prompt, sample), Echo(prompt + sample, 1 + (prompt + sample) % 3, seconds))

    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(slots, **SIZES))
    results = {(s.prompt_index, s.index): s for s in engine.generate(prompts, sampling, turns=begin)}
    return prompts, results, policies


@pytest.mark.parametrize("seconds", [pytest.param(0.0, marks=pytest.mark.nightly), 0.05])
def test_turns_equal_one_sequence_with_the_models_logprobs(
    seconds: float, logprobs_of: Callable[..., np.ndarray]
) -> None:
    sampling = SamplingParams(n=3, max_new_tokens=14, max_total_tokens=LONGEST, stop=("k", "ab"))
    prompts, results, policies = converse(sampling, seconds)
    assert len(results) == 9
    for (i, g), sample in results.items():
        policy = policies[i, g]
        is_sampled = [turn for turn in sample.turns if turn.role == "assistant"]
        observations = [turn for turn in sample.turns if turn.role == "environment"]
        assert [Letters().decode(turn.token_ids) for turn in is_sampled] == [heard.text for heard in policy.heard]
        assert all(turn.text == Letters().decode(turn.token_ids) for turn in sample.turns)
        assert len(is_sampled) == policy.turns
        assert len(observations) == policy.turns - 1
        assert all(Letters().decode(turn.token_ids).endswith("abc") for turn in observations)
        assert sample.token_ids == tuple(t for turn in sample.turns for t in turn.token_ids)
        full = logprobs_of(PARAMS, CONFIG, prompts[i].token_ids, sample.token_ids)
        picked = full[np.arange(len(sample.token_ids)), list(sample.token_ids)]
        mask = np.array(sample.is_sampled)
        np.testing.assert_allclose(np.array(sample.logprobs)[mask], picked[mask], atol=1e-4)
        assert not np.array(sample.logprobs)[~mask].any()


class Named(Letters):
    """The same letters; the last but one is a special token with a two-letter name: `bx`."""

    added_tokens_decoder = {22: SimpleNamespace(content="bx", special=True, normalized=False)}  # noqa: RUF012

    def encode(self, text: str, **_: Any) -> list[int]:
        return super().encode(text.replace("bx", "w"))


class Quoting:
    """Answers the first turn with a text that names the special token."""

    def __init__(self) -> None:
        self.stop, self.turns = "", 0

    def next(self, _action: Action) -> PendingObservation | None:
        self.turns += 1
        return Observation("aabxcc") if self.turns == 1 else None


def test_observation_contains_no_special_token() -> None:
    assert Named().encode("aabxcc") == [0, 0, 22, 2, 2]
    sampling = SamplingParams(n=3, max_new_tokens=14, max_total_tokens=LONGEST, stop=("k", "ab"))
    engine = Engine(CONFIG, PARAMS, Named(), EngineConfig(4, **SIZES))
    samples = list(engine.generate([Prompt("q", (1, 2, 3), "")], sampling, turns=lambda *_: Quoting()))
    observed = [turn for sample in samples for turn in sample.turns if turn.role == "environment"]
    assert len(observed) == 3
    assert {turn.token_ids for turn in observed} == {(0, 0, 1, 23, 2, 2)}
    assert {turn.text for turn in observed} == {"aabxcc"}


@pytest.mark.nightly
def test_arrival_order_of_observations_changes_nothing() -> None:
    sampling = SamplingParams(n=3, max_new_tokens=14, max_total_tokens=LONGEST, stop=("k", "ab"))
    at_once, late = (converse(sampling, seconds, slots=3)[1] for seconds in (0.0, 0.02))
    assert list(at_once) == list(late)  # in the order in which they finished
    assert at_once == late  # bit-equal
    more = converse(sampling)[1]
    assert {key: s.token_ids for key, s in more.items()} == {key: s.token_ids for key, s in late.items()}


def test_failed_environment_fails_only_its_answer(tmp_path: Path) -> None:
    closed = Executor()
    closed.close()
    prompts = [Prompt(str(i), (1 + i, 2, 3), "") for i in range(3)]
    path = tmp_path / "a.sqlite"
    sqlite3.connect(path).close()

    class Asks:
        def next(self, action: Action) -> PendingObservation | None:
            del action
            return SqlTurns(closed, str(path)).next(Action("<sql>SELECT 1</sql>", "stop"))

    def begin(prompt: int, _sample: int) -> Any:
        return Asks() if prompt == 1 else Echo(prompt, 2)

    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4, **SIZES))
    sampling = SamplingParams(n=3, max_new_tokens=6, max_total_tokens=LONGEST)
    samples = list(engine.generate(prompts, sampling, turns=begin))
    assert len(samples) == 9
    for sample in samples:
        if sample.prompt_index == 1:
            assert sample.finish_reason == "failed"
            assert "closed" in sample.error
        else:
            assert len(sample.turns) == 3


def test_empty_observation_adds_no_token() -> None:
    """The next token follows the previous one: two turns give the answer of one turn."""

    class Silent(Echo):
        def next(self, action: Action) -> PendingObservation | None:
            return None if super().next(action) is None else Observation("")

    prompts = [Prompt("p", (3, 1, 4, 1, 5), "")]
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(4, **SIZES))
    whole, cut = (
        {
            s.index: s
            for s in engine.generate(
                prompts, SamplingParams(n=3, max_new_tokens=tokens, max_total_tokens=LONGEST),
                turns=lambda *_: Silent(0, turns),  # noqa: B023 (the call ends before the next)
            )
        }
        for tokens, turns in ((12, 1), (6, 2))
    )  # fmt: skip
    for index, sample in cut.items():
        assert len(sample.token_ids) == 12
        assert sample.token_ids == whole[index].token_ids
        np.testing.assert_allclose(sample.logprobs, whole[index].logprobs, atol=1e-5)


def test_long_observations_are_appended_in_chunks() -> None:
    class Talks(Echo):
        def next(self, action: Action) -> PendingObservation | None:
            return None if super().next(action) is None else Observation("abcdefgh" * (2 + self.number))

    prompts = [Prompt(str(i), (3, 1, 4, i), "") for i in range(5)]
    sampling = SamplingParams(n=3, max_new_tokens=4, max_total_tokens=LONGEST)
    results = []
    for tokens, longest in ((64, 16), (256, 64)):  # in chunks of 16 tokens, and as a whole
        config = EngineConfig(4, **SIZES | {"prefill_tokens": tokens, "longest_prompt": longest, "pads_to_max": True})
        engine = Engine(CONFIG, PARAMS, Letters(), config)
        samples = engine.generate(prompts, sampling, turns=lambda prompt, _: Talks(prompt, 2))
        results.append({(s.prompt_index, s.index): s.token_ids for s in samples})
    assert results[0] == results[1]
    assert {place: len(ids) for place, ids in results[0].items()} == {
        (i, g): 24 + 8 * i for i in range(5) for g in range(3)
    }


@pytest.mark.nightly
def test_all_turns_together_have_a_length_limit() -> None:
    sampling = SamplingParams(n=2, max_new_tokens=10, max_total_tokens=16)
    for sample in converse(sampling)[1].values():
        assert len(sample.token_ids) <= 16
        if len(sample.turns) > 1:
            assert sample.finish_reason == "length"


@pytest.fixture
def shop(tmp_path: Path) -> str:
    path = tmp_path / "shop.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE item (id INTEGER, name TEXT, price REAL)")
        db.executemany("INSERT INTO item VALUES (?, ?, ?)", [(i, f"thing {i}", i / 4) for i in range(300)])
    db.close()
    return str(path)


def test_sql_gets_observations_until_the_solution(shop: str) -> None:
    with Executor(limits=Limits(vm_steps=10_000_000)) as executor:
        turns = SqlTurns(executor, shop, 5)

        def observe(text: str) -> str:
            observation = turns.next(Action(text, "stop"))
            assert observation is not None
            return observation.result()

        first = observe("<think>look</think> <sql>SELECT id, name FROM item WHERE id < 2</sql>")
        assert "id | name\n0 | thing 0\n1 | thing 1" in first
        assert "4 turns left" in first
        assert "table_info" not in observe("<sql>PRAGMA table_info(item)</sql>")
        assert "syntax_error" in observe("<sql>SELEC 1</sql>")
        last = observe("I have no idea")
        assert "<solution>" in last
        assert "last turn" in last
        assert not turns.is_out_of_turns
        assert turns.next(Action("<sql>SELECT 1</sql>", "stop")) is None, "the environment gave another turn"
        assert turns.is_out_of_turns
        for text, reason in (("<solution>SELECT 1</solution>", "stop"), ("<sql>SELECT", "length")):
            other = SqlTurns(executor, shop, 1)
            assert other.next(Action(text, reason)) is None
            assert not other.is_out_of_turns
        endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT sum(x) FROM c"
        observation = SqlTurns(executor, shop).next(Action(f"<sql>{endless}</sql>", "stop"))
        assert observation is not None
        assert "timeout" in observation.result()
    with pytest.raises(InputError, match="turns"):
        SqlTurns(None, shop, 0)


def test_repeated_timeout_is_not_learned_from(shop: str) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT sum(x) FROM c"
    begun = EnvStates()
    with Executor(threads=1, limits=Limits(timeout_ms=300, vm_steps=None)) as executor:
        begin = begun.store_environments(lambda _prompt, _sample: SqlTurns(executor, shop, 5))
        for sample, sql in enumerate(["SELECT 1", endless, "SELECT name FROM nowhere"]):
            observation = begin(0, sample).next(Action(f"<sql>{sql}</sql>", "stop"))
            assert observation is not None
            observation.result()
    assert [begun.stop(0, sample) for sample in range(4)] == ["", "wall", "", ""]


class Phrases(Letters):
    """A tokenizer whose tokens are letters and whole turns: a random model queries, solves and rambles."""

    SAID = (
        "<sql>SELECT name FROM item WHERE id = 7</sql>",
        "<sql>SELECT colour FROM item</sql>",
        "<solution>SELECT 1</solution>",
    )

    def _text(self, token: int) -> str:
        return self.SAID[token % 3] if token < 9 else chr(97 + token)

    def get_vocab(self) -> dict[str, int]:
        return {**{f"{i}": i for i in range(24)}, "end": 24}

    def encode(self, text: str, **_: Any) -> list[int]:
        return [9 + ord(c) % 15 for c in text[:6]]

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(self._text(i) for i in ids)


def test_policy_queries_a_database_in_several_turns(shop: str) -> None:
    """Run the whole loop on a real database: queries get observations, a solution ends, and turns are limited."""
    r = np.random.default_rng(1)
    prompts = [Prompt(str(i), tuple(r.integers(9, 24, 6).tolist()), "") for i in range(6)]
    heard: list[str] = []

    class Listening(Phrases):
        def encode(self, text: str, **_: Any) -> list[int]:
            heard.append(text)
            return super().encode(text)

    sampling = SamplingParams(n=3, temperature=1.5, max_new_tokens=6, max_total_tokens=LONGEST, stop=SQL_STOPS)
    with Executor(limits=Limits(vm_steps=10_000_000)) as executor:
        engine = Engine(CONFIG, PARAMS, Listening(), EngineConfig(4, **SIZES))
        samples = list(engine.generate(prompts, sampling, turns=lambda *_: SqlTurns(executor, shop, 4)))
    assert len(samples) == 18
    counts = [sum(turn.role == "assistant" for turn in sample.turns) for sample in samples]
    assert max(counts) <= 4
    assert len(set(counts)) > 1
    for sample, count in zip(samples, counts, strict=True):
        solved = sample.text.endswith("</solution>")
        assert count == 4 or solved or sample.finish_reason == "length"
        assert sum(sample.is_sampled) == sum(len(turn.logprobs) for turn in sample.turns)
    assert any("name\nthing 7" in text for text in heard)
    assert any("schema_error" in text for text in heard), sorted({t[:80] for t in heard})


def test_long_results_are_truncated_with_a_note(shop: str) -> None:
    with Executor() as executor:
        whole = observe(executor.execute(shop, "SELECT id FROM item"))
        assert whole.splitlines() == ["id", *map(str, range(300))]
        cut = observe(executor.execute(shop, "SELECT a.id, b.name, NULL FROM item a, item b ORDER BY 1 DESC"))
        assert len(cut) < 9_100
        assert cut.splitlines()[1] == "299 | thing 0 | NULL"
        assert "the first 50 of 90000 rows" in cut
        wide = observe(executor.execute(shop, "SELECT hex(zeroblob(9000)), 'a' || char(10) || 'b', x'00ff'"))
        assert "…" in wide
        assert "a\\nb | x'00ff'" in wide
        assert "(no rows)" in observe(executor.execute(shop, "SELECT id FROM item WHERE 0"))
