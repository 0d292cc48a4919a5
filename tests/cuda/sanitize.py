#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""compute-sanitizer over the kernels: sanitize.py BUILD_FOLDER [OPTIONS]

A named set of small cases, which together launch every kernel file in its kinds: types, masks, scores with gradients of
captures, grouped heads, head dimensions, decode in parts, fixed orders, merges, segments, graphs, threads. Each first runs
alone, which compiles its kernels and says whether its results are right, and then under each tool. A line for each
(tool, case); the exit status is the number of those that found something (77: there is no tool or no GPU).

racecheck does not understand an arrival at an mbarrier that speaks for a warp (docs/cuda.md). For Hopper's kernels it
takes a build in which each thread arrives for itself:

    meson setup build-race -Dc_args=-DATTUNE__CUDA_ARRIVALS=32
    tests/cuda/sanitize.py build --race-build build-race

--faults takes the program that tests/cuda/faults.cu makes: each tool must find its fault there.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

TOOLS = {'memcheck': ['--leak-check=full'], 'racecheck': ['--racecheck-report=analysis'], 'initcheck': [], 'synccheck': []}

CAUSAL, DOCUMENT = 'q >= kv', 'q >= kv && doc[q] == doc[kv]'
DOC = {'doc': {'generator': 'document', 'length': 90, 'spread': 0.6}}
HEAT = {'heat': {'generator': 'normal', 'size': [4], 'spread': 1}}
CAP, HOT = '20 * tanh(score / 20)', '20 * tanh(score * heat[h] / 20)'


def shape(dims, q, kv, **more):
    """4 query heads, 2 of keys. dims: of q and k, and of v."""
    head_dim, head_dim_v = dims if isinstance(dims, tuple) else (dims, dims)
    return {'heads': 4, 'kv_heads': 2, 'q_len': q, 'kv_len': kv, 'head_dim': head_dim, 'head_dim_v': head_dim_v} | more


def check(dtype, work, device='cuda:0', grad=True, **options):
    words = ['bench/attune', 'check', '--device', device, '--dtype', dtype]
    return {'words': words + ['--grad'] * grad + (['--kernel-options', json.dumps(options)] if options else []), 'work': work}


def golden(dtype, name, device='cuda:0'):
    return {'words': ['bench/attune', 'check', '--device', device, '--dtype', dtype, '--grad', '--case', f'{{goldens}}/{name}']}


def test(program, pattern, **environment):
    return {'words': [f'tests/{program}', f'--filter={pattern}', '-j1', '--verbose'], 'environment': environment}


