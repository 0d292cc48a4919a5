# SPDX-License-Identifier: MIT
"""Sinks, and calls over a paged cache, quantised ones too, against NumPy in float64."""
import numpy as np
import pytest

import attune

rng = np.random.default_rng(2)


@pytest.fixture(scope="module")
def cpu():
    return attune.Device("cpu")


def normal(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


def ints(*values):
    return np.array(values, np.int32)


def naive(q, k, v, allowed, sinks=None):
    """[heads, rows, dim] over [heads, keys, dim]: o and lse."""
    s = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)) / np.sqrt(q.shape[-1])
    s = np.where(allowed, s, -np.inf)
    total = np.exp(s).sum(-1) + (0 if sinks is None else np.exp(sinks.astype(np.float64))[:, None])
    return np.exp(s) @ v / total[..., None], np.log(total)


def test_sinks(cpu):
    q, k, v, d_o, sinks = normal(1, 3, 20, 16), normal(1, 3, 50, 16), normal(1, 3, 50, 16), normal(1, 3, 20, 16), normal(3)
    shape = dict(head_dim=16, heads=3, q_len=20, kv_len=50, sinks=True)
    f = attune.Plan(cpu, attune.Problem(lse=True, **shape)).forward(q, k, v, sinks=sinks, lse=True)
    o, lse = naive(q[0], k[0], v[0], True, sinks)
    np.testing.assert_allclose(f.o[0], o, atol=2e-6)
    np.testing.assert_allclose(f.lse[0], lse, atol=2e-6)
    backward = attune.Plan(cpu, attune.Problem(direction="backward", **shape))
    b = backward.backward(q, k, v, f.o, f.lse, d_o, sinks=sinks, d_sinks=True)
    expected = -(np.exp(sinks[:, None] - lse) * (o * d_o[0]).sum(-1)).sum(-1)
    np.testing.assert_allclose(b.d_sinks, expected, atol=2e-5)
    assert backward.backward(q, k, v, f.o, f.lse, d_o, sinks=sinks).d_sinks is None
    with pytest.raises(attune.InvalidArgument, match="d_sinks needs"):
        backward.backward(q, k, v, f.o, f.lse, d_o, d_sinks=True)


PAGE, HEADS, KV_HEADS, DIM = 8, 4, 2, 32


def serving_plan(cpu, **more):
    window = attune.Expr("mask", "q >= kv && q - kv < width", parameters={"width": "i32"})
    return attune.Plan(cpu, attune.Problem(head_dim=DIM, heads=HEADS, kv_heads=KV_HEADS, q_len=12, kv_len=40, batch=3, tokens=16,
                                           page=PAGE, mask=window, lse=True, **more))


def rotate(x, cosine, sine):
    first, second = np.split(x, 2, -1)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine], -1)


