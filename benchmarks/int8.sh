#!/bin/sh
# The demo's encoder in 32 and in 8 bits: radii and speed side by side. Usage: benchmarks/int8.sh
set -eu
cd "$(dirname "$0")/.."

folder=target/benchmarks/int8
mkdir -p "$folder"
cargo build --release --quiet --workspace --features retrievalguard-cli/full --bin retrievalguard
[ -f "$folder/demo/certificates/certificates.parquet" ] ||
    target/release/retrievalguard demo --out "$folder/demo" >"$folder/demo.log"
[ -x "$folder/venv/bin/python" ] || python3 -m venv "$folder/venv"
"$folder/venv/bin/python" -m pip install --quiet --disable-pip-version-check ./bindings/python onnx

exec "$folder/venv/bin/python" benchmarks/int8.py "$folder"
