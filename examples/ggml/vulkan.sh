#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds attune's library, ggml's Vulkan backend with ggml-vulkan.patch, which gives attune its attention, and runs ggml's own
# cases of it
#
#   vulkan.sh CHECKOUT [test] [perf]     default: test
#
# test gives attune whatever it has a kernel for. perf has each case by ggml's shader and by attune, and leaves the times in
# CHECKOUT/build-attune/times-vulkan.txt, by which the backend chooses when GGML_ATTUNE_TIMES names it. The checkout stays as it
# is: the patched one is a worktree of it, CHECKOUT/build-attune/ggml-vulkan, where everything is built, with JOBS processes.
# ATTUNE_CASES, a regular expression over the cases' parameters, selects some; MESON_OPTIONS and CMAKE_OPTIONS are further words,
# such as -Dglslang_matrix=PATH and -DVulkan_GLSLC_EXECUTABLE=PATH; GGML_VK_VISIBLE_DEVICES=0 takes the first device, if it is a
# CPU too.
set -euo pipefail
commit=d99724f2b141fed9e1a9f402213506c081433465

here=$(cd "$(dirname "$0")" && pwd)
if [ $# -lt 1 ] || [ ! -f "$1/tests/test-backend-ops.cpp" ] || ! git -C "$1" cat-file -e "$commit"; then
  echo "usage: $0 CHECKOUT [test] [perf], with a checkout of ggml that has commit $commit (README.md)" >&2
  exit 2
fi
ggml=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- test
out=$ggml/build-attune
tree=$out/ggml-vulkan
log=$out/build-vulkan.log
jobs=${JOBS:-$(nproc)}
mkdir -p "$out"

read -ra meson_options <<<"${MESON_OPTIONS:-}"
read -ra cmake_options <<<"${CMAKE_OPTIONS:-}"

# ggml's C++ needs what Debian 12's headers (1.3.239) do not have, and would say so after its shaders, a quarter of an hour later.
check_headers() {
  local folder=/usr/include word
  for word in "${cmake_options[@]}"; do
    [[ $word != -DVulkan_INCLUDE_DIR=* ]] || folder=${word#*=}
  done
  grep -qs VK_EXT_layer_settings "$folder/vulkan/vulkan_core.h" && return
  echo "$folder has no Vulkan headers of 1.3.272 or later, which ggml needs: install newer ones, or unpack Khronos' Vulkan-Headers" \
    "and set CMAKE_OPTIONS=-DVulkan_INCLUDE_DIR=PATH" >&2
  exit 1
}

# Not patched again, which would compile anew.
patch_tree() {
  [ -e "$tree/.git" ] || git -C "$ggml" worktree add --detach "$tree" "$commit" || return 1
  git -C "$tree" apply --reverse --check "$here/ggml-vulkan.patch" ||
    { git -C "$tree" checkout "$commit" -- . && git -C "$tree" apply "$here/ggml-vulkan.patch"; }
}

configure_attune() {
  [ -f "$tree/attune/build.ninja" ] ||
    meson setup "$tree/attune" "$here/../.." --buildtype=release --default-library=static -Db_staticpic=true -Dtests=disabled \
      -Dbench=disabled -Dcuda=disabled -Dvulkan=enabled -Dopencl=disabled -Djson=disabled "${meson_options[@]}"
}

build() {
  patch_tree && configure_attune && ninja -C "$tree/attune" -j "$jobs" src/libattune.a &&
    cmake -S "$tree" -B "$tree/build" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BUILD_TESTS=ON \
      -DGGML_BUILD_EXAMPLES=OFF -DGGML_VULKAN=ON -DGGML_VULKAN_ATTUNE="$here" \
      -DGGML_VULKAN_ATTUNE_LIBRARY="$tree/attune/src/libattune.a" "${cmake_options[@]}" &&
    cmake --build "$tree/build" --target test-backend-ops --parallel "$jobs"
}

check_headers
build >"$log" 2>&1 || { echo "The build failed: $log" >&2; tail -3 "$log" >&2; exit 1; }

ops() {
  "$tree/build/bin/test-backend-ops" "$@" -o FLASH_ATTN_EXT -b Vulkan0 -p "${ATTUNE_CASES:-.}"
}

run_test() {
  local status=0
  GGML_ATTUNE=1 GGML_ATTUNE_LOG=1 ops test >"$out/test-vulkan.txt" 2>"$out/refused-vulkan.txt" || status=$?
  grep -a 'tests passed' "$out/test-vulkan.txt" || echo "test-backend-ops ended early: $out/test-vulkan.txt"
  grep -a 'FAIL' "$out/test-vulkan.txt" || true
  echo "left to ggml's shader:"
  sed -n 's/.*attune refuses [^:]*: //p' "$out/refused-vulkan.txt" | sort | uniq -c
  return $status
}

# The cases and their times, by ggml's shader (GGML_ATTUNE=0) and by attune. The device's name comes first (choice.c).
run_perf() {
  local by times=$out/times-vulkan.txt
  for by in 0 1; do
    GGML_ATTUNE=$by ops perf 2>/dev/null >"$out/log-$by.txt" || true
    sed -n 's/^ *FLASH_ATTN_EXT(\(.*\)):.* - *\([0-9.]*\) us\/run.*/\1 \2/p' "$out/log-$by.txt" | sort -u -k 1,1 >"$out/perf-$by.txt"
  done
  sed -n 's/^ *Device description: /device: /p' "$out/log-0.txt" | head -n 1 >"$times"
  join "$out/perf-0.txt" "$out/perf-1.txt" |
    awk 'BEGIN { printf "%10s %10s %7s  %s\n", "ggml us", "attune us", "faster", "case" }
         { printf "%10.1f %10.1f %6.2fx  %s\n", $2, $3, $2 / $3, $1 }' >>"$times"
  cat "$times"
}

for mode in "$@"; do
  case $mode in
  test | perf) "run_$mode" ;;
  *)
    echo "$mode is none of test and perf" >&2
    exit 2
    ;;
  esac
done
