#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's attention beside attune's, on the same shapes in one run (docs/benchmarking.md).

For each workload of a file runs `attune bench`, then times on the same device what PyTorch has for it:
scaled_dot_product_attention where there is no expression but causal, on a GPU with the cuDNN and flash backends and on the CPU
with the one that PyTorch chooses (sdpa), compiled flex_attention for all, whose functions are made of attune's nodes of the expression (attune expr --ir) and of the captures
that attune wrote, and FlashAttention-4 (fa4; the packages flash-attn-4, quack-kernels, apache-tvm-ffi, torch-c-dlpack-ext and
nvidia-cutlass-dsl with its libs of CUDA 13) for causal, windows and soft-caps. The rows of one workload follow on each
other, so that they find the GPU equally warm. FLOP are counted as attune counts them, 2 * pairs * (D + Dv) with the pairs
that its mask allows, and 2.5 times that backwards, where the gradients of q, k, v and, by flex_attention, of the score's
captures are timed, without the forward pass.
Inputs are random normal numbers. A sample is the mean of the calls that fill --min-time / --repetitions seconds between two
CUDA events, or on the CPU by time.perf_counter, behind as long a warm-up as attune's rows have; the figure is the samples' median.
On the CPU both have a thread for each processor that the process may use. A backend that is missing or refuses a shape is a row with
the reason.

