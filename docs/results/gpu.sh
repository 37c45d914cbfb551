#!/usr/bin/env bash
# What needs a GPU, in one go: gpu.sh FOLDER [PART...]
#
#   bench    a step of SGLang and of ours, side by side                   90 s at most, the card alone
#   right    tests, replayed graphs, sanitizer, explored protocols      160 s, side by side
#   fuzz     the tester, on our kernels                                  FUZZ_SECONDS + 60 s
#   seeds    our kernels from twenty seeds: no false alarm               SEEDS_SECONDS at most
#   rate     how many row-windows a second the tester judges             70 s at most, the card alone
#   sweep    what the times depend on                                   130 s, the card alone
#   drift    10,000 tokens on released kernels and ours                  75 s, side by side
#   findings the scripts beside docs/findings.md, on released kernels    90 s, side by side
#   matrix   released kernels and ours, two dozen configurations each    MATRIX_SECONDS + 40 s
#   pool     SGLang's pool, backend and commit in three releases         POOL_SECONDS + 15 s
#
# Without PART all of them but `matrix` and `pool`, in fourteen minutes. Results and logs go to
# FOLDER; the table at the end says how each ended. DEVICE=cpu runs the same commands small and
# without a clock, to see that they run. `seeds`, `matrix` and `pool` name the commit that COMMIT
# holds, where git can't tell; `pool` wants RINGFOLD_POOL_PYTHON (docs/integration.md).
set -uo pipefail
cd "$(dirname "$0")/../.."
OUT=$(realpath -m "${1:?usage: gpu.sh FOLDER [PART...]}")
PARTS=" ${*:2} "
PYTHON=${PYTHON:-python3}
DEVICE=${DEVICE:-cuda}
FUZZ_SECONDS=${FUZZ_SECONDS:-45}
SEEDS_SECONDS=${SEEDS_SECONDS:-150}
MATRIX_SECONDS=${MATRIX_SECONDS:-460}
POOL_SECONDS=${POOL_SECONDS:-65}
CORES=$(nproc)
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
LOGS=$(mktemp -d)
mkdir -p "$OUT"

wanted() { [[ $PARTS == "  " || $PARTS == *" $1 "* ]]; }

run() {  # run NAME SECONDS COMMAND...: keep its output, and note how it ended
  local name=$1 limit=$2 start=$SECONDS code
  shift 2
  timeout --signal=INT --kill-after=10 "$limit" "$@" >"$LOGS/$name" 2>&1
  code=$?
  printf '%-18s exit %-4s %4d of %4d s\n' "$name" $code $((SECONDS - start)) "$limit" \
    >>"$LOGS/table"
  return $code
}
ringfold=("$PYTHON" -m ringfold)
pytest=("$PYTHON" -m pytest -q --device "$DEVICE" -p no:cacheprovider)

PEERS=(sglang-snapshots==0.5.23 sglang==0.5.16 sglang==0.5.23 triton)
DRIFTING=(sglang-snapshots==0.5.23 sglang==0.5.16 sglang==0.5.18 sglang==0.5.23 triton
  sglang-decode==0.5.23 sglang-packed==0.5.23)
TESTS=(tests/kernels --ignore tests/kernels/test_layouts.py --ignore tests/kernels/test_graph.py)
SHORT=(tests/kernels/test_ring.py -x -k "history_agrees or padding_row or slot_stride")
if [ "$DEVICE" = cuda ]; then
  CLOCK=(--device cuda)
  PRODUCTION=(--geometry 16,32,128,128 --dtype bfloat16)
  RINGS=("--ring 16 --window 4 --geometry 2,4,128,128 --dtype bfloat16" "--ring 64 --window 8")
  VARYING=(--sweep ring --sweep window --sweep acceptance --sweep geometry --sweep layers)
  SOME=(-n 4)
  BUDGET=(--max-time "$FUZZ_SECONDS")
  SHORTLY=(--max-time 30)
  LONG=(--tokens 10000 --k 128 --v 128 --precision kernel)
  SCRIPTS=(--cuda --jobs "$CORES" --seconds 80)
  OFTEN=()
  QUOTAS=(--seconds "$MATRIX_SECONDS")
  SERVED=(--seconds "$POOL_SECONDS" --windows 160 --jobs 21)
  FUZZED=(sglang-pool==0.5.18+graph --dtype bfloat16 --max-time 12)
else
  CLOCK=(--dry-run)
  PRODUCTION=()
  RINGS=("--ring 4 --window 1" "--ring 4 --window 2")
  VARYING=(--batch 1 --batch 2)
  SOME=(-k "history_agrees and plain")
  BUDGET=(--max-windows 20)
  SHORTLY=(--max-windows 60)
  LONG=(--tokens 10 --gate -4 --seeds 1 --precision fp16-records)
  SCRIPTS=()
  OFTEN=(--windows 20 --configurations 1 --workers 1) SEEDS_SECONDS=900
  QUOTAS=(--device cpu --workers 1 --configurations 1 --each 1 --in-all 0 --server 0)
  SERVED=(--device cpu --seconds 400 --windows 12 --jobs 1)
  FUZZED=(sglang-pool==0.5.18 --dtype float16 --max-windows 20)
  POOL_SECONDS=400
fi
on=(--device "$DEVICE")
drawn() { [ "$DEVICE" = cpu ] || echo "--plot=$OUT/$1.png"; }

