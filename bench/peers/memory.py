#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The memory of a DFlash training step on a GPU, beside PyTorch's (docs/performance.md).

A step makes the mask from its anchors, goes forwards and backwards. attune's figure is what its tensors, captures, workspaces and
lists take (device_bytes of `attune bench --direction step`), and beside it what the GPU lost while that program ran, over
what it loses to a run of the least size: context and kernels are in both. PyTorch's is the allocator's peak over its second step.
torch-attune is attune.torch, of the Python package, whose lists lie outside of that allocator and are added; -low is with low_memory.
Beside the peak is the time of a step, the least of ten behind the two that the peak is of and --warmup-time seconds of others, and
how much of it passed until the last call had returned: what is left is the GPU's alone.

flex_attention compiles a mask's lists, a forward and a backward kernel before its first step ends. With --when FILE all peers take a
step first, whose parts are timed on stderr, and nothing is measured until that file exists, so that a GPU can have other work
meanwhile. Beside flex_attention's step are the time of its lists, which are made in it, and what they hold at most; flex-eager is with
lists that are not compiled.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--attune', default='attune', help='the program')
parser.add_argument('--workload', default='dflash', choices=['dflash', 'domino'])
parser.add_argument('--scale', default='1', help='the share of the workload, as attune bench takes it')
parser.add_argument('--peers', default='attune,segments,torch-attune,torch-attune-low,flex,efficient,math',
                    help='of these, with commas between; also flex-eager, whose lists are not compiled')
parser.add_argument('--device', default='cuda:0')
parser.add_argument('--bench', default='', help='further words for attune bench')
parser.add_argument('--warmup-time', type=float, default=0.4, help="seconds of steps before those that are timed, attune's too")
parser.add_argument('--when', type=pathlib.Path, metavar='FILE', help="compile PyTorch's peers, and measure once this file exists")
options = parser.parse_args()

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
except ImportError as error:
    sys.exit(f'PyTorch cannot be imported: {error}')
if not torch.cuda.is_available():
    sys.exit('PyTorch finds no GPU')
device = torch.device('cuda', int(options.device.partition(':')[2] or 0))
torch.cuda.set_device(device)
BLOCK = 16
MIB = 1 << 20


def run_attune(scale, *words):
    """The row's median entry, and the bytes that the GPU had fewer at most while the program ran."""
    least, over = torch.cuda.mem_get_info(device)[0], threading.Event()
    before = least

    def watch():
        nonlocal least
        while not over.is_set():
            least = min(least, torch.cuda.mem_get_info(device)[0])
            time.sleep(0.002)

    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / 'row.json'
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            subprocess.run([options.attune, 'bench', '--workload', options.workload, '--device', options.device, '--dtype', 'bf16',
                            '--direction', 'step', '--scale', scale, '--repetitions', '3', '--min-time', '0.1', '--warmup-time',
                            str(options.warmup_time), '--no-check',
                            '--no-peers', '--no-peaks', '--json', str(out), *options.bench.split(), *words], check=True, stdout=subprocess.DEVNULL)
        finally:
            over.set()
            watcher.join()
        rows = json.loads(out.read_text())['benchmarks']
    return next(row for row in rows if row.get('aggregate_name') == 'median'), before - least


