#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tests on the model of the CUDA kernels (docs/model.md), a process for each line of a list, and the lines of cuda/ that they run.
    cases.py run BUILD LIST... [--least PERCENT]      runs the lists; with --least also counts lines, and fails below it
    cases.py faults BUILD [TEXT] [--part 0/1]         puts faults into the kernels, each of which must be found (faults.py)
    cases.py choose BUILD KEPT POOL [--most SECONDS] [--least PERCENT]
                                                      the lines of POOL that add most lines of cuda/ for their time to those of KEPT
    cases.py pool                                     a pool: rows of the case table on each architecture, and cases of the other tables
A line of a list is `WORD=VALUE... PROGRAM FILTER`: a test program and Criterion's filter. The words are those of WORDS, and `#` begins a
comment. `sm=90 seed=1 count=24 random quick` is the random tester (tests/random) with a profile; the words of OPTIONS are its own.
ATTUNE_MODEL_CACHE keeps the compiled kernels; BUILD/model-measured has what `choose` has measured, so that it goes on."""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from faults import FAULTS

SOURCE = pathlib.Path(__file__).resolve().parents[2]
WORDS = {'sm': 'ATTUNE_MODEL_ARCHITECTURE', 'devices': 'ATTUNE_MODEL_DEVICES', 'dtype': 'ATTUNE_TEST_DTYPE', 'case': 'ATTUNE_TEST_CASE',
         'kernel': 'ATTUNE_TEST_KERNEL', 'block-n1': 'ATTUNE_TEST_BLOCK_N1', 'scale': 'ATTUNE_TEST_SCALE',
         'seed': 'ATTUNE_TEST_SEED', 'schedule': 'ATTUNE_MODEL_SEED'}
OPTIONS = ['kernel', 'block-n1', 'seed', 'count']  # of the random tester


def lines_of(path):
    """The lines of a list, without comments."""
    texts = (line.partition('#')[0].split() for line in pathlib.Path(path).read_text().splitlines())
    return [' '.join(words) for words in texts if words]


class Runner:
    """Runs lines of lists with a build's programs."""

    def __init__(self, build, coverage, limit=1200):
        self.limit = limit  # seconds of one line
        self.build = pathlib.Path(build).resolve()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix='attune-model-'))
        self.coverage = coverage
        libraries = {'libcuda.so.1': 'libmodel-driver.so', 'libnvrtc.so.13': 'libmodel-compiler.so', 'libnccl.so.2': 'libfake-nccl.so'}
        for soname, name in libraries.items():
            (self.folder / soname).symlink_to(self.build / 'tests' / name)
        # A list's line says all that its tests read.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith('ATTUNE_TEST_') or name == 'ATTUNE_TEST_SEED'}
        self.environment = inherited | {
            'LD_LIBRARY_PATH': str(self.folder), 'XDG_CACHE_HOME': str(self.folder / 'cache'), 'ATTUNE_SOURCE': str(SOURCE),
            'ATTUNE_PROGRAM': str(self.build / 'bench/attune'), 'ATTUNE_REQUIRE': 'cuda',
            'ATTUNE_MODEL_CUDA': str(self.build / 'tests/libmodel-driver.so'),
            'ATTUNE_MODEL_NVRTC': str(self.build / 'tests/libmodel-compiler.so'),
            'ATTUNE_FAKE_NCCL': str(self.build / 'tests/libfake-nccl.so'), 'OCL_ICD_VENDORS': '/nowhere', 'VK_DRIVER_FILES': '/nowhere'}
        self.environment.setdefault('ATTUNE_MODEL_CACHE', str(self.build / 'tests/model-cache'))
        self.cache = pathlib.Path(self.environment['ATTUNE_MODEL_CACHE'])
        if coverage:
            self.environment['ATTUNE_MODEL_COVERAGE'] = '1'

    def close(self):
        shutil.rmtree(self.folder)

    def run(self, line, counts='', more=None):
        """Status, output, begin and seconds of a line whose counts of lines go to a folder."""
        *words, program, test = line.split()
        chosen = dict(word.split('=', 1) for word in words)
        command = [self.build / 'tests' / f'test_{program}', '--verbose', '--jobs', '1', '--timeout', str(self.limit), '--filter', test]
        if program == 'random':
            options = [word for name in OPTIONS if name in chosen for word in (f'--{name}', chosen.pop(name))]
            command = [self.build / 'tests/random', '--device', 'cuda:0', '--profile', test, '--out', str(self.build), *options]
        environment = self.environment | {WORDS[name]: value for name, value in chosen.items()} | {'GCOV_PREFIX': str(counts)} | (more or {})
        begin = time.time()
        with tempfile.TemporaryFile() as output:
            status = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT).returncode
            output.seek(0)
            text = re.sub(r'^\[(?:SKIP|====)\] .*(?:disabled|Running).*\n', '', output.read().decode(errors='replace'), flags=re.M)
        # A filter that no test has passes, and so does one whose tests are all skipped.
        found = re.findall(r'Tested: .*?(\d+).*?Passing: .*?(\d+)', re.sub(r'\x1b\[[0-9;]*m', '', text))
        if program != 'random' and (not found or found[-1][0] == '0'):
            status, text = 1, text + f'no test is named {test}, or it has no case that runs here\n'
        return status, text, begin, time.time() - begin

    def side_by_side(self, lines, counts, until=float('inf')):
        """Results of lines, as they come, on each processor one; none begins after a time."""
        def one(line):
            return line, self.run(line, counts(line)) if time.time() < until else None

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            for future in concurrent.futures.as_completed([pool.submit(one, line) for line in lines]):
                line, result = future.result()
                if result:
                    yield line, result

    def covered(self, counts):
        """For each file of cuda/, its lines with code and the sum of their counts; and the compiled kernels that have any."""
        found, kernels = collections.defaultdict(collections.Counter), []
        for data in sorted(pathlib.Path(counts).rglob('kernel.gcda')):
            kernels.append(data.parent.name.partition('.')[0])
            notes = data.with_name('kernel.gcno')
            if not notes.exists():
                notes.symlink_to(self.cache / kernels[-1] / 'kernel.gcno')
            text = subprocess.run(['gcov', '--json-format', '--stdout', data.name], cwd=data.parent, capture_output=True, check=True).stdout
            for part in text.splitlines():
                for file in json.loads(part)['files']:
                    if '/' in file['file'] or not (SOURCE / 'cuda' / file['file']).exists():
                        continue
                    for row in file['lines']:
                        found[file['file']][row['line_number']] += row['count']
        return found, kernels


