#!/bin/sh
# Steps per second of training beside PyTorch on the same cores; installs PyTorch (several GB) unless PYTHON has it.
set -eu
cd "$(dirname "$0")/.."

cargo build --release --quiet --package retrievalguard-benchmarks --bin train

if [ -z "${PYTHON:-}" ]; then
    PYTHON=target/venv/bin/python
    [ -x "$PYTHON" ] || python3 -m venv target/venv
    "$PYTHON" -c 'import torch' 2>/dev/null || "$PYTHON" -m pip install --quiet torch
fi

exec "$PYTHON" benchmarks/train.py target/release/train "$@"
