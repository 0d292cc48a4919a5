#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Subjects of commits are `area: what changed` within 72 characters (CONTRIBUTING.md), and history is linear.
    subjects.py SOURCE [REVISION]
Reads the commits between the rule's introduction and REVISION (default HEAD), or as many of them as a shallow clone has.
Exit status 77 where there is no history."""
import pathlib
import re
import subprocess
import sys

# The last commit to which the rule does not apply.
INTRODUCED = 'd722dca7aace12ef55e7f3b0aeb44add56358f17'
AREAS = {'abi', 'api', 'base', 'bench', 'build', 'cache', 'ci', 'cpu', 'cuda', 'dev', 'distributed', 'docs', 'examples', 'expr', 'fuzz', 'mask', 'meson',
         'opencl', 'packaging', 'plan', 'python', 'shaders', 'tests', 'vulkan'}


def fault(subject):
    """The rule that a subject breaks, or None."""
    parts = subject.split(': ', 1)
    if len(parts) < 2 or not parts[1].strip():
        return 'not `area: what changed`'
    unknown = [area for area in parts[0].split(', ') if area not in AREAS]
    if unknown:
        return f'no area is named {", ".join(unknown)}; areas are {", ".join(sorted(AREAS))}'
    if len(subject) > 72:
        return f'{len(subject)} characters, and 72 are the limit'
    return 'a full stop at the end' if subject.endswith('.') else None


for good in ('api: a capture too short for the lengths is a warning', 'cuda, plan: ' + 'x' * 60):
    assert fault(good) is None, good
for bad in ('Fix things', 'api:', 'frob: x', 'api, frob: x', 'cuda, plan: ' + 'x' * 61, 'api: x.', "Merge branch 'main'"):
    assert fault(bad), bad


def git(*arguments):
    return subprocess.run(['git', '-C', sys.argv[1], *arguments], capture_output=True, text=True, check=True).stdout


revision = sys.argv[2] if len(sys.argv) > 2 else 'HEAD'
try:
    inside = pathlib.Path(git('rev-parse', '--show-toplevel').strip()) == pathlib.Path(sys.argv[1]).resolve()
except (OSError, subprocess.CalledProcessError):
    inside = False
if not inside:
    print('not a clone: no commits to read')
    sys.exit(77)
known = subprocess.run(['git', '-C', sys.argv[1], 'cat-file', '-e', INTRODUCED], capture_output=True).returncode == 0
if not known and git('rev-parse', '--is-shallow-repository').strip() != 'true':
    sys.exit(f'{INTRODUCED} is not in the history, which is whole: was it rewritten?')
commits = [line.split('\t', 2) for line in
           git('log', '--format=%h%x09%p%x09%s', f'{INTRODUCED}..{revision}' if known else revision).splitlines()]
errors = []
for number, (commit, parents, subject) in enumerate(commits):
    merge = len(parents.split()) > 1
    # The first may be a merge that CI made to test a pull request.
    if merge and number:
        errors.append(f'{commit} is a merge: rebase instead')
    elif not merge and (why := fault(subject)):
        errors.append(f'{commit} "{subject}": {why}')
print('\n'.join(errors) or f'{len(commits)} subjects')
sys.exit(bool(errors))