def elapsed(begin):
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return f'{time.time() - begin:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processors'


def report(found, least):
    """Prints what share of each file's lines is run; whether it is enough."""
    rows = [(name, sum(count > 0 for count in lines.values()), len(lines)) for name, lines in sorted(found.items())]
    rows.append(('cuda/', sum(row[1] for row in rows), sum(row[2] for row in rows)))
    for name, run, all_lines in rows:
        missed = [str(line) for line, count in sorted(found.get(name, {}).items()) if not count]
        print(f'{name:32} {run:5} of {all_lines:5} lines  {100 * run / max(all_lines, 1):5.1f} %  {" ".join(missed[:24])}{" ..." if len(missed) > 24 else ""}')
    share = 100 * rows[-1][1] / max(rows[-1][2], 1)
    if share < least:
        print(f'{share:.1f} % of the lines of cuda/ are run: {least} % are asked for. docs/model.md says how cases are chosen.')
    return share >= least


def run(arguments):
    """Runs lists; whether all passed and enough lines were run."""
    runner = Runner(arguments.build, arguments.least is not None)
    passed, count, begin = True, 0, time.time()
    lines = [line for path in arguments.lists for line in lines_of(path)]
    lines.sort(key=lambda line: not line.startswith('model '))  # those of several cases take longest
    counts = runner.folder / 'counts'
    for line, (status, text, _, wall) in runner.side_by_side(lines, lambda line: counts):
        count += 1
        passed = passed and not status
        print(f'[{count}/{len(lines)}] {line}: {"FAILED" if status else "passed"} in {wall:.1f} s', flush=True)
        if status:
            print(text)
    print(f'{len(lines)} lines of {" and ".join(arguments.lists)} in {elapsed(begin)}')
    if arguments.least is not None:
        passed = report(runner.covered(counts)[0], arguments.least) and passed
    runner.close()
    return passed


