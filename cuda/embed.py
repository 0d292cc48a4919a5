#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Kernel sources as C arrays of src/BACKEND/sources.h: embed.py BACKEND OUTPUT FILE..."""
import pathlib
import sys

backend, output, *files = sys.argv[1:]
text = f'/* Made by cuda/embed.py. */\n#include "{backend}/sources.h"\n'
rows = ''
for number, name in enumerate(files):
    data = pathlib.Path(name).read_bytes() + b'\0'
    text += f'\nstatic const char source_{number}[] = {{\n'
    for i in range(0, len(data), 20):
        text += '    ' + ' '.join(f'{byte},' for byte in data[i:i + 20]) + '\n'
    text += '};\n'
    rows += f'    {{"{pathlib.Path(name).name}", source_{number}}},\n'
text += f'\nconst attune__{backend}_source attune__{backend}_sources[] = {{\n{rows}    {{0, 0}},\n}};\n'
pathlib.Path(output).write_text(text)
