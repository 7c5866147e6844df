"""TRL's GRPOTrainer as a worker of bench_stacks.py: vLLM in the same process on a GPU, plain generation on a CPU.

Settings that do not change the work keep TRL's defaults. `TRL_OPTIONS`, an environment variable, has further fields of
GRPOConfig as JSON, such as {"use_liger_kernel": true}.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import time
from typing import Any

import torch
import trl
from datasets import Dataset
from peft import LoraConfig
from stack_worker import MIB, Step, Turns, Work, peak_resident
from transformers import AutoTokenizer, TrainerCallback

HAS_GPU = torch.cuda.is_available()


class TimedTrainer(trl.GRPOTrainer):
    """The trainer, which measures its phases and checks that it does the given work."""

    turns: Turns
    seconds: dict[str, float]

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        began = clock()
        result = super()._generate(*args, **kwargs)
        self.seconds["rollout"] = clock() - began
        return result

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        began = clock()
        batch = super()._generate_and_score_completions(*args, **kwargs)
        self.seconds["reference"] = clock() - began - self.seconds["rollout"]
        work = self.turns.work
        lengths = batch["completion_mask"].sum(dim=1).tolist()
        expected = [ids for ids in self.turns.prompts(self.state.global_step) for _ in range(work.group)]
        if lengths != [work.new_tokens] * work.completions or sorted(batch["prompt_ids"].tolist()) != sorted(expected):
            raise RuntimeError(f"prompts or lengths differ from the work: {batch['prompt_ids'].shape}, {lengths}")
        return batch


class TakeTurns(TrainerCallback):
    """Wait before each step after the warm-up, and report the step afterwards."""

    def __init__(self, trainer: TimedTrainer) -> None:
        self._trainer, self._began = trainer, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for a turn and start the clock."""
        del args, control
        turns = self._trainer.turns
        if state.global_step == turns.work.warm_up:
            turns.ready()
        if state.global_step >= turns.work.warm_up and not turns.wait():
            os._exit(0)  # the trainer cannot leave out a step that has begun
        self._trainer.seconds = {}
        self._began = clock()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report the step's seconds; the trainer has counted it."""
        del args, control
        seconds = self._trainer.seconds
        step = clock() - self._began
        seconds |= {"update": step - seconds["rollout"] - seconds["reference"], "step": step}
        if state.global_step > self._trainer.turns.work.warm_up:
            self._trainer.turns.answer(Step(seconds, peak_memory(self._trainer.turns.work)))


def clock() -> float:
    """Return the time in seconds once the device has finished."""
    if HAS_GPU:
        torch.cuda.synchronize()
    return time.perf_counter()


def peak_memory(work: Work) -> dict[str, float]:
    """Return the peak of the device's memory in use in MiB, with vLLM's share, or of the process's resident memory."""
    if not HAS_GPU:
        return peak_resident()
    total = torch.cuda.get_device_properties(0).total_memory
    sizes = {"peak memory": torch.cuda.max_memory_allocated(), "vLLM's share of it": vllm_share(work) * total}
    return {name: size / MIB for name, size in sizes.items()}


def vllm_share(work: Work) -> float:
    """Return vLLM's share of the device's memory."""
    return round(work.device_share * work.vllm_share, 3)


def begin(turns: Turns) -> None:
    """Report device and versions."""
    versions = f"trl {trl.__version__}, torch {torch.__version__}"
    if HAS_GPU:
        versions += f", vllm {importlib.metadata.version('vllm')}"
        turns.begin("gpu", torch.cuda.get_device_name(0), versions)
    else:
        turns.begin("cpu", "cpu", f"{versions}, {torch.get_num_threads()} threads")


def settings(turns: Turns) -> trl.GRPOConfig:
    """Return the trainer's settings for the work."""
    work = turns.work
    # Every completion has its full length: vLLM ignores the end token, transformers never samples it.
    rollout: dict[str, Any] = (
        {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_gpu_memory_utilization": vllm_share(work),
            "vllm_max_model_length": work.prompt_tokens + work.new_tokens,
            "generation_kwargs": {"ignore_eos": True},
        }
        if HAS_GPU
        else {
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "generation_kwargs": {"min_new_tokens": work.new_tokens},
        }
    )
    options: dict[str, Any] = {
        "output_dir": str(turns.folder / "trl"),
        "per_device_train_batch_size": work.completions // work.micro_batches,
        "gradient_accumulation_steps": work.micro_batches,
        "num_generations": work.group,
        "max_completion_length": work.new_tokens,
        "beta": work.kl,
        "learning_rate": 1e-6,
        "lr_scheduler_type": "constant",
        "temperature": 1.0,
        "max_steps": work.steps,
        "model_init_kwargs": {"dtype": work.weight_dtype},
        "gradient_checkpointing": bool(work.checkpointing),
        "bf16": work.product_dtype == "bfloat16",
        "shuffle_dataset": False,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
    return trl.GRPOConfig(**options | rollout | json.loads(os.environ.get("TRL_OPTIONS", "{}")))


def main() -> None:
    """Do the steps."""
    turns = Turns()
    begin(turns)
    work = turns.work
    if HAS_GPU:
        torch.cuda.set_per_process_memory_fraction(work.device_share)
    texts = [" ".join(f"t{i}" for i in ids) for step in range(work.steps) for ids in turns.prompts(step)]
    r = random.Random(2)
    adapters = LoraConfig(r=work.lora, lora_alpha=work.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = TimedTrainer(
        model=str(turns.model),
        reward_funcs=lambda completions, **_: [r.random() for _ in completions],
        args=settings(turns),
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=AutoTokenizer.from_pretrained(turns.model),
        peft_config=adapters if work.lora else None,
    )
    trainer.turns, trainer.seconds = turns, {}
    trainer.add_callback(TakeTurns(trainer))
    trainer.train()


if __name__ == "__main__":
    main()
