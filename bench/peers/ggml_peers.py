#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""ggml's attention on Vulkan beside attune's, on the same shapes and device in one run (docs/benchmarking.md).

Builds the Vulkan backend of a checkout of ggml, with glslc, Vulkan's and SPIR-V's headers of the machine (further words for
CMake: --cmake), and attention_ggml.c with it, in CHECKOUT/build-peers; --program takes one that is built. For each workload
of a file runs `attune bench`, then GGML_OP_FLASH_ATTN_EXT: q and the result are f32, keys and values f16, sums f32, a soft-cap
is the operation's own, and the mask, which ggml takes as data, a tensor of 0 and -inf that all heads share.
Inputs are random normal numbers. Either's time is that of the device's clock: of ggml what GGML_VK_PERF_LOGGER prints, with
all passes of the operation, those over the mask and over parts of the keys included. A sample is the mean of the calls that fill
--min-time / --repetitions seconds, behind as long a warm-up for both; the figure is the samples' median. FLOP are attune's,
2 * pairs * (D + Dv) with the pairs that its mask allows, and bytes q, k, v and o, each once, for both.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import attune_rows

here = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('ggml', nargs='?', type=pathlib.Path, help='a checkout of ggml')
parser.add_argument('--program', type=pathlib.Path, help='attention_ggml as an earlier run built it; no checkout is needed')
parser.add_argument('--cmake', default='', help='further words for CMake, such as -DVulkan_GLSLC_EXECUTABLE=PATH')
parser.add_argument('--jobs', type=int, default=os.cpu_count(), help='processes of the build')
parser.add_argument('--attune', default='attune', help='the program; "" leaves attune out')
parser.add_argument('--file', type=pathlib.Path, default=here.parent / 'workloads/shapes/ggml.json', help='workloads')
parser.add_argument('--only', default='', help='workloads by name, with commas between')
parser.add_argument('--device', default='vulkan', help="attune's device")
parser.add_argument('--ggml-device', type=int, default=0, help="ggml's: the number of Vulkan's physical device")
parser.add_argument('--repetitions', type=int, default=10, help='samples of a row')
parser.add_argument('--min-time', type=float, default=0.2, help="seconds that a row's samples take together")
parser.add_argument('--warmup-time', type=float, default=0.3, help='seconds of calls before the first sample, of every row')
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--scale', type=float, default=1, help='lengths and batch times this, for a slow device')
parser.add_argument('--json', type=pathlib.Path, help='all rows, as attune bench --json writes them; after each workload')
parser.add_argument('--routed', action='store_true', help="ggml has examples/ggml's patch: its own shader, and then attune inside it")
parser.add_argument('--limit', type=float, default=0, help='seconds after which no further workload begins; 0 = none')
parser.add_argument('--bench', default='', help='further words for attune bench')
options = parser.parse_args()

SOFT_CAP = re.compile(r'([\d.]+) \* tanh\(score / ([\d.]+)\)$')
WINDOW = re.compile(r'q >= kv && q - kv < (\d+)$')
TIMING = re.compile(r'^FLASH_ATTN_EXT .*: \d+ x ([\d.e+-]+) us', re.M)


def check_headers():
    """ggml's C++ needs what Debian 12's headers do not have, and would say so after its shaders, a quarter of an hour later."""
    folder = pathlib.Path('/usr/include')
    for word in options.cmake.split():
        if word.startswith('-DVulkan_INCLUDE_DIR='):
            folder = pathlib.Path(word.split('=', 1)[1])
    header = folder / 'vulkan/vulkan_core.h'
    if not header.exists() or 'VK_EXT_layer_settings' not in header.read_text():
        sys.exit(f'{folder} has no Vulkan headers of 1.3.272 or later, which ggml needs: install newer ones, or unpack Khronos\' '
                 "Vulkan-Headers and add --cmake=-DVulkan_INCLUDE_DIR=PATH")


