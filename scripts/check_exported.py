"""Compare what a model's folder answers with what transformers makes of the same folder: greedy, token by token.

`python scripts/check_exported.py MODEL RECORDS [--count 16]`: MODEL is a Hugging Face folder that was exported here,
RECORDS the records.jsonl of an evaluation, of which so many prompts are taken, evenly. Both compute in float32. Needs
torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from jaxrl_sql.models import load_checkpoint, load_tokenizer
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.types import Prompt

NEW_TOKENS = 32


def prompts_in(records: Path, count: int) -> list[str]:
    """Return the prompts of some records, evenly of all."""
    lines = records.read_text(encoding="utf-8").splitlines()
    return [json.loads(lines[len(lines) * i // count])["prompt"] for i in range(count)]


def ours(folder: Path, asked: list[list[int]]) -> list[list[int]]:
    """Return the tokens that our engine goes on with."""
    config, params = load_checkpoint(folder)
    engine = Engine(config, params, load_tokenizer(folder), EngineConfig(len(asked)))
    prompts = [Prompt(str(i), tuple(ids), "") for i, ids in enumerate(asked)]
    samples = engine.generate(prompts, SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS))
    written = {sample.prompt_index: list(sample.token_ids) for sample in samples}
    return [written[i] for i in range(len(prompts))]


def theirs(folder: Path, asked: list[list[int]]) -> list[list[int]]:
    """Return the tokens that transformers' model goes on with."""
    import torch  # noqa: PLC0415 - it need not be installed for the rest
    from transformers import AutoModelForCausalLM  # noqa: PLC0415

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()  # its own generation config
    written = (model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=NEW_TOKENS) for ids in asked)
    return [whole[0, len(ids) :].tolist() for ids, whole in zip(asked, written, strict=True)]


def main() -> int:
    """Print each answer and how many are alike; return 1 where one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("records", type=Path)
    parser.add_argument("--count", type=int, default=16)
    given = parser.parse_args()
    tokenizer = load_tokenizer(given.model)
    prompts = prompts_in(given.records, given.count)
    asked = [tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
    found = list(zip(ours(given.model, asked), theirs(given.model, asked), strict=True))
    for one, other in found:
        print("alike" if one == other else "OTHER", repr(tokenizer.decode(one)))
    same = sum(one == other for one, other in found)
    print(f"{same} of {len(found)} answers are alike, token by token")
    return 0 if same == len(found) else 1


if __name__ == "__main__":
    sys.exit(main())