With --compile-jobs N, N processes compile the peers' kernels, which takes longer than to time them, and launch none meanwhile; the
GPU is held by one process at a time, or by attune bench, which times --batch workloads a run.
"""
import argparse
import ast
import contextlib
import fcntl
import json
import math
import multiprocessing
import os
import pathlib
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import time

import attune_rows

here = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--attune', default='attune', help='the program; "" leaves attune out, and flex')
parser.add_argument('--file', type=pathlib.Path, default=here.parent / 'workloads/shapes/h200_forward.json', help='workloads')
parser.add_argument('--only', default='', help='workloads by name, with commas between')
parser.add_argument('--peers', help='of cudnn, flash, flex and fa4; on the CPU of sdpa and flex (default: all but fa4)')
parser.add_argument('--device', default='cuda:0', help="attune's device: cpu, or a GPU, of which PyTorch takes the one of the same number")
parser.add_argument('--direction', choices=['forward', 'backward'], default='forward')
parser.add_argument('--repetitions', type=int, default=10, help='samples of a row')
parser.add_argument('--min-time', type=float, default=0.2, help="seconds that a row's samples take together")
parser.add_argument('--warmup-time', type=float, default=0.3, help='seconds of calls before the first sample, of every row')
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--json', type=pathlib.Path, help='all rows, as attune bench --json writes them; after each workload')
parser.add_argument('--limit', type=float, default=0, help='seconds after which no further workload begins; 0 = none')
parser.add_argument('--bench', default='', help='further words for attune bench')
parser.add_argument('--graph', type=int, default=0, metavar='N', help='record N calls in a CUDA graph and time launches of it; attune does so too (--layers N --graph); 0 = calls')
parser.add_argument('--compile-jobs', type=int, default=0, help="processes that compile the peers' kernels beside one another; 0 = this one alone")
parser.add_argument('--batch', type=int, default=8, help='workloads of a run of attune bench, with --compile-jobs')
options = parser.parse_args()
if options.compile_jobs < 0 or options.batch < 1:
    parser.error('--compile-jobs is below 0, or --batch below 1')
ON_CPU = options.device == 'cpu'
PEERS = ['sdpa', 'flex'] if ON_CPU else ['cudnn', 'flash', 'flex', 'fa4']
peers = [peer for peer in options.peers.split(',') if peer] if options.peers is not None else [peer for peer in PEERS if peer != 'fa4']
for unknown in set(peers) - set(PEERS):
    parser.error(f'--peers has {unknown!r}: on {options.device} there are {", ".join(PEERS)}')
if ON_CPU and options.compile_jobs:
    parser.error('--compile-jobs is for GPUs: on the CPU compilation would disturb what is timed')

if options.graph < 0 or options.graph and (ON_CPU or options.direction != 'forward'):
    parser.error('--graph N is for forward calls on a GPU, with N from 1')

workloads = json.loads(options.file.read_text())
workloads = workloads if isinstance(workloads, list) else [workloads]
if options.only:
    wanted = options.only.split(',')
    missing = set(wanted) - {w['name'] for w in workloads}
    if missing:
        sys.exit(f'no workload in {options.file} is called {", ".join(sorted(missing))}')
    workloads = [w for w in workloads if w['name'] in wanted]


# ------------------------------------------------------------------------------------------------------------- attune

scratch = tempfile.TemporaryDirectory(prefix='torch-peers-')
folder = pathlib.Path(scratch.name)


document, medians = {'context': {}, 'benchmarks': []}, {}


def run_attune(some):
    """Times workloads, and keeps the rows. Leaves captures in the folder."""
    graph = ['--layers', str(options.graph), '--graph'] if options.graph else []
    rows = attune_rows.run(options, some, folder, ['--direction', options.direction, '--write-captures', str(folder), *graph])
    if rows:
        document['context'] |= rows['context']
        document['benchmarks'] += rows['benchmarks']
        medians.update((row['workload'], row) for row in rows['benchmarks'] if row.get('aggregate_name') == 'median')
    for w in some:
        if w['name'] in medians:
            show(medians[w['name']], 'attune')


# ------------------------------------------------------------------------------------------------------------- PyTorch

if options.compile_jobs:
    os.environ.setdefault('TORCHINDUCTOR_COMPILE_THREADS', '1')
try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    sys.exit(f'PyTorch cannot be imported: {error}')
if not ON_CPU and not options.compile_jobs and not torch.cuda.is_available():  # jobs are forks, before which CUDA must not begin
    sys.exit('PyTorch finds no GPU')
number = int(options.device.partition(':')[2] or 0)
device = torch.device('cpu') if ON_CPU else torch.device('cuda', number)
if ON_CPU:
    torch.set_num_threads(len(os.sched_getaffinity(0)))
TYPES = {'bf16': torch.bfloat16, 'f16': torch.float16, 'f32': torch.float32}
CAUSAL = 'q >= kv'
WINDOW = re.compile(r'q >= kv && q - kv < (\d+)$')
SOFT_CAP = re.compile(r'([\d.]+) \* tanh\(score / ([\d.]+)\)$')


# ------------------------------------------------------------------------------------------------------- expressions

def load(path):
    """An array that attune wrote: NPY 1.0 in C order."""
    data = path.read_bytes()
    end = 10 + int.from_bytes(data[8:10], 'little')
    about = ast.literal_eval(data[10:end].decode())
    kinds = {'<f4': torch.float32, '<i4': torch.int32, '<i8': torch.int64, '|u1': torch.uint8, '|b1': torch.bool}
    flat = torch.frombuffer(bytearray(data[end:]), dtype=kinds[about['descr']])
    return flat.reshape(about['shape']).to(device)


def parameters(w):
    values = {name: p['value'] if isinstance(p, dict) else p for name, p in w.get('parameters', {}).items()}
    return values | ({'side': w['side']} if 'side' in w else {})


BINARY = {'add': '+', 'sub': '-', 'mul': '*', 'mod': '%', 'eq': '==', 'ne': '!=', 'lt': '<', 'le': '<=', 'and': '&', 'or': '|'}


def python_of(nodes, kind, w):
    """The source of a flex_attention function, one assignment a node. Constants and parameters are Python's numbers."""
    group = w['heads'] // w.get('kv_heads', w['heads'])
    names = {'q_len': lengths(w)[0], 'kv_len': lengths(w)[1], 'h_kv': f'h // {group}'}
    lines, number, at = [], set(), {}
    for line in nodes:
        n, kind_of, op, *words = line.split()
        if op in ('const', 'param'):
            value = parameters(w)[words[0].partition(':')[0]] if op == 'param' else words[0].capitalize()
            at[n] = f"float('{value}')" if str(value).lower().lstrip('-') in ('inf', 'nan') else str(value)
            number.add(n)
            continue
        if op == 'var':
            at[n] = str(names.get(words[0], words[0]))
            if words[0] in ('q_len', 'kv_len'):
                number.add(n)
            continue
        if op == 'capture':
            text = f'{words[0].partition(":")[0]}[{", ".join(at[i] for i in words[1:])}]'
        else:
            of, plain = [at[i] for i in words], [i in number for i in words]
            if all(plain):
                number.add(n)
            if op in BINARY:
                text = f'{of[0]} {BINARY[op]} {of[1]}'
            elif op == 'div':
                text = f'{of[0]} {"//" if kind_of == "i32" else "/"} {of[1]}'
            elif op == 'neg':
                text = f'-{of[0]}'
            elif op == 'not':
                text = f'~{of[0]}'
            elif op in ('min', 'max') and all(plain):
                text = f'{op}({of[0]}, {of[1]})'
            elif op in ('min', 'max') and any(plain):
                text = f'torch.clamp({of[plain[0]]}, {"max" if op == "min" else "min"}={of[not plain[0]]})'
            elif op in ('min', 'max'):
                text = f'torch.{op}imum({of[0]}, {of[1]})'
            elif op == 'float':
                text = f'float({of[0]})' if all(plain) else f'{of[0]}.to(torch.float32)'
            elif op == 'select':
                text = f'torch.where({", ".join(of)})'
            else:
                text = f'{"math" if all(plain) else "torch"}.{op}({", ".join(of)})'
        lines.append(f'    t{n} = {text}')
        at[n] = f't{n}'
    head = 'score, b, h, q, kv' if kind == 'score' else 'b, h, q, kv'
    result = at[n] if n not in number else f'torch.full_like({"score" if kind == "score" else "q"}, {at[n]})'
    return f'def mod({head}):\n' + ''.join(line + '\n' for line in lines) + f'    return {result}\n'


