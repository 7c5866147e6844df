#!/bin/sh
# Make the policy that the quickstart starts from (configs/quickstart_start) again: about 15 minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
rm -rf runs/quickstart_sft
.venv/bin/python -m jaxrl_sql.sft --config configs/quickstart_sft.yaml
.venv/bin/python - <<'PYTHON'
from jaxrl_sql.models import load_checkpoint, load_tokenizer, save_checkpoint

config, params = load_checkpoint("runs/quickstart_sft/model")
tokenizer = load_tokenizer("runs/quickstart_sft/model")
save_checkpoint("configs/quickstart_start", config, params, tokenizer, dtype="bfloat16")
PYTHON
