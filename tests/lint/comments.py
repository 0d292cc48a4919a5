#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A comment is a short sentence that says why, or a noun: none begins with "What" (CONTRIBUTING.md).
    comments.py SOURCE"""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1]).resolve()  # as this file below, however it was named
FOLDERS = ['src', 'cuda', 'shaders', 'include', 'bench', 'tests', 'examples', 'bindings', 'docs', '.ci', '.github']
SLASHES = {'.c', '.h', '.cc', '.cu', '.cuh', '.cl', '.comp', '.glsl', '.js', '.css', '.md'}
HASHES = {'', '.py', '.sh', '.build', '.txt', '.yml', '.toml', '.in'}
BLOCK = re.compile(r'(?:/\*[*!]?<?\s*(?:\n\s*\*\s*)?|//[/!]?<?\s*)(What\b)')
LINE = re.compile(r'(?m)(?:^|\s)#+\s*(What\b)|"""(What\b)')


def lines(text, suffix):
    """The lines on which such a comment begins."""
    pattern = BLOCK if suffix in SLASHES else LINE if suffix in HASHES else None
    return [text.count('\n', 0, found.start(found.lastindex)) + 1 for found in pattern.finditer(text)] if pattern else []


for suffix, bad in (('.c', '/* What it is. */'), ('.h', 'int x; /**< What it is. */'), ('.js', '// What it is'), ('.cuh', '/*\n * What it is'),
                    ('.py', '# What it is'), ('.py', 'def f():\n    """What it is."""'), ('', 'x=1 # What it is')):
    assert lines(bad, suffix), bad
for suffix, good in (('.c', '/* Why. What follows is sorted. */'), ('.c', 'char *s = "What";'), ('.md', '## What it is'), ('.py', '# Why\n# in what order')):
    assert not lines(good, suffix), good

files = [path for folder in FOLDERS for path in (root / folder).rglob('*') if path.is_file()] + [path for path in root.iterdir() if path.is_file()]
errors = []
count = 0
for path in sorted(files):
    if path.suffix not in SLASHES | HASHES or path == pathlib.Path(__file__).resolve():
        continue
    try:
        text = path.read_text()
    except UnicodeDecodeError:
        continue  # data, as the corpora of tests/fuzz
    count += 1
    errors += [f'{path}:{line}: a comment begins with "What"' for line in lines(text, path.suffix)]
if count < 500:
    sys.exit(f'{count} files: the folders have moved')
print('\n'.join(errors) or f'{count} files')
sys.exit(bool(errors))
