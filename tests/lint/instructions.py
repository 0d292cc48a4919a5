#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Each PTX instruction of the kernels is in the table of docs/model.md, which says what its semantics were checked against.
    instructions.py SOURCE"""
import pathlib
import re
import sys

# Of these the second word is the instruction's too.
FAMILIES = {'bar', 'barrier', 'cp', 'fence', 'ld', 'mbarrier', 'mma', 'red', 'st', 'tcgen05', 'wgmma'}
# Branches and what moves or selects a register's bits.
PLAIN = {'and', 'bra', 'mov', 'selp', 'setp'}

source = pathlib.Path(sys.argv[1]).resolve()
table = (source / 'docs/model.md').read_text().partition('## Instructions')[2]
rows = [set(re.findall(r'\w+', line.split('|')[1])) for line in table.splitlines() if line.startswith('| `')]
missing, count = set(), 0
for path in sorted((source / 'cuda').glob('*.cuh')):
    for text in re.findall(r'\basm(?:\s+volatile)?\s*\((.*?)\);\n', path.read_text(), re.S):
        # The strings before the operands, without what the preprocessor puts between them.
        code = ''.join(re.findall(r'"((?:[^"\\]|\\.)*)"', re.split(r'"\s*:', text)[0] + '"')).replace('\\n', ';')
        for statement in re.split(r'[;{}]', code):
            found = re.match(r'\s*(?:@!?\w+\s+)?([a-z]\w*)(?:(?:\.|::)(\w+))?', statement)
            if not found or found[1] in PLAIN or found[2] is None:
                continue
            words = {found[1], found[2]} if found[1] in FAMILIES else {found[1]}
            count += 1
            if not any(words <= row for row in rows):
                missing.add(f'{path.name}: {statement.strip()[:60]}')
for line in sorted(missing):
    print(line)
print(f'{count} uses of instructions')
sys.exit(bool(missing) or not count)