def mod_of(w, kind, captures):
    """The workload's mask or score as flex_attention takes it; None if it has none."""
    if not w.get(kind):
        return None
    command = [options.attune, 'expr', w[kind], '--ir'] + (['--score'] if kind == 'score' else [])
    for name in captures:
        command += ['--capture', f'{name}={folder / (w["name"] + "." + name + ".npy")}']
    for name, value in parameters(w).items():
        command += ['--param', f'{name}={value}']
    nodes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names = {'torch': torch, 'math': math} | captures
    exec(python_of(nodes, kind, w), names)  # pylint: disable=exec-used
    return names['mod']


def lengths(w):
    q_len = w.get('q_len', w.get('side', 0) ** 2)
    return q_len, w.get('kv_len', q_len)


def make_inputs(w):
    generator = torch.Generator(device).manual_seed(options.seed)
    dim_v = w.get('head_dim_v', w['head_dim'])
    kv_heads, (q_len, kv_len) = w.get('kv_heads', w['heads']), lengths(w)
    sizes = [(w['heads'], q_len, w['head_dim']), (kv_heads, kv_len, w['head_dim']), (kv_heads, kv_len, dim_v)]
    return [torch.randn((w.get('batch', 1), *size), generator=generator, device=device, dtype=TYPES[w['dtype']],
                        requires_grad=options.direction == 'backward') for size in sizes]


def directed(forward, inputs):
    """Forwards, or the gradients alone of one forward pass that went before."""
    if options.direction == 'forward':
        return forward
    o = forward()
    d_o = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True)


