#!/usr/bin/env bash
# Tables and figure of README.md in this folder: finding copies with a certificate, beside perceptual hashes. Usage:
#
#   experiments/copy-detection/run.sh PHOTOGRAPHS OUT [FLAGS OF copies.py]
#
# PHOTOGRAPHS is any folder with pictures. RETRIEVALGUARD names another program than the one in target/, PYTHON another
# interpreter than that of the environment which is made in target/copy-detection.
set -euo pipefail
photographs=$1 out=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

tool=${RETRIEVALGUARD:-}
if [ -z "$tool" ]; then
  cargo build --release --locked --quiet --manifest-path "$root/Cargo.toml" --bin retrievalguard
  tool=$root/target/release/retrievalguard
fi

python=${PYTHON:-}
if [ -z "$python" ]; then
  environment=$root/target/copy-detection/venv
  python=$environment/bin/python
  [ -x "$python" ] || python3 -m venv "$environment"
  "$python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
fi

# The matrices are small: more threads than one wait for each other.
export OPENBLAS_NUM_THREADS=1
exec "$python" "$here/copies.py" "$photographs" --tool "$tool" --out "$out" "$@"
