# SPDX-License-Identifier: MIT
"""Sinks, and calls over a paged cache, against NumPy in float64."""
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
