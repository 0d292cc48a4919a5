#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the library into a scratch folder and builds the README's program against it as an engine would: pkg-config, CMake,
# and meson with attune as a subproject.
set -euo pipefail
source_root=$1
build_root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

prefix=$scratch/prefix
meson install -C "$build_root" --no-rebuild --quiet --destdir "$prefix" >/dev/null
pc=$(find "$prefix" -name attune.pc)
[ -n "$pc" ]
# What is opened at run time is nothing to link with.
if grep -i 'vulkan\|cuda' "$pc"; then exit 1; fi
# The folder is not where the library was configured to go: the file is made to say where it is.
sed -i "s#^prefix=#prefix=$prefix#" "$pc"
export PKG_CONFIG_PATH=${pc%/*}
library=$(dirname "$(find "$prefix" -name libattune.so)")

echo 'pkg-config'
cp -r "$source_root/examples" "$scratch/examples"
make -s -C "$scratch/examples/consumers/pkg-config" minimal
LD_LIBRARY_PATH=$library "$scratch/examples/consumers/pkg-config/minimal"

cc -std=c99 -o "$scratch/documents" "$source_root/examples/documents.c" $(pkg-config --cflags --libs attune)
LD_LIBRARY_PATH=$library "$scratch/documents"
cc -std=c99 -O2 -o "$scratch/train_draft" "$source_root/examples/train_draft.c" $(pkg-config --cflags --libs attune) -lm
LD_LIBRARY_PATH=$library "$scratch/train_draft" --steps 40 "$source_root/README.md"

echo 'pkg-config, static'
cc -std=c99 -o "$scratch/static" "$source_root/examples/minimal.c" $(pkg-config --cflags attune) \
  "$library/libattune.a" $(pkg-config --static --libs-only-l --libs-only-other attune | sed 's/-lattune//')
"$scratch/static"

if command -v cmake >/dev/null; then
  echo 'CMake'
  cmake -S "$scratch/examples/consumers/cmake" -B "$scratch/cmake" >/dev/null
  cmake --build "$scratch/cmake" >/dev/null
  LD_LIBRARY_PATH=$library "$scratch/cmake/minimal"
fi

echo 'meson subproject'
consumer=$scratch/examples/consumers/meson
mkdir "$consumer/subprojects"
cp "$source_root/examples/minimal.c" "$consumer/minimal.c"
mkdir "$consumer/subprojects/attune"
(cd "$source_root" && cp -r meson.build meson_options.txt include src shaders cuda "$consumer/subprojects/attune/")
unset PKG_CONFIG_PATH
meson setup "$scratch/meson" "$consumer" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
meson test -C "$scratch/meson" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
# A subproject brings neither tests nor the program.
! ls "$scratch/meson/subprojects/attune/tests" "$scratch/meson/subprojects/attune/bench" 2>/dev/null