def make_fa4(w, q, k, v):
    """FlashAttention-4 has tokens before heads: the inputs are laid out so, and seen as q, k and v are."""
    try:
        from flash_attn.cute import flash_attn_func
    except ImportError as error:
        raise ValueError(f'FlashAttention-4 cannot be imported ({error}): install flash-attn-4 and what it needs') from error
    mask, score = w.get('mask', ''), w.get('score', '')
    window, cap = WINDOW.match(mask), SOFT_CAP.match(score)
    if mask not in ('', CAUSAL) and not window or score and not (cap and cap[1] == cap[2]):
        raise ValueError('FlashAttention-4 is given causal masks, windows and soft-caps alone here')
    for x in (q, k, v):
        x.data = x.data.transpose(1, 2).contiguous().transpose(1, 2)
    limits = (int(window[1]) - 1, 0) if window else (None, None)

    def call():
        out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=mask == CAUSAL, window_size=limits,
                              softcap=float(cap[1]) if cap else 0.0)
        return out[0] if isinstance(out, tuple) else out
    return call


def make_peer(w, peer):
    """A function that makes what is timed; raises with the reason where there is none. The first that it makes compiles."""
    q, k, v = make_inputs(w)
    grouped = q.shape[1] != k.shape[1]
    if peer == 'flex':
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        if not options.attune:
            raise ValueError('its functions are made of the nodes that attune prints')
        captures = {name: load(folder / f'{w["name"]}.{name}.npy') for name in w.get('captures', {})}
        words = set(re.findall(r'\w+', w.get('score', '')))
        learned = [c for name, c in captures.items() if name in words and c.is_floating_point()]
        for capture in learned:
            capture.requires_grad_(options.direction == 'backward')
        mask, score = mod_of(w, 'mask', captures), mod_of(w, 'score', captures)
        block_mask = None
        if mask:
            words = set(re.findall(r'\w+', w['mask']))
            block_mask = create_block_mask(mask, q.shape[0] if 'b' in words else None,
                                           q.shape[1] if words & {'h', 'h_kv'} else None, q.shape[2], k.shape[2],
                                           device=device)
        compiled = torch.compile(flex_attention, dynamic=False)
        return lambda: directed(lambda: compiled(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=grouped),
                                (q, k, v, *learned))
    if peer == 'fa4':
        call = make_fa4(w, q, k, v)
        return lambda: directed(call, (q, k, v))
    if w.get('score') or w.get('mask', CAUSAL) != CAUSAL:
        raise ValueError('scaled_dot_product_attention takes no expression')
    backends = {'cudnn': [SDPBackend.CUDNN_ATTENTION], 'flash': [SDPBackend.FLASH_ATTENTION],
                'sdpa': [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]}[peer]

    def call():
        with sdpa_kernel(backends):
            return F.scaled_dot_product_attention(q, k, v, is_causal='mask' in w, enable_gqa=grouped)
    return lambda: directed(call, (q, k, v))


@contextlib.contextmanager
def no_launches():
    """Inductor's kernels are compiled when they are called here, and not launched."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    run = CachingAutotuner.run
    CachingAutotuner.run = lambda *_, **__: None
    try:
        yield
    finally:
        CachingAutotuner.run = run


def compile_only(w, peer, make):
    """Compiles what make's function launches, where the peer can do that without a launch."""
    if peer == 'flex':
        with no_launches():
            make()()
    elif peer == 'fa4':
        from torch._subclasses.fake_tensor import FakeTensorMode
        # FlashAttention-4 compiles for tensors without memory; where it does not, it compiles when it is called.
        with FakeTensorMode(), contextlib.suppress(Exception):
            make_peer(w, peer)()()


def time_on_cpu(call, count):
    begin = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begin) / count


def time_once(call, count):
    if ON_CPU:
        return time_on_cpu(call, count)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / count


