#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The time of calls of attune.torch on the host: CPU tensors so small that little else is left, beside PyTorch's own attention.

    taskset -c 0 bindings/python/tests/host_time.py"""
import time

import torch
import torch.nn.functional as F

import attune.torch as at

q, k, v = (torch.randn(1, 4, 16, 16, requires_grad=True) for _ in range(3))
document = torch.zeros(16, dtype=torch.int32)
lists = at.create_block_mask("causal", 1, 1, 16, 16)
torch.set_num_threads(1)


def least(run):
    """Microseconds of a call: the least mean of ten times 300 calls."""
    times = []
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(300):
            run()
        times.append((time.perf_counter() - begin) / 300)
    return 1e6 * min(times)


def row(what, attend):
    with torch.no_grad():
        forward = least(attend)
    print(f"{what:34} {forward:9.1f} {least(lambda: attend().sum().backward()):9.1f}")


print(f'{"us":34} {"forward":>9} {"step":>9}')
row("causal", lambda: at.attention(q, k, v, "causal"))
row("a BlockMask", lambda: at.attention(q, k, v, lists))
row("documents", lambda: at.attention(q, k, v, "document(doc)", captures={"doc": document}))
row("as an operator of the dispatcher", lambda: torch.ops.attune.attention(q, k, v, "causal", "", [], "", "", [], "", [], 0.0, [128, 128, 0, 0], "", True, False)[0])
row("scaled_dot_product_attention", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
