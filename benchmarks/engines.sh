#!/bin/sh
# Noisy embeddings beside bare onnxruntime on the same cores; `--torch` installs PyTorch (several GB) as a further peer.
set -eu
cd "$(dirname "$0")/.."

cargo build --release --quiet --workspace --features retrievalguard-cli/full --bin engines

venv=target/venv/bin/python
[ -x "$venv" ] || python3 -m venv target/venv
"$venv" -c 'import numpy, onnx, onnxruntime' 2>/dev/null || "$venv" -m pip install --quiet numpy onnx onnxruntime
if [ "${1:-}" = "--torch" ]; then
    shift
    "$venv" -c 'import torch' 2>/dev/null || "$venv" -m pip install --quiet torch
fi
if [ -z "${ORT_DYLIB_PATH:-}" ]; then
    ORT_DYLIB_PATH=$(echo "$PWD"/target/venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.*)
    export ORT_DYLIB_PATH
fi

# PYTHON may name another interpreter that has numpy, onnx and torch.
exec "${PYTHON:-$venv}" benchmarks/engines.py target/release/engines target/benchmarks/engines "$@"
