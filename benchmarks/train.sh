#!/bin/sh
# Steps per second of training beside PyTorch on the same cores; installs PyTorch (several GB) unless PYTHON has it.
# With LIBTORCH, the folder of PyTorch 2.9.0's library (the package `torch` itself will do), libtorch under burn joins in.
set -eu
cd "$(dirname "$0")/.."

if [ -n "${LIBTORCH:-}" ]; then
    : "${CONTESTANTS:=plain ours libtorch}"
    export CONTESTANTS
    features="--features tch"
fi
cargo build --release --quiet --package retrievalguard-benchmarks --bin train ${features:-}

if [ -z "${PYTHON:-}" ]; then
    PYTHON=target/venv/bin/python
    [ -x "$PYTHON" ] || python3 -m venv target/venv
    "$PYTHON" -c 'import torch' 2>/dev/null || "$PYTHON" -m pip install --quiet torch
fi

exec "$PYTHON" benchmarks/train.py target/release/train "$@"
