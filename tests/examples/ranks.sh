#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# examples/ranks.c under each MPI that is installed, as an engine would build it: with its mpicc, against the library.
#     ranks.sh SOURCE LIBRARY
set -euo pipefail
source_root=$1
library=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Open MPI, 4 and 5, refuses root, and more ranks than cores, unless told; MPICH reads none of these.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

found=
for kind in openmpi mpich; do
  if ! command -v "mpicc.$kind" "mpirun.$kind" >/dev/null; then
    echo "no $kind"
    continue
  fi
  found=1
  "mpicc.$kind" -std=c11 -D_POSIX_C_SOURCE=200809L -Wall -Wextra -Wconversion -Wshadow -Werror -I"$source_root/include" \
    "$source_root/examples/ranks.c" -o "$scratch/$kind" "$library" -Wl,-rpath,"$(dirname "$library")" -lm
  for ranks in 1 4; do
    "mpirun.$kind" -n "$ranks" "$scratch/$kind"
  done
done
# 77: skipped.
[ -n "$found" ] || exit 77