def build(checkout):
    """The program, built where it is missing or older than its source."""
    check_headers()
    out, source = checkout / 'build-peers', here / 'attention_ggml.c'
    program = out / 'attention_ggml'
    configure = ['cmake', '-S', checkout, '-B', out, '-DCMAKE_BUILD_TYPE=Release', '-DBUILD_SHARED_LIBS=ON', '-DGGML_VULKAN=ON',
                 '-DGGML_BUILD_TESTS=OFF', '-DGGML_BUILD_EXAMPLES=OFF', *options.cmake.split()]
    libraries = out / 'src'
    link = [os.environ.get('CC', 'cc'), '-std=c11', '-D_GNU_SOURCE', '-O2', f'-I{checkout / "include"}', source, f'-L{libraries}', '-lggml',
            '-lggml-base', '-lm', f'-Wl,-rpath,{libraries}:{libraries / "ggml-vulkan"}', f'-Wl,-rpath-link,{libraries}:{libraries / "ggml-vulkan"}',
            '-o', program]
    for command in (configure, ['cmake', '--build', out, '--target', 'ggml', '--parallel', str(options.jobs)], link):
        subprocess.run([str(word) for word in command], check=True, stdout=sys.stderr)
    return program


def scaled(w):
    """A workload with lengths and batch times --scale, down to 64 tokens; windows and documents shrink as the lengths."""
    if options.scale == 1:
        return w
    def shrunk(length):
        return max(min(length, 64), int(length * options.scale))
    w = dict(w)
    for name in ('q_len', 'kv_len'):
        if name in w:
            w[name] = shrunk(w[name])
    if 'batch' in w:
        w['batch'] = max(1, int(w['batch'] * options.scale))
    if window := WINDOW.match(w.get('mask', '')):
        w['mask'] = f'q >= kv && q - kv < {shrunk(int(window[1]))}'
    if 'captures' in w:
        w['captures'] = {name: c | ({'length': shrunk(c['length'])} if 'length' in c else {}) for name, c in w['captures'].items()}
    return w


def numbers(w):
    """The workload as attention_ggml takes it; raises with the reason where ggml has no such operation."""
    n = {'batch': w.get('batch', 1), 'heads': w['heads'], 'kv_heads': w.get('kv_heads', w['heads']), 'q_len': w['q_len'],
         'kv_len': w.get('kv_len', w['q_len']), 'dim': w['head_dim'], 'dim_v': w.get('head_dim_v', w['head_dim']), 'scale': w.get('scale', 0)}
    mask, score = w.get('mask', ''), w.get('score', '')
    if score:
        cap = SOFT_CAP.match(score)
        if not cap or cap[1] != cap[2]:
            raise ValueError(f'ggml has no score expression but a soft-cap: {score}')
        n['softcap'] = cap[1]
    document = w.get('captures', {}).get('doc', {})
    if mask == 'q >= kv':
        n['causal'] = 1
    elif window := WINDOW.match(mask):
        n |= {'causal': 1, 'window': window[1]}
    elif mask == 'doc[q] == doc[kv]' and document.get('spread') == 0:
        n['document'] = document['length']
    elif mask:
        raise ValueError(f'no tensor of this mask is made here: {mask}')
    return n


def run_ggml(program, w, route):
    """The samples in seconds, the calls of each, the device's name."""
    words = numbers(w) | {'seed': options.seed, 'samples': options.repetitions, 'min_time': options.min_time, 'warmup_time': options.warmup_time}
    environment = os.environ | {'GGML_ATTUNE': str(int(route)), 'GGML_VK_PERF_LOGGER': '1', 'GGML_VK_VISIBLE_DEVICES': str(options.ggml_device)}
    done = subprocess.run([program, 'Vulkan0', *(f'{k}={v}' for k, v in words.items())], check=False, capture_output=True, text=True,
                          env=environment)
    said = dict(line.split(' ', 1) for line in done.stdout.splitlines() if ' ' in line)
    samples = [float(us) * 1e-6 for us in TIMING.findall(done.stderr)][-options.repetitions:]
    if done.returncode or not samples:
        lines = [line for line in done.stderr.splitlines() if line.startswith('attention_ggml:')] or done.stderr.strip().splitlines()
        raise ValueError(lines[-1] if lines else f'ended with status {done.returncode}')
    return samples, int(said['calls']), said['device'], [float(s) for s in said['host'].split()]


