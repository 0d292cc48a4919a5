#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes the page of `attune report` as C: its text before and after the data.
    embed.py OUTPUT page.html page.css page.js"""
import pathlib
import sys

output, page, style, script = sys.argv[1:]
text = pathlib.Path(page).read_text()
for mark, path in (('@STYLE@', style), ('@SCRIPT@', script)):
    text = text.replace(mark, pathlib.Path(path).read_text().strip())
parts = text.split('@DATA@')
if len(parts) != 2:
    sys.exit('page.html must have @DATA@ once')
with open(output, 'w', encoding='utf-8') as file:
    file.write('#include "bench/page/page.h"\n\n')
    for name, part in zip(('before', 'behind'), parts):
        data = part.encode()
        file.write(f'const unsigned char page_{name}[] = {{')
        file.write(','.join(map(str, data)))
        file.write(f'}};\nconst size_t page_{name}_size = {len(data)};\n')
