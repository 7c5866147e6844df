#!/bin/sh
# Make the policy that the small recipes start from (configs/recipes_start) again: about 25 minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
rm -rf runs/recipes_tokens runs/recipes_sft
.venv/bin/python scripts/add_tokens.py configs/quickstart_start runs/recipes_tokens \
    '<think>' '</think>' '<answer>' '</answer>' '<reasoning>' '</reasoning>' '<sql>' '</sql>' \
    '<solution>' '</solution>' '<observation>' '</observation>' '```sql' '```'
.venv/bin/python -m jaxrl_sql.datagen.synth --out data-cache/synth_traces \
    --seed 1 --train-dbs 360 --train-questions 60 --extra-columns-share 0.75
.venv/bin/python -m jaxrl_sql.sft --config configs/recipes_sft.yaml
.venv/bin/python -m jaxrl_sql.export runs/recipes_sft --step 450 --out configs/recipes_start