def graph_of(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(options.graph):
            call()
    return graph.replay


def measure(call):
    call()
    if not ON_CPU:
        torch.cuda.synchronize()
    if options.graph:
        return [sample / options.graph for sample in samples_by_time(graph_of(call))]
    return samples_by_time(call)


def samples_by_time(call):
    once = min(time_once(call, 1) for _ in range(3))
    time_once(call, max(1, round(options.warmup_time / once)))
    count = max(1, round(options.min_time / options.repetitions / once))
    return [time_once(call, count) for _ in range(options.repetitions)]


def pairs_of(w):
    """As attune counted them; without it, for what has a formula."""
    if w['name'] in medians and medians[w['name']].get('pairs', -1) > 0:
        return medians[w['name']]['pairs']
    planes, (n, kv_len) = w.get('batch', 1) * w['heads'], lengths(w)
    if not w.get('mask'):
        return planes * n * kv_len
    return planes * n * (n + 1) // 2 if w['mask'] == CAUSAL else None


def samples_of(w, peer, turn=None):
    """The samples of a peer, and why there are none. turn: what a process holds while it has the GPU; without it nothing else runs."""
    try:
        torch._dynamo.reset()
        make = make_peer(w, peer)
        if turn:
            compile_only(w, peer, make)
        with turn or contextlib.nullcontext():
            return measure(make()), ''
    except Exception as error:  # whatever a backend says when it refuses
        words = str(error).strip().splitlines()
        return [], words[0] if words else type(error).__name__
    finally:
        if not ON_CPU:
            torch.cuda.empty_cache()


TIMER = 'time.perf_counter' if ON_CPU else 'CUDA events'
if options.graph:
    TIMER += f' of a graph of {options.graph} calls'


def row_of(w, peer, samples, message):
    name = f'{w["name"]}/torch-{peer}/{w["dtype"]}'
    row = {'name': f'{name}_median', 'run_name': name, 'run_type': 'aggregate', 'aggregate_name': 'median',
           'aggregate_unit': 'time', 'time_unit': 'ms', 'workload': w['name'], 'kind': 'peer', 'device': f'torch-{peer}',
           'dtype': w['dtype'], 'plan': f'PyTorch {torch.__version__} {peer}', 'timer': TIMER}
    if not samples:
        return row | {'status': 'unsupported', 'message': message}
    median = statistics.median(samples)
    pairs = pairs_of(w)
    factor = 2 if options.direction == 'forward' else 5
    flop = factor * pairs * (w['head_dim'] + w.get('head_dim_v', w['head_dim'])) if pairs else None
    return row | {'status': 'ok', 'message': '', 'real_time': median * 1e3, 'cpu_time': 0, 'median_seconds': median,
                  'p10_seconds': statistics.quantiles(samples, n=10)[0] if len(samples) > 1 else median,
                  'p90_seconds': statistics.quantiles(samples, n=10)[-1] if len(samples) > 1 else median,
                  'samples': len(samples), 'pairs': pairs or -1, 'flop': flop or -1,
                  'flop_per_second': flop / median if flop else -1}


UNIT = ('GFLOP/s', 1e-9) if ON_CPU else ('TFLOP/s', 1e-12)
print(f'{"workload":22} {"by":8} {"ms":>9} {UNIT[0]:>8}  plan, or why not')


def show(row, by):
    if row['status'] == 'ok':
        rate = row.get('flop_per_second', -1)
        print(f'{row["workload"]:22} {by:8} {row["median_seconds"] * 1e3:9.3f} {rate * UNIT[1] if rate > 0 else 0:8.1f}  '
              f'{row.get("plan", "")}', flush=True)
    else:
        print(f'{row["workload"]:22} {by:8} {"-":>9} {"-":>8}  {row["message"][:90]}', flush=True)


def write():
    if options.json:
        options.json.write_text(json.dumps(document, indent=2) + '\n')


def keep(w, peer, samples, message):
    row = row_of(w, peer, samples, message)
    document['benchmarks'].append(row)
    show(row, peer)


def forget(w):
    """Removes a workload's captures."""
    for path in folder.glob(f'{w["name"]}.*.npy'):
        path.unlink()


def over(w):
    """Whether w is past --limit."""
    late = options.limit and time.monotonic() - begin > options.limit
    if late:
        print(f'{w["name"]} and those after it: not begun, {options.limit:g} s are over')
    return late


def about():
    """PyTorch and its device, for the context."""
    if ON_CPU:
        return {'torch': torch.__version__, 'torch_threads': torch.get_num_threads()}
    return {'torch': torch.__version__, 'cudnn': torch.backends.cudnn.version(), 'gpu': torch.cuda.get_device_name(number)}


def run_here():
    """One after another, in this process."""
    if not ON_CPU:
        torch.cuda.set_device(number)
    document['context'] |= about()
    for w in workloads:
        if over(w):
            break
        if options.attune:
            run_attune([w])
        for peer in peers:
            keep(w, peer, *samples_of(w, peer))
        write()
        forget(w)


class Turn:
    """The GPU, which one process holds at a time; a lock on a file, so that it is free when that process ends."""

    def __enter__(self):
        self.file = open(folder / 'turn', 'w')
        fcntl.flock(self.file, fcntl.LOCK_EX)

    def __exit__(self, *_):
        self.file.close()


def work(tasks, answers):
    """A process of --compile-jobs."""
    torch.cuda.set_device(number)
    for w, peer in iter(tasks.get, None):
        samples, message = samples_of(w, peer, Turn())
        answers.put((w, peer, samples, message, about()))
        if 'CUDA error' in message:  # all later calls of this process would have it too
            break
    answers.close()
    answers.join_thread()


def run_jobs():
    """attune in runs of --batch workloads, between which the jobs have the GPU."""
    fork = multiprocessing.get_context('fork')
    tasks, answers, waiting = fork.Queue(), fork.Queue(), 0
    left = {w['name']: len(peers) for w in workloads}
    jobs = [fork.Process(target=work, args=(tasks, answers), daemon=True) for _ in range(options.compile_jobs)]
    for job in jobs:
        job.start()

    def receive(most):
        """Keeps answers until at most so many tasks have none. False: no more will come in time."""
        nonlocal waiting
        while waiting > most:
            try:
                w, peer, samples, message, its = answers.get(timeout=1)
            except queue.Empty:
                if options.limit and time.monotonic() - begin > options.limit + 30 or not any(job.is_alive() for job in jobs):
                    return False
                continue
            waiting -= 1
            document['context'] |= its
            keep(w, peer, samples, message)
            write()
            left[w['name']] -= 1
            if not left[w['name']]:
                forget(w)
        return True

    for first in range(0, len(workloads), options.batch):
        some = workloads[first:first + options.batch]
        if not receive(options.compile_jobs) or over(some[0]):
            break
        if options.attune:
            with Turn():
                run_attune(some)
            write()
        for w in some:
            for peer in peers:
                tasks.put((w, peer))
                waiting += 1
    for _ in jobs:
        tasks.put(None)
    if not receive(0):
        print(f'{waiting} rows are missing: the jobs ended, or took more than 30 s over --limit', file=sys.stderr)
    for job in jobs:
        job.kill()


begin = time.monotonic()
if options.compile_jobs:
    run_jobs()
else:
    run_here()
for peer in peers:
    ratios = [row['median_seconds'] / medians[row['workload']]['median_seconds'] for row in document['benchmarks']
              if row.get('device') == f'torch-{peer}' and row['status'] == 'ok' and row['workload'] in medians]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f'attune is {max(mean, 1 / mean):.2f} times {"faster" if mean >= 1 else "slower"} than {peer} (geometric mean of {len(ratios)} '
              f'workloads, {min(ratios):.2f} to {max(ratios):.2f} times as fast)')
