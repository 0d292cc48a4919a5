#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Where the library goes: attune.pc, and Debian's folders. With ATTUNE_INSTALL=1, which is for a root that may be changed, it is
# installed to where it was configured to go, and the README's program is built and run against it.
set -euo pipefail
source_root=$1
build_root=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Libraries that are opened at run time are not linked with.
if grep -i 'vulkan\|cuda' "$build_root/attune.pc"; then exit 1; fi

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
  grep -qxF "$loaded" /etc/ld.so.conf.d/*.conf ||
    { echo "The library goes to '$loaded', where the loader does not look"; exit 1; }
  # Not with -q, which leaves before the writer has written: with pipefail that fails now and then.
  pkg-config --variable pc_path pkg-config | tr ':' '\n' | grep -xF "$found" >/dev/null ||
    { echo "attune.pc goes to '$found', where pkg-config does not look"; exit 1; }
fi

if [ -n "${ATTUNE_INSTALL:-}" ]; then
  echo 'installed'
  meson install -C "$build_root" --no-rebuild --quiet
  ldconfig
  python3 "$source_root/tests/docs/pages.py" --extract "$source_root" README.md "$scratch"
  cc -o "$scratch/minimal" "$scratch/minimal.c" $(pkg-config --cflags --libs attune)
  "$scratch/minimal"
  (cd / && attune expr --list >/dev/null)
  ninja -C "$build_root" uninstall >/dev/null
  ldconfig
fi
