#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's attention beside attune's, on the same shapes in one run (docs/benchmarking.md).

For each workload of a file runs `attune bench`, then times on the same GPU what PyTorch has for it:
scaled_dot_product_attention with the cuDNN and flash backends where there is no expression but causal, and compiled
flex_attention for all. The rows of one workload follow on each other, so that they find the GPU equally warm. FLOP are counted as attune counts them, 2 * pairs * (D + Dv) with the pairs that its mask allows, and
2.5 times that backwards, where the gradients of q, k and v are timed, without the forward pass.
Inputs are random normal numbers. A sample is the mean of the calls that fill --min-time / --repetitions seconds between two
CUDA events, behind as long a warm-up as attune's rows have; the figure is the samples' median. A backend that is missing or refuses a shape is a row with the reason.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument('--attune', default='attune', help='the program; "" leaves attune out')
parser.add_argument('--file', type=pathlib.Path, default=here.parent / 'workloads/shapes/h200_forward.json', help='workloads')
parser.add_argument('--only', default='', help='workloads by name, with commas between')
parser.add_argument('--peers', default='cudnn,flash,flex', help='of these')
parser.add_argument('--device', default='cuda:0', help="attune's device; PyTorch takes the GPU of the same number")
parser.add_argument('--direction', choices=['forward', 'backward'], default='forward')
parser.add_argument('--repetitions', type=int, default=10, help='samples of a row')
parser.add_argument('--min-time', type=float, default=0.2, help="seconds that a row's samples take together")
parser.add_argument('--warmup-time', type=float, default=0.3, help='seconds of calls before the first sample, of every row')
parser.add_argument('--seed', type=int, default=1)
parser.add_argument('--json', type=pathlib.Path, help='all rows, as attune bench --json writes them')
parser.add_argument('--bench', default='', help='further words for attune bench')
options = parser.parse_args()

workloads = json.loads(options.file.read_text())
workloads = workloads if isinstance(workloads, list) else [workloads]
if options.only:
    wanted = options.only.split(',')
    missing = set(wanted) - {w['name'] for w in workloads}
    if missing:
        sys.exit(f'no workload in {options.file} is called {", ".join(sorted(missing))}')
    workloads = [w for w in workloads if w['name'] in wanted]


# ------------------------------------------------------------------------------------------------------------- attune

def run_attune(w):
    """The JSON that attune bench wrote of one workload; None if it could not run."""
    folder = options.json.parent if options.json else pathlib.Path('.')
    shapes, out = folder / 'peers-shapes.json', folder / 'peers-attune.json'
    shapes.write_text(json.dumps([w]))
    command = [options.attune, 'bench', '--file', str(shapes), '--device', options.device, '--scale', '1', '--seed',
               str(options.seed), '--warmup-time', str(options.warmup_time), '--repetitions', str(options.repetitions),
               '--min-time', str(options.min_time), '--direction', options.direction, '--no-peers', '--json', str(out)]
    try:
        subprocess.run(command + options.bench.split(), check=False, stdout=sys.stderr)
        return json.loads(out.read_text())
    except (OSError, ValueError) as error:
        print(f'attune: {error}', file=sys.stderr)
        return None
    finally:
        shapes.unlink(missing_ok=True)
        out.unlink(missing_ok=True)


document, medians = {'context': {}, 'benchmarks': []}, {}

# ------------------------------------------------------------------------------------------------------------- PyTorch

try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    sys.exit(f'PyTorch cannot be imported: {error}')
if not torch.cuda.is_available():
    sys.exit('PyTorch finds no GPU')
number = int(options.device.partition(':')[2] or 0)
torch.cuda.set_device(number)
device = torch.device('cuda', number)
TYPES = {'bf16': torch.bfloat16, 'f16': torch.float16, 'f32': torch.float32}
CAUSAL = 'q >= kv'


def slopes(heads):
    return torch.tensor([2.0 ** (-8.0 * (h + 1) / heads) for h in range(heads)], device=device)


def masks(w):
    """attune's masks, by their text, as flex_attention takes them."""
    window = 1024
    length = w.get('captures', {}).get('doc', {}).get('length')
    doc = torch.arange(w['q_len'], device=device) // length if length else None
    return {
        CAUSAL: lambda b, h, q, kv: q >= kv,
        'q >= kv && q - kv < 1024': lambda b, h, q, kv: (q >= kv) & (q - kv < window),
        'q >= kv && doc[q] == doc[kv]': lambda b, h, q, kv: (q >= kv) & (doc[q] == doc[kv]),
    }


def scores(w):
    alibi = slopes(w['heads'])
    return {
        '50 * tanh(score / 50)': lambda score, b, h, q, kv: 50 * torch.tanh(score / 50),
        'score + slopes[h] * (kv - q)': lambda score, b, h, q, kv: score + alibi[h] * (kv - q),
    }


def make_inputs(w):
    generator = torch.Generator(device).manual_seed(options.seed)
    dim_v = w.get('head_dim_v', w['head_dim'])
    kv_heads, kv_len = w.get('kv_heads', w['heads']), w.get('kv_len', w['q_len'])
    sizes = [(w['heads'], w['q_len'], w['head_dim']), (kv_heads, kv_len, w['head_dim']), (kv_heads, kv_len, dim_v)]
    return [torch.randn((w.get('batch', 1), *size), generator=generator, device=device, dtype=TYPES[w['dtype']],
                        requires_grad=options.direction == 'backward') for size in sizes]


def directed(forward, inputs):
    """Forwards, or the gradients alone of one forward pass that went before."""
    if options.direction == 'forward':
        return forward
    o = forward()
    d_o = torch.randn_like(o)
    return lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True)


