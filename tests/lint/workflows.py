#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""All that the workflows of .github name exists, since nothing here runs them: scripts and paths, verbs and legs of ./dev, options of
meson, jobs that are waited for. Actions are pinned by a commit, with the version beside it.
    workflows.py SOURCE"""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1])
dev = (source / 'dev').read_text()
verbs = set(re.findall(r'^(?:\w+ \| )*(\w+)(?: \| \w+)*\)$', dev, re.M)) | {word for line in re.findall(r'^([\w |]+)\)$', dev, re.M) for word in line.split(' | ')}
legs = {word for line in re.findall(r'^  ([\w |]+)\)$', dev, re.M) for word in line.split(' | ')}
options = set(re.findall(r"^option\('(\w+)'", (source / 'meson_options.txt').read_text(), re.M))
built_in = {'werror', 'buildtype', 'b_sanitize', 'default_library'}


def faults(text):
    """The faults of a workflow."""
    jobs = set(re.findall(r'^  ([\w-]+):$', text.partition('\njobs:\n')[2], re.M))
    matrix = [word.strip() for line in re.findall(r'^ +leg: \[(.*)\]$', text, re.M) for word in line.split(',')]
    for what in re.findall(r'^ +- uses: (.*)$', text, re.M):
        if not re.fullmatch(r'[\w.-]+(/[\w.-]+)+@[0-9a-f]{40} # v\d[\w.]*', what):
            yield f'{what}: an action is pinned by its commit, with its version in a comment'
    for job in re.findall(r'^    needs: (\S+)$', text, re.M):
        if job not in jobs:
            yield f'no job is named {job}'
    for line in re.findall(r'.*\./dev.*', text):
        if line.lstrip().startswith('#'):
            continue
        for verb, leg in re.findall(r'\./dev (\S+) ?([\w-]+)?', line):
            if verb not in verbs:
                yield f'./dev has no verb {verb}'
            elif verb == 'test' and leg and leg not in legs:
                yield f'./dev test has no leg {leg}'
    for leg in matrix:
        if leg not in legs:
            yield f'./dev test has no leg {leg}'
    for option in re.findall(r' -D(\w+)=', text):
        if option not in options | built_in:
            yield f'meson_options.txt has no {option}'
    for path in re.findall(r'(?<![\w/.$"-])((?:\.ci|tests|bench|packaging|bindings|examples)/[\w./-]+)', text):
        if not path.startswith('bench/attune') and not (source / path).exists():
            yield f'{path} does not exist'


broken = '''
jobs:
  a:
    needs: nobody
    strategy:
      matrix:
        leg: [plain, nothing]
    steps:
      - uses: actions/checkout@v4
      - run: ./dev frobnicate
      - run: ./dev test nothing2
      - run: meson setup build -Dfrob=enabled
      - run: .ci/nothing && python3 tests/docs/nothing.py
'''
found = list(faults(broken))
assert len(found) == 8, found
wrong = [f'{path.name}: {fault}' for path in sorted((source / '.github/workflows').glob('*.yml')) for fault in faults(path.read_text())]
print('\n'.join(wrong) or 'the workflows name what exists')
sys.exit(bool(wrong))
