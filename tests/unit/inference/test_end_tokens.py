"""End tokens: the union over a model's files, the token to train on, and the saved files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.config import DataConfig, EvaluateConfig, load_config
from jaxrl_sql.inference.ends import ends_of_generation
from jaxrl_sql.inference.policy_client import open_policy_client
from jaxrl_sql.models import load_tokenizer
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import SamplingParams
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

START = Path(__file__).parents[3] / "configs" / "quickstart_start"
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
PHI = CHATML.replace("<|im_start|>", "<|user|>").replace("<|im_end|>", "<|end|>")
QUESTIONS = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
QWEN = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SWAPPED = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
PHI_TOKENS = ("<|endoftext|>", "<|user|>", "<|end|>")
LLAMA = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
END = "data.tokenizer.eos_token"


def make_tokenizer(special: Sequence[str], eos: str, template: str) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator([], trainers.BpeTrainer(special_tokens=[*special], initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=eos or None, chat_template=template or None)


@pytest.mark.parametrize(
    ("values", "special", "eos", "template", "names"),
    [
        ("data.prompt=chat", QWEN, "<|im_end|>", CHATML, ["<|im_end|>"]),
        ("data.prompt=chat", SWAPPED, "<|endoftext|>", CHATML, ["<|endoftext|>", "<|im_end|>"]),
        ("data.prompt=chat", PHI_TOKENS, "<|endoftext|>", PHI, ["<|endoftext|>", "<|end|>"]),
        ("data.prompt=compact", QWEN, "<|endoftext|>", CHATML, ["<|im_end|>", "<|endoftext|>"]),
        ("data.prompt=tagged", LLAMA, "<|end_of_text|>", "", ["<|eot_id|>", "<|end_of_text|>"]),
        ("data.prompt=chat", QWEN, "<|endoftext|>", QUESTIONS, ["<|im_end|>", "<|endoftext|>"]),
        (f"data.prompt=chat {END}=<|endoftext|>", QWEN, "<|im_end|>", CHATML, ["<|im_end|>", "<|endoftext|>"]),
        (f"data.prompt=compact {END}=<|im_start|>", QWEN, "<|im_end|>", "", ["<|im_end|>", "<|im_start|>"]),
        ("data.prompt=compact", QWEN, "", "", ["<|im_end|>"]),
    ],
)  # fmt: skip
def test_last_end_token_is_the_training_target(
    values: str, special: Sequence[str], eos: str, template: str, names: list[str]
) -> None:
    tokenizer = make_tokenizer(special, eos, template)
    ends = ends_of_generation(load_config(EvaluateConfig, None, values.split()).data, "", tokenizer)
    assert tokenizer.convert_ids_to_tokens(ends) == names


def test_end_outside_the_vocabulary_is_rejected() -> None:
    tokenizer = make_tokenizer(QWEN, "<|im_end|>", CHATML)
    with pytest.raises(InputError, match=r"data\.tokenizer\.eos_token='<end>' is not a token of the tokenizer"):
        ends_of_generation(load_config(EvaluateConfig, None, ["data.tokenizer.eos_token=<end>"]).data, "", tokenizer)


def test_tokenizer_without_an_end_uses_the_ends_of_the_model(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(("<stop>",), "", "")
    (tmp_path / "config.json").write_text('{"eos_token_id": 0}')
    assert ends_of_generation(DataConfig(), str(tmp_path), tokenizer) == (tokenizer.convert_tokens_to_ids("<stop>"),)
    with pytest.raises(InputError, match="no end token"):
        ends_of_generation(DataConfig(), "", tokenizer)


def test_each_declared_end_token_ends_an_answer(tmp_path: Path) -> None:
    """Each token ends an answer here, half of them declared by one file: each answer is one token without text."""
    model = shutil.copytree(START, tmp_path / "model")
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    for name, ends in (("config.json", range(0, size, 2)), ("generation_config.json", range(1, size, 2))):
        fields = json.loads((model / name).read_text()) if (model / name).is_file() else {}
        (model / name).write_text(json.dumps({**fields, "eos_token_id": [*ends]}))
    config = load_config(EvaluateConfig, None, [f"model.checkpoint={model}", "data.prompt=compact"])
    with (
        make_executor(config.executor) as executor,
        open_policy_client(policy_spec(config), executor, 4, Purpose.EVAL, 12) as client,
    ):
        samples = list(client.engine.generate([[5, 9, 7], [8, 3]], SamplingParams(max_new_tokens=12, n=4)))
    assert [(len(sample.token_ids), sample.text, sample.finish_reason) for sample in samples] == [(1, "", "stop")] * 8
    assert all(item.is_sampled == (True,) for item in samples), "the end token does not count as the policy's"
    assert load_tokenizer(model).eos_token_id is not None
