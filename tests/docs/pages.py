#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Builds and runs the code of README.md and docs/guide/ as a reader would, against the library installed in a scratch folder.
    pages.py SOURCE BUILD [PAGE...]         all pages, or those whose name contains one of the words
    pages.py --extract SOURCE PAGE FOLDER   writes the files that a page shows
A page's fenced blocks:
    ```c NAME, ```meson NAME, ...   a file of that name in the page's own folder; C is also compiled with warnings as errors
    ```sh [NEED...]                 commands that are run in that folder, where each NEED is present: a backend (vulkan, cuda),
                                    a program, or a module of python3 (python:torch), which then finds the package attune
    ```text                         directly after ```sh: what the commands print; ... is anything within a line,
                                    and on a line of its own for any lines
    ```console                      commands that need root, the network or minutes: only shown
In the folder $ATTUNE is the source tree. ATTUNE_REQUIRE=vulkan,cuda makes a missing backend an error. Exit status 77 where
every page is skipped."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FENCE = re.compile(r'^```(.*?)$\n(.*?)^```$', re.M | re.S)
STRICT = ['-std=c11', '-pedantic', '-Wall', '-Wextra', '-Wconversion', '-Wshadow', '-Werror', '-fsyntax-only']
SHOWN = {'', 'console'}
BACKENDS = {'cuda', 'vulkan'}


class Failure(Exception):
    pass


def blocks_of(path):
    """(line, language, words, text) of each fenced block."""
    text = path.read_text()
    if text.count('\n```') % 2:
        raise Failure(f'{path.name}: a fence is not closed')
    return [(text.count('\n', 0, found.start()) + 1, *split_info(found[1]), found[2]) for found in FENCE.finditer(text)]


def split_info(info):
    words = info.split()
    return (words[0], words[1:]) if words else ('', [])


def files_of(path):
    """The files that the page shows."""
    for line, language, words, text in blocks_of(path):
        if language not in SHOWN | {'sh', 'text'}:
            if len(words) != 1 or '/' in words[0]:
                raise Failure(f'{path.name}:{line}: a block of {language} needs the name of its file')
            yield line, language, words[0], text


def extract(path, folder):
    for _, _, name, text in files_of(path):
        (folder / name).write_text(text)


def run(command, where, **options):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace', **options)
    if done.returncode:
        raise Failure(f'{where}: status {done.returncode}\n{done.stdout}')
    return done.stdout


def matches(expected, printed):
    pattern = ''
    for line in expected.strip('\n').split('\n'):
        if line.strip() == '...':
            pattern += r'(?:.*\n)*?'
        else:
            pattern += '[^\n]*'.join(re.escape(part) for part in line.rstrip().split('...')) + r'[ ]*\n'
    return re.fullmatch(pattern, printed.strip('\n') + '\n')


def install_package(source, folder):
    """The Python package, without its library; returns where python3 finds it."""
    shutil.copytree(source / 'bindings/python/attune', folder / 'python/attune')
    headers = [source / 'include/attune' / name for name in ('attune.h', 'cuda.h')]
    run([sys.executable, source / 'bindings/python/generate.py', folder / 'python/attune/_abi.py', *headers], 'generate.py')
    return folder / 'python'


def install(build, folder):
    """Installs the library and the program; returns the environment of a reader who did. /usr/local stays as it is."""
    run(['meson', 'install', '-C', build, '--no-rebuild', '--quiet', '--destdir', folder], 'meson install')
    pc = next(folder.rglob('attune.pc'))
    pc.write_text(re.sub('^prefix=', f'prefix={folder}', pc.read_text(), flags=re.M))
    program = next(path for path in folder.rglob('bin/attune'))
    return program, dict(os.environ, PATH=f'{program.parent}:{os.environ["PATH"]}', PKG_CONFIG_PATH=str(pc.parent),
                         CMAKE_PREFIX_PATH=str(program.parent.parent),
                         LD_LIBRARY_PATH=str(next(folder.rglob('libattune.so')).parent), XDG_CACHE_HOME=str(folder / 'cache'))


