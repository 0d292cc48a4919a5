#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kernel sources as C arrays of src/BACKEND/sources.h, and CUDA's digest of them: embed.py BACKEND OUTPUT FILE..."""
import hashlib
import pathlib
import sys

backend, output, *files = sys.argv[1:]
numbers = [f'{byte},' for byte in range(256)]
digest = hashlib.blake2s()
lines = ['/* Made by cuda/embed.py. */', f'#include "{backend}/sources.h"']
for number, name in enumerate(files):
    data = pathlib.Path(name).read_bytes() + b'\0'
    digest.update(pathlib.Path(name).name.encode() + b'\0' + data)
    lines += ['', f'static const char source_{number}[] = {{']
    lines += ['    ' + ' '.join(numbers[byte] for byte in data[i:i + 20]) for i in range(0, len(data), 20)]
    lines += ['};']
lines += ['', f'const attune__{backend}_source attune__{backend}_sources[] = {{']
lines += [f'    {{"{pathlib.Path(name).name}", source_{number}}},' for number, name in enumerate(files)]
lines += ['    {0, 0},', '};', '']
if backend == 'cuda': # the other backends' keys have the text that a kernel is built from
    lines += [f'const char attune__cuda_sources_digest[] = "{digest.hexdigest()}";', '']
pathlib.Path(output).write_text('\n'.join(lines))
