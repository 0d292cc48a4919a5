#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Include directions: a module may include only modules below it. The table is the design; a new arrow is a change of it.
    includes.py SOURCE [DOT]   DOT: a file for Graphviz, which receives the includes that there are, each module once"""
import collections
import fnmatch
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
BELOW = {
    'base': set(),
    'expr': {'base'},
    'mask': {'base', 'expr'},
    'plan': {'base', 'expr/analysis.h', 'cuda/layout*.h', 'shaders/layout_*.h'},  # what kernels put where in shared memory
    'cache': {'base'},
    'backend.h': {'base', 'expr', 'mask', 'plan', 'cache'},
    'cpu': {'base', 'expr', 'mask', 'plan', 'backend.h'},
    'arguments': {'backend.h'},  # what Vulkan and OpenCL describe alike
    'vulkan': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h', 'arguments', 'shaders'},
    'cuda': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h', 'kernels'},
    'opencl': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h', 'arguments', 'shaders'},
    'api': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h'},
    'distributed': {'base', 'expr', 'mask', 'plan', 'backend.h', 'api'},
}
PUBLIC = {'attune.h': {'stdbool.h', 'stddef.h', 'stdint.h'}, 'cuda.h': {'attune/attune.h'}, 'cuda_ranks.h': {'attune/distributed.h'}, 'opencl.h': {'attune/attune.h'}, 'distributed.h': {'attune/attune.h'},
          'mpi.h': {'attune/distributed.h', 'mpi.h', 'stdlib.h', 'string.h'},
          'threads.h': {'attune/distributed.h', 'pthread.h', 'sched.h', 'stdlib.h', 'string.h'}}

errors = []
arrows = 0
picture = collections.defaultdict(set)  # module: what it includes


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found.group(1), found.group(2)


for path in sorted(root.glob('src/**/*.[ch]')):
    module = path.relative_to(root / 'src').parts[0]
    if module not in BELOW:
        errors.append(f'{path}: no such module: {module}')
        continue
    for number, kind, name in includes(path):
        if kind == '<':
            if name.startswith('attune/'):
                picture[module].add('include/attune')
                if not (root / 'include' / name).exists():
                    errors.append(f'{path}:{number}: {name} does not exist')
            continue
        arrows += 1
        target = name.split('/')[0]
        if target == 'cuda' and not (root / 'src' / name).exists():
            target = 'kernels'  # the headers that kernels and C share, of the folder cuda
        picture[module].add(target)
        if target not in {module} | BELOW[module] and not any(fnmatch.fnmatch(name, allowed) for allowed in BELOW[module]):
            errors.append(f'{path}:{number}: {module} must not include {name}')
        # shaders/NAME.h is made when the library is built, by a line of shaders/meson.build.
        if target == 'shaders' and f"'{pathlib.Path(name).stem}'" in (root / 'shaders/meson.build').read_text():
            continue
        if not (root / 'src' / name).exists() and not (root / name).exists():
            errors.append(f'{path}:{number}: {name} is not a path from src/')

for path in sorted(root.glob('include/attune/*.h')):
    for number, kind, name in includes(path):
        if name not in PUBLIC.get(path.name, {name}):
            errors.append(f'{path}:{number}: a public header must not include {name}')

# The program and the tests' oracle use the public API, but for base/file.h, by which the program writes files too.
PROGRAM = {
    'tests/oracle': set(),
    'bench/workloads': {'tests/oracle'},
    'bench/timing': {'tests/oracle', 'tests/distributed', 'bench/workloads'},
    'bench/peers': {'tests/oracle', 'bench/timing'},
    'bench/page': {'bench/timing'},
    'bench/program': {'tests/oracle', 'bench/workloads', 'bench/timing', 'bench/peers', 'bench/page', 'src/base'},
}
for folder, below in PROGRAM.items():
    for path in sorted(root.glob(f'{folder}/*.[ch]')):
        for number, kind, name in includes(path):
            target = name.rsplit('/', 1)[0]
            if target in BELOW.keys() | PROGRAM.keys() | {'attune', 'src/base'}:
                picture[folder].add({'attune': 'include/attune', 'src/base': 'base'}.get(target, target))
            if kind == '"' and target != folder and (target not in below or not (root / name).exists()):
                errors.append(f'{path}:{number}: {folder} must not include {name}')

if arrows < 20:
    errors.append(f'only {arrows} includes were found under {root}/src: the check does not see the tree')
# A module that only includes modules below it comes after them in some order; a cycle has none.
ordered = []
while picture.keys() - ordered:
    ready = [module for module in picture if module not in ordered and not (picture[module] - {module} - set(ordered)) & picture.keys()]
    if not ready:
        errors.append(f'these include one another in a circle: {", ".join(sorted(picture.keys() - ordered))}')
        break
    ordered += ready
if sys.argv[2:]:
    lines = ['digraph includes {', 'graph [ranksep=0.7]; node [shape=box, fontname="sans-serif"]; edge [arrowsize=0.6];']
    lines += [f'"{module}" -> "{target}";' for module in sorted(picture) for target in sorted(picture[module] - {module})]
    pathlib.Path(sys.argv[2]).write_text('\n'.join(lines + ['}', '']))

print('\n'.join(errors) or f'{arrows} includes, all downward')
sys.exit(bool(errors))
