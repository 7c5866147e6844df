#!/bin/sh
# Train the quickstart's start model (configs/quickstart_start) again: about 40 minutes on two cores.
set -eu
cd "$(dirname "$0")/.."
rm -rf runs/quickstart_sft runs/quickstart_sft_answers
.venv/bin/jaxrl-sql sft --config configs/quickstart_sft.yaml
.venv/bin/jaxrl-sql data synth --out data-cache/synth_many \
    --seed 1 --train-dbs 360 --train-questions 60 --extra-columns-share 0.75
.venv/bin/jaxrl-sql sft --config configs/quickstart_sft_answers.yaml
.venv/bin/jaxrl-sql export runs/quickstart_sft_answers --step 400 --out configs/quickstart_start
# Files of a release that a start model does not need: the quickstart's configuration has the prompt settings.
rm configs/quickstart_start/README.md configs/quickstart_start/jaxrl_sql.yaml