def missing(needs, program, environment):
    """The reason why something that is needed is not here, or None."""
    for need in needs:
        if need.startswith('python:'):
            if subprocess.run(['python3', '-c', f'import {need[7:]}'], env=environment, capture_output=True).returncode:
                return f'python3 has no {need[7:]}'
            continue
        if need not in BACKENDS:
            if not shutil.which(need):
                return f'{need} is not installed'
            continue
        found = json.loads(subprocess.run([program, 'devices', '--json'], env=environment, check=True, capture_output=True).stdout)
        devices = [device for device in found if device['id'].split(':')[0] == need]
        if any(device['available'] for device in devices):
            continue
        reason = devices[0]['reason'] if devices else f'attune was built without {need}'
        if need in os.environ.get('ATTUNE_REQUIRE', '').split(','):
            raise Failure(f'ATTUNE_REQUIRE names {need}: {reason}')
        return reason
    return None


def check(page, source, program, environment, folder):
    """Returns why a part of the page was skipped, or None."""
    extract(page, folder)
    # The README's commands are for the root of a clone that has been built.
    if page.name == 'README.md':
        for path in source.iterdir():
            if not path.name.startswith(('.', 'build')):
                (folder / path.name).symlink_to(path)
        (folder / 'build/bench').mkdir(parents=True)
        (folder / 'build/bench/attune').symlink_to(program)
    flags = subprocess.run(['pkg-config', '--cflags', 'attune'], env=environment, check=True, capture_output=True,
                           text=True).stdout.split()
    skipped, printed, previous = None, None, ''
    for line, language, words, text in blocks_of(page):
        where = f'{page.name}:{line}'
        if language == 'c':
            run(['cc', *STRICT, *flags, folder / words[0]], where, env=environment)
        elif language == 'sh':
            reason = missing(words, program, environment)
            skipped = skipped or reason
            printed = None if reason else run(['bash', '-euo', 'pipefail', '-c', text], where, cwd=folder, env=environment,
                                              timeout=600)
        elif language == 'text':
            if previous != 'sh':
                raise Failure(f'{where}: no commands before what they print')
            if printed is not None and not matches(text, printed):
                raise Failure(f'{where}: the page shows\n{text}and the commands print\n{printed}')
        previous = language
    return skipped


if sys.argv[1] == '--extract':
    extract(pathlib.Path(sys.argv[2]) / sys.argv[3], pathlib.Path(sys.argv[4]))
    sys.exit()

source, build = (pathlib.Path(path).resolve() for path in sys.argv[1:3])
pages = [source / 'README.md', *sorted((source / 'docs/guide').glob('*.md'))]
pages = [page for page in pages if not sys.argv[3:] or any(word in str(page.relative_to(source)) for word in sys.argv[3:])]
failed = ran = 0
with tempfile.TemporaryDirectory() as scratch:
    scratch = pathlib.Path(scratch)
    program, environment = install(build, scratch / 'prefix')
    environment['ATTUNE'] = str(source)
    environment['PYTHONPATH'] = str(install_package(source, scratch / 'prefix'))
    environment['ATTUNE_LIBRARY'] = str(next((scratch / 'prefix').rglob('libattune.so')))
    # After the folders of commands: tests/docs/cuda.h is used where NVIDIA's header is not.
    environment['C_INCLUDE_PATH'] = f'{source / "tests/docs"}'
    for number, page in enumerate(pages):
        folder = scratch / str(number)
        folder.mkdir()
        try:
            reason = check(page, source, program, environment, folder)
            ran += not reason
            print(f'{page.relative_to(source)}: ' + (f'compiled; not all was run: {reason}' if reason else 'good'), flush=True)
        except (Failure, subprocess.TimeoutExpired) as failure:
            failed += 1
            print(f'{page.relative_to(source)}: FAILED\n{failure}', flush=True)
if not pages:
    sys.exit(f'no page is named {sys.argv[3:]}')
sys.exit(1 if failed else 0 if ran else 77)
