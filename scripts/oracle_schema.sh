#!/usr/bin/env bash
# What schema linking costs a model: its accuracy on all databases of Spider's dev set as one, where each prompt shows what
# `data.schema_budget` has room for, beside its accuracy where each prompt shows the tables of the gold alone.
#
#   JAXRL_SQL_DATA=FOLDER scripts/oracle_schema.sh MODEL [OUT] [settings of evaluate…]
#
# BUDGETS="600 2000" tokens are tried, of EVERY=1 so many questions one. What was broken off goes on when it is given again.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-.venv/bin/python}
[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/!p}' "$0"; exit 2; }
model=$1 out=${2:-runs/oracle_schema}
shift $(( $# > 1 ? 2 : 1 ))

[ -e "$out/sets" ] || "$PY" scripts/bench_linking.py --data "${JAXRL_SQL_DATA:?names the folder with spider_dev}" \
    --every "${EVERY:-1}" --write "$out/sets"
score() { # NAME SET settings…
    local name=$1 set=$2; shift 2
    [ -e "$out/$name/metrics.json" ] || "$PY" -m jaxrl_sql.evaluate --model "$model" --data "$out/sets/$set" --out "$out/$name" \
        evaluate.rule=test_suite "$@"
}
score oracle oracle data.max_prompt_tokens=4096 "$@"
for budget in ${BUDGETS:-600 2000}; do
    score "budget_$budget" merged "data.schema_budget=$budget" data.max_prompt_tokens=4096 "$@"
    "$PY" -m jaxrl_sql.evaluate --compare "$out/oracle" "$out/budget_$budget"
done