SM80 = 'cuda:0@a6000' # the kernels of sm_86 with its shared memory
CASES = {
    # Hopper's kernels: those that racecheck needs a build of its own for.
    'h_64_causal': check('bf16', shape(64, 333, 333, mask=CAUSAL)),
    'h_64_dense': check('f16', shape(64, 1100, 500, batch=2)),
    'h_128_causal': check('bf16', shape(128, 520, 520, mask=CAUSAL)),
    'h_128_dense': check('f16', shape(128, 600, 700)),
    'h_128_document': check('f16', shape(128, 400, 400, mask=DOCUMENT, captures=DOC)),
    'h_128_window': check('bf16', shape(128, 400, 400, mask='q >= kv && q - kv < 100', batch=2)),
    'h_128_pairs': check('bf16', shape(128, 260, 260, mask='(q * 7 + kv) % 5 != 0')),
    'h_128_cap': check('bf16', shape(128, 300, 300, mask=CAUSAL, score=CAP)),
    'h_128_alibi': check('f16', shape(128, 300, 300, mask=CAUSAL, score='score + slopes[h] * (kv - q)',
                                      captures={'slopes': {'generator': 'slopes'}})),
    'h_128_heat': check('bf16', shape(128, 300, 300, mask=CAUSAL, score=HOT, captures=HEAT)),
    'h_128_keys': check('f16', shape(128, 300, 300, mask=CAUSAL, score='score + keys[kv]',
                                     captures={'keys': {'generator': 'normal', 'size': [300], 'spread': 1}})),
    'h_192_128_causal': check('bf16', shape((192, 128), 300, 300, mask=CAUSAL)),
    'h_192_dense': check('f16', shape(192, 600, 300)),
    'h_256_causal': check('bf16', shape(256, 300, 300, mask=CAUSAL)),
    'h_256_dense': check('f16', shape(256, 600, 300)),
    'h_256_cap': check('bf16', shape(256, 200, 300, mask='q + kv_len - q_len >= kv', score=CAP)),
    'h_72_causal': check('bf16', shape(72, 300, 300, mask=CAUSAL)),
    'h_fixed_order': check('bf16', shape(128, 300, 300, mask=CAUSAL), bwd_DETERMINISTIC=True),
    'h_fixed_document': check('f16', shape(64, 400, 400, mask=DOCUMENT, captures=DOC), bwd_DETERMINISTIC=True),
    'h_fixed_192_128': check('bf16', shape((192, 128), 200, 300), bwd_DETERMINISTIC=True),
    'h_fixed_256': check('bf16', shape(256, 200, 200, mask=CAUSAL), bwd_DETERMINISTIC=True),
    'h_masked_rows': golden('bf16', 'fully_masked_rows'),
    'h_dflash': golden('f16', 'dflash'),
    'h_bias': golden('bf16', 'learned_relative_bias'),
    'h_nan': test('test_cases', 'forward_cuda/nan_*'),
    'h_nan_gradients': test('test_cases', 'gradients_cuda/nan_hidden*'),
    # The sm80 kernels on the whole GPU, and within an A6000's limits.
    's_64_document': check('f16', shape(64, 300, 300, mask=DOCUMENT, captures=DOC), KERNEL='cuda_sm80'),
    's_64_fixed': check('bf16', shape(64, 300, 300, mask=CAUSAL), KERNEL='cuda_sm80', bwd_DETERMINISTIC=True),
    's_128_causal': check('bf16', shape(128, 300, 300, mask=CAUSAL), KERNEL='cuda_sm80'),
    'a_64_causal': check('bf16', shape(64, 300, 300, mask=CAUSAL), SM80),
    'a_128_dense': check('f16', shape(128, 200, 300, batch=2), SM80),
    'a_128_document': check('bf16', shape(128, 300, 300, mask=DOCUMENT, captures=DOC), SM80),
    'a_128_heat': check('f16', shape(128, 300, 300, mask=CAUSAL, score=HOT, captures=HEAT), SM80),
    'a_192_128_causal': check('bf16', shape((192, 128), 200, 200, mask=CAUSAL), SM80),
    'a_256_causal': check('f16', shape(256, 200, 200, mask=CAUSAL), SM80),
    'a_bias': golden('f16', 'learned_relative_bias', SM80),
    'a_pairs': golden('bf16', 'fully_masked_rows', SM80),
    'a_nan': test('test_cases', 'forward_cuda/nan_*', ATTUNE_TEST_PROFILE='a6000'),
    'a_nan_gradients': test('test_cases', 'gradients_cuda/nan_hidden*', ATTUNE_TEST_PROFILE='a6000'),
    'f32_64_causal': check('f32', shape(64, 200, 200, mask=CAUSAL)),
    'f32_128_heat': check('f32', shape(128, 150, 200, score=HOT, captures=HEAT)),
    'f32_256_dense': check('f32', shape(256, 100, 150)),
    # Decode: in one part, in the planner's, in many; and as an A6000 would.
    'decode_128': check('bf16', shape(128, 1, 3000, mask='kv < 2900'), grad=False),
    'decode_64_one': check('f16', shape(64, 4, 700), grad=False, SPLIT_KV=1),
    'decode_256_parts': check('bf16', shape(256, 1, 1500), grad=False, SPLIT_KV=7),
    'decode_192_128_a': check('f16', shape((192, 128), 3, 1500), SM80, grad=False),
    'decode_f32': check('f32', shape(128, 1, 1500, score=CAP), grad=False, SPLIT_KV=4),
    # Calls that no command of the program makes.
    'merge': test('test_api', 'merge/cuda', ATTUNE_TEST_SCALE='0.02'),
    'merge_backward': test('test_api', 'merge/backward_cuda', ATTUNE_TEST_SCALE='0.02'),
    'merge_nan': test('test_api', 'merge/nan_cuda'),
    'segments': test('test_cases', 'segments_gradients_cuda/dense_128'),
    'graphs': test('test_cuda_streams', 'cuda_streams/a_call_is_captured_in_a_graph_*'),
    # Calls over a cache: appends, parts, wrong tables and lengths.
    'append': test('test_cases', 'append/cuda', ATTUNE_TEST_PART='0/3'),
    'append_extremes': test('test_cases', 'append/cuda_of_extremes'),
    'serving': test('test_cases', 'serving_cases/cuda', ATTUNE_TEST_PART='0/16'),
    'serving_bits': test('test_cases', 'serving_bits/cuda', ATTUNE_TEST_PART='0/4'),
    'serving_limits': test('test_cases', 'serving_limits/cuda*'),
    'mods': test('test_cuda_mods', 'cuda_mods/agree_with_the_interpreter', ATTUNE_TEST_SCALE='0.05'),
    'measure': test('test_cuda_streams', 'cuda_streams/peaks_are_measured'),
    'threads': {'words': ['tests/race', 'cuda']},
}
# Its repeats are many, and each is slow under racecheck; its kernels are those of other cases.
SLOW = {'racecheck': {'graphs'}}
# Where heads are shared unevenly by two warp groups (192 columns: two slabs of 64 and one), each group has code of its own, and
# both come to barrier 1 at an instruction of their own. PTX knows barriers by number; synccheck wants one instruction.
ADMITTED = {'synccheck': ({'h_192_dense', 'h_192_128_causal', 'h_fixed_192_128'}, 'Divergent thread(s) in block')}


