#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Include directions: a room may include only what lies below it. The table is the design; a new arrow is a change of it.
And the README shows the example that is built."""
import pathlib
import re
import sys

root = pathlib.Path(sys.argv[1])
BELOW = {
    'base': set(),
    'expr': {'base'},
    'mask': {'base', 'expr'},
    'plan': {'base'},
    'cache': {'base'},
    'backend.h': {'expr', 'mask', 'plan', 'cache'},
    'cpu': {'base', 'expr', 'mask', 'plan', 'backend.h'},
    'vulkan': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h', 'shaders'},
    'cuda': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h'},
    'opencl': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h'},
    'api': {'base', 'expr', 'mask', 'plan', 'cache', 'backend.h'},
}
PUBLIC = {'attune.h': {'stdbool.h', 'stddef.h', 'stdint.h'}, 'cuda.h': {'attune/attune.h'}}

errors = []
arrows = 0


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if found:
            yield number, found.group(1), found.group(2)


for path in sorted(root.glob('src/**/*.[ch]')):
    room = path.relative_to(root / 'src').parts[0]
    if room not in BELOW:
        errors.append(f'{path}: no such room: {room}')
        continue
    for number, kind, name in includes(path):
        if kind == '<':
            if name.startswith('attune/') and not (root / 'include' / name).exists():
                errors.append(f'{path}:{number}: {name} does not exist')
            continue
        arrows += 1
        target = name.split('/')[0]
        if target != room and target not in BELOW[room]:
            errors.append(f'{path}:{number}: {room} must not include {name}')
        # shaders/NAME.h is made when the library is built, by a line of shaders/meson.build.
        if target == 'shaders' and f"'{pathlib.Path(name).stem}'" in (root / 'shaders/meson.build').read_text():
            continue
        if not (root / 'src' / name).exists() and not (root / name).exists():
            errors.append(f'{path}:{number}: {name} is not a path from src/')

for path in sorted(root.glob('include/attune/*.h')):
    for number, kind, name in includes(path):
        if name not in PUBLIC.get(path.name, {name}):
            errors.append(f'{path}:{number}: a public header must not include {name}')

for path in sorted(root.glob('bench/*.[ch]')):
    for number, kind, name in includes(path):
        if kind == '"' and not name.startswith('bench/') and name != 'src/base/file.h':
            errors.append(f'{path}:{number}: the program uses the public API, not {name}')

example = (root / 'examples/minimal.c').read_text().split('*/\n', 1)[1]
if example not in (root / 'README.md').read_text():
    errors.append('README.md does not show examples/minimal.c as it is')

if arrows < 20:
    errors.append(f'only {arrows} includes were found under {root}/src: the check does not see the tree')
print('\n'.join(errors) or f'{arrows} includes, all downward')
sys.exit(bool(errors))
