#!/usr/bin/env bash
# Tests what jaxcluster promises on this machine's NVIDIA cards, and measures what it costs there: at
# most 10 minutes, once it has made an environment of its own, such as .venv-gpu-cuda13.
#
#   bash tests/gpu/run.sh
#   CUDA=cuda12 bash tests/gpu/run.sh                 for a driver older than CUDA 13
#   PYTHON=python3.13 bash tests/gpu/run.sh           with another Python
#   JAXCLUSTER_GPU_TESTS=cpu bash tests/gpu/run.sh    the same on CPU devices, without a card
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kind=${CUDA:-cuda13}
if [ "${JAXCLUSTER_GPU_TESTS:-}" = cpu ]; then kind=cpu; fi
env=.venv-gpu-$kind
if [ ! -e $env/.complete ]; then
    echo "==> making $env (some minutes: CUDA's libraries are large)"
    rm -rf $env
    "${PYTHON:-python3}" -m venv $env
    jax=jax
    if [ $kind != cpu ]; then jax="jax[$kind]"; fi
    JAXCLUSTER_JS=skip $env/bin/pip install --quiet --disable-pip-version-check -e '.[test]' "$jax"
    touch $env/.complete
fi
if command -v nvidia-smi >/dev/null; then
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
fi
echo "==> the promises"
status=0
timeout 420 $env/bin/python -m pytest -q tests/gpu || status=$?
echo "==> the costs"
timeout 180 $env/bin/python benchmarks/bench_gpu.py --megabytes "${MEGABYTES:-256}" || status=$?
exit $status
