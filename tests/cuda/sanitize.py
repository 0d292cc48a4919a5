#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""compute-sanitizer over the kernels: sanitize.py BUILD_FOLDER [--tools memcheck,racecheck,...] [--scale S]

Each tool runs the programs below, which launch every kind of kernel: forward on each type, decode, expressions, graphs. The
exit status is the number of runs that found something. Without the tool or a GPU it skips with status 77.
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('build', type=pathlib.Path)
parser.add_argument('--tools', default='memcheck,racecheck,initcheck,synccheck')
parser.add_argument('--scale', default='0.02', help='ATTUNE_TEST_SCALE: the share of the case table')
parser.add_argument('--only', default='', help='of the runs, by name')
parser.add_argument('--timeout', type=int, default=600, help='seconds of a run')
parser.add_argument('--sanitizer', default=shutil.which('compute-sanitizer') or '/usr/local/cuda/bin/compute-sanitizer')
parser.add_argument('--logs', type=pathlib.Path, help='folder for what the tools print')
options = parser.parse_args()

# name, program, words. Criterion runs each test in a process of its own, which the tools follow.
RUNS = [
    ('cases', 'tests/test_cases', ['--filter=forward_table/cuda', '-j1']),
    ('graphs', 'tests/test_cuda_streams', ['--filter=cuda_streams/a_call_is_captured_in_a_graph_*', '-j1']),
    ('mods', 'tests/test_cuda_mods', ['--filter=cuda_mods/agree_with_the_interpreter', '-j1']),
    ('threads', 'tests/race', ['cuda']),
]
TOOL_WORDS = {'memcheck': ['--leak-check=full'], 'racecheck': ['--racecheck-report=analysis'], 'initcheck': [], 'synccheck': []}

if not pathlib.Path(options.sanitizer).exists():
    print('skipped: there is no compute-sanitizer here')
    sys.exit(77)
environment = os.environ | {'ATTUNE_TEST_SCALE': options.scale}
bad = 0
rows = []
for tool in options.tools.split(','):
    for name, program, words in RUNS:
        path = options.build / program
        if options.only and name not in options.only.split(','):
            continue
        if not path.exists():
            rows.append((tool, name, 'skipped: not built', 0))
            continue
        # 99: what the tool found; the program's own failures are the tests' business, and are shown.
        command = [options.sanitizer, '--tool', tool, '--target-processes', 'all', '--error-exitcode', '99',
                   *TOOL_WORDS[tool], str(path), *words]
        start = time.time()
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=options.timeout)
            output, status = done.stdout + done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            output, status = (error.stdout or b'').decode(errors='replace'), 'out of time'
        if options.logs:
            options.logs.mkdir(parents=True, exist_ok=True)
            (options.logs / f'{tool}-{name}.txt').write_text(output)
        if 'no cuda device' in output:
            print('skipped: there is no GPU here')
            sys.exit(77)
        found = [line for line in output.splitlines() if 'ERROR SUMMARY' in line or 'RACECHECK SUMMARY' in line]
        clean = all(' 0 errors' in line or ' 0 hazards' in line for line in found) and bool(found)
        good = clean and status == 0
        bad += not good
        what = 'clean' if good else f'status {status}; ' + '; '.join(sorted({f.split('=========')[-1].strip() for f in found}))
        rows.append((tool, name, what, time.time() - start))
for tool, name, what, seconds in rows:
    print(f'{tool:10} {name:8} {seconds:6.1f} s  {what}')
sys.exit(min(bad, 76))
