#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Small training runs with attune.torch.attention and with its peers, from the same seed.

    train.py [--runs draft,packed,softcap] [--steps 300] [--with attune,flex] [--device cuda] [--json FILE]

flex is compiled flex_attention, which does not train on the CPU; dense computes all scores with PyTorch's own operations.

draft     a block-parallel draft model (DFlash): blocks of 16 tokens behind random anchors of a context, a new mask in each step
packed    a language model on packed documents of random lengths, a new mask in each step
softcap   a language model with soft-capped scores, one causal mask

The text is made here: a chain over 256 symbols, which a model of this size learns within the steps. The runs of one kind
begin with equal weights and see equal batches. The table has the mean loss of the last twentieth of the steps beside that of
the first, the median time of a step, and the peak of PyTorch's memory, with the lists that attune keeps outside of it."""
import argparse
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

import attune.torch as at

SYMBOLS, BLOCK = 256, 16


class Text:
    """A chain: each symbol is followed by one of four, with falling probability."""

    def __init__(self, device, rows=512, length=2049):
        generator = torch.Generator().manual_seed(1)
        following = torch.randint(0, SYMBOLS, (SYMBOLS, 4), generator=generator)
        pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.07, 0.03]), rows * length, True, generator=generator).view(rows, length)
        tokens = [torch.randint(0, SYMBOLS, (rows,), generator=generator)]
        for i in range(1, length):
            tokens.append(following[tokens[-1], pick[:, i]])
        self.rows = torch.stack(tokens, 1).to(device)

    def batch(self, rows, length, seed):
        picked = torch.randint(0, len(self.rows), (rows,), generator=torch.Generator().manual_seed(seed))
        return self.rows[picked.to(self.rows.device), :length]


class Attention(nn.Module):
    """Projections around whichever attention is compared. context: further keys and values, before the own."""

    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, width // heads
        self.q, self.o = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * kv_heads * self.dim, bias=False)

    def forward(self, x, attend, context=None):
        rows, length, width = x.shape
        q = self.q(x).view(rows, length, self.heads, self.dim).transpose(1, 2)
        source = x if context is None else torch.cat([context, x], 1)
        k, v = self.kv(source).view(rows, source.shape[1], 2, self.kv_heads, self.dim).permute(2, 0, 3, 1, 4)
        return self.o(attend(q, k, v).transpose(1, 2).reshape(rows, length, width))


class Layer(nn.Module):
    def __init__(self, width, heads, kv_heads):
        super().__init__()
        self.attention = Attention(width, heads, kv_heads)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def forward(self, x, attend, context=None):
        x = x + self.attention(self.norm1(x), attend, None if context is None else self.norm1(context))
        return x + self.down(F.silu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, width, heads, kv_heads, layers, places):
        super().__init__()
        self.token, self.place = nn.Embedding(SYMBOLS + 1, width), nn.Embedding(places, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads) for _ in range(layers))
        self.norm, self.out = nn.RMSNorm(width), nn.Linear(width, SYMBOLS, bias=False)

    def embed(self, tokens, places):
        return self.token(tokens) + self.place(places)

    def forward(self, tokens, places, attend, context=None):
        x = self.embed(tokens, places)
        for layer in self.layers:
            x = layer(x, attend, context)
        return self.out(self.norm(x))


class Run:
    """The sizes of a run, and the loss of one step."""

    def __init__(self, options, text, compiled_flex):
        self.text, self.flex, self.options = text, compiled_flex, options
        self.rows, self.length = (4, 2048) if options.size == "full" else (2, 128)
        self.width, self.heads, self.kv_heads, self.layers = (512, 8, 2, 4) if options.size == "full" else (64, 4, 2, 2)
        self.places, self.kept = self.length, None

    def model(self):
        torch.manual_seed(7)
        return Model(self.width, self.heads, self.kv_heads, self.layers, self.places).to(self.options.device)

    def call(self, engine, attune, mask_mod, score_mod=None, batch=None, rows=0, keys=0):
        """attention of (q, k, v) by an engine: attune's arguments, and the mods with the sizes that they are for."""
        rows, keys, device = rows or self.length, keys or self.length, self.options.device
        if engine == "attune":
            return lambda q, k, v: at.attention(q, k, v, **attune)
        if engine == "flex":
            from torch.nn.attention.flex_attention import create_block_mask

            if batch or not self.kept:
                self.kept = create_block_mask(mask_mod, batch, None, rows, keys, device=device, _compile=True)
            kept = self.kept
            return lambda q, k, v: self.flex(q, k, v, score_mod=score_mod, block_mask=kept, enable_gqa=True)
        index = torch.meshgrid(*(torch.arange(n, device=device) for n in (batch or 1, 1, rows, keys)), indexing="ij")
        allowed = mask_mod(*index)

        def dense(q, k, v):
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            scores = q.float() @ k.float().transpose(2, 3) / math.sqrt(q.shape[3])
            scores = scores if score_mod is None else score_mod(scores, *index)
            # A row without keys is 0.
            p = torch.softmax(scores.masked_fill(~allowed, -1e30), -1) * allowed
            return (p @ v.float()).to(q.dtype)

        return dense

    def loss(self, model, engine, step):
        tokens = self.text.batch(self.rows, self.length + 1, step)
        places = torch.arange(self.length, device=tokens.device).expand(self.rows, -1)
        logits = model(tokens[:, :-1], places, self.attend(engine, step))
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


