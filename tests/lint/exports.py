#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The shared library exports exactly what the public headers declare; the static one leaks no name outside attune's prefix."""
import pathlib
import re
import subprocess
import sys

shared, static = sys.argv[1:3]
declared = set()
for header in sys.argv[3:]:
    declared |= set(re.findall(r'ATTUNE_API[^;(]*?\b(attune_\w+)\s*\(', pathlib.Path(header).read_text()))


def names(*arguments):
    output = subprocess.run(['nm', *arguments], check=True, capture_output=True, text=True).stdout
    return {line.split()[-1] for line in output.splitlines() if len(line.split()) >= 3}


def dll_names(path):
    output = subprocess.run(['x86_64-w64-mingw32-objdump', '-p', path], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r'^\s*\[\s*\d+\].*?(\w+)$', output[output.index('[Ordinal/Name Pointer] Table'):], re.M))


exported = dll_names(shared) if shared.endswith('.dll') else names('-D', '--defined-only', shared)
errors = [f'exported, not declared: {name}' for name in sorted(exported - declared)]
errors += [f'declared, not exported: {name}' for name in sorted(declared - exported)]
if len(declared) < 40:
    errors.append(f'only {len(declared)} declarations were found in {sys.argv[3:]}')
if static != '-':
    errors += [f'global in the static library without the prefix: {name}'
               for name in sorted(names('-g', '--defined-only', static)) if not name.startswith('attune_')]
print('\n'.join(errors) or f'{len(exported)} functions exported, all declared')
sys.exit(bool(errors))
