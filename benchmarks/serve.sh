#!/bin/sh
# Throughput of `retrievalguard serve` beside offline `certify` on the same queries, then four times that load.
set -eu
cd "$(dirname "$0")/.."

cargo build --release --quiet --workspace --features retrievalguard-cli/full --bin retrievalguard
venv=target/venv/bin/python
[ -x "$venv" ] || python3 -m venv target/venv
"$venv" -c 'import onnxruntime' 2>/dev/null || "$venv" -m pip install --quiet onnxruntime
if [ -z "${ORT_DYLIB_PATH:-}" ]; then
    ORT_DYLIB_PATH=$(echo "$PWD"/target/venv/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.*)
    export ORT_DYLIB_PATH
fi
exec "$venv" benchmarks/serve.py target/release/retrievalguard target/benchmarks/serve "$@"
