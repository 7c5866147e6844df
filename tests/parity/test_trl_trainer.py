"""TRL's trainer with our environment and our reward function: a model trained on answers, two steps."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.adapters.episode import QUERY, SOLUTION, SqlTask
from jaxrl_sql.text2sql.adapters.trl import DatabaseTools, reward_function
from jaxrl_sql.text2sql.env.executor import make_executor

torch = pytest.importorskip("torch", reason="needs torch: install the extra `parity`")
trl = pytest.importorskip("trl", reason="needs trl: install the extra `parity`")

pytestmark = [
    pytest.mark.parity,
    # TRL warns that environments may change, and requests PyTorch features that a CPU lacks.
    pytest.mark.filterwarnings("ignore"),
]

START = Path(__file__).parents[2] / "configs/quickstart_start"
GOLD, WRONG = "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer"
ASKED = [{"role": "user", "content": "Who is over 30?"}]
STEPS, GROUP = 2, 6
LEARNED = 0.01  # the minimum loss with two alternatives, averaged over all tokens, is about 0.007


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Use one thread: PyTorch's threads wait by spinning, which is slow on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def task() -> Iterator[SqlTask]:
    with make_executor(ExecutorConfig()) as executor:
        yield SqlTask(executor, turns=3)


@pytest.fixture
def rows(tmp_path: Path) -> Any:
    """Return a dataset of one question, repeated for each completion of the steps."""
    import datasets

    path = tmp_path / "pop.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE singer (name TEXT, age INT)")
        connection.executemany("INSERT INTO singer VALUES (?, ?)", [("Ann", 25), ("Bo", 52), ("Cy", 31)])
    row = {"prompt": ASKED, "db_path": str(path), "gold_sql": GOLD}
    return datasets.Dataset.from_list([row] * STEPS)


@pytest.fixture
def tokenizer() -> Any:
    """Return a small tokenizer whose chat template TRL knows: a copy of one that it ships."""
    import transformers

    result = transformers.AutoTokenizer.from_pretrained(START)
    result.chat_template = template("qwen3")
    return result


def template(name: str) -> str:
    return Path(trl.__file__).with_name("chat_templates").joinpath(f"{name}.jinja").read_text()


def taught(tokenizer: Any, dialogues: list[list[dict[str, Any]]], tools: list[Any] | None) -> Any:
    """Return the small model after training on some dialogues with equal weight."""
    import transformers

    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(START, dtype=torch.float32, num_hidden_layers=2)
    # With tools TRL renders with its own template, in which no token before an answer depends on later ones.
    by = template("qwen3_training" if tools else "qwen3")
    render: dict[str, Any] = {"tools": tools, "return_dict": False, "tokenize": True, "chat_template": by}
    prompt = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, **render)
    texts = [tokenizer.apply_chat_template([*ASKED, *dialogue], **render) for dialogue in dialogues]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    labels = torch.tensor(
        [[-100] * len(prompt) + text[len(prompt) :] + [-100] * (longest - len(text)) for text in texts]
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        if loss < LEARNED:
            break
    return model


def trained(model: Any, tokenizer: Any, rows: Any, out: Path, **more: Any) -> tuple[list[dict[str, Any]], float]:
    """Train for two steps; return the trainer's log, and the change of its weights."""
    before = [weight.detach().clone() for weight in model.parameters()]
    settings = trl.GRPOConfig(
        output_dir=str(out), max_steps=STEPS, per_device_train_batch_size=GROUP, num_generations=GROUP, beta=0.0,
        max_completion_length=400, learning_rate=1e-5, temperature=0.5, logging_steps=1, report_to="none",
        use_cpu=True, bf16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, seed=1,
        shuffle_dataset=False,
    )  # fmt: skip
    trainer = trl.GRPOTrainer(model=model, args=settings, train_dataset=rows, processing_class=tokenizer, **more)
    trainer.train()
    logged = [item for item in trainer.state.log_history if "reward" in item]
    moved = sum(float((a - b).abs().sum()) for a, b in zip(before, model.parameters(), strict=True))
    return logged, moved


def call(name: str, sql: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": {"sql": sql}}}],
    }


def test_trl_trainer_calls_environment_tools_and_learns(
    task: SqlTask, rows: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """The model answers wrongly at once, or explores and solves; the trainer logs the earned rewards."""
    earned: list[tuple[list[tuple[str, str]], float | None]] = []

    class Seen(DatabaseTools):
        """Records the tool calls and the reward of each dialogue of our environment."""

        def get_reward(self) -> float | None:
            reward = super().get_reward()
            calls = [(role, text) for role, text in self._require_episode().transcript if role in (QUERY, SOLUTION)]
            earned.append((calls, reward))
            return reward

    tools = [Seen(task).query, Seen(task).solution]
    environment = Seen(task)
    environment.reset(**rows[0])
    observed = {"role": "tool", "content": environment.query(WRONG)}
    over = {"role": "tool", "content": "The dialogue is over."}
    end = {"role": "assistant", "content": "Done."}
    dialogues = [
        [call("solution", WRONG), over, end],
        [call("query", WRONG), observed, call("solution", GOLD), over, end],
    ]
    model = taught(tokenizer, dialogues, tools)
    logged, moved = trained(model, tokenizer, rows, tmp_path / "out", environment_factory=lambda: Seen(task))
    assert len(logged) == STEPS
    assert len(earned) == STEPS * GROUP
    for calls, reward in earned:
        solution = dict(calls).get(SOLUTION)
        assert reward == (-1.0 if solution is None else float(solution == GOLD))
    for step, item in enumerate(logged):
        rewards = [reward or 0.0 for _, reward in earned[step * GROUP : (step + 1) * GROUP]]
        assert item["reward"] == pytest.approx(sum(rewards) / GROUP)
    assert any(QUERY in dict(calls) for calls, _ in earned), "no dialogue ran a query"
    assert {1.0, 0.0} <= {reward for _, reward in earned}
    assert moved > 0


def test_trl_trainer_learns_from_the_reward_function(task: SqlTask, rows: Any, tokenizer: Any, tmp_path: Path) -> None:
    texts = [f"<think>so</think>\n<solution>{sql}</solution>" for sql in (GOLD, WRONG)]
    model = taught(tokenizer, [[{"role": "assistant", "content": text}] for text in texts], None)
    ours, earned = reward_function(task), list[tuple[Any, float | None]]()

    def sql_reward(completions: list[Any], **columns: Any) -> list[float | None]:
        result = ours(completions=completions, **columns)
        earned.extend(zip((completion[0]["content"] for completion in completions), result, strict=True))
        return result

    logged, moved = trained(model, tokenizer, rows, tmp_path / "out", reward_funcs=sql_reward)
    assert len(earned) == STEPS * GROUP
    for written, reward in earned:
        if written in texts:
            assert reward == [1.0, 0.0][texts.index(written)]
    assert {1.0, 0.0} <= {reward for _, reward in earned}
    for step, item in enumerate(logged):
        rewards = [reward or 0.0 for _, reward in earned[step * GROUP : (step + 1) * GROUP]]
        assert item["reward"] == pytest.approx(sum(rewards) / GROUP)
    assert moved > 0