def test_cache(cpu):
    """Rows are rotated and appended in two steps, and a window is a parameter; a sequence has no rows."""
    plan = serving_plan(cpu)
    pool = np.full((2, 11, PAGE, KV_HEADS, DIM), np.nan, np.float32)
    k_pages, v_pages = pool.swapaxes(2, 3)
    table = np.full((3, 5), -1, np.int32)
    table[0, :3], table[2, :2] = (7, 0, 9), (3, 10)
    cache = attune.Cache(k_pages, v_pages, pages=table)
    positions = np.arange(40)[:, None] * 100.0 ** -(np.arange(DIM // 2) / (DIM // 2))
    cosine, sine = np.cos(positions).astype(np.float32), np.sin(positions).astype(np.float32)
    keys, values = np.zeros((3, 40, KV_HEADS, DIM)), np.zeros((3, 40, KV_HEADS, DIM))
    lengths = np.zeros(3, np.int32)
    for rows in ((12, 0, 2), (9, 0, 1)):
        starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
        lengths += np.array(rows, np.int32)
        q, k, v = normal(starts[3], HEADS, DIM), normal(starts[3], KV_HEADS, DIM), normal(starts[3], KV_HEADS, DIM)
        batch = attune.Batch(lengths, q_start=starts)
        turned = np.empty_like(q)
        plan.append(cache, k, v, batch=batch, cosine=cosine, sine=sine, q=q, q_out=turned)
        for width in (40, 6):
            f = plan.forward(turned, cache=cache, batch=batch, parameters={"width": width}, lse=True)
            assert f.o.shape == q.shape and f.lse.shape == q.shape[:2]
            for b, count in enumerate(rows):
                mine, at = slice(starts[b], starts[b + 1]), np.arange(lengths[b] - count, lengths[b])
                c, s = cosine[at, None], sine[at, None]
                keys[b, at], values[b, at] = rotate(k[mine], c, s), v[mine]
                seen = (at[:, None] >= np.arange(lengths[b])) & (at[:, None] - np.arange(lengths[b]) < width)
                spread = [x[b, :lengths[b]].swapaxes(0, 1).repeat(HEADS // KV_HEADS, 0) for x in (keys, values)]
                o, lse = naive(rotate(q[mine], c, s).swapaxes(0, 1), *spread, seen)
                np.testing.assert_allclose(f.o[mine], o.swapaxes(0, 1), atol=1e-5)
                np.testing.assert_allclose(f.lse[mine], lse.swapaxes(0, 1), atol=1e-5)
    assert np.isnan(pool[:, [1, 2, 4, 5, 6, 8]]).all()


def test_cache_is_checked(cpu):
    plan = serving_plan(cpu)
    q, k, pool = normal(2, HEADS, DIM), normal(1, HEADS, 2, DIM), normal(11, KV_HEADS, PAGE, DIM)
    cache, batch = attune.Cache(pool, pool, pages=np.zeros((3, 5), np.int32)), attune.Batch(ints(3, 3, 3), q_start=ints(0, 1, 2, 2))
    assert np.isfinite(plan.forward(q, cache=cache, batch=batch, parameters={"width": 9}).o).all()
    for words in (dict(cache=cache), dict(batch=batch), dict(k=k, v=k, cache=cache, batch=batch), dict(k=k)):
        with pytest.raises(attune.InvalidArgument, match="over k and v"):
            plan.forward(q, **words)
    with pytest.raises(attune.InvalidArgument, match="kv_len"):
        plan.forward(q, cache=cache, batch=attune.Batch(np.zeros(3, np.float32), q_start=ints(0, 1, 2, 2)), parameters={"width": 9})
    with pytest.raises(attune.InvalidArgument, match="page"):
        plan.forward(q, cache=attune.Cache(pool[:, :, :4], pool[:, :, :4], pages=cache.pages), batch=batch, parameters={"width": 9})
    with pytest.raises(attune.InvalidArgument):
        plan.append(cache, q, q, batch=batch)


def f8(exponent_bits, mantissa_bits):
    """All 256 codes of OCP FP8: E4M3 has no infinity."""
    code = np.arange(256)
    sign, magnitude = np.where(code & 128, -1.0, 1.0), code & 127
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & (1 << mantissa_bits) - 1
    bias, one = (1 << exponent_bits - 1) - 1, 1 << mantissa_bits
    value = np.where(exponent, (1 + mantissa / one) * 2.0 ** (exponent - bias), mantissa / one * 2.0 ** (1 - bias))
    if exponent_bits == 4:
        value[magnitude == 127] = np.nan
    else:
        top = exponent == 31
        value[top] = np.where(mantissa[top], np.nan, np.inf)
    return sign * value


def blocks(stored, size):
    """ggml's blocks of an array of bytes: the f16 factors, and the codes' bytes."""
    x = stored.reshape(*stored.shape[:-1], -1, size)
    return np.ascontiguousarray(x[..., :2]).view(np.float16).astype(np.float64), x[..., 2:]


def q8_0(stored):
    factors, codes = blocks(stored, 34)
    return (factors * np.ascontiguousarray(codes).view(np.int8)).reshape(*stored.shape[:-1], -1)


def q4_0(stored):
    factors, codes = blocks(stored, 18)
    return (factors * (np.concatenate([codes & 15, codes >> 4], -1) - 8.0)).reshape(*stored.shape[:-1], -1)


# Type: what a row's bytes are, and the most that rounding changes, of the largest magnitude of the row. q8_0's factor is rounded too.
QUANTISED = {
    "f8e4m3": (lambda x: f8(4, 3)[x], 1 / 16), "f8e5m2": (lambda x: f8(5, 2)[x], 1 / 8),
    "i8": (lambda x: x.astype(np.float64), 1 / 253), "q8_0": (q8_0, 1 / 225), "q4_0": (q4_0, 1 / 7),
}


def quantised_pool(dtype, pages):
    """Tokens before heads: strides that are not of a contiguous array."""
    shape = (pages, PAGE, KV_HEADS, attune.row_bytes(dtype, DIM))
    return (np.zeros(shape, np.int8) if dtype == "i8" else np.full(shape, 0xAA, np.uint8)).swapaxes(1, 2)


@pytest.mark.parametrize("factors, types", [("rows", (name, name)) for name in QUANTISED] + [("rows", ("q8_0", "q4_0"))] +
                         [("heads", types) for types in (("f8e4m3", "f8e5m2"), ("f16", "i8"))])
def test_quantised_cache(cpu, types, factors):
    """Rows are quantised by append; o is that of the dequantised keys and values, whose errors are those of their types."""
    plan = serving_plan(cpu, kv_dtype=types[0], v_dtype=types[1])
    table, starts, lengths = ints(5, 1, 0, 3, 4, -1).reshape(3, 2), ints(0, 9, 10, 14), ints(9, 1, 4)
    pools = [np.zeros((6, KV_HEADS, PAGE, DIM), np.float16) if x == "f16" else quantised_pool(x, 6) for x in types]
    scales = [None if x not in ("f8e4m3", "f8e5m2", "i8") else np.zeros((6, KV_HEADS, PAGE), np.float32) if factors == "rows" else
              np.array([4 / 127, 5 / 127], np.float32) for x in types]
    cache = attune.Cache(*pools, pages=table, k_scale=scales[0], v_scale=scales[1])
    q, batch = normal(14, HEADS, DIM), attune.Batch(lengths, q_start=starts)
    new = normal(14, KV_HEADS, DIM), normal(14, KV_HEADS, DIM)
    plan.append(cache, *new, batch=batch)
    decoded = []
    for dtype, pool, scale in zip(types, pools, scales):
        x = pool.astype(np.float64) if dtype == "f16" else QUANTISED[dtype][0](np.ascontiguousarray(pool))
        decoded.append(x if scale is None else x * (scale[..., None] if scale.ndim == 3 else scale[:, None, None]))
    f = plan.forward(q, cache=cache, batch=batch, parameters={"width": 6}, lse=True)
    for b in range(3):
        mine, at = slice(starts[b], starts[b + 1]), np.arange(lengths[b])
        k, v = (x[table[b, at // PAGE], :, at % PAGE] for x in decoded)
        for got, wanted, dtype, scale in zip((k, v), new, types, scales):
            # The factors of heads are those of magnitudes up to 5.
            most = 5 if scale is not None and scale.ndim == 1 else np.abs(wanted[mine]).max(-1, keepdims=True)
            assert (np.abs(got - wanted[mine]) <= most * QUANTISED.get(dtype, (None, 1 / 2000))[1]).all(), dtype
        seen = (at[:, None] >= at) & (at[:, None] - at < 6)
        o, lse = naive(q[mine].swapaxes(0, 1), *(x.swapaxes(0, 1).repeat(HEADS // KV_HEADS, 0) for x in (k, v)), seen)
        np.testing.assert_allclose(f.o[mine], o.swapaxes(0, 1), atol=1e-5)
        np.testing.assert_allclose(f.lse[mine], lse.swapaxes(0, 1), atol=1e-5)


def test_bytes_are_checked(cpu):
    plan, batch, q = serving_plan(cpu, kv_dtype="q8_0"), attune.Batch(ints(1), q_start=ints(0, 1)), normal(1, HEADS, DIM)
    good = np.zeros((6, KV_HEADS, PAGE, 34), np.uint8)

    def forward(pool):
        return plan.forward(q, cache=attune.Cache(pool, pool, pages=ints(0).reshape(1, 1)), batch=batch, parameters={"width": 9})

    assert not forward(good).o.any()
    for bad, what in ((good[..., :33], "whole blocks of 34"), (np.zeros((6, KV_HEADS, PAGE, 68), np.uint8)[..., ::2], "one after another"),
                      (np.zeros((6, KV_HEADS, PAGE, 40), np.uint8)[..., :34], "multiples of 34"),
                      (np.zeros((6, KV_HEADS, PAGE, 68), np.uint8), "head_dim"), (np.zeros((6, KV_HEADS, PAGE, DIM), np.int8), "i8")):
        with pytest.raises(attune.InvalidArgument, match=what):
            forward(bad)
    assert [attune.row_bytes(name, 64) for name in ("f32", "bf16", "f8e5m2", "i8", "q8_0", "q4_0")] == [256, 128, 64, 64, 68, 36]
    with pytest.raises(attune.InvalidArgument, match="no multiple of 32"):
        attune.row_bytes("q4_0", 40)
    with pytest.raises(attune.InvalidArgument, match="i8"):
        attune.Expr("mask", "x[kv] > 0", captures={"x": ("i8", 1)})


def test_schedule(cpu):
    """One schedule for the calls of a step, and again for the next step; the workspace is lent; no bit changes."""
    causal = attune.Expr("mask", "q >= kv")
    plan = attune.Plan(cpu, attune.Problem(head_dim=DIM, heads=HEADS, kv_heads=KV_HEADS, q_len=4, kv_len=1200, batch=3, tokens=8,
                                           page=100, mask=causal, split_keys=256))
    alone = attune.Plan(cpu, attune.Problem(head_dim=DIM, heads=HEADS, kv_heads=KV_HEADS, q_len=4, kv_len=1200, tokens=8, page=100,
                                            mask=causal, split_keys=256))
    k, v = normal(2, 36, KV_HEADS, 100, DIM)
    # The first two sequences have their first 500 keys in common.
    table = np.stack([np.arange(12), [0, 1, 2, 3, 4, *range(12, 19)], np.arange(20, 32)]).astype(np.int32)
    cache, workspace, schedule = attune.Cache(k, v, pages=table), np.zeros(plan.workspace_size, np.uint8), None
    assert plan.schedule_size > 0
    for rows, lengths in (((4, 1, 3), (1111, 700, 64)), ((1, 1, 1), (1112, 701, 65))):
        starts = np.cumsum([0, *rows], dtype=np.int32)
        q, plain = normal(starts[-1], HEADS, DIM), attune.Batch(ints(*lengths), q_start=starts)
        expected = plan.forward(q, cache=cache, batch=plain).o
        for shared in (None, ints(0, 500, 0)):
            batch = attune.Batch(ints(*lengths), q_start=starts, shared=shared)
            schedule = plan.schedule(q, cache=cache, batch=batch, into=schedule, workspace=workspace)
            for _ in range(2):
                got = plan.forward(q, cache=cache, batch=batch, schedule=schedule, workspace=workspace).o
                np.testing.assert_array_equal(got, expected)
        for b in range(3):
            mine = slice(starts[b], starts[b + 1])
            one = alone.forward(q[mine], cache=attune.Cache(k, v, pages=table[b:b + 1]),
                                batch=attune.Batch(ints(lengths[b]), q_start=ints(0, rows[b]))).o
            np.testing.assert_array_equal(one, expected[mine], "a sequence has the same bits alone")
            at = np.arange(lengths[b])
            keys, values = (x[table[b, at // 100], :, at % 100].swapaxes(0, 1).repeat(HEADS // KV_HEADS, 0) for x in (k, v))
            seen = (lengths[b] - rows[b] + np.arange(rows[b]))[:, None] >= at
            np.testing.assert_allclose(one.swapaxes(0, 1), naive(q[mine].swapaxes(0, 1), keys, values, seen)[0], atol=1e-5)


def test_lent_memory_is_checked(cpu):
    dense = attune.Plan(cpu, attune.Problem(head_dim=DIM, heads=2, q_len=1, kv_len=9000))
    q, k, v = normal(1, 2, 1, DIM), normal(1, 2, 9000, DIM), normal(1, 2, 9000, DIM)
    size = dense.workspace_size
    assert size > 0 and dense.schedule_size == 0
    memory = np.zeros(size + 64, np.uint8)
    np.testing.assert_array_equal(dense.forward(q, k, v, workspace=memory).o, dense.forward(q, k, v).o)
    assert memory.any()
    for bad, what in ((memory[:size - 64], "workspace"), (memory.astype(np.int32), "of bytes"), (memory[::2], "contiguous")):
        with pytest.raises(attune.InvalidArgument, match=what):
            dense.forward(q, k, v, workspace=bad)
    with pytest.raises(attune.InvalidArgument, match="over cache and batch"):
        plan = serving_plan(cpu)
        dense.forward(q, k, v, schedule=attune.Schedule(plan))