def make_peer(w, peer):
    """A function to be timed; raises with the reason where there is none."""
    q, k, v = make_inputs(w)
    grouped = q.shape[1] != k.shape[1]
    if peer == 'flex':
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        if w.get('mask') and w['mask'] not in masks(w) or w.get('score') and w['score'] not in scores(w):
            raise ValueError('this script has no such expression in Python')
        block_mask = None
        if w.get('mask'):
            block_mask = create_block_mask(masks(w)[w['mask']], None, None, q.shape[2], k.shape[2], device=device)
        compiled = torch.compile(flex_attention, dynamic=False)
        score = scores(w)[w['score']] if w.get('score') else None
        return directed(lambda: compiled(q, k, v, score_mod=score, block_mask=block_mask, enable_gqa=grouped), (q, k, v))
    if w.get('score') or w.get('mask', CAUSAL) != CAUSAL:
        raise ValueError('scaled_dot_product_attention takes no expression')
    backend = {'cudnn': SDPBackend.CUDNN_ATTENTION, 'flash': SDPBackend.FLASH_ATTENTION}[peer]

    def call():
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal='mask' in w, enable_gqa=grouped)
    return directed(call, (q, k, v))


def time_once(call, count):
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3 / count


def measure(call):
    call()
    torch.cuda.synchronize()
    once = min(time_once(call, 1) for _ in range(3))
    time_once(call, max(1, round(options.warmup_time / once)))
    count = max(1, round(options.min_time / options.repetitions / once))
    return [time_once(call, count) for _ in range(options.repetitions)]


def pairs_of(w):
    """As attune counted them; without it, for what has a formula."""
    if w['name'] in medians and medians[w['name']].get('pairs', -1) > 0:
        return medians[w['name']]['pairs']
    planes, n = w.get('batch', 1) * w['heads'], w['q_len']
    if not w.get('mask'):
        return planes * n * w.get('kv_len', n)
    return planes * n * (n + 1) // 2 if w['mask'] == CAUSAL else None


def row_of(w, peer):
    name = f'{w["name"]}/torch-{peer}/{w["dtype"]}'
    row = {'name': f'{name}_median', 'run_name': name, 'run_type': 'aggregate', 'aggregate_name': 'median',
           'aggregate_unit': 'time', 'time_unit': 'ms', 'workload': w['name'], 'kind': 'peer', 'device': f'torch-{peer}',
           'dtype': w['dtype'], 'plan': f'PyTorch {torch.__version__} {peer}', 'timer': 'CUDA events'}
    try:
        torch._dynamo.reset()
        samples = measure(make_peer(w, peer))
    except Exception as error:  # whatever a backend says when it refuses
        words = str(error).strip().splitlines()
        return row | {'status': 'unsupported', 'message': words[0] if words else type(error).__name__}
    finally:
        torch.cuda.empty_cache()
    median = statistics.median(samples)
    pairs = pairs_of(w)
    factor = 2 if options.direction == 'forward' else 5
    flop = factor * pairs * (w['head_dim'] + w.get('head_dim_v', w['head_dim'])) if pairs else None
    return row | {'status': 'ok', 'message': '', 'real_time': median * 1e3, 'cpu_time': 0, 'median_seconds': median,
                  'p10_seconds': statistics.quantiles(samples, n=10)[0] if len(samples) > 1 else median,
                  'p90_seconds': statistics.quantiles(samples, n=10)[-1] if len(samples) > 1 else median,
                  'samples': len(samples), 'pairs': pairs or -1, 'flop': flop or -1,
                  'flop_per_second': flop / median if flop else -1}


peers = [peer for peer in options.peers.split(',') if peer]
print(f'{"workload":18} {"by":8} {"ms":>9} {"TFLOP/s":>8}  plan, or why not')


def show(row, by):
    if row['status'] == 'ok':
        rate = row.get('flop_per_second', -1)
        print(f'{row["workload"]:18} {by:8} {row["median_seconds"] * 1e3:9.3f} {rate * 1e-12 if rate > 0 else 0:8.1f}  '
              f'{row.get("plan", "")}', flush=True)
    else:
        print(f'{row["workload"]:18} {by:8} {"-":>9} {"-":>8}  {row["message"][:90]}', flush=True)


for w in workloads:
    attune = run_attune(w) if options.attune else None
    if attune:
        document['context'] |= attune['context']
        document['benchmarks'] += attune['benchmarks']
        medians |= {row['workload']: row for row in attune['benchmarks'] if row.get('aggregate_name') == 'median'}
    if w['name'] in medians:
        show(medians[w['name']], 'attune')
    for peer in peers:
        row = row_of(w, peer)
        document['benchmarks'].append(row)
        show(row, peer)
for peer in peers:
    ratios = [row['median_seconds'] / medians[row['workload']]['median_seconds'] for row in document['benchmarks']
              if row.get('device') == f'torch-{peer}' and row['status'] == 'ok' and row['workload'] in medians]
    if ratios:
        mean = statistics.geometric_mean(ratios)
        print(f'attune is {max(mean, 1 / mean):.2f} times {"faster" if mean >= 1 else "slower"} than {peer} (geometric mean of {len(ratios)} '
              f'workloads, {min(ratios):.2f} to {max(ratios):.2f} times as fast)')
document['context'] |= {'torch': torch.__version__, 'cudnn': torch.backends.cudnn.version(),
                        'gpu': torch.cuda.get_device_name(number)}
if options.json:
    options.json.write_text(json.dumps(document, indent=2) + '\n')