if wanted bench; then
  run bench 90 "${ringfold[@]}" bench "${PEERS[@]}" "${CLOCK[@]}" \
    --save "$OUT/bench.json" $(drawn bench)
fi
if wanted right; then
  run kernels 160 "${pytest[@]}" "${TESTS[@]}" "${SOME[@]}" &
  run graph 160 "${pytest[@]}" tests/kernels/test_graph.py &
  # shellcheck disable=SC2086  # each of RINGS is several words
  run explore-16-4 160 "${ringfold[@]}" explore triton ${RINGS[0]} \
    "${on[@]}" --max-time 90 --workers 3 --run-dir "$OUT/explore-16-4" &
  # shellcheck disable=SC2086
  run explore-64-8 160 "${ringfold[@]}" explore triton ${RINGS[1]} \
    "${on[@]}" --max-time 90 --workers $((CORES / 3 + 1)) --run-dir "$OUT/explore-64-8" &
  if [ "$DEVICE" = cuda ] && command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
      # Tensors of their own allocation each, so that a step beyond one is seen.
      PYTORCH_NO_CUDA_MEMORY_CACHING=1 run $tool 160 compute-sanitizer --tool $tool \
        --error-exitcode 99 "${pytest[@]}" "${SHORT[@]}" &
    done
  fi
  wait
  for name in explore-16-4 explore-64-8; do
    mv "$OUT/$name/report.json" "$OUT/$name.json"
  done
fi
if wanted fuzz; then
  # Pairwise configurations; the geometry of a server; and a small one, for many row-windows.
  third=$((CORES / 3 + 1))
  limit=$((FUZZ_SECONDS + 60))
  run fuzz $limit "${ringfold[@]}" fuzz triton "${on[@]}" "${BUDGET[@]}" \
    --workers $third --run-dir "$OUT/fuzz" &
  run fuzz-production $limit "${ringfold[@]}" fuzz triton "${on[@]}" "${BUDGET[@]}" \
    "${PRODUCTION[@]}" --workers $third --run-dir "$OUT/fuzz-production" &
  run fuzz-small $limit "${ringfold[@]}" fuzz triton "${on[@]}" "${BUDGET[@]}" \
    --geometry 1,2,32,32 --workers $third --run-dir "$OUT/fuzz-small" &
  wait
fi
if wanted seeds; then
  run seeds "$SEEDS_SECONDS" "$PYTHON" docs/results/seeds.py "$OUT/seeds.json" triton \
    "${on[@]}" "${OFTEN[@]}" ${COMMIT:+--commit "$COMMIT"}
fi
if wanted rate; then
  run rate 70 "${ringfold[@]}" fuzz triton "${on[@]}" "${SHORTLY[@]}" --geometry 1,2,32,32 \
    --ring 8 --window 2 --dtype float32 --layers 1 --run-dir "$OUT/rate"
fi
if wanted sweep; then
  run sweep 130 "${ringfold[@]}" bench "${PEERS[@]}" "${CLOCK[@]}" "${VARYING[@]}" --rounds 9 \
    --save "$OUT/sweep.json" $(drawn sweep)
fi
if wanted drift; then
  # Each in a process of its own, on the same texts; then all that came to an end, in one file.
  study=(drift --similarity 0.5 --ring 16 --acceptance 0.7 "${LONG[@]}" "${on[@]}")
  export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
  saved=$(mktemp -d) walked=() limit=$([ "$DEVICE" = cuda ] && echo 60 || echo 900)
  for target in "${DRIFTING[@]}"; do
    { run "drift-$target" $limit "${ringfold[@]}" "${study[@]}" "$target" \
      --save "$saved/$target" || rm -f "$saved/$target"; } &
  done
  wait
  for target in $(ls "$saved"); do walked+=("$target" --reuse "$saved/$target"); done
  run drift $limit "${ringfold[@]}" "${study[@]}" "${walked[@]}" --save "$OUT/drift.json" $(drawn drift)
fi
if wanted findings; then
  run findings $([ "$DEVICE" = cuda ] && echo 90 || echo 900) \
    "$PYTHON" docs/findings/run.py "$OUT/findings.json" "${SCRIPTS[@]}"
fi
if [[ $PARTS == *" pool "* ]]; then
  limit=$((POOL_SECONDS + 15))
  run pool $limit "$PYTHON" docs/results/pool.py "$OUT/pool.json" \
    0.5.16 0.5.18 0.5.23 "${SERVED[@]}" ${COMMIT:+--commit "$COMMIT"} &
  run pool-fuzz $limit "${ringfold[@]}" fuzz "${FUZZED[@]}" "${on[@]}" --ring 16 --window 4 \
    --geometry 1,2,32,32 --workers 2 --run-dir "$OUT/pool-fuzz" &
  wait
fi
if [[ $PARTS == *" matrix "* ]]; then
  run matrix $((MATRIX_SECONDS + 40)) "$PYTHON" docs/results/matrix.py run "$OUT/matrix.json" \
    "${QUOTAS[@]}" --run-dir "$OUT/matrix" ${COMMIT:+--commit "$COMMIT"}
fi

for log in "$LOGS"/*; do
  printf '\n======== %s\n' "$(basename "$log")"
  cat "$log"
done >"$OUT/logs.txt"
for name in bench sweep drift matrix; do
  [ ! -e "$LOGS/$name" ] || grep -vE '^ *$' "$LOGS/$name" | cut -c1-140
done
echo
cat "$LOGS/table"
