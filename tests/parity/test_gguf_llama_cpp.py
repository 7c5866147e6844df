"""Our GGUF files in llama.cpp: greedy tokens equal those of our forward pass."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxrl_sql.models import forward, load_checkpoint, load_tokenizer
from jaxrl_sql.models.formats.gguf_write import save_gguf
from jaxrl_sql.models.formats.hf import read_tensors

pytestmark = pytest.mark.parity
llama_cpp = pytest.importorskip("llama_cpp")
START = Path(__file__).parents[2] / "configs" / "recipes_start"
NEW, ROOM = 32, 96
QUESTIONS = ["How many singers are there?", "List the names of all shops.", "Which city has the most people?"]


@pytest.mark.parametrize("kind", ["f16", "q8_0"])
def test_greedy_tokens_match_llama_cpp(tmp_path: Path, kind: str) -> None:
    """With Q8_0 both use the same rounded weights, and llama.cpp also rounds activations: most tokens agree."""
    tokenizer, path = load_tokenizer(START), tmp_path / "m.gguf"
    config, _ = load_checkpoint(START)
    save_gguf(path, config, read_tensors(START), tokenizer, kind)
    _, params = load_checkpoint(path)
    step = jax.jit(lambda tokens, length: forward(params, config, tokens, length)[0, length[0] - 1].argmax())
    model = llama_cpp.Llama(str(path), n_ctx=ROOM, verbose=False, logits_all=False, n_threads=2)
    same = 0
    for question in QUESTIONS:
        chat = [{"role": "user", "content": question}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer.encode(text)
        ours, theirs = list(prompt), []
        while len(ours) < len(prompt) + NEW:
            row = jnp.asarray([ours + [0] * (ROOM - len(ours))])
            ours.append(int(step(row, jnp.asarray([len(ours)]))))
        for token in model.generate(prompt, temp=0.0, top_k=1, repeat_penalty=1.0):
            theirs.append(token)
            if len(theirs) == NEW:
                break
        same += sum(a == b for a, b in zip(ours[len(prompt) :], theirs, strict=True))
        if kind == "f16":
            assert theirs == ours[len(prompt) :], tokenizer.decode(theirs)
    assert same >= 0.5 * NEW * len(QUESTIONS)
    assert model.token_eos() == tokenizer.eos_token_id
    model.close()
