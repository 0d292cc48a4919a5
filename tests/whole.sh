#!/usr/bin/env bash
# Every row of the case table and the random cases on one backend, side by side: for a machine that has its device.
#
#     tests/whole.sh BUILD BACKEND [PROCESSES]
#
# BACKEND: cpu, cuda, vulkan or opencl. PROCESSES: as many as the machine has cores. What tests/support/devices.h reads from the
# environment holds here too: ATTUNE_TEST_PROFILE=a6000 plans as for that GPU, ATTUNE_TEST_SCALE=10 draws ten times as many
# cases. Each row or part that fails is named with its messages; every log stays in BUILD/whole. A row alone:
#
#     build/tests/test_cases --verbose --filter 'gradients_cuda/causal'
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '4s/^# *//p' "$0" >&2
  exit 2
fi
build=$(realpath "$1")
backend=$2
processes=${3:-$(nproc)}
export build ATTUNE_SOURCE ATTUNE_PROGRAM=$build/bench/attune ATTUNE_REQUIRE=$backend logs=$build/whole
ATTUNE_SOURCE=$(realpath "$(dirname "$0")/..")
export XDG_CACHE_HOME=$logs/cache
rm -rf "$logs"
mkdir -p "$logs"

fail() {
  echo "failed: $1"
  grep -a '^\[----\]  \|Assertion Failed\|FAIL\|CRASH' "$2" | head -n "$3" || true
}

# Each row is a test of its own. FILTER
run_rows() {
  local log=$logs/rows
  if "$build/tests/test_cases" --verbose --jobs "$processes" --filter "$1" >"$log" 2>&1 && grep -qa 'Tested: .*[1-9]' "$log"; then
    echo "passed"
  else
    fail "rows" "$log" 200
  fi
  grep -a '^\[====\] Synthesis' "$log" >&2
}

# PROGRAM FILTER PART PARTS
run_part() {
  local log=$logs/${2//[\/*]/-}.$3
  if ATTUNE_TEST_PART=$3/$4 "$build/tests/$1" --verbose --filter "$2" >"$log" 2>&1 &&
    grep -qa 'Tested: .*[1-9]' "$log"; then
    echo passed
  else
    fail "$2, part $3 of $4" "$log" 12
  fi
}

# Random problems against an oracle of their own: a part has a seed and a minute or so.
run_random() {
  local log=$logs/random.$1 device=$backend${ATTUNE_TEST_PROFILE:+@$ATTUNE_TEST_PROFILE}
  if "$build/tests/random" --device "$device" --seed "$1" --count 100000 --seconds 60 --out "$logs" >"$log" 2>&1; then
    echo passed
  else
    echo "failed: random, seed $1"
    grep -a '^FAILED\|written\|crashed' "$log" | head -n 12 || true
  fi
}
run() {
  if [ "$1" = random ]; then run_random "$2"; else run_part "$@"; fi
}
export backend
export -f fail run_part run_random run

parts() {
  local part
  for ((part = 0; part < $3; part++)); do
    echo "$1 $2 $part $3"
  done
}

rows="@(forward|gradients|segments|segments_gradients)_$backend"
[ "$backend" != vulkan ] || rows="@(forward_matrix|$rows)"
run_rows "$rows/*" >"$logs/summary"
{
  parts test_cases "forward_random/$backend" 16
  parts test_cases "gradients_random/$backend" 30
  parts test_cases "segments_random/$backend" 12
  parts test_cases "segments_random/gradients_$backend" 12
  parts test_cases "nonfinite/$backend" 8
  for test in training/$backend training/segments_$backend mixed/$backend; do parts test_cases "$test" 1; done
  [ "$backend" = cpu ] || parts test_cases "rows_past/$backend" 1
  [ "$backend" != cuda ] || parts test_cuda_streams 'cuda_streams/*' 1
  for ((seed = 1; seed <= 16; seed++)); do echo "random $seed"; done
} | xargs -P "$processes" -L 1 bash -c 'run "$@"' part >>"$logs/summary"

grep -v '^passed$' "$logs/summary" || true
echo "$(grep -c '^passed$' "$logs/summary") parts passed, $(grep -c '^failed: ' "$logs/summary") failed"
! grep -q '^failed: ' "$logs/summary"
