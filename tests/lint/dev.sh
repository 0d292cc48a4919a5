#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# ./dev reads every word or refuses, and says how to go on where it cannot install.
set -euo pipefail
cd "$1"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for words in 'build --frob' 'test plain more' 'test frob' 'format --chek' 'format --check more' 'lint src' 'lint changed HEAD more' 'fuzz many' \
  'fuzz 0' 'fuzz 5 more' 'coverage x' 'docs all' 'abi --frob' 'abi v1 more' 'prepare frob' 'prepare packages more' 'release HEAD more' \
  'release no-such-commit' 'deb HEAD more' 'clean all' 'frob'; do
  status=0
  ./dev $words >"$scratch/out" 2>"$scratch/err" || status=$?
  if [ $status -ne 2 ] || ! grep -qF -- "${words##* }" "$scratch/err"; then
    echo "./dev $words: status $status"
    cat "$scratch/out" "$scratch/err"
    exit 1
  fi
done
[ "$(./dev | head -n 1)" = "$(./dev help | head -n 1)" ]

# Packages of an index are held by hashes; the package itself is this tree, without its dependencies.
if grep -rnE 'pip3?"? install' dev .ci .github | grep -v -e '--require-hashes' -e '--no-build-isolation --no-deps'; then
  echo "pip installs that without --require-hashes"
  exit 1
fi

# An installation without dpkg's word for any package, root's rights and sudo.
mkdir "$scratch/bin"
for tool in bash dirname grep; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
printf '#!/bin/sh\necho 1000\n' >"$scratch/bin/id"
printf '#!/bin/sh\nexit 1\n' | tee "$scratch/bin/dpkg-query" >"$scratch/bin/apt-get"
chmod +x "$scratch"/bin/{id,dpkg-query,apt-get}
status=0
PATH=$scratch/bin ./dev build >"$scratch/out" 2>&1 || status=$?
[ $status -eq 1 ]
grep -q 'As root: apt-get install .* ninja-build' "$scratch/out"

# With them it says how much an installation fetches and takes, and for how long, before it begins.
for tool in awk env; do ln -s "$(command -v $tool)" "$scratch/bin/$tool"; done
printf '#!/bin/sh\necho 0\n' >"$scratch/bin/id"
cat >"$scratch/bin/apt-get" <<'SCRIPT'
#!/bin/sh
case "$*" in
*--assume-no*)
  echo 'Need to get 1,120 kB/130 MB of archives.'
  echo 'After this operation, 1.2 GB of additional disk space will be used.'
  ;;
*' -y '*) echo 'apt begins' && exit 1 ;;
esac
SCRIPT
! PATH=$scratch/bin ./dev build >"$scratch/out" 2>&1
tail -n 4 "$scratch/out" | diff - <(printf '%s\n' 'Need to get 1,120 kB/130 MB of archives.' \
  'After this operation, 1.2 GB of additional disk space will be used.' 'That takes about 31 s at 10 MB/s.' 'apt begins')
