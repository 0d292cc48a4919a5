#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kernel sources as C arrays of src/BACKEND/sources.h: embed.py BACKEND OUTPUT FILE..."""
import pathlib
import sys

backend, output, *files = sys.argv[1:]
numbers = [f'{byte},' for byte in range(256)]
lines = ['/* Made by cuda/embed.py. */', f'#include "{backend}/sources.h"']
for number, name in enumerate(files):
    data = pathlib.Path(name).read_bytes() + b'\0'
    lines += ['', f'static const char source_{number}[] = {{']
    lines += ['    ' + ' '.join(numbers[byte] for byte in data[i:i + 20]) for i in range(0, len(data), 20)]
    lines += ['};']
lines += ['', f'const attune__{backend}_source attune__{backend}_sources[] = {{']
lines += [f'    {{"{pathlib.Path(name).name}", source_{number}}},' for number, name in enumerate(files)]
lines += ['    {0, 0},', '};', '']
pathlib.Path(output).write_text('\n'.join(lines))