def faults(arguments):
    """Whether each fault is found: those of suite.c, whose tests say so, and those of faults.py."""
    runner = Runner(arguments.build, True)  # the kernels without a fault are those of the cases
    begin, away = time.time(), {'GCOV_PREFIX': str(runner.folder / 'away')}
    this, parts = map(int, arguments.part.split('/'))
    if not 0 <= this < parts:
        sys.exit(f'--part {arguments.part}: the first number is one of 0 to {parts - 1}')

    def test(name):
        status, output, _, wall = runner.run(f'model model/{name}', more=away | {'ATTUNE_TEST_PART': arguments.part})
        return name, not status, output, wall

    def seed(fault):
        line, file, text, instead, said = fault
        name = f'{line}: {file}, {instead.strip()!r} for {text.strip()!r}'
        if text not in (SOURCE / 'cuda' / file).read_text():
            return name, False, f'{file} has no {text!r}', 0
        status, output, _, wall = runner.run(line, more=away | {'ATTUNE_MODEL_FAULT': f'{file}|{text}|{instead}'})
        # A fault that does not compile, or a test that did not run it, finds nothing.
        failed_otherwise = re.search(r'NVRTC .* refuses|no case that runs here|no test is named|Timed out', output)
        is_found = bool(status) and not failed_otherwise and bool(re.search(said, output))
        return name, is_found, f'status {status}\n{output}', wall

    tests = re.findall(r'^Test\(model, (\w*faults)\)', (SOURCE / 'tests/model/suite.c').read_text(), re.M)
    chosen = [fault for i, fault in enumerate(FAULTS) if i % parts == this and arguments.only in ' '.join(fault)]
    if arguments.only and not chosen:
        sys.exit(f'no fault of this part has {arguments.only!r}')
    found, passed = 0, True
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        made = [pool.submit(test, name) for name in tests if not arguments.only] + [pool.submit(seed, fault) for fault in chosen]
        for future in concurrent.futures.as_completed(made):
            name, is_found, output, wall = future.result()
            found, passed = found + is_found, passed and is_found
            print(f'{name}: {"found" if is_found else "NOT FOUND"} in {wall:.1f} s', flush=True)
            if not is_found:
                print(output)
    print(f'{found} of {len(made)} faults, or tests of several, found in {elapsed(begin)}')
    runner.close()
    return passed


class Measured:
    """The lines of cuda/ that each line of a pool runs, and its time."""

    def __init__(self, build):
        self.runner = Runner(build, True, 90)
        self.folder = self.runner.build / 'model-measured'
        self.folder.mkdir(exist_ok=True)
        self.sources = b''.join(path.read_bytes() for path in sorted((SOURCE / 'cuda').glob('*')))

    def file(self, line):
        """Where the line's measurement is, of the kernels as they are."""
        return self.folder / hashlib.sha256(line.encode() + self.sources).hexdigest()[:20]

    def compile_seconds(self, kernel):
        folder = self.runner.cache / kernel
        return (folder / 'kernel.so').stat().st_mtime - (folder / 'kernel.cpp').stat().st_mtime

    def measure(self, lines, until):
        """Measures the lines that have not been."""
        missing = [line for line in lines if not self.file(line).exists()]
        print(f'# {len(missing)} of {len(lines)} lines to measure', file=sys.stderr)
        for line, (status, text, begin, wall) in self.runner.side_by_side(missing, lambda line: f'{self.file(line)}.counts', until):
            counts = pathlib.Path(f'{self.file(line)}.counts')
            if status:
                print(f'# {line}: {text.strip()[-200:]!r}', file=sys.stderr)
            found, kernels = self.runner.covered(counts) if counts.exists() else ({}, [])
            compiled = {kernel: self.compile_seconds(kernel) for kernel in kernels}
            made = [kernel for kernel in kernels if (self.runner.cache / kernel / 'kernel.cpp').stat().st_mtime > begin]
            entry = {'line': line, 'status': status, 'seconds': max(wall - sum(compiled[kernel] for kernel in made), 0.2),
                     'kernels': compiled, 'lines': {name: [[at, count > 0] for at, count in rows.items()] for name, rows in found.items()}}
            self.file(line).write_text(json.dumps(entry))
            shutil.rmtree(counts, ignore_errors=True)
            print(f'# {line}: {wall:.1f} s', file=sys.stderr, flush=True)
        self.runner.close()

    def entry(self, line):
        return json.loads(self.file(line).read_text()) if self.file(line).exists() else None


