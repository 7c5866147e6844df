#!/usr/bin/env bash
# Check and time this tree on the machine's accelerator: model tests, attention tests, parity, then scripts/gpu_check.py.
#
#   PY=python3 OUT=runs/gpu_check WHAT="tests timing" scripts/gpu_check.sh [--tiny]
#
# PY is a Python that has jax for the device. The script downloads nothing and does not change PY's packages. It unpacks
# missing packages from wheels in dist/ (`make gpu-wheels` builds them) into a temporary folder. Without a wheel, sqlexec_rs
# is built if cargo and maturin are installed; otherwise its dependent tests are skipped. A CPU always uses --tiny.
# Logs, gpu_check.json and gpu_check.md are in OUT; the exit code is 1 if a test or a measurement failed.
set -uo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-python3}
OUT=${OUT:-runs/gpu_check}
WHAT=${WHAT:-tests timing}
PROCESSES=${PROCESSES:-8} # for tests on a GPU, with pytest-xdist
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
export PYTHONPATH="$PWD:$site${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1

has() { "$PY" -c 'import importlib.util as u, sys; sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))' "$@" 2>/dev/null; }
install() { "$PY" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target "$site" "$@"; }

platform=$("$PY" -c 'import jax; print(jax.default_backend())') || { echo "gpu_check: $PY has no working jax"; exit 1; }
tiny=()
if [ "$platform" = cpu ] || [ "${1:-}" = --tiny ]; then tiny=(--tiny); fi
# By default the tests use the CPU.
case $platform in gpu) export JAX_PLATFORMS=cuda,cpu ;; *) export JAX_PLATFORMS=$platform ;; esac

for wheel in dist/*.whl; do
    module=$(basename "$wheel" | cut -d- -f1)
    # The source folder sqlexec_rs/ would count as the package, so check for the built module.
    case $module in sqlexec_rs) module=sqlexec_rs._native ;; esac
    if [ -e "$wheel" ] && ! has "$module"; then install "$wheel" || echo "gpu_check: $wheel does not fit $PY"; fi
done
if ! has sqlexec_rs._native && command -v cargo >/dev/null && has maturin; then
    install --no-build-isolation ./sqlexec_rs || echo "gpu_check: sqlexec_rs could not be built"
fi
has sqlexec_rs._native || echo "gpu_check: without sqlexec_rs (no wheel in dist/, no cargo and maturin): tests that need it are skipped"
for module in flax optax yaml safetensors; do
    has "$module" || { echo "gpu_check: $PY lacks $module: put its wheel into dist/ (make gpu-wheels)"; exit 1; }
done

failed=0
side_by_side=() quick=()
if [ "$platform" = gpu ]; then
    # Compilation takes most of a test's time on a GPU, and autotuning most of the compilation.
    quick=("XLA_FLAGS=--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false")
    if has xdist; then side_by_side=(-n "$PROCESSES"); fi
fi
tests() { # NAME then pytest's arguments; warnings of a newer jax are not failures here
    local name=$1; shift
    env XLA_PYTHON_CLIENT_PREALLOCATE=false JAX_DEFAULT_MATMUL_PRECISION=highest ${quick[@]+"${quick[@]}"} \
        "$PY" -m pytest -q -p no:cacheprovider -o filterwarnings=default ${side_by_side[@]+"${side_by_side[@]}"} \
        "$@" >"$OUT/$name.log" 2>&1 || failed=1
    echo "$name: $(tail -n 1 "$OUT/$name.log")"
}
if [[ $WHAT != *tests* ]]; then
    echo "gpu_check: no tests were requested"
elif ! has pytest; then
    echo "gpu_check: $PY has no pytest: no tests"; failed=1
elif [ ${#tiny[@]} -gt 0 ]; then
    tests tests tests/unit/models/test_attention.py tests/unit/models/test_flops.py
else
    tests tests tests/unit/models tests/unit/algo/test_grouped_update.py tests/unit/rollout
    if has sqlexec_rs._native; then tests executor tests/native/test_statuses.py; fi
    if has torch transformers; then tests parity -m parity tests/parity/test_transformers_parity.py; else echo "parity: no torch or transformers"; fi
fi
[[ $WHAT != *timing* ]] || "$PY" scripts/gpu_check.py --out "$OUT" ${tiny[@]+"${tiny[@]}"} 2>&1 | tee "$OUT/timing.log" || failed=1
exit $failed
