#!/bin/bash -eu
# The targets of tests/fuzz with the engine and the flags of the environment, each with its corpus. What they link beside
# the C library is linked statically, as the machine that runs them has nothing else. Tried with clang 14 on Debian 12,
# outside of the base image: CC=clang CFLAGS='-O1 -gline-tables-only -fsanitize=fuzzer-no-link,address'
# LIB_FUZZING_ENGINE=-fsanitize=fuzzer, and SRC, OUT and WORK as empty folders. The image itself was not.
meson setup "$WORK/build" -Dbuildtype=plain -Ddefault_library=static -Dprefer_static=true -Db_lundef=false -Db_pie=false \
  -Dvulkan=disabled -Dtests=auto -Dbench=enabled -Djson=enabled -Dfuzz=true -Dfuzz_engine="$LIB_FUZZING_ENGINE"
for source in tests/fuzz/fuzz_*.c; do
  name=$(basename "$source" .c)
  ninja -C "$WORK/build" "tests/fuzz/$name"
  cp "$WORK/build/tests/fuzz/$name" "$OUT/"
  (cd "tests/fuzz/corpus/$name" && zip -q "$OUT/${name}_seed_corpus.zip" ./*)
done
