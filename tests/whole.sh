#!/usr/bin/env bash
# Every row of the case table, the random cases, the golden cases and every test of a program that names the backend, side by
# side: for a machine that has its device.
#
#     tests/whole.sh BUILD BACKEND [PROCESSES]
#
# BACKEND: cpu, cuda, vulkan or opencl. PROCESSES: as many as the machine has cores. What tests/support/devices.h reads from the
# environment holds here too: ATTUNE_TEST_PROFILE=a6000 plans as for that GPU, ATTUNE_TEST_SCALE=10 draws ten times as many
# cases. Each row or part that fails is named with its messages, one that the device cannot run with the reason; every log stays
# in BUILD/whole, and report.txt there has all of it with the machine, to send (docs/report.md). A row alone:
#
#     build/tests/test_cases --verbose --filter 'gradients_cuda/causal'
set -euo pipefail

if [ $# -lt 2 ]; then
  sed -n '5s/^# *//p' "$0" >&2
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
  local log=$logs/$1-${2//[\/*]/-}.$3 reason
  if ATTUNE_TEST_PART=$3/$4 "$build/tests/$1" --verbose --filter "$2" >"$log" 2>&1 &&
    grep -qa 'Tested: .*[1-9]' "$log"; then
    echo passed
  elif ! grep -qa 'FAIL\|CRASH' "$log" && reason=$(grep -a '^\[SKIP\]' "$log" | grep -vm 1 'Test is disabled'); then
    echo "skipped: $1 ${reason#* }"
  else
    fail "$2, part $3 of $4" "$log" 12
  fi
}

# A golden case with its gradients. CASE DTYPE
run_golden() {
  local log=$logs/golden-$1-$2 device=$backend${ATTUNE_TEST_PROFILE:+@$ATTUNE_TEST_PROFILE}
  if "$ATTUNE_PROGRAM" check --grad --case "$ATTUNE_SOURCE/tests/goldens/$1" --device "$device" --dtype "$2" >"$log" 2>&1; then
    echo passed
  else
    echo "failed: golden $1 $2"
    tail -n 4 "$log"
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
  case $1 in
  random) run_random "$2" ;;
  golden) run_golden "$2" "$3" ;;
  *) run_part "$@" ;;
  esac
}
export backend
export -f fail run_part run_golden run_random run

# SUITE/NAME of a program's tests. PROGRAM
tests() {
  "$build/tests/$1" --list | awk '/^[a-z]/ { sub(":", "", $1); suite = $1; next } { print suite "/" $NF }'
}

# Those that name the backend, as merge/backward_vulkan; on the CPU also those of its suites that name none. PROGRAM
tests_of_backend() {
  tests "$1" | awk -F / -v backend="$backend" '
    $2 ~ "(^|_)" backend "(_|$)" { print; next }
    backend == "cpu" && $1 ~ /^(serving_(bits|limits)|distributed_(forward|backward)|public_mods)$/ &&
      $2 !~ /(^|_)(vulkan|cuda|opencl|model)(_|$)/
    backend == "vulkan" && $0 == "gradients_random/matrix"
    backend == "cuda" && $0 == "distributed_devices/peers"'
}

# A test in as many parts as its cases are worth. PROGRAM TEST
parts() {
  local part count=1
  case $2 in
  gradients_random/*) count=30 ;;
  forward_random/*) count=16 ;;
  segments_random/*) count=12 ;;
  nonfinite/* | serving_cases/*) count=8 ;;
  append/"$backend" | distributed_*/table) count=4 ;;
  esac
  for ((part = 0; part < count; part++)); do
    echo "$1 $2 $part $count"
  done
}

rows="@(forward|gradients|segments|segments_gradients)_$backend"
[ "$backend" != cpu ] || rows="@(forward_tiles|$rows)"
[ "$backend" != vulkan ] || rows="@(forward_matrix|gradients_matrix|$rows)"
run_rows "$rows/*" >"$logs/summary"
{
  for program in test_cases test_api test_distributed; do
    for test in $(tests_of_backend $program); do parts $program "$test"; done
  done
  [ "$backend" != cuda ] || parts test_cuda_streams 'cuda_streams/*'
  for folder in "$ATTUNE_SOURCE"/tests/goldens/*/; do
    for dtype in f32 f16 bf16; do echo "golden $(basename "$folder") $dtype"; done
  done
  for ((seed = 1; seed <= 16; seed++)); do echo "random $seed"; done
} >"$logs/parts"
xargs -P "$processes" -L 1 bash -c 'run "$@"' part <"$logs/parts" >>"$logs/summary"

# The machine that the tests ran on.
describe() {
  echo "attune $(git -C "$ATTUNE_SOURCE" describe --always --dirty 2>/dev/null || "$ATTUNE_PROGRAM" --version)"
  date -u '+%Y-%m-%d %H:%M UTC'
  uname -srm
  env | grep '^ATTUNE_\(UNTRIED\|TEST\|MODEL\)' || true
  "$ATTUNE_PROGRAM" devices 2>&1 || true
  [ "$backend" != cuda ] || nvidia-smi --query-gpu=name,compute_cap,driver_version,clocks.max.sm,power.limit --format=csv 2>&1 || true
}
describe >"$logs/report.txt"
exec > >(tee -a "$logs/report.txt")
grep -v '^passed$' "$logs/summary" || true
lines() { grep -c "^$1" "$logs/summary" || true; }
total=$(($(wc -l <"$logs/parts") + 1))
passed=$(lines 'passed$') failed=$(lines 'failed: ') skipped=$(lines 'skipped: ')
echo "$passed of $total parts passed, $failed failed, $skipped skipped"
grep -a '^\[====\] Synthesis' "$logs/rows" | sed 's/.*Tested/rows of the table: Tested/'
[ $((passed + skipped)) -eq "$total" ]
