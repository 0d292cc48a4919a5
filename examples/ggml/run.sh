#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds attune's library, a ggml checkout and the backend, and runs
#
#   run.sh CHECKOUT [graph] [test] [times] [perf]     default: all but perf
#
# graph: graph.c, in which ggml's scheduler gives attention to attune; test and perf: ggml's own cases of attention;
# times: times.c, one thread's time on either backend.
# Everything is built in CHECKOUT/build-attune, with JOBS processes. ATTUNE_CASES, a regular expression over the cases'
# parameters, selects some.
set -euo pipefail
commit=d99724f2b141fed9e1a9f402213506c081433465

here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 1 ] || [ ! -f "$1/tests/test-backend-ops.cpp" ] || [ ! -f "$1/src/ggml-backend-impl.h" ]; then
  echo "usage: $0 CHECKOUT [graph] [test] [times] [perf], with a checkout of ggml (README.md)" >&2
  exit 2
fi
ggml=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- graph test times
found=$(git -C "$ggml" rev-parse HEAD 2>/dev/null || echo none)
[ "$found" = "$commit" ] || echo "The recipe is for commit $commit; this checkout's is $found." >&2
out=$ggml/build-attune
log=$out/build.log
jobs=${JOBS:-$(nproc)}
mkdir -p "$out"

build() {
  [ -f "$out/attune/build.ninja" ] ||
    meson setup "$out/attune" "$here/../.." --buildtype=release --default-library=static -Dtests=disabled -Dbench=disabled \
      -Dcuda=disabled -Dvulkan=disabled -Dopencl=disabled -Djson=disabled &&
    ninja -C "$out/attune" -j "$jobs" src/libattune.a &&
    cmake -S "$ggml" -B "$out/ggml" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BUILD_TESTS=ON \
      -DGGML_BUILD_EXAMPLES=OFF &&
    cmake --build "$out/ggml" --target test-backend-ops --parallel "$jobs" &&
    "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -fPIC -shared -fvisibility=hidden -fopenmp -Wall -Wextra \
      -I"$here/../../include" -isystem "$ggml/include" -isystem "$ggml/src" "$here/ggml-attune.c" "$here/operation.c" \
      "$out/attune/src/libattune.a" -L"$out/ggml/src" -lggml-base -lm -ldl -pthread -Wl,--exclude-libs,ALL \
      -o "$out/libggml-attune.so" &&
    program graph && program times
}

program() {
  "${CC:-cc}" -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -isystem "$ggml/include" "$here/$1.c" -L"$out/ggml/src" -lggml \
    -lggml-base -lm -Wl,-rpath,"$out/ggml/src" -o "$out/$1"
}

build >"$log" 2>&1 || { echo "The build failed: $log" >&2; tail -3 "$log" >&2; exit 1; }

export GGML_BACKEND_PATH=$out/libggml-attune.so GGML_ATTUNE_LOG=1
ops() {
  "$out/ggml/bin/test-backend-ops" "$@" -o FLASH_ATTN_EXT
}

run_test() {
  local status=0
  ops test -b attune -p "${ATTUNE_CASES:-.}" >"$out/test.txt" 2>"$out/refused.txt" || status=$?
  grep -a 'tests passed' "$out/test.txt" || echo "test-backend-ops ended early: $out/test.txt"
  grep -a 'FAIL' "$out/test.txt" || true
  echo "refused:"
  sed -n 's/.*attune refuses [^:]*: //p' "$out/refused.txt" | sort | uniq -c
  return $status
}

# Each case on one backend and then on the other, so that both meet much the same load.
run_perf() {
  local case ggml_us attune_us
  printf '%-72s %10s %10s %7s %6s\n' case 'ggml us' 'attune us' faster load
  while read -r case; do
    ggml_us=$(perf_case CPU "$case")
    attune_us=$(perf_case attune "$case")
    awk -v c="$case" -v g="$ggml_us" -v a="$attune_us" -v l="$(cut -d' ' -f1 /proc/loadavg)" \
      'BEGIN { gsub(/\\/, "", c); printf "%-72s %10.0f %10.0f %6.2fx %6s\n", c, g, a, g / a, l }'
  done < <(perf_cases | grep -E -- "${ATTUNE_CASES:-.}")
}

perf_case() {
  ops perf -b "$1" -p "$2" 2>/dev/null | sed -n 's/.* - *\([0-9.]*\) us\/run.*/\1/p' | head -1
}

# Regular expressions that each match one of ggml's own cases: decode, then prompts.
perf_cases() {
  cat <<'CASES'
hsk=64,hsv=64,nh=8,nr23=\[8,1\],kv=7680,nb=1,.*type_K=f16
hsk=64,hsv=64,nh=8,nr23=\[8,1\],kv=7680,nb=1,.*type_K=q8_0
hsk=64,hsv=64,nh=8,nr23=\[8,1\],kv=7680,nb=1,.*type_K=q4_0
hsk=64,hsv=64,nh=8,nr23=\[8,1\],kv=7680,nb=4,.*type_K=f16
hsk=128,hsv=128,nh=8,nr23=\[1,1\],kv=4096,nb=1,.*type_K=f16
hsk=128,hsv=128,nh=8,nr23=\[4,1\],kv=16384,nb=1,.*type_K=f16
hsk=256,hsv=256,nh=2,nr23=\[16,1\],kv=1024,nb=1,.*type_K=q8_0
hsk=256,hsv=256,nh=2,nr23=\[16,1\],kv=10000,nb=1,.*type_K=q8_0
hsk=256,hsv=256,nh=2,nr23=\[16,1\],kv=10000,nb=1,.*type_K=f16
hsk=64,hsv=64,nh=8,nr23=\[8,1\],kv=7680,nb=512,.*type_K=q8_0
hsk=64,hsv=64,nh=8,nr23=\[8,1\],kv=7680,nb=512,.*type_K=q4_0
hsk=256,hsv=256,nh=2,nr23=\[16,1\],kv=10000,nb=512,.*type_K=f16
hsk=72,hsv=72,nh=16,nr23=\[1,1\],kv=5776,nb=5776,.*type_K=f16
CASES
}

for mode in "$@"; do
  case $mode in
  graph | times) "$out/$mode" 2>>"$log" ;;
  test) run_test ;;
  perf) run_perf ;;
  *)
    echo "$mode is none of graph, test, times and perf" >&2
    exit 2
    ;;
  esac
done