class Softcap(Run):
    def attend(self, engine, step):
        return self.call(engine, dict(mask="causal", score="softcap(30.0)"), lambda b, h, q, kv: q >= kv,
                         lambda score, b, h, q, kv: 30 * torch.tanh(score / 30))


class Packed(Run):
    def attend(self, engine, step):
        generator = torch.Generator().manual_seed(step)
        doc = torch.cumsum(torch.rand(self.length, generator=generator) < 8 / self.length, 0, dtype=torch.int32)
        on = doc.to(self.options.device)
        self.kept = None
        return self.call(engine, dict(mask="causal && document(doc)", captures={"doc": doc}),
                         lambda b, h, q, kv: (q >= kv) & (on[q] == on[kv]))


class Draft(Run):
    """The draft reads the embeddings of the context where a real one reads a larger model's states."""

    def attend(self, engine, step):
        context, (rows, blocks) = self.length, self.anchors.shape
        keep, anchors = self.keep.to(self.options.device), self.anchors.to(self.options.device)

        def allowed(b, h, q, kv):
            own = torch.where(kv < context, kv < anchors[b, q // BLOCK], (kv - context) // BLOCK == q // BLOCK)
            return keep[b, q // BLOCK] & own

        return self.call(engine, dict(mask="dflash_batch(context, block, anchor, keep)", captures={"anchor": self.anchors, "keep": self.keep},
                                      parameters={"context": context, "block": BLOCK}),
                         allowed, None, rows, blocks * BLOCK, context + blocks * BLOCK)

    def loss(self, model, engine, step):
        generator = torch.Generator().manual_seed(step)
        tokens = self.text.batch(self.rows, self.length, step)
        blocks = self.length // BLOCK // 2
        anchors = torch.stack([torch.randperm(self.length - BLOCK - 1, generator=generator)[:blocks].sort().values + 1 for _ in range(self.rows)])
        self.anchors, self.keep = anchors.int(), torch.rand(self.rows, blocks, generator=generator) > 0.05
        places = (anchors[:, :, None] + torch.arange(BLOCK)).to(tokens.device).flatten(1)
        wanted = tokens.gather(1, places)
        given = wanted.clone()
        given.view(self.rows, blocks, BLOCK)[:, :, 1:] = SYMBOLS
        context = model.embed(tokens, torch.arange(self.length, device=tokens.device).expand(self.rows, -1))
        logits = model(given, places, self.attend(engine, step), context)
        losses = F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none").view(self.rows, blocks, BLOCK)
        weight = self.keep.to(tokens.device)[:, :, None] * 0.8 ** torch.arange(BLOCK, device=tokens.device) * (torch.arange(BLOCK, device=tokens.device) > 0)
        return (losses * weight).sum() / weight.sum()


def train(run, engine, options):
    """The losses, the seconds of each step, and the peak of memory over what is held between the steps."""
    cuda = options.device.startswith("cuda")
    model = run.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    losses, times = [], []
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1, (step + 1) / 20) * (1 - 0.9 * step / options.steps)
        if cuda:
            torch.cuda.synchronize()
            if step == 5:  # the first steps compile
                torch.cuda.reset_peak_memory_stats()
        begin = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(options.device.split(":")[0], torch.bfloat16, enabled=cuda):
            loss = run.loss(model, engine, step)
        loss.backward()
        optimizer.step()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
        losses.append(loss.detach())
    peak = torch.cuda.max_memory_allocated() if cuda else 0
    outside = sum(kept.mask.stats().bytes for kept in at._operator.masks._values.values()) if engine == "attune" else 0
    return [loss.item() for loss in losses], times, peak, outside


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="draft,packed,softcap")
    parser.add_argument("--with", dest="engines", default="attune,flex" if torch.cuda.is_available() else "attune,dense")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--size", choices=["full", "small"], default="full" if torch.cuda.is_available() else "small")
    parser.add_argument("--json", help="the losses and times of all steps")
    options = parser.parse_args()
    known = {"draft": Draft, "packed": Packed, "softcap": Softcap}
    from torch.nn.attention.flex_attention import flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    text = Text(options.device)
    results, failed = [], False
    print(f'{"run":9} {"by":7} {"loss, first 20th":>17} {"last 20th":>10} {"ms a step":>10} {"peak MiB":>9} {"lists MiB":>10}')
    for name in options.runs.split(","):
        rows = {}
        for engine in options.engines.split(","):
            at.clear()
            losses, times, peak, outside = train(known[name](options, text, flex), engine, options)
            if options.device.startswith("cuda"):
                torch.cuda.empty_cache()
            part = max(1, options.steps // 20)
            rows[engine] = first, last = statistics.mean(losses[:part]), statistics.mean(losses[-part:])
            print(f"{name:9} {engine:7} {first:17.4f} {last:10.4f} {statistics.median(times[len(times) // 6:]) * 1e3:10.2f} "
                  f"{peak / 2**20:9.0f} {outside / 2**20:10.2f}", flush=True)
            failed |= not math.isfinite(last) or last >= first
            results.append({"run": name, "by": engine, "losses": losses, "seconds": times, "peak_bytes": peak, "list_bytes": outside})
        if len(rows) == 2:
            (_, a), (_, b) = rows.values()
            print(f"{name:9} the last losses differ by {abs(a - b):.4f}", flush=True)
            failed |= abs(a - b) > 0.05 * max(a, b)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file)
    sys.exit("a loss did not fall, or two differ by more than a twentieth" if failed else 0)


main()
