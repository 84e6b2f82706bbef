#!/bin/sh
# One certificate without noise beside one exact search by faiss in the same vectors.
set -eu
cd "$(dirname "$0")/.."

cargo build --release --quiet --package retrievalguard-benchmarks --bin lipschitz
program=target/release/lipschitz

python=target/venv/bin/python
[ -x "$python" ] || python3 -m venv target/venv
"$python" -c 'import faiss, numpy' 2>/dev/null || "$python" -m pip install --quiet numpy faiss-cpu

folder=target/benchmarks/lipschitz
[ -f "$folder/queries.npy" ] || "$program" generate "$folder"

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$python" benchmarks/lipschitz.py "$program" "$folder"