def choose(arguments):
    """Prints the lines of the pool that are worth their time, greedily."""
    kept, pool = lines_of(arguments.kept), lines_of(arguments.pool)
    measured = Measured(arguments.build)
    measured.measure(kept + pool, time.time() + arguments.most)
    entries = [entry for entry in map(measured.entry, dict.fromkeys(kept + pool)) if entry and not entry['status']]
    having = {(name, at) for entry in entries for name, rows in entry['lines'].items() for at, _ in rows}
    runs = {entry['line']: {(name, at) for name, rows in entry['lines'].items() for at, ran in rows if ran} for entry in entries}
    reached = set().union(*runs.values())
    done, compiled, seconds = set(), set(), 0.0

    def cost(entry):
        return entry['seconds'] + sum(time for kernel, time in entry['kernels'].items() if kernel not in compiled)

    def take(entry):
        nonlocal seconds
        seconds += cost(entry)
        compiled.update(entry['kernels'])
        done.update(runs[entry['line']])

    for entry in [entry for entry in entries if entry['line'] in kept]:
        take(entry)
    print(f'# kept: {len(done)} of {len(having)} lines, {seconds:.0f} s of processors; the pool runs {len(reached)}')
    while len(done) < arguments.least / 100 * len(having):
        best = max(entries, key=lambda entry: len(runs[entry['line']] - done) / cost(entry))
        new = len(runs[best['line']] - done)
        if not new:
            break
        take(best)
        print(f'{best["line"]}  # {new} lines, {len(done)} in all, {seconds:.0f} s', flush=True)
    missed = sorted(having - done)
    for name in sorted({name for name, _ in missed}):
        print(f'# missed of {name}: {" ".join(str(at) for file, at in missed if file == name)}')
    return True


def pool(_):
    """Prints rows of the case table on each architecture, successive rows in successive dtypes, and cases of the other tables."""
    def names(file, pattern):
        return re.findall(pattern, (SOURCE / 'tests/cases' / file).read_text(), re.M)

    for i, row in enumerate(names('table.h', r'^ROW\((\w+),')):
        for sm, dtypes in ('80', ['f32', 'f16', 'bf16']), ('90', ['f16', 'bf16']), ('100', ['bf16', 'f16']):
            kernel = 'kernel=cuda_sm100a ' if sm == '100' else ''
            for table in 'forward', 'gradients':
                print(f'sm={sm} {kernel}dtype={dtypes[i % len(dtypes)]} cases {table}_cuda/{row}')
    for name in names('serving.c', r'^    \{"(\w+)", \d'):
        print(f'case={name} cases serving_cases/cuda')
    for name in names('append.c', r'^    \{"(\w+)", ATTUNE_(?!F64)'):
        print(f'case={name} cases append/cuda')
    for name in names('../model/suite.c', r'^Test\(model, (?!\w*faults|sample)(\w+)\)'):
        print(f'model model/{name}')
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser('run')
    verb.add_argument('build')
    verb.add_argument('lists', nargs='+')
    verb.add_argument('--least', type=float)
    verb.set_defaults(do=run)
    verb = verbs.add_parser('faults')
    verb.add_argument('build')
    verb.add_argument('only', nargs='?', default='')
    verb.add_argument('--part', default='0/1')
    verb.set_defaults(do=faults)
    verb = verbs.add_parser('choose')
    verb.add_argument('build')
    verb.add_argument('kept')
    verb.add_argument('pool')
    verb.add_argument('--most', type=float, default=3600)
    verb.add_argument('--least', type=float, default=97)
    verb.set_defaults(do=choose)
    verb = verbs.add_parser('pool')
    verb.set_defaults(do=pool)
    arguments = parser.parse_args()
    sys.exit(not arguments.do(arguments))


if __name__ == '__main__':
    main()
