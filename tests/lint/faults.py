#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Whether each fault that the model's tests put into a kernel's source still has its text there. A run of them draws a part.
    faults.py SOURCE"""
import ast
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
sys.path.insert(0, str(root / 'tests/model'))
from faults import FAULTS  # noqa: E402

suite = (root / 'tests/model/suite.c').read_text()
faults = [(file, text) for _, file, text, _, _ in FAULTS]
for literals in re.findall(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', suite):
    parts = ast.literal_eval(f'({literals})').split('|')
    if len(parts) > 2 and re.fullmatch(r'\w+\.cuh?', parts[0]):
        faults.append((parts[0], parts[1]))

absent = [f'tests/model: cuda/{file} has no {text!r}' for file, text in faults if text not in (root / 'cuda' / file).read_text()]
print('\n'.join([*absent, f'{len(faults)} seeded faults, {len(absent)} without their text']))
sys.exit(bool(absent) or len(faults) <= len(FAULTS))
