#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the library into a scratch folder and builds the README's program against it as an engine would: pkg-config, CMake,
# and meson with attune as a subproject. With ATTUNE_INSTALL=1, which is for a root that may be changed, it is installed to
# where it was configured to go as well, and the README's commands are followed by the letter.
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
consumer=$scratch/examples/consumers/pkg-config
make -s -C "$consumer" CFLAGS=-O2
LD_LIBRARY_PATH=$library "$consumer/minimal"
LD_LIBRARY_PATH=$library "$consumer/documents"
LD_LIBRARY_PATH=$library "$consumer/train_draft" --steps 40 "$source_root/README.md"

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
ln -s "$source_root" "$consumer/subprojects/attune"
unset PKG_CONFIG_PATH
meson setup "$scratch/meson" "$consumer" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
meson test -C "$scratch/meson" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
# A subproject brings neither tests nor the program.
! ls "$scratch/meson/subprojects/attune/tests" "$scratch/meson/subprojects/attune/bench" 2>/dev/null

# Debian's folders for libraries, where meson cannot ask dpkg-dev for them, as on a machine that has just been set up.
if [ -f /etc/debian_version ]; then
  echo 'default folders without dpkg-dev'
  mkdir "$scratch/bin"
  printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/dpkg-architecture"
  chmod +x "$scratch/bin/dpkg-architecture"
  PATH=$scratch/bin:$PATH meson setup "$scratch/default" "$source_root" -Dbench=disabled -Dtests=disabled >"$scratch/log" ||
    { cat "$scratch/log"; exit 1; }
  folder_of() { meson introspect --installed "$scratch/default" | tr ',' '\n' | sed -n "s#.*\"\(/[^\"]*\)/$1\"}*\$#\1#p" | sort -u; }
  loaded=$(folder_of libattune.so)
  found=$(folder_of attune.pc)
  cat /etc/ld.so.conf.d/*.conf | grep -qxF "$loaded" ||
    { echo "The library goes to '$loaded', where the loader does not look"; exit 1; }
  env -u PKG_CONFIG_PATH pkg-config --variable pc_path pkg-config | tr ':' '\n' | grep -qxF "$found" ||
    { echo "attune.pc goes to '$found', where pkg-config does not look"; exit 1; }
fi

if [ -n "${ATTUNE_INSTALL:-}" ]; then
  echo 'installed'
  meson install -C "$build_root" --no-rebuild --quiet
  ldconfig
  cc -o "$scratch/installed-minimal" "$source_root/examples/minimal.c" $(pkg-config --cflags --libs attune)
  "$scratch/installed-minimal"
  (cd / && attune expr --list >/dev/null)
  ninja -C "$build_root" uninstall >/dev/null
  ldconfig
fi
