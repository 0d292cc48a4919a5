#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# examples/ranks.c and train_ranks.c, and ranks that fail, under each MPI that is installed, as an engine would build them: with its mpicc,
# against the library; and the benchmark over MPI, which the build links to Open MPI.
#     ranks.sh SOURCE LIBRARY [BENCHMARK]
# ATTUNE_REQUIRE=openmpi,mpich makes one that is missing, or that does not start four ranks, an error.
set -euo pipefail
source_root=$1
library=$2
benchmark=${3:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Open MPI, 4 and 5, refuses root, and more ranks than cores, unless told; MPICH reads none of these. Waiting ranks of both
# spin, which slows those that they wait for where there are fewer cores: Open MPI's yield. Ranks share memory, and a machine
# without a network is enough.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_mpi_yield_when_idle=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

flags=(-std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wconversion -Wshadow -Werror)

# missing KIND REASON: the last line is the reason of a skip.
missing() {
  echo "no $1: $2"
  case ,${ATTUNE_REQUIRE:-}, in
  *,"$1",*)
    echo "ATTUNE_REQUIRE names $1"
    exit 1
    ;;
  esac
}

# ranks KIND COUNT PROGRAM [WORD]: no rank may wait for ever.
ranks() {
  timeout --kill-after=5 100 "mpirun.$1" -n "$2" "${@:3}" >"$scratch/out" 2>&1
}

wrong() {
  echo "$*"
  cat "$scratch/out"
  exit 1
}

# MPI alone: some distributions have an MPICH whose mpirun starts four worlds of one rank.
cat >"$scratch/hello.c" <<'PROGRAM'
#include <mpi.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int size;
    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    printf("one of %d\n", size);
    MPI_Finalize();
    return 0;
}
PROGRAM

found=
for kind in openmpi mpich; do
  if ! command -v "mpicc.$kind" >/dev/null || ! command -v "mpirun.$kind" >/dev/null; then
    missing $kind 'its mpicc or mpirun is not installed'
    continue
  fi
  if ! "mpicc.$kind" "$scratch/hello.c" -o "$scratch/hello" 2>"$scratch/out" || ! ranks $kind 4 "$scratch/hello" ||
    [ "$(grep -c 'one of 4' "$scratch/out")" != 4 ]; then
    cat "$scratch/out"
    missing $kind 'a program of four ranks does not run'
    continue
  fi
  found=1
  for program in examples/ranks examples/train_ranks tests/examples/ranks_fail; do
    "mpicc.$kind" "${flags[@]}" -I"$source_root/include" "$source_root/$program.c" -o "$scratch/${program##*/}" "$library" \
      -Wl,-rpath,"$(dirname "$library")" -lm
  done
  "mpicc.$kind" "${flags[@]}" -I"$source_root/include" -include "$source_root/tests/examples/ranks_device.h" "$source_root/examples/ranks.c" \
    -o "$scratch/ranks_device" "$library" -Wl,-rpath,"$(dirname "$library")" -lm
  ranks $kind 4 "$scratch/ranks_device" || wrong "$kind: messages by the addresses of buffers: status $?"
  for count in 1 4; do
    for program in ranks train_ranks; do
      ranks $kind $count "$scratch/$program" || wrong "$kind: $program on $count ranks: status $?"
      grep "^$count ranks: " "$scratch/out" || wrong "$kind: $program: not $count ranks"
    done
  done
  ranks $kind 4 "$scratch/ranks_fail" differs || wrong "$kind: a rank with another mask: status $?"
  for how in aborts dies; do
    status=0
    ranks $kind 4 "$scratch/ranks_fail" $how || status=$?
    # 124, 137: timeout ended it. 128 + a signal, or with MPICH the signal: the library crashed.
    case $status in 0 | 6 | 7 | 8 | 11 | 124 | 134 | 135 | 136 | 137 | 139) wrong "$kind: a rank $how: status $status" ;; esac
  done
  if [ $kind = openmpi ] && [ -n "$benchmark" ]; then
    ranks $kind 4 "$benchmark" --workload causal --scale 0.0004 --repetitions 1 || wrong "$kind: the benchmark: status $?"
    grep -q '^1 row: 1 ok' "$scratch/out" || wrong "$kind: the benchmark"
    # As attune bench does, it shrinks no row below a GFLOP.
    grep -q ' b1h4:1q1024k1024d128 ' "$scratch/out" || wrong "$kind: the benchmark has another size than attune bench"
    ranks $kind 1 "$benchmark" --help || wrong "$kind: the benchmark's help: status $?"
    grep -q '^usage: mpirun -n N attune-bench-mpi ' "$scratch/out" || wrong "$kind: the benchmark's usage"
  fi
done
# 77: skipped.
[ -n "$found" ] || exit 77
