"""TRL's GRPOTrainer as a worker of bench_stacks.py, with its own defaults where they do not change the work.

Gradient checkpointing is off and everything is in float32, or products are in bfloat16 by autocast; the group's
prompts, their number and length, the length of answers, the coefficient of KL and one update a batch are as for the
others.
"""

from __future__ import annotations

import os
import random
import tempfile
import time
from typing import Any

import stack_turns as work
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, TrainerCallback


class TimedTrainer(trl.GRPOTrainer):
    """The trainer with a clock at its parts."""

    seconds: dict[str, float]

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        made = super()._generate(*args, **kwargs)
        self.seconds["rollout"] = time.perf_counter() - began
        return made

    def _prepare_inputs(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        made = super()._prepare_inputs(*args, **kwargs)
        lengths = made["completion_mask"].sum(dim=1)
        assert lengths.tolist() == [work.NEW_TOKENS] * work.PROMPTS * work.GROUP, lengths
        assert made["prompt_ids"].shape[1] == work.PROMPT_TOKENS, made["prompt_ids"].shape
        self.seconds["reference"] = time.perf_counter() - began - self.seconds["rollout"]
        return made


class InTurns(TrainerCallback):
    """Wait before a step until it is our turn; tell afterwards what it took. The first step warms up."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self.trainer, self.turns, self.began = trainer, work.Turns(), 0.0

    def on_step_begin(self, _args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait, and start the clock."""
        if state.global_step == 1:
            self.turns.ready(f"trl {trl.__version__}, torch {torch.__version__}, {torch.get_num_threads()} threads")
        if state.global_step and not self.turns.wait():
            control.should_training_stop = True
            os._exit(0)  # a step cannot be left out once the loop has begun it
        self.trainer.seconds = {}
        self.began = time.perf_counter()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        """Tell what the step took."""
        seconds = self.trainer.seconds
        seconds["step"] = time.perf_counter() - self.began
        seconds["update"] = seconds["step"] - seconds["rollout"] - seconds["reference"]
        if state.global_step > 1:
            self.turns.tell(seconds)


def tokenizer() -> PreTrainedTokenizerFast:
    """Return one of words t0, t1, …, whose end token is none of the model's, so that answers have full length."""
    words = {f"t{i}": i for i in range(work.VOCABULARY)} | {"end": work.VOCABULARY}
    inner = Tokenizer(models.WordLevel(words, unk_token="t0"))  # noqa: S106 (a token's name)
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="end", pad_token="t0", unk_token="t0")  # noqa: S106


def main() -> None:
    """Make steps as asked."""
    torch.manual_seed(0)
    rng = random.Random(1)
    config = Qwen3Config(
        vocab_size=work.VOCABULARY,
        hidden_size=work.WIDTH,
        intermediate_size=work.FEED_FORWARD,
        num_hidden_layers=work.LAYERS,
        num_attention_heads=work.HEADS,
        num_key_value_heads=work.KV_HEADS,
        head_dim=work.HEAD_SIZE,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=work.VOCABULARY,
        pad_token_id=0,
        bos_token_id=None,
    )
    prompts = [" ".join(f"t{rng.randrange(1, work.VOCABULARY)}" for _ in range(work.PROMPT_TOKENS)) for _ in range(64)]
    with tempfile.TemporaryDirectory() as folder:
        Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(f"{folder}/model")
        trainer = TimedTrainer(
            model=f"{folder}/model",
            reward_funcs=lambda completions, **_: [rng.random() for _ in completions],
            args=trl.GRPOConfig(
                output_dir=f"{folder}/out",
                per_device_train_batch_size=work.PROMPTS * work.GROUP,
                num_generations=work.GROUP,
                max_completion_length=work.NEW_TOKENS,
                beta=work.KL,
                learning_rate=1e-5,
                temperature=1.0,
                max_steps=1000,
                model_init_kwargs={"dtype": "float32"},
                gradient_checkpointing=False,
                bf16=work.BFLOAT16 in os.environ,
                use_cpu=True,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=tokenizer(),
        )
        trainer.seconds = {}
        trainer.add_callback(InTurns(trainer))
        trainer.train()


if __name__ == "__main__":
    main()