def is_hopper(name):
    return name.startswith('h_')


class Run:
    """One process's result: seconds, and None or the fault."""

    def __init__(self, seconds, wrong, skipped=False, verdict='clean'):
        self.seconds, self.wrong, self.skipped, self.verdict = seconds, wrong, skipped, wrong or verdict


class Runner:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.end = time.monotonic() + options.seconds
        self.lock = threading.Lock()
        self.goldens = str(pathlib.Path(__file__).resolve().parents[1] / 'goldens') if not options.goldens else options.goldens

    def command(self, name, build):
        if name == 'faults':
            return [str(self.options.faults)]
        case = CASES[name]
        words = [str(build / case['words'][0])] + [word.replace('{goldens}', self.goldens) for word in case['words'][1:]]
        if 'work' in case:
            path = self.folder / f'{name}.json'
            path.write_text(json.dumps(case['work'] | {'name': name}))
            words += ['--file', str(path)]
        return words

    def run(self, name, tool, build):
        """Runs a case, alone (tool None) or under a tool."""
        command = self.command(name, build)
        if not pathlib.Path(command[0]).exists():
            return Run(0, f'{command[0]} is not built', True)
        left = min(self.end - time.monotonic(), self.options.timeout)
        if left <= 1:
            return Run(0, 'no time left', True)
        if tool:
            command = [self.options.sanitizer, '--tool', tool, '--target-processes', 'all', '--error-exitcode', '99',
                       *TOOLS[tool], *command] + [tool] * (name == 'faults')
        start = time.monotonic()
        process = subprocess.Popen(command, env=os.environ | CASES.get(name, {}).get('environment', {}), text=True, errors='replace',
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   start_new_session=True)
        try:
            output, _ = process.communicate(timeout=left)
            status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            status = None
        seconds = time.monotonic() - start
        if self.options.logs:
            (self.options.logs / f'{name}-{tool or "alone"}.txt').write_text(output)
        run = self.judge(tool, status, output, seconds)
        names, words = ADMITTED.get(tool, ((), ''))
        found = re.findall(r'^=+ (.*\berror detected\b.*)', output, re.M)
        if name in names and run.wrong and not run.skipped and found and all(words in line for line in found):
            return Run(seconds, None, verdict=f'admitted: {words}')
        return run

    @staticmethod
    def judge(tool, status, output, seconds):
        if status is None:
            return Run(seconds, 'out of time', True)
        none = re.search(r'no cuda device.*|.*Tested: 0 .*', output)
        if none:
            return Run(seconds, f'skipped: {none.group()[:120]}', True)
        if not tool:
            empty = re.search(r'\b0 cases$', output, re.M)
            return Run(seconds, 'it ran no case' if empty else None if status == 0 else f'its own status is {status}')
        summaries = [line.split('=========')[-1].strip() for line in output.splitlines() if 'SUMMARY:' in line]
        dirty = sorted({s for s in summaries if re.search(r'[1-9]\d* (errors?|hazards?|bytes)\b', s)})
        if dirty or status == 99:
            return Run(seconds, '; '.join(dirty) or 'status 99')
        if not summaries or 'Internal Sanitizer Error' in output:
            return Run(seconds, f'the tool did not end well, status {status}', True)
        return Run(seconds, None if status == 0 else f'its own status is {status}')


