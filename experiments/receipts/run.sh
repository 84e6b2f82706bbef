#!/usr/bin/env bash
# 200 receipts and 200 forgeries before both verifiers.
#
#   experiments/receipts/run.sh PHOTOGRAPHS OUT
#
# PHOTOGRAPHS is a folder of folders with pictures. PROGRAM is the tool, CHECKER the other verifier with its interpreter (which
# needs numpy, onnxruntime and Pillow), ENGINE the flags with which the tool runs encoders under noise.
set -euo pipefail
photographs=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=${PROGRAM:-$root/target/release/retrievalguard}
checker=${CHECKER:-$root/target/venv/bin/python $root/verifier/check_receipt.py}
engine=${ENGINE:-}
mkdir -p "$out"

# 150 receipts of the demo's products, 50 for each certificate from noise.
"$program" demo --out "$out/demo" --queries 4 --samples 60 --pilot 20 $engine > "$out/demo.log"
demo="$out/demo/pictures/queries:$out/demo/gallery:$out/demo/encoder.onnx"
for certificate in pairwise vote half-space; do
    pilot=20
    [ "$certificate" = half-space ] && pilot=200
    "$program" certify "$out/demo/pictures/queries" --gallery "$out/demo/gallery" --model "$out/demo/encoder.onnx" \
        --certificate "$certificate" --samples 400 --pilot "$pilot" --every 3 --limit 50 $engine \
        --out "$out/$certificate" --receipts "$out/$certificate/receipts" >> "$out/demo.log"
done

# 50 receipts of photographs without noise: copies of them among the first photographs of each class.
"$program" copy-encoder --out "$out/copies" --size 128 --grid 16
"$program" index "$photographs" --gallery "$out/photographs" --model "$out/copies/encoder.onnx" --every 4
"$program" certify "$photographs" --gallery "$out/photographs" --model "$out/copies/encoder.onnx" --leave-one-out never \
    --every 4 --limit 50 --out "$out/lipschitz" --receipts "$out/lipschitz/receipts" >> "$out/demo.log"

sets=()
for name in pairwise vote half-space lipschitz; do
    about=$demo
    [ "$name" = lipschitz ] && about="$photographs:$out/photographs:$out/copies/encoder.onnx"
    rm -rf "$out/$name/forged"
    python3 "$here/forge.py" "$out/$name"/receipts/*.receipt.json --out "$out/$name/forged" --count 50 --each 2
    sets+=("$name:$out/$name/receipts:$about" "$name:$out/$name/forged:$about")
done
python3 "$here/compare.py" --program "$program" --checker "$checker" --engine "$engine" --log "$out/verdicts.jsonl" "${sets[@]}" \
    | tee "$out/results.md"
wc -l ${checker##* } | tee -a "$out/results.md"