def rule(shape):
    """The mask as flex_attention takes it, made anew as a step does."""
    anchors = torch.randint(1, shape['k'] - shape['q'], (shape['b'], shape['q'] // BLOCK), device=device).sort().values
    kept = torch.rand((shape['b'], shape['q'] // BLOCK), device=device) > 0.05
    context = shape['k'] - shape['q']
    return lambda b, h, q, kv: kept[b, q // BLOCK] & torch.where(kv < context, kv < anchors[b, q // BLOCK],
                                                                  (kv - context) // BLOCK == q // BLOCK)


def inputs(shape):
    sizes = [(shape['h'], shape['q']), (shape['kv'], shape['k']), (shape['kv'], shape['k'])]
    return [torch.randn((shape['b'], *size, shape['d']), device=device, dtype=torch.bfloat16, requires_grad=True) for size in sizes]


compiled = torch.compile(flex_attention, dynamic=False)
# Without that option the sorts of the lists are kernels of Triton's, which take ptxas half a minute or more.
compiled_lists = torch.compile(create_block_mask, options={'triton.persistent_reductions': False})


def lists_of(peer, mask, shape):
    return (compiled_lists if peer == 'flex' else create_block_mask)(mask, shape['b'], None, shape['q'], shape['k'], device=device)


def attend_attune(shape, q, k, v, low_memory):
    import attune.torch
    context, blocks = shape['k'] - shape['q'], shape['q'] // BLOCK
    captures = {'anchor': torch.randint(1, context, (shape['b'], blocks), dtype=torch.int32).sort().values,
                'keep': torch.rand((shape['b'], blocks)) > 0.05}
    return attune.torch.attention(q, k, v, 'dflash_batch(context, block, anchor, keep)', captures=captures,
                                  parameters={'context': context, 'block': BLOCK}, low_memory=low_memory)


def attend(peer, shape, q, k, v):
    if peer.startswith('torch-attune'):
        return attend_attune(shape, q, k, v, peer == 'torch-attune-low')
    mask = rule(shape)
    if peer.startswith('flex'):
        return compiled(q, k, v, block_mask=lists_of(peer, mask, shape), enable_gqa=True)
    rows, keys = torch.arange(shape['q'], device=device), torch.arange(shape['k'], device=device)
    dense = torch.stack([mask(b, 0, rows[:, None], keys[None, :]) for b in range(shape['b'])])[:, None]
    if peer == 'efficient':  # it takes no groups of heads
        k, v = (x.repeat_interleave(shape['h'] // shape['kv'], 1) for x in (k, v))
    backend = {'efficient': SDPBackend.EFFICIENT_ATTENTION, 'math': SDPBackend.MATH}[peer]
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=dense, enable_gqa=peer == 'math')


def compile_peer(peer, shape):
    """A step whose kernels are compiled, which takes what it says; the measurement has the reason where there is none."""
    begin = time.perf_counter()
    q, k, v = inputs(shape)
    try:
        if peer.startswith('flex'):
            lists_of(peer, rule(shape), shape)
            torch.cuda.synchronize()
            print(f'{peer}: first lists, {time.perf_counter() - begin:.1f} s', file=sys.stderr, flush=True)
        o = attend(peer, shape, q, k, v)
        torch.cuda.synchronize()
        middle = time.perf_counter()
        o.backward(torch.randn_like(o))
        torch.cuda.synchronize()
        print(f'{peer}: first step, {middle - begin:.1f} s forwards and {time.perf_counter() - middle:.1f} s backwards', file=sys.stderr, flush=True)
    except Exception as error:
        print(f'{peer}: {error}', file=sys.stderr, flush=True)


def peak(peer, shape):
    left = torch.cuda.memory_allocated(device)  # by the peers before
    q, k, v = inputs(shape)
    d_o = torch.randn_like(q)
    held = torch.cuda.memory_allocated(device) - left

    def step():
        """The seconds until the last call returned, and until its end."""
        q.grad = k.grad = v.grad = None
        torch.cuda.synchronize()
        begin = time.perf_counter()
        attend(peer, shape, q, k, v).backward(d_o)
        returned = time.perf_counter() - begin
        torch.cuda.synchronize()
        return returned, time.perf_counter() - begin

    for _ in range(2):
        q.grad = k.grad = v.grad = None
        torch.cuda.reset_peak_memory_stats(device)
        step()
    most, lists = torch.cuda.max_memory_allocated(device) - left, 0
    if peer.startswith('torch-attune'):
        from attune.torch import _operator
        lists = max(kept.mask.stats().bytes for kept in _operator.masks._values.values())
    begin = time.perf_counter()
    while time.perf_counter() - begin < options.warmup_time:
        step()
    host, times = zip(*(step() for _ in range(10)))
    return most + lists, held, min(times), min(host)


def lists_alone(peer, shape):
    """The least seconds of ten makings of flex_attention's lists, which a step's are among, and what they hold at most."""
    left, times = torch.cuda.memory_allocated(device), []
    torch.cuda.reset_peak_memory_stats(device)
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        lists_of(peer, rule(shape), shape)
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return min(times), torch.cuda.max_memory_allocated(device) - left


torch.zeros(1, device=device)
peers = [peer for peer in options.peers.split(',') if peer]
row, used = run_attune(options.scale)
shape = dict(zip(('b', 'h', 'kv', 'q', 'k', 'd'), map(int, re.fullmatch(r'b(\d+)h(\d+):(\d+)q(\d+)k(\d+)d(\d+)', row['shape']).groups())))
if options.when:
    for peer in peers:
        if peer not in ('attune', 'segments'):
            compile_peer(peer, shape)
            torch.cuda.empty_cache()
    while not options.when.exists():
        time.sleep(0.05)
    row, used = run_attune(options.scale)
small = run_attune('1e-9')[1] if {'attune', 'segments'} & set(peers) else 0
print(f'{options.workload} {row["shape"]}, bf16, one step; MiB')
print(f'{"by":16} {"in all":>9}  of which')


def show_attune(title, row, used):
    print(f'{title:16} {row["device_bytes"] / MIB:9.1f}  workspace {row["workspace_bytes"] / MIB:.0f}, lists {row["mask_bytes"] / MIB:.2f}; '
          f'the GPU had {(used - small) / MIB:.0f} fewer; {1e3 * row["median_seconds"]:.2f} ms', flush=True)


for peer in peers:
    if peer == 'attune':
        show_attune(peer, row, used)
        continue
    if peer == 'segments':
        show_attune('  segments', *run_attune(options.scale, '--segments'))
        continue
    try:
        most, held, seconds, host = peak(peer, shape)
        lists = ''
        if peer.startswith('flex'):
            apart = lists_alone(peer, shape)
            lists = f'; lists alone {1e3 * apart[0]:.2f} ms, {apart[1] / MIB:.1f}'
        print(f'{peer:16} {most / MIB:9.1f}  q, k, v and d_o {held / MIB:.0f}; {1e3 * seconds:.2f} ms, the host {1e3 * host:.2f}{lists}', flush=True)
    except Exception as error:  # whatever it says when it refuses
        print(f'{peer:16} {"-":>9}  {(str(error).strip().splitlines() or [type(error).__name__])[0][:110]}', flush=True)
    torch.cuda.empty_cache()
