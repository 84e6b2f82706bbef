#!/usr/bin/env bash
# 200 receipts and 200 forgeries before both verifiers.
#
#   experiments/receipts/run.sh PHOTOGRAPHS OUT
#
# PHOTOGRAPHS is a folder of folders with pictures. PROGRAM is the tool, CHECKER the other verifier with its interpreter (which
# needs numpy, onnxruntime and Pillow), ENGINE the flags with which the tool runs encoders under noise. COUNT receipts and as many
# forgeries of each of the four kinds, 50 unless told; ./check runs it with a few, and with one kind more: the demo's own encoder without noise.
set -euo pipefail
photographs=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
program=${PROGRAM:-$root/target/release/retrievalguard}
checker=${CHECKER:-$root/target/venv/bin/python $root/verifier/check_receipt.py}
engine=${ENGINE:-}
count=${COUNT:-50}
mkdir -p "$out"

# Receipts of the demo's products, as many for each certificate from noise.
"$program" demo --out "$out/demo" --queries 4 --samples 60 --pilot 20 $engine > "$out/demo.log"
demo="$out/demo/pictures/queries:$out/demo/gallery:$out/demo/encoder.onnx"
for certificate in pairwise vote half-space; do
    pilot=20
    [ "$certificate" = half-space ] && pilot=200
    "$program" certify "$out/demo/pictures/queries" --gallery "$out/demo/gallery" --model "$out/demo/encoder.onnx" \
        --certificate "$certificate" --samples 400 --pilot "$pilot" --every 3 --limit "$count" $engine \
        --out "$out/$certificate" --receipts "$out/$certificate/receipts" >> "$out/demo.log"
done

# Receipts of photographs without noise: copies of them among the first photographs of each class.
"$program" copy-encoder --out "$out/copies" --size 128 --grid 16
"$program" index "$photographs" --gallery "$out/photographs" --model "$out/copies/encoder.onnx" --every 4
"$program" certify "$photographs" --gallery "$out/photographs" --model "$out/copies/encoder.onnx" --leave-one-out never \
    --every 4 --limit "$count" --out "$out/lipschitz" --receipts "$out/lipschitz/receipts" >> "$out/demo.log"

names=(pairwise vote half-space lipschitz)
residual="$out/demo/pictures/queries:$out/demo/without-noise/gallery:$out/demo/without-noise/encoder.onnx"
if [ "$count" -lt 50 ]; then
    "$program" certify "$out/demo/pictures/queries" --gallery "$out/demo/without-noise/gallery" \
        --model "$out/demo/without-noise/encoder.onnx" --every 3 --limit "$count" \
        --out "$out/lipschitz-residual" --receipts "$out/lipschitz-residual/receipts" >> "$out/demo.log"
    names+=(lipschitz-residual)
fi

sets=()
for name in "${names[@]}"; do
    about=$demo
    [ "$name" = lipschitz-residual ] && about=$residual
    [ "$name" = lipschitz ] && about="$photographs:$out/photographs:$out/copies/encoder.onnx"
    rm -rf "$out/$name/forged"
    python3 "$here/forge.py" "$out/$name"/receipts/*.receipt.json --out "$out/$name/forged" --count "$count" --each 2
    sets+=("$name:$out/$name/receipts:$about" "$name:$out/$name/forged:$about")
done
python3 "$here/compare.py" --program "$program" --checker "$checker" --engine "$engine" --log "$out/verdicts.jsonl" "${sets[@]}" \
    | tee "$out/results.md"
wc -l "$root"/verifier/{check_receipt,bounds,lipschitz}.py | tee -a "$out/results.md"