def first_finding(path):
    """The first lines of what a tool has found, without those of every run."""
    lines = path.read_text().splitlines() if path and path.exists() else []
    found = [line[10:] for line in lines if line.startswith('=========') and re.search(r'Error|Warning|Invalid|Race|Leaked|Uninit|Barrier', line)]
    return found[:2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('build', type=pathlib.Path)
    parser.add_argument('--race-build', type=pathlib.Path, help='for Hopper\'s kernels under racecheck')
    parser.add_argument('--faults', type=pathlib.Path, help='what tests/cuda/faults.cu makes')
    parser.add_argument('--tools', default=','.join(TOOLS))
    parser.add_argument('--only', default='', help='cases, by names or their beginnings')
    parser.add_argument('--list', action='store_true', help='the names')
    parser.add_argument('--jobs', type=int, default=8)
    parser.add_argument('--timeout', type=float, default=600, help='seconds of a run')
    parser.add_argument('--seconds', type=float, default=1e9, help='of all: what has not begun then is named')
    parser.add_argument('--goldens', default='', help='the folder, if not tests/goldens')
    parser.add_argument('--sanitizer', default=shutil.which('compute-sanitizer') or '/usr/local/cuda/bin/compute-sanitizer')
    parser.add_argument('--logs', type=pathlib.Path, help='folder for what is printed')
    options = parser.parse_args()
    only = tuple(filter(None, options.only.split(',')))
    names = [name for name in CASES if not only or name.startswith(only)]
    if options.list:
        print('\n'.join(names))
        return 0
    if not pathlib.Path(options.sanitizer).exists():
        print('skipped: there is no compute-sanitizer here')
        return 77
    if options.logs:
        options.logs.mkdir(parents=True, exist_ok=True)
    tools = [tool for tool in TOOLS if tool in options.tools.split(',')]
    bad, clean, missing = [], 0, []

    def record(runner, tool, name, run):
        nonlocal clean
        with runner.lock:
            print(f'{tool:10} {name:18} {run.seconds:6.1f} s  {run.verdict}', flush=True)
            if run.wrong and not run.skipped and options.logs:
                for line in first_finding(options.logs / f'{name}-{tool}.txt'):
                    print(f'{"":10} {line.strip()[:200]}', flush=True)
            if run.skipped and tool != 'alone':
                missing.append((tool, name))
            elif not run.skipped and run.wrong:
                bad.append((tool, name))
            elif not run.skipped:
                clean += 1

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runner = Runner(options, pathlib.Path(folder))

        def fault(tool):
            run = runner.run('faults', tool, options.build)
            seen = run.wrong and not run.skipped
            record(runner, tool, 'faults', Run(run.seconds, None if seen else run.wrong or 'it does not see its fault', run.skipped))

        def case(name):
            """Alone, which compiles, so that nothing is compiled under a tool; then under each."""
            run = runner.run(name, None, options.build)
            if run.wrong:
                record(runner, 'alone', name, run)
            if run.skipped:
                return missing.extend((tool, name) for tool in tools)
            race = options.race_build if is_hopper(name) else options.build
            for tool in tools:
                if name in SLOW.get(tool, ()):
                    run = Run(0, 'not run: too many launches for this tool', True)
                elif tool != 'racecheck':
                    run = runner.run(name, tool, options.build)
                elif not race:
                    run = Run(0, 'not run: it needs --race-build', True)
                else:
                    if race != options.build:
                        runner.run(name, None, race)
                    run = runner.run(name, tool, race)
                record(runner, tool, name, run)

        for tool in tools if options.faults else []:
            fault(tool)
        for done in [pool.submit(case, name) for name in names]:
            done.result()
    print(f'{clean} clean, {len(bad)} found something, {len(missing)} not run')
    for what, pairs in (('found', bad), ('not run', missing)):
        if pairs:
            print(f'{what}: ' + ', '.join(f'{tool} {name}' for tool, name in pairs))
    return min(len(bad), 76) if clean or bad else 77


sys.exit(main())
