#!/bin/sh
# A run on two Ray nodes of this machine beside the same run in one process. Usage: benchmarks/ray.sh [ROUNDS]
set -eu
cd "$(dirname "$0")/.."

folder=target/benchmarks/ray
mkdir -p "$folder"
cargo build --release --quiet --workspace --features retrievalguard-cli/full --bin retrievalguard
[ -f "$folder/demo/certificates/certificates.parquet" ] ||
    target/release/retrievalguard demo --out "$folder/demo" >"$folder/demo.log"
[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check './bindings/python[ray]'

exec "$folder/venv/bin/python" benchmarks/ray_nodes.py "$folder" "$@"
