#!/usr/bin/env bash
# The table of README.md in this folder: plain metric learning (DML) against Gaussian metric learning (GDML) on grocery
# photographs, at sigma 0.1 and 0.25. Usage:
#
#   experiments/grocery/run.sh PHOTOGRAPHS WEIGHTS [OUT]
#
# PHOTOGRAPHS has the folders train/ and test/, WEIGHTS is the .pth file of EfficientNet-Lite0's ImageNet weights. Every
# step can be interrupted; the same command goes on. RETRIEVALGUARD names another program than the one in target/.
set -euo pipefail
photographs=$1 weights=$2 out=${3:-runs/grocery}
here=$(dirname "$0")
tool=${RETRIEVALGUARD:-$here/../../target/release/retrievalguard}

train() { # NAME [FLAGS]: an encoder in $out/NAME
  local name=$1 folder=$out/$1
  shift
  if [ -f "$folder/done" ]; then return; fi
  if [ -f "$folder/recipe.toml" ]; then
    "$tool" train "$photographs/train" --held-out "$photographs/test" --out "$folder" --resume
  else
    "$tool" train "$photographs/train" --held-out "$photographs/test" --weights "$weights" \
      --recipe "$here/recipe.toml" --out "$folder" "$@"
  fi
  touch "$folder/done"
}

measure() { # NAME SIGMA: 104 queries under every certificate
  local name=$1 sigma=$2
  "$tool" recall "$photographs/test" --model "$out/$name/encoder.onnx" --sigma "$sigma" --samples 8 \
    | tee "$out/$name-$sigma-recall.txt"
  "$tool" index "$photographs/test" --model "$out/$name/encoder.onnx" --sigma "$sigma" --samples 32 \
    --gallery "$out/$name-$sigma.gallery"
  "$tool" certify "$photographs/test" --every 23 --model "$out/$name/encoder.onnx" --sigma "$sigma" \
    --gallery "$out/$name-$sigma.gallery" --certificate all --samples 1000 --pilot 200 --out "$out/$name-$sigma"
  "$tool" evaluate "$out/$name-$sigma/certificates.parquet" | tee "$out/$name-$sigma.txt"
}

five() { # NAME SIGMA: five queries with a hundred thousand samples
  local name=$1 sigma=$2
  "$tool" certify "$photographs/test" --every 480 --model "$out/$name/encoder.onnx" --sigma "$sigma" \
    --gallery "$out/$name-$sigma.gallery" --certificate all --samples 100000 --pilot 1000 --out "$out/$name-$sigma-five"
  "$tool" evaluate "$out/$name-$sigma-five/certificates.parquet" | tee "$out/$name-$sigma-five.txt"
}

mkdir -p "$out"
train gdml-0.25 --sigma 0.25
train gdml-0.1 --sigma 0.1
# Without noise to train with, the evaluation is at the smaller of the two levels.
train dml --set evaluation.sigma=0.1
for sigma in 0.1 0.25; do
  measure dml "$sigma"
  measure "gdml-$sigma" "$sigma"
done
five gdml-0.25 0.25
