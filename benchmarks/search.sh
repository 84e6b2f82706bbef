#!/bin/sh
# Exact search beside numpy and faiss on the same vectors; `--large` measures memory with a million vectors.
set -eu
cd "$(dirname "$0")/.."

cargo build --release --quiet --package retrievalguard-benchmarks --bin search
program=target/release/search

if [ "${1:-}" = "--large" ]; then
    exec "$program" large
fi

python=target/venv/bin/python
[ -x "$python" ] || python3 -m venv target/venv
"$python" -c 'import faiss, numpy' 2>/dev/null || "$python" -m pip install --quiet numpy faiss-cpu

folder=target/benchmarks/search
[ -f "$folder/queries.npy" ] || "$program" generate "$folder"

export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
exec "$python" benchmarks/search.py "$program" "$folder"
