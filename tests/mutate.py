#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How strong the suite is: one operator or constant of src/ is changed at a time, in a copy of the tree, and the related
test programs are run until one fails. Prints the share of mutants that were killed, and each survivor: a survivor is
either equivalent to the original, or a test is missing. src/vulkan, src/cuda and src/opencl, which need a driver, are
left out, and so are lines that are not compiled on this machine, as another processor's.

    tests/mutate.py --count 120 --seed 1             random mutants of all of src/
    tests/mutate.py --path src/mask --count 20       of one folder or file
    tests/mutate.py --path src/plan/partition.c --list     the mutants, by number, without running any
    tests/mutate.py --path src/plan/partition.c --only 3,7
    tests/mutate.py --count 120 --from 40            a run that was cut short after 40, continued on the same tree
    tests/mutate.py --only 3,7 --sanitize            under the address and undefined behaviour sanitizers
"""
import argparse
import concurrent.futures
import functools
import itertools
import json
import os
import pathlib
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LEFT_OUT = ('src/vulkan/', 'src/cuda/', 'src/opencl/')
MEMORY = 8 << 30  # of a mutant that allocates without end

# Binary operators have a space on both sides, by clang-format; a pointer's star and a sign have not.
BINARY = {'<': ['<=', '>='], '<=': ['<', '>'], '>': ['>=', '<='], '>=': ['>', '<'], '==': ['!='], '!=': ['=='],
          '&&': ['||'], '||': ['&&'], '+': ['-'], '-': ['+'], '*': ['/'], '/': ['*'], '%': ['*'], '&': ['|'], '|': ['&'],
          '<<': ['>>'], '>>': ['<<'], '+=': ['-='], '-=': ['+='], '*=': ['/='], '|=': ['&='], '&=': ['|=']}
TOKEN = re.compile(r'''(?P<skip>/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|^[ \t]*\#(?:\\\n|[^\n])*)
                     |(?P<number>(?<![\w.])\d+(?:u|U|LL|ll|UL|ull|ULL)?(?![\w.]))
                     |(?P<binary>(?<=[ ])(?:<<|>>|<=|>=|==|!=|&&|\|\||\+=|-=|\*=|\|=|&=|[-<>+*/%&|])(?=[ \n]))
                     |(?P<not>(?<![\w)\]])!(?!=))
                     |(?P<step>\+\+|--)''', re.X | re.M | re.S)

# Test programs, the likeliest to fail first.
RELATED = {
    'api': ['api', 'mask', 'random', 'cpu', 'cuda_driver', 'goldens', 'cases', 'vulkan'],
    'base': ['base', 'api', 'expr', 'cpu', 'cache', 'mask', 'plan'],
    'cache': ['cache', 'cuda_driver', 'vulkan'],
    'cpu': ['cpu', 'random', 'goldens', 'api', 'cases', 'gradients'],
    'distributed': ['distributed', 'api'],
    'expr': ['expr', 'random', 'cuda_mods', 'mask', 'plan', 'api', 'goldens', 'cases', 'mods'],
    'mask': ['mask', 'random', 'api', 'goldens', 'cases'],
    'plan': ['plan', 'api', 'cuda_plans', 'goldens', 'cases', 'vulkan'],
}
PROGRAMS = sorted({name for names in RELATED.values() for name in names})
# Meson's test by another name, the filter of a run, and the share of the random cases.
PART_OF = {'gradients': 'cases'}
FILTER = {'cases': '@(*/cpu|@(forward|segments|segments_gradients)_cpu/*)', 'gradients': 'gradients_cpu/*', 'vulkan': '*/!(heads_far_apart|batches_far_apart)'}
SCALE = {'cuda_plans': '0.01', 'mods': '0.03', 'cases': '0.02', 'gradients': '0.02'}


def mutants_of(path, text):
    """Every (file, line, column, offset, old, new) of a file."""
    # The arguments of a message's numbers stay: no test should spell them all.
    messages = [m.span() for m in re.finditer(r'attune__(?:fail|log)\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)', text)]
    for m in TOKEN.finditer(text):
        if m.lastgroup == 'skip' or any(a <= m.start() < b for a, b in messages):
            continue
        old = m.group()
        if m.lastgroup == 'binary':
            new = BINARY[old]
        elif m.lastgroup == 'not':
            new = ['']
        elif m.lastgroup == 'step':
            new = ['--' if old == '++' else '++']
        else:
            digits = re.match(r'\d+', old).group()
            if len(digits) > 1 and digits[0] == '0' or text[m.start() - 1] == '{' and text[m.end()] == '}':
                continue  # {0} begins a struct
            suffix = old[len(digits):]
            new = [str(int(digits) + 1) + suffix] + ([str(int(digits) - 1) + suffix] if int(digits) else [])
        line = text.count('\n', 0, m.start()) + 1
        column = m.start() - text.rfind('\n', 0, m.start())
        for n in new:
            yield path, line, column, m.start(), old, n


def described(mutant, texts):
    path, line, column, offset, old, new = mutant
    return f'{path}:{line}:{column}: {old} -> {new or "(nothing)"}    {texts[path].splitlines()[line - 1].strip()}'


PLAIN = ['-Dbuildtype=plain', '-Doptimization=2', '-Db_ndebug=true']
# As `./dev test asan` has them. Such a program reserves terabytes of address space: what it touches is limited instead.
SANITIZED = ['-Dbuildtype=debugoptimized', '-Db_sanitize=address,undefined', '-Db_lundef=false']
SANITIZERS = {'ASAN_OPTIONS': f'intercept_tls_get_addr=0:hard_rss_limit_mb={MEMORY >> 20}', 'UBSAN_OPTIONS': 'halt_on_error=1'}


def limited(sanitized):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if not sanitized:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def finished(command, environment, sanitized, limit, cwd):
    """0, another exit status, or 'time' when it ran past the limit. What it started ends with it."""
    process = subprocess.Popen(command, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, start_new_session=True, preexec_fn=functools.partial(limited, sanitized))
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return 'time'
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


class Folder:
    """A copy of the tree with a build of its own, changed and mended one mutant at a time."""

    def __init__(self, path, sanitized):
        self.tree, self.build, self.sanitized = path / 'tree', path / 'build', sanitized
        names = subprocess.run(['git', 'ls-files', '-co', '--exclude-standard'], cwd=ROOT, text=True, check=True,
                               capture_output=True).stdout.split('\n')
        for name in filter(None, names):
            source, copy = ROOT / name, self.tree / name
            if source.is_file() and not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, copy)
        if not (self.build / 'build.ninja').exists():
            subprocess.run(['meson', 'setup', self.build, self.tree, '-Dtests=enabled', '-Dbench=enabled', '-Djson=enabled',
                            *(SANITIZED if sanitized else PLAIN)], check=True, stdout=sys.stderr)
        self.programs = self.found()
        self.limits = {}

    def found(self):
        """The programs of the suite as meson runs them: name to (targets, command, environment, tests)."""
        listed = json.loads(subprocess.run(['meson', 'introspect', '--tests', self.build], text=True, check=True,
                                           capture_output=True).stdout)
        listed = {test['name']: test for test in listed}
        sanitizers = SANITIZERS if self.sanitized else {}
        programs = {}
        for name in PROGRAMS:
            if name == 'goldens':
                commands, environment = [t['cmd'] for n, t in listed.items() if n.startswith('golden ') and n.endswith(' f32')], {}
            elif name == 'random':
                commands, environment = [listed['random on the cpu']['cmd']], {}
            elif test := listed.get(PART_OF.get(name, name)):
                commands, environment = [test['cmd'] + ['--fail-fast', '--filter', FILTER.get(name, '*')]], test['env']
            else:
                continue
            targets = [os.path.relpath(commands[0][0], self.build)]
            targets += [os.path.relpath(v, self.build) for k, v in environment.items()
                        if k.startswith('ATTUNE_') and v.startswith(str(self.build))]
            programs[name] = targets, commands, {**os.environ, **environment, **sanitizers, 'ATTUNE_TEST_SCALE': SCALE.get(name, '0.05'),
                                                 'GALLIVM_PERF': 'nopt', 'MESA_SHADER_CACHE_DIR': str(self.build / 'mesa')}
        return programs

    def compiled(self):
        """Each file's lines that a compiler of this build reads: not those of other systems and processors."""
        lines, seen = {}, set()
        for entry in json.loads((self.build / 'compile_commands.json').read_text()):
            source = os.path.relpath(os.path.join(entry['directory'], entry['file']), self.tree)
            words = shlex.split(entry['command'])
            command = [words[0]] + [w for before, w in zip(words, words[1:])
                                    if w not in ('-c', '-o', '-MD', '-MQ', '-MF') and before not in ('-o', '-MQ', '-MF')]
            if not source.startswith('src/') or source.startswith(LEFT_OUT) or tuple(command) in seen:
                continue
            seen.add(tuple(command))
            # Macros stay as they are, so that arguments of several lines keep theirs.
            text = subprocess.run([*command, '-E', '-fdirectives-only'], cwd=entry['directory'], text=True, check=True,
                                  capture_output=True).stdout
            file, number = None, 0
            for line in text.split('\n'):
                if marker := re.match(r'# (\d+) "(.*?)"', line):
                    number = int(marker[1])
                    path = os.path.relpath(os.path.join(entry['directory'], marker[2]), self.tree)
                    file = lines.setdefault(path, set()) if path.startswith('src/') else None
                    continue
                if file is not None and line.strip():
                    file.add(number)
                number += 1
        return lines

    def made(self, name):
        return subprocess.run(['ninja', '-C', self.build, '-j', '2', *self.programs[name][0]], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL).returncode == 0

    def run(self, name, limit):
        for command in self.programs[name][1]:
            status = finished(command, self.programs[name][2], self.sanitized, limit, self.build)
            if status:
                return status
        return 0

    def measure(self, names):
        """These programs must pass as they are, which also says how long each may take."""
        for name in names:
            if not self.made(name):
                sys.exit(f'{name} does not build')
            begun = time.monotonic()
            status = self.run(name, 600)
            if status:
                sys.exit(f'{name} fails before anything is changed: status {status}')
            self.limits[name] = 10 + 5 * (time.monotonic() - begun)

    def tried(self, mutant, text, programs):
        """The mutant's killer: a program's name, 'build' if it does not compile, None if it survives."""
        path, _, _, offset, old, new = mutant
        file = self.tree / path
        file.write_text(text[:offset] + new + text[offset + len(old):])
        try:
            for name in programs:
                if name not in self.programs:
                    continue
                if not self.made(name):
                    return 'build'
                status = self.run(name, self.limits[name])
                if status:
                    return f'{name} (time)' if status == 'time' else name
            return None
        finally:
            file.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--count', type=int, default=120, help='how many mutants (120)')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--from', type=int, default=0, dest='begin', metavar='N', help='leave out the first N of the random choice')
    parser.add_argument('--path', action='append', help='a file or folder below src/; may be given again')
    parser.add_argument('--list', action='store_true', help='print the mutants and their numbers, run none')
    parser.add_argument('--only', help='numbers from --list, separated by commas, instead of a random choice')
    parser.add_argument('--programs', help='test programs, separated by commas, instead of those related to the file')
    parser.add_argument('--jobs', type=int, default=1, help='mutants at a time, each in a tree of its own')
    parser.add_argument('--sanitize', action='store_true', help='under the address and undefined behaviour sanitizers')
    parser.add_argument('--folder', type=pathlib.Path, help='where to build (build-mutate, with --sanitize build-mutate-asan)')
    args = parser.parse_args()
    args.folder = (args.folder or ROOT / ('build-mutate-asan' if args.sanitize else 'build-mutate')).resolve()

    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / 'src').rglob('*.[ch]'))
    files = [f for f in files if not f.startswith(LEFT_OUT)]
    if args.path:
        wanted = [str(pathlib.Path(p).resolve().relative_to(ROOT)) for p in args.path]
        files = [f for f in files if any(f == w or f.startswith(w + '/') for w in wanted)]
    texts = {f: (ROOT / f).read_text() for f in files}  # as the copies are: the tree may change meanwhile
    mutants = list(itertools.chain.from_iterable(mutants_of(f, text) for f, text in texts.items()))
    if not mutants:
        sys.exit('nothing to change there: src/vulkan, src/cuda and src/opencl are left out')
    if args.list:
        for i, mutant in enumerate(mutants):
            print(i, described(mutant, texts))
        return
    folders = [Folder(args.folder / str(i), args.sanitize) for i in range(args.jobs)]
    lines = folders[0].compiled()
    compiled = [i for i, mutant in enumerate(mutants) if mutant[1] in lines.get(mutant[0], ())]
    if args.only:
        chosen = [int(n) for n in args.only.split(',')]
        for i in sorted(set(chosen) - set(compiled)):
            sys.exit(f'not compiled on this machine: {i} {described(mutants[i], texts)}')
    else:
        chosen = random.Random(args.seed).sample(compiled, min(args.count, len(compiled)))[max(args.begin, 0):]

    def programs_of(i):
        return args.programs.split(',') if args.programs else RELATED.get(mutants[i][0].split('/')[1], RELATED['api'])

    related = {name for i in chosen for name in programs_of(i)}
    unknown = related - set(PROGRAMS)
    if unknown:
        sys.exit(f'no such programs: {", ".join(sorted(unknown))}; there are {", ".join(PROGRAMS)}')
    folders[0].measure([name for name in PROGRAMS if name in related & folders[0].programs.keys()])
    for folder in folders[1:]:
        folder.limits = {name: 2 * limit for name, limit in folders[0].limits.items()}
    print(f'{len(chosen)} of {len(compiled)} mutants, seed {args.seed}; {len(mutants) - len(compiled)} more are not compiled here', flush=True)

    survivors, killed, broken = [], 0, 0

    def one(i):
        folder = folders.pop()
        try:
            return i, folder.tried(mutants[i], texts[mutants[i][0]], programs_of(i))
        finally:
            folders.append(folder)

    def results(pool):
        """In the order in which they end, so that a run that is cut short has shown all it found."""
        for done in concurrent.futures.as_completed([pool.submit(one, i) for i in chosen]):
            yield done.result()

    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for i, killer in results(pool):
            print(f'{"survived" if killer is None else "killed by " + killer:24} {i} {described(mutants[i], texts)}', flush=True)
            broken += killer == 'build'
            killed += killer not in (None, 'build')
            if killer is None:
                survivors.append(i)
    tried = killed + len(survivors)
    print(f'\n{killed} of {tried} killed ({100 * killed / max(tried, 1):.0f} %), {broken} did not compile; survivors:')
    for i in sorted(survivors):
        print(f'  {i} {described(mutants[i], texts)}')


if __name__ == '__main__':
    main()