def row_of(program, w, median, route):
    by = 'ggml-vulkan-attune' if route else 'ggml-vulkan'
    name = f'{w["name"]}/{by}/f16'
    row = {'name': f'{name}_median', 'run_name': name, 'run_type': 'aggregate', 'aggregate_name': 'median', 'aggregate_unit': 'time',
           'time_unit': 'ms', 'workload': w['name'], 'kind': 'peer', 'device': by, 'dtype': 'f16', 'plan': 'GGML_OP_FLASH_ATTN_EXT',
           'timer': 'device timestamps'}
    try:
        samples, calls, device, host = run_ggml(program, w, route)
    except (OSError, ValueError) as error:
        return row | {'status': 'unsupported', 'message': str(error)}
    document['context']['ggml_device'] = device
    seconds = statistics.median(samples)
    flop, size = ((median or {}).get(key, -1) for key in ('flop', 'bytes'))
    return row | {'status': 'ok', 'message': '', 'real_time': seconds * 1e3, 'cpu_time': 0, 'median_seconds': seconds, 'samples': len(samples),
                  'p10_seconds': statistics.quantiles(samples, n=10)[0] if len(samples) > 1 else seconds,
                  'p90_seconds': statistics.quantiles(samples, n=10)[-1] if len(samples) > 1 else seconds, 'calls': calls,
                  'host_seconds': statistics.median(host), 'flop': flop, 'bytes': size, 'flop_per_second': flop / seconds if flop > 0 else -1,
                  'bytes_per_second': size / seconds if size > 0 else -1}


def cells(row):
    if not row or row.get('status') != 'ok':
        return f'{"-":>9} {"-":>8} {"-":>7}'
    flops, rate = (max(row.get(key, -1), 0) for key in ('flop_per_second', 'bytes_per_second'))
    return f'{row["median_seconds"] * 1e3:9.3f} {flops * 1e-12:8.3g} {rate * 1e-9:7.3g}'


workloads = json.loads(options.file.read_text())
workloads = [w for w in workloads if not options.only or w['name'] in options.only.split(',')]
if options.only and len(workloads) < len(options.only.split(',')):
    sys.exit(f'{options.file} has {[w["name"] for w in workloads]} alone of {options.only}')
if not options.program and not options.ggml:
    parser.error('a checkout of ggml, or --program')
binary = options.program.resolve() if options.program else build(options.ggml.resolve())
scratch = tempfile.TemporaryDirectory(prefix='ggml-peers-')
document = {'context': {}, 'benchmarks': []}
ratios = []
columns = ['attune', 'ggml'] + ['attune in ggml'] * options.routed
print(f'{"":22}' + ''.join(f' {name:>26}' for name in columns))
print(f'{"workload":22}' + f' {"ms":>9} {"TFLOP/s":>8} {"GB/s":>7}' * len(columns) + f' {"faster":>7}  plan, or why not')
begin = time.monotonic()
for w in map(scaled, workloads):
    if options.limit and time.monotonic() - begin > options.limit:
        print(f'{w["name"]} and those after it: not begun, {options.limit:g} s are over')
        break
    rows = attune_rows.run(options, w, pathlib.Path(scratch.name), []) if options.attune else None
    median = None
    if rows:
        document['context'] |= rows['context']
        document['benchmarks'] += rows['benchmarks']
        median = next((row for row in rows['benchmarks'] if row.get('aggregate_name') == 'median'), None)
    peers = [row_of(binary, w, median, route) for route in range(1 + options.routed)]
    document['benchmarks'] += peers
    peer = peers[0]
    faster = peer['median_seconds'] / median['median_seconds'] if peer['status'] == 'ok' and median and median['status'] == 'ok' else 0
    if faster:
        ratios.append(faster)
    why = [row['message'] for row in (median, *peers) if row and row.get('status') != 'ok']
    print(f'{w["name"]:22} {" ".join(map(cells, (median, *peers)))} {f"{faster:.2f}x" if faster else "-":>7}  '
          f'{"; ".join(why) or (median or {}).get("plan", "")}'[:160], flush=True)
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + '\n')
if ratios:
    mean = statistics.geometric_mean(ratios)
    print(f'attune is {max(mean, 1 / mean):.2f} times {"faster" if mean >= 1 else "slower"} than ggml on {document["context"]["ggml_device"]} '
          f'(geometric mean of {len(ratios)} workloads, {min(ratios):.2f} to {max(ratios):.2f} times as fast)')
