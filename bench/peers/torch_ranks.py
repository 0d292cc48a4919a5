#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""PyTorch's context parallelism beside attune's ranks, on the same shapes and devices in one run (docs/benchmarking.md).

For each workload of a file and each direction runs `attune bench --ranks N`, then times on the same GPUs what PyTorch has for it:
`torch.distributed.tensor.experimental`'s context parallelism with scaled_dot_product_attention (the cuDNN and flash backends, where
there is no mask but causal), and with compiled flex_attention, which it has gather the keys and values of all ranks. Rows are dealt by
PyTorch's own balancers: head and tail for causal masks, by processing time for documents, none without a mask. PyTorch runs in a
process for each GPU, which waits while attune runs. It has nothing for decode: rows say so.

A sample is from when all ranks may begin until the last is done, the mean of as many calls as fill --min-time / --repetitions seconds;
the figure is the samples' median. Forward is timed with inputs that require gradients, backward is the gradients alone of one forward
call that went before. At the end there is one table: a line for each workload and direction.

    bench/peers/torch_ranks.py --attune build/bench/attune --json both.json
    bench/peers/torch_ranks.py --attune build/bench/attune --device cpu --scale 0.01 --check      # on the CPU, over gloo; flex alone
"""
import argparse
import ast
import datetime
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import attune_rows

here = pathlib.Path(__file__).resolve().parent
# The masks that both sides have: attune's text, and flex_attention's function.
CAUSAL, DOCUMENTS = 'q >= kv', 'q >= kv && doc[q] == doc[kv]'


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--attune', default='attune', help='the program; "" leaves attune out, and documents with it')
    parser.add_argument('--file', type=pathlib.Path, default=here.parent / 'workloads/shapes/ranks.json', help='workloads')
    parser.add_argument('--only', default='', help='workloads by name, with commas between')
    parser.add_argument('--ranks', type=int, default=2)
    parser.add_argument('--device', default='cuda', help='cuda, the first GPUs; or cpu')
    parser.add_argument('--peers', default='cudnn,flash,flex', help='of cudnn, flash and flex; "" = none')
    parser.add_argument('--directions', default='forward,backward', help='of forward and backward')
    parser.add_argument('--transports', default='peers', help="attune's, with commas between: peers, nccl or host")
    parser.add_argument('--scale', type=float, default=1, help='of the work of each workload, as attune bench has it')
    parser.add_argument('--repetitions', type=int, default=5, help='samples of a row')
    parser.add_argument('--min-time', type=float, default=0.2, help="seconds that a row's samples take together")
    parser.add_argument('--warmup-time', type=float, default=0.1, help='seconds of calls before the first sample')
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--limit', type=float, default=0, help='seconds after which no further workload begins; 0 = none')
    parser.add_argument('--check', action='store_true', help="hold PyTorch's results to one device's (small shapes)")
    parser.add_argument('--json', type=pathlib.Path, help='all rows, as attune bench --json writes them; after each workload')
    parser.add_argument('--bench', default='', help='further words for attune bench')
    parser.add_argument('--worker', type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument('--meet', default='', help=argparse.SUPPRESS)
    return parser.parse_args()


def lengths(w):
    return w['q_len'], w.get('kv_len', w['q_len'])


def is_decode(w):
    return w['q_len'] == 1


def scaled(w, scale, ranks):
    """The workload with about `scale` of its pairs, in whole blocks for each half of a rank's rows, as PyTorch needs them."""
    if scale == 1:
        return w
    if is_decode(w):
        return w | {'kv_len': max(256, int(lengths(w)[1] * scale) // 256 * 256)}
    step = 256 * ranks
    return w | {'q_len': max(step, int(w['q_len'] * scale ** 0.5) // step * step)}


# ------------------------------------------------------------------------------------------------------------- PyTorch

class Worker:
    """One rank of PyTorch. Commands are lines of standard input; rank 0 answers each with a line of rows."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        self.torch, self.dist, self.options, self.rank = torch, dist, options, options.worker
        self.cuda = options.device.startswith('cuda')
        if self.cuda:
            torch.cuda.set_device(self.rank)
        else:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // options.ranks))
        self.device = torch.device('cuda', self.rank) if self.cuda else torch.device('cpu')
        dist.init_process_group('nccl' if self.cuda else 'gloo', init_method=f'file://{options.meet}', rank=self.rank,
                                world_size=options.ranks, device_id=self.device if self.cuda else None,
                                timeout=datetime.timedelta(seconds=90))
        self.mesh = init_device_mesh('cuda' if self.cuda else 'cpu', (options.ranks,))
        self.meet()

    def meet(self):
        self.dist.all_reduce(self.torch.zeros(1, device=self.device))
        self.wait()

    def wait(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def most(self, value):
        """The largest of all ranks."""
        x = self.torch.tensor([value], dtype=self.torch.float64, device=self.device)
        self.dist.all_reduce(x, op=self.dist.ReduceOp.MAX)
        return x.item()

    def mask_of(self, w):
        """flex_attention's function; None without a mask."""
        if not w.get('mask'):
            return None
        if w['mask'] == CAUSAL:
            return lambda b, h, q, kv: q >= kv
        if w['mask'] != DOCUMENTS:
            raise ValueError(f'masks are {CAUSAL} and {DOCUMENTS} here')
        doc = load(self.torch, pathlib.Path(w['folder']) / f'{w["name"]}.doc.npy').to(self.device)
        return lambda b, h, q, kv: (q >= kv) & (doc[q] == doc[kv])

    def make_inputs(self, w):
        """q, k, v and dO of the whole sequence, the same on every rank."""
        generator = self.torch.Generator(self.device).manual_seed(self.options.seed)
        kv_heads, dim, (q_len, kv_len) = w.get('kv_heads', w['heads']), w['head_dim'], lengths(w)
        dtype = {'bf16': self.torch.bfloat16, 'f16': self.torch.float16, 'f32': self.torch.float32}[w['dtype']]
        return [self.torch.randn((w.get('batch', 1), heads, n, dim), generator=generator, device=self.device, dtype=dtype)
                for heads, n in ((w['heads'], q_len), (kv_heads, kv_len), (kv_heads, kv_len), (w['heads'], q_len))]

    def make_peer(self, w, peer, repeat):
        """A forward call, its inputs that need gradients, dO, and what holds the results to one device's. repeat: every query head
        has keys and values of its own."""
        from torch import nn
        from torch.distributed.tensor.experimental import _attention as cp
        from torch.distributed.tensor.experimental._context_parallel import _load_balancer as balancers
        from torch.distributed.tensor.parallel import parallelize_module
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention
        torch, ranks, length = self.torch, self.options.ranks, w['q_len']
        if is_decode(w):
            raise ValueError('context parallelism wants as many queries as keys')
        if peer != 'flex' and w.get('mask', CAUSAL) != CAUSAL:
            raise ValueError('scaled_dot_product_attention takes no mask but causal over ranks')
        if peer != 'flex' and not self.cuda:
            raise ValueError('context parallelism has scaled_dot_product_attention on GPUs alone')
        mask, whole, block_mask, balancer = self.mask_of(w), self.make_inputs(w), None, None
        if repeat:
            whole[1:3] = [x.repeat_interleave(w['heads'] // x.shape[1], 1) for x in whole[1:3]]
        if mask and peer == 'flex':
            block_mask = create_block_mask(mask, None, None, *lengths(w), device=self.device, _compile=self.cuda)
        if w.get('mask') == CAUSAL:
            balancer = balancers._HeadTailLoadBalancer(length, ranks, self.device)
        elif mask:
            balancer = balancers._PTRRLoadBalancer(block_mask, ranks)
        buffers = whole + ([block_mask] if block_mask else [])
        shards = cp._context_parallel_shard(self.mesh, buffers, [2] * len(buffers), balancer)
        *inputs, d_o = [x.detach().contiguous() for x in shards[:4]]
        for x in inputs:
            x.requires_grad_(self.cuda)  # flex_attention has no backward pass on a CPU
        grouped = w['heads'] != w.get('kv_heads', w['heads']) and not repeat
        kinds = cp._ContextParallel.AttentionType

        class Attention(nn.Module):
            def forward(self, q, k, v):
                if peer == 'flex':
                    return attend(q, k, v, block_mask=shards[4] if block_mask else None, enable_gqa=grouped)
                with sdpa_kernel(SDPBackend.CUDNN_ATTENTION if peer == 'cudnn' else SDPBackend.FLASH_ATTENTION):
                    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(mask), enable_gqa=grouped)

        attend = torch.compile(flex_attention, dynamic=False) if self.cuda else flex_attention
        if peer != 'flex':
            cp._enable_context_parallel_dispatcher()
        module = parallelize_module(Attention(), self.mesh, cp._ContextParallel(2, kinds.FLEX if peer == 'flex' else kinds.SDPA))

        def check():
            """The largest difference from flex_attention on one device, of o and the gradients."""
            full = [x.clone().requires_grad_(self.cuda) for x in whole[:3]]
            of_one = flex_attention(*full, block_mask=block_mask or (create_block_mask(mask, None, None, *lengths(w), device=self.device)
                                                                     if mask else None), enable_gqa=grouped)
            wanted, found = [of_one], [module(*inputs)]
            if self.cuda:
                wanted += torch.autograd.grad(of_one, full, whole[3])
                found += torch.autograd.grad(found[0], inputs, d_o)
            mine = cp._context_parallel_shard(self.mesh, [x.detach() for x in wanted], [2] * len(wanted), balancer)
            return max((a.detach() - b).abs().max().item() for a, b in zip(found, mine))

        if not self.options.check:
            del whole
        return lambda: module(*inputs), inputs, d_o, check if self.options.check else None

    def sample(self, call, count):
        self.wait()
        self.meet()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        self.wait()
        return self.most(time.perf_counter() - begin) / count

    def measure(self, call):
        call()
        once = min(self.sample(call, 1) for _ in range(2))
        self.sample(call, max(1, round(self.options.warmup_time / once)))
        count = max(1, round(self.options.min_time / self.options.repetitions / once))
        return [self.sample(call, count) for _ in range(self.options.repetitions)]

    def rows_of(self, w, peer, repeat=False):
        """A row for each direction. A failure is of every rank: the shapes are alike. scaled_dot_product_attention that refuses fewer
        heads of keys is given as many."""
        rows, torch = [], self.torch
        torch._dynamo.reset()
        try:
            forward, inputs, d_o, check = self.make_peer(w, peer, repeat)
            message = f'largest difference from one device {self.most(check()):.2g}' if check else ''
            message += ', keys and values repeated for each query head' if repeat else ''
            for direction in w['directions']:
                call = forward
                if direction == 'backward':
                    if not self.cuda:
                        raise ValueError('flex_attention has no backward pass on a CPU')
                    o = forward()
                    call = lambda: torch.autograd.grad(o, inputs, d_o, retain_graph=True)
                rows.append(self.row(w, peer, direction, self.measure(call), message))
        except Exception as error:  # whatever a backend says when it refuses
            words = str(error).strip().splitlines()
            if peer != 'flex' and self.cuda and not repeat and not isinstance(error, ValueError):
                forward = inputs = d_o = check = call = o = error = None
                torch.cuda.empty_cache()
                return self.rows_of(w, peer, True)
            done = [row['direction'] for row in rows]
            rows += [self.row(w, peer, direction, [], words[0] if words else type(error).__name__)
                     for direction in w['directions'] if direction not in done]
        forward = inputs = d_o = check = call = o = None
        if self.cuda:
            torch.cuda.empty_cache()
        return rows

    def row(self, w, peer, direction, samples, message):
        name = f'{w["name"]}{"/backward" if direction == "backward" else ""}/torch-{peer}-{self.options.ranks}/{w["dtype"]}'
        row = {'name': f'{name}_median', 'run_name': name, 'run_type': 'aggregate', 'aggregate_name': 'median', 'aggregate_unit': 'time',
               'time_unit': 'ms', 'workload': w['name'], 'direction': direction, 'kind': 'peer', 'device': f'torch-{peer}',
               'dtype': w['dtype'], 'plan': f'PyTorch {self.torch.__version__} context parallelism, {peer}', 'timer': 'clock',
               'ranks': self.options.ranks, 'message': message}
        if not samples:
            return row | {'status': 'unsupported'}
        deciles = statistics.quantiles(samples, n=10) if len(samples) > 1 else samples
        median = statistics.median(samples)
        return row | {'status': 'ok', 'real_time': median * 1e3, 'cpu_time': 0, 'median_seconds': median, 'p10_seconds': deciles[0],
                      'p90_seconds': deciles[-1], 'samples': len(samples)}

    def serve(self):
        answers = os.fdopen(os.dup(1), 'w')
        os.dup2(2, 1)  # what libraries print is no answer
        about = {'torch': self.torch.__version__, 'gpu': self.torch.cuda.get_device_name(self.rank) if self.cuda else 'none',
                 'cudnn': self.torch.backends.cudnn.version() if self.cuda else 0}
        print(json.dumps(about), file=answers, flush=True)
        for line in sys.stdin:
            w = json.loads(line)
            rows = [row for peer in w['peers'] for row in self.rows_of(w, peer)]
            print(json.dumps(rows if self.rank == 0 else []), file=answers, flush=True)
        self.dist.destroy_process_group()


def load(torch, path):
    """An array that attune wrote: NPY 1.0 in C order, of i32."""
    data = path.read_bytes()
    end = 10 + int.from_bytes(data[8:10], 'little')
    about = ast.literal_eval(data[10:end].decode())
    if about['descr'] != '<i4':
        raise ValueError(f'{path.name} is {about["descr"]}, expected <i4')
    return torch.frombuffer(bytearray(data[end:]), dtype=torch.int32).reshape(about['shape'])


class Team:
    """PyTorch's processes."""

    def __init__(self, options, folder):
        words = [sys.executable, __file__, '--ranks', str(options.ranks), '--device', options.device, '--meet', str(folder / 'meet'),
                 '--repetitions', str(options.repetitions), '--min-time', str(options.min_time), '--warmup-time',
                 str(options.warmup_time), '--seed', str(options.seed)] + (['--check'] if options.check else [])
        self.workers = [subprocess.Popen(words + ['--worker', str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                        for rank in range(options.ranks)]
        self.about = {}

    def begin(self):
        try:
            self.about = self.answers()
        except (OSError, ValueError):
            return False
        return True

    def answers(self):
        """Rank 0's answer, after that of every other rank."""
        lines = [worker.stdout.readline() for worker in reversed(self.workers)]
        if not all(lines):
            raise OSError('a process of PyTorch ended')
        return json.loads(lines[-1])

    def run(self, w):
        for worker in self.workers:
            worker.stdin.write(json.dumps(w) + '\n')
            worker.stdin.flush()
        return self.answers()

    def end(self):
        for worker in self.workers:
            try:
                worker.stdin.close()
            except OSError:  # it ended before
                pass
        for worker in self.workers:
            try:
                worker.wait(20)
            except subprocess.TimeoutExpired:
                worker.kill()


# -------------------------------------------------------------------------------------------------------------- attune

def run_attune(options, w, direction, transport, folder):
    words = ['--ranks', str(options.ranks), '--direction', direction, '--no-peaks']
    if options.device.startswith('cuda'):
        words += ['--transport', transport]
    if w.get('captures'):
        words += ['--write-captures', str(folder)]
    return attune_rows.run(options, w, folder, words)


# --------------------------------------------------------------------------------------------------------------- table

def milliseconds(seconds):
    return f'{seconds * 1e3:.3f}' if seconds and seconds > 0 else '-'


COLUMNS = [('one', 9), ('ranks', 9), ('times', 6), ('%hid', 5), ('imb', 6), ('%ring', 6), ('predict', 9)]


def line_of(row, peers):
    """A row of attune, with the times of PyTorch's rows beside it."""
    get = lambda key: row.get(key) or 0
    ring, hidden = get('ring_bytes'), get('exchange_seconds') > get('p90_seconds') - get('p10_seconds')
    cells = [milliseconds(get('one_rank_seconds')), milliseconds(get('median_seconds')),
             f'{get("speedup"):.2f}' if get('speedup') > 0 else '-', f'{100 * get("hidden_share"):.0f}' if hidden else '-',
             f'{get("imbalance"):.3f}' if get('imbalance') > 0 else '-',
             f'{100 * get("received_bytes") / ring:.0f}' if ring > 0 else '-', milliseconds(get('predicted_seconds'))]
    return ''.join(f' {cell:>{width}}' for cell, (_, width) in zip(cells, COLUMNS)) + ''.join(f' {milliseconds(peer):>9}' for peer in peers)


def show(results, peers):
    """One line for each workload, direction and transport: of attune, and PyTorch's times."""
    print(f'{"ms":32}' + ''.join(f' {name:>{width}}' for name, width in COLUMNS) + ''.join(f' {peer:>9}' for peer in peers))
    for name, direction, transport, own, theirs in results:
        title = f'{name} {direction}' + (f' {transport}' if transport else '')
        by = {row['device'].removeprefix('torch-'): row.get('median_seconds') for row in theirs if row['direction'] == direction}
        print(f'{title:32}' + line_of(own or {}, [by.get(peer) for peer in peers])
              + ('' if own and own.get('status') == 'ok' else f'  {(own or {}).get("message", "attune did not run")}'))
    print('one: one device; ranks: all; times: as fast; %hid: of the messages\' time that is hidden; imb: largest work / mean; %ring: keys\n'
          'fetched / those of a ring; predict: of one device\'s rate and the messages\' alone; then PyTorch\'s context parallelism.')


def main():
    options = arguments()
    if options.worker >= 0:
        Worker(options).serve()
        return
    workloads = json.loads(options.file.read_text())
    if options.only:
        wanted = options.only.split(',')
        if missing := set(wanted) - {w['name'] for w in workloads}:
            sys.exit(f'no workload in {options.file} is called {", ".join(sorted(missing))}')
        workloads = [w for w in workloads if w['name'] in wanted]
    peers = [peer for peer in options.peers.split(',') if peer]
    transports = options.transports.split(',') if options.device.startswith('cuda') else ['']
    document, results, begin = {'context': {}, 'benchmarks': []}, [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix='torch-ranks-') as scratch:
        folder = pathlib.Path(scratch)
        team = Team(options, folder) if peers else None
        if team and not team.begin():
            print('PyTorch did not begin: attune alone', file=sys.stderr)
            team.end()
            team = None
        document['context'] |= team.about if team else {}
        for w in workloads:
            if options.limit and time.monotonic() - begin > options.limit:
                print(f'{w["name"]} and those after it: not begun, {options.limit:g} s are over', file=sys.stderr)
                break
            w = scaled(w, options.scale, options.ranks)
            directions = ['decode'] if is_decode(w) else options.directions.split(',')
            own = {}
            for direction in directions:
                for transport in transports:
                    made = run_attune(options, w, direction, transport, folder) if options.attune else None
                    if not made:
                        continue
                    document['context'] |= made['context']
                    document['benchmarks'] += made['benchmarks']
                    own[direction, transport] = next((row for row in made['benchmarks'] if row.get('aggregate_name') == 'median'), None)
            theirs = []
            try:
                theirs = team.run(w | {'peers': peers, 'directions': directions, 'folder': scratch}) if team else []
            except OSError as error:
                print(f'{w["name"]}: {error}', file=sys.stderr)
                team.end()
                team = None
            document['benchmarks'] += theirs
            results += [(w['name'], direction, transport if len(transports) > 1 else '', own.get((direction, transport)), theirs)
                        for direction in directions for transport in transports]
            for row in theirs:
                if row['message']:
                    print(f'{row["run_name"]}: {row["message"]}', file=sys.stderr)
            if options.json:
                options.json.write_text(json.dumps(document, indent=2) + '\n')
        if team:
            team.end()
    show(results, peers)


if __name__ == '__main__':
    main()
