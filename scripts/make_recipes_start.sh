#!/bin/sh
# Train the start model of the small recipes (configs/recipes_start) again: about 25 minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
rm -rf runs/recipes_tokens runs/recipes_sft
# Each tag becomes a token, initialized with the mean of the tokens that spelt it. The model has tied embeddings.
.venv/bin/python - <<'EOF'
import dataclasses
from pathlib import Path

import jax.numpy as jnp
from tokenizers import AddedToken

from jaxrl_sql.models import load_checkpoint, load_tokenizer, save_checkpoint

start = Path("configs/quickstart_start")
tags = ("think", "answer", "reasoning", "sql", "solution", "observation")
tokens = [text for tag in tags for text in (f"<{tag}>", f"</{tag}>")] + ["```sql", "```"]
(config, params), tokenizer = load_checkpoint(start), load_tokenizer(start)
spelt = [tokenizer.encode(token, add_special_tokens=False) for token in tokens]
tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in tokens])
rows = params["embed"]
means = jnp.stack([rows[jnp.array(ids)].mean(axis=0) for ids in spelt])
params["embed"] = jnp.concatenate([rows[: len(tokenizer) - len(tokens)], means])
config = dataclasses.replace(config, vocab_size=len(tokenizer))
save_checkpoint(Path("runs/recipes_tokens"), config, params, tokenizer, dtype="bfloat16", source=start)
EOF
.venv/bin/jaxrl-sql data synth --out data-cache/synth_traces \
    --seed 1 --train-dbs 360 --train-questions 60 --extra-columns-share 0.75
.venv/bin/jaxrl-sql sft --config configs/recipes_sft.yaml
.venv/bin/jaxrl-sql export runs/recipes_sft --step 450 --out configs/recipes_start
