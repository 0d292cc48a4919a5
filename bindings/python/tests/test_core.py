# SPDX-License-Identifier: MIT
"""The package over the C library, on the CPU, with NumPy's arrays."""
import gc
import os
import subprocess
import sys
import threading
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import attune
from attune import _picture

rng = np.random.default_rng(1)
TYPES = {"float32": "f32", "int32": "i32", "int64": "i64"}


@pytest.fixture(scope="module")
def cpu():
    return attune.Device("cpu")


def normal(*shape):
    return rng.standard_normal(shape, dtype=np.float32)


def naive(q, k, v, allowed):
    s = (q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2)) / np.sqrt(q.shape[-1])
    s = np.where(allowed, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def test_goldens(cpu, golden):
    q, k, v = golden["q"], golden["k"], golden["v"]
    mask = score = None
    if golden.mask:
        mask = attune.Mask(golden.mask, q.shape[2], k.shape[2], batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1],
                           captures=golden.captures)
    if golden.score:
        score = attune.Expr("score", golden.score, captures={n: (TYPES[str(x.dtype)], x.ndim) for n, x in golden.captures.items()})
    shape = dict(head_dim=q.shape[3], head_dim_v=v.shape[3], batch=q.shape[0], heads=q.shape[1], kv_heads=k.shape[1],
                 q_len=q.shape[2], kv_len=k.shape[2], scale=golden.scale, mask=mask, score=score)
    call = dict(mask=mask, captures=golden.captures)
    f = attune.Plan(cpu, attune.Problem(lse=True, **shape)).forward(q, k, v, lse=True, **call)
    gradients = {name: np.zeros(golden[name].shape, np.float32) for name in golden.wanted}
    backward = attune.Plan(cpu, attune.Problem(direction="backward", capture_gradient_elements=sum(g.size for g in gradients.values()),
                                               **shape))
    b = backward.backward(q, k, v, f.o, f.lse, golden["do"], capture_gradients=gradients, **call)
    for made, name in ((f.o, "o"), (f.lse, "lse"), (b.d_q, "dq"), (b.d_k, "dk"), (b.d_v, "dv")):
        np.testing.assert_allclose(made, golden[name], atol=1e-5, rtol=1e-5, err_msg=name)
    for name, made in gradients.items():
        np.testing.assert_allclose(made, golden[f"d_{name}"], atol=1e-4, rtol=1e-5, err_msg=name)


def test_decode(cpu):
    """One plan serves a prompt and the steps after it, with arrays in place in a longer cache."""
    q, cache_k, cache_v = normal(1, 8, 40, 64), normal(1, 2, 600, 64), normal(1, 2, 600, 64)
    plan = attune.Plan(cpu, attune.Problem(head_dim=64, heads=8, kv_heads=2, q_len=40, kv_len=600))
    assert plan.choice(1, 600)["decode"] and not plan.choice(40, 600)["decode"]
    for rows, keys in ((40, 300), (1, 301), (1, 600)):
        k, v = cache_k[:, :, :keys], cache_v[:, :, :keys]
        o = plan.forward(q[:, :, :rows], k, v).o
        np.testing.assert_allclose(o, naive(q[:, :, :rows], k.repeat(4, 1), v.repeat(4, 1), True), atol=2e-6)


def test_arrays(cpu):
    """Strided views, outputs, memoryviews and DLPack: nothing is copied, and nothing outside is written."""
    whole = normal(1, 70, 4, 32)
    q = whole.swapaxes(1, 2)
    plan = attune.Plan(cpu, attune.Problem(head_dim=32, heads=4, q_len=70))
    expected = naive(q, q, q, True)
    out = np.full((1, 70, 4, 64), 7, np.float32)
    target = out[..., :32].swapaxes(1, 2)
    assert plan.forward(q, q, q, o=target).o is target
    np.testing.assert_allclose(target, expected, atol=2e-6)
    assert (out[..., 32:] == 7).all()
    read_only = q.copy()
    read_only.flags.writeable = False
    made = plan.forward(memoryview(read_only), read_only, read_only).o
    assert isinstance(made, memoryview)
    np.testing.assert_allclose(np.asarray(made), expected, atol=2e-6)

    class Exported:
        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **words):
            return self.array.__dlpack__(**words)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    lent = q.copy()
    before = sys.getrefcount(lent)
    np.testing.assert_allclose(plan.forward(Exported(lent), Exported(lent), Exported(lent), o=target).o, expected, atol=2e-6)
    gc.collect()
    assert sys.getrefcount(lent) == before
    with pytest.raises(attune.InvalidArgument, match="output"):
        plan.forward(q, q, q, o=read_only)
    with pytest.raises(attune.InvalidArgument, match="element type"):
        plan.forward(q.astype(np.complex64), q, q)
    with pytest.raises(TypeError, match="DLPack: make an array"):
        plan.forward([1.0], q, q)
    with pytest.raises(TypeError, match="mask is Expr, expected the attune.Mask"):
        plan.forward(q, q, q, mask=attune.Expr("mask", "causal"))
    with pytest.raises(attune.InvalidArgument):
        plan.forward(q[:, :, :, ::-1], q, q)
    with pytest.raises(attune.InvalidArgument, match="no streams"):
        plan.forward(q, q, q, stream=7)


def test_half_and_double(cpu):
    for name, kind, tolerance in (("f16", np.float16, 2e-3), ("f64", np.float64, 1e-12)):
        q = normal(1, 2, 33, 16).astype(kind)
        o = attune.Plan(cpu, attune.Problem(head_dim=16, heads=2, q_len=33, dtype=name)).forward(q, q, q).o
        assert o.dtype == kind
        np.testing.assert_allclose(o, naive(q.astype(np.float64), q, q.astype(np.float64), True), atol=tolerance)


def test_expressions():
    expr = attune.Expr("score", "score + slopes[h] * (kv - q)", captures={"slopes": ("f32", 1)}, parameters={"unused": "i32"})
    assert expr.captures == ("slopes",) and expr.parameters == ()
    assert expr(score=1.0, h=1, kv=3, q=1, slopes=np.array([9, 0.5], np.float32)) == 2.0
    assert expr.print("gradient").splitlines() == ["d score = 1.0", "d slopes[h] = kv - q"]
    assert attune.Expr("mask", "q >= kv && kv < n", parameters={"n": "i32"})(q=5, kv=2, n=3) == 1
    assert attune.Expr("mask", "causal").hash == attune.Expr("mask", "kv <= q").hash
    assert "window(n)" in attune.presets()
    with pytest.raises(attune.ParseError) as caught:
        attune.Expr("mask", "q >= kv & q - kv < 128")
    assert (caught.value.line, caught.value.column, caught.value.status) == (1, 9, "ATTUNE_PARSE_ERROR")
    assert "\n          ^\n" in str(caught.value) and isinstance(caught.value, ValueError)
    with pytest.raises(attune.InvalidArgument, match="f32, f16"):
        attune.Expr("mask", "a[q] > 0", captures={"a": ("f8", 1)})
    with pytest.raises(TypeError, match="the capture 'a' is 'f32', expected"):
        attune.Expr("mask", "a[q] > 0", captures={"a": "f32"})
    with pytest.raises(attune.InvalidArgument, match="mask or a score"):
        attune.Expr("bias", "score")


def dense_of(mask, rows, keys, **captures):
    expr = attune.Expr("mask", mask, captures={n: ("i32", 1) for n in captures})
    return np.array([[expr(q=i, kv=j, q_len=rows, kv_len=keys, **captures) for j in range(keys)] for i in range(rows)]) > 0


def test_masks():
    doc = np.repeat(np.arange(6, dtype=np.int32), 40)
    a = attune.Mask("causal && document(doc)", 240, block=(16, 32), captures={"doc": doc})
    b = attune.Mask("window(n)", 240, block=(16, 32), parameters={"n": 50})
    inside = dense_of("causal && document(doc)", 240, 240, doc=doc)
    near = np.abs(np.subtract.outer(np.arange(240), np.arange(240)) * 2 - 49) <= 49
    for mask, dense in ((a, inside), (b, near), (a & b, inside & near), (a | b, inside | near), (~a, ~inside),
                        (attune.Mask.from_dense(inside[None, None], block=(16, 32)), inside)):
        assert mask.stats(exact=True).pairs == dense.sum(), mask
        lists = mask.lists()
        blocks = dense.reshape(15, 16, 240)
        blocks = np.stack([np.pad(blocks, ((0, 0), (0, 0), (0, 16)))[..., i : i + 32].sum((1, 2)) for i in range(0, 256, 32)], 1)
        assert (np.asarray(lists.kv_num_blocks) + np.asarray(lists.full_kv_num_blocks) == (blocks > 0).sum(1)).all()
        assert (np.asarray(lists.q_num_blocks) + np.asarray(lists.full_q_num_blocks) == (blocks > 0).sum(0)).all()
    assert a.stats().pairs is None
    assert a.part(q_blocks=slice(3, 5)).stats(exact=True).pairs == inside[48:80].sum()
    short = attune.Mask("causal && document(doc)", 100, block=(16, 32), captures={"doc": doc[:100]})
    grown = short.extended(240, 240, captures={"doc": doc})
    assert grown.lists().kv_indices.tolist() == a.lists().kv_indices.tolist()
    kept = a.lists().kv_indices
    copy = kept.tolist()
    del a
    gc.collect()
    assert kept.tolist() == copy
    with pytest.raises(attune.InvalidArgument, match="step"):
        b.part(q_blocks=slice(0, 8, 2))
    with pytest.raises(attune.InvalidArgument):
        attune.Mask("causal", 0)


def test_limits_of_mask_builds():
    text = "(q * q + kv * kv) % 1009 < 500"
    with pytest.raises(attune.Cancelled):
        attune.Mask(text, 2000, max_work=1000)
    shares = []
    attune.Mask(text, 3000, progress=shares.append)
    assert shares == sorted(shares) and all(0 <= share <= 1 for share in shares)
    with pytest.raises(attune.Cancelled):
        attune.Mask(text, 20000, progress=lambda share: False)
    with pytest.raises(ZeroDivisionError):
        attune.Mask(text, 20000, progress=lambda share: 1 / 0)
    with pytest.raises(attune.InvalidArgument, match="exact"):
        attune.Mask("causal", 100).stats(max_work=5)
    mask = attune.Mask(text, 2000)
    with pytest.raises(attune.Cancelled, match="max_work"):
        mask.extended(3000, 3000, max_work=1000)
    with pytest.raises(attune.Cancelled):
        mask.extended(20000, 20000, progress=lambda share: False)
    with pytest.raises(ZeroDivisionError):
        mask.extended(20000, 20000, progress=lambda share: 1 / 0)
    shares.clear()
    assert mask.extended(3000, 3000, progress=shares.append).lists().q_len == 3000
    assert shares and shares == sorted(shares)


def test_pictures():
    mask = attune.Mask("q >= kv && kv < 900", 1000, 2000)
    picture = mask._repr_html_()
    root = xml.fromstring(picture)
    words = [element.text for element in root.iter() if element.text]
    assert {"q >= kv && kv < 900", "key token (kv)", "query token (q)", "full", "partial", "empty", "0", "2000", "1000"} <= set(words)
    assert any("batch 0, head 0" in word and "%" in word for word in words)
    width, height, pixels = mask.pixels()
    assert (width, height) == (16, 8) and len(pixels) == 3 * width * height
    assert pixels[3 * width * 1 :][:3].hex() == _picture.FULL and pixels[:3].hex() == _picture.PARTIAL
    assert f'fill="#{_picture.FULL}"' in picture and f'fill="#{_picture.PARTIAL}"' in picture
    # Cells stay inside the plane, whose last blocks are not whole.
    namespace = "{http://www.w3.org/2000/svg}"
    *cells, frame = [{k: float(x.get(k) or 0) for k in ("x", "y", "width", "height")} for x in root.find(f"{namespace}g").iter(f"{namespace}rect")]
    assert all(c["x"] + c["width"] < frame["width"] + 0.1 and c["y"] + c["height"] < frame["height"] + 0.1 for c in cells)
    assert "\u2588" in mask.text() and len(mask.text(rows=4).splitlines()) == 4
    assert "&lt;" in attune.Mask("q < 4", 64).svg()
    # Words of a narrow plane are within the picture.
    narrow = xml.fromstring(attune.Mask("q >= kv || kv < 64 || q % 8 == 0", 3000, 100).svg())
    assert float(narrow.get("width")) > 62 + 6.4 * max(len(text.text) for text in narrow.iter(f"{namespace}text"))
    # Nor are there so many numbers that they overlap.
    for picture, keys, queries in ((narrow, ["0", "100"], 4), (xml.fromstring(attune.Mask("q >= kv", 100, 3000).svg()), None, 3)):
        middle = [text.text for text in picture.iter(f"{namespace}text") if text.get("text-anchor") == "middle" and text.text.isdigit()]
        assert keys is None or middle == keys
        assert len([text for text in picture.iter(f"{namespace}text") if text.get("text-anchor") == "end"]) == queries


def test_plans(cpu):
    problem = attune.Problem(head_dim=128, q_len=4096, heads=8, dtype="bf16", mask=attune.Mask("causal", 4096))
    assert "BLOCK_M 64" in attune.choose("a6000", problem, {"fwd_BLOCK_M": 64})
    assert '"kernel": "cuda_sm80"' in attune.choose("a6000", problem, format="json")
    assert "h200" in attune.profiles()
    with pytest.raises(attune.DoesNotFit, match="limit|fits"):
        attune.choose("a6000", problem, {"BLOCK_M": 128, "BLOCK_N": 128, "num_stages": 4})
    for options, word in (({"BLOCKM": 64}, "BLOCK_M"), ({"block_m": 64}, "BLOCK_M"), ({"NUM_WARPS": 4}, "num_warps"),
                          ({"BLOCK_M": "many"}, "many"), ({"USE_TMA": 3}, "USE_TMA"), ({"KERNEL": 5}, "KERNEL")):
        with pytest.raises(attune.InvalidArgument, match=word):
            attune.choose("a6000", problem, options)
    with pytest.raises(attune.InvalidArgument, match="backward"):
        attune.choose("a6000", attune.Problem(head_dim=64, q_len=64, direction="sideways"))
    with pytest.raises(attune.InvalidArgument, match="json"):
        attune.choose("a6000", problem, format="xml")
    plan = attune.Plan(cpu, attune.Problem(head_dim=64, q_len=64))
    assert plan.choice()["kernel"] == "cpu" and plan.choice()["direction"] == "forward" and "cpu" in plan.explain()
    with pytest.raises(attune.Unsupported, match="63"):
        attune.Plan(cpu, attune.Problem(head_dim=63, q_len=64))


def test_texts_in_place_of_objects(cpu):
    """attune.torch takes text; here the error says what to write."""
    for words, what in ((dict(mask="causal"), "attune.Mask\\('causal', q_len"), (dict(score="softcap(3)"), "attune.Expr\\('score', 'softcap")):
        with pytest.raises(attune.InvalidArgument, match=what):
            attune.Plan(cpu, attune.Problem(head_dim=64, q_len=64, **words))
    with pytest.raises(attune.InvalidArgument, match="attune.Device\\('cpu'\\)"):
        attune.Plan("cpu", attune.Problem(head_dim=64, q_len=64))


def test_devices():
    found = attune.devices()
    assert found[0].id == "cpu" and found[0].available and found[0].limits["f64"]
    assert all(device.available or device.reason for device in found)
    assert repr(found[0]) == f"<attune.DeviceInfo cpu: {found[0].name}>"
    assert all("unavailable: " in repr(device) for device in found if not device.available)
    with pytest.raises(attune.Unavailable):
        attune.Device("vulkan:99")
    with pytest.raises(attune.InvalidArgument):
        attune.Device("abacus")


def test_threads(cpu):
    """One plan in several threads at once, each call with a workspace of its own."""
    plan = attune.Plan(cpu, attune.Problem(head_dim=32, heads=2, q_len=50))
    inputs = [normal(1, 2, 50, 32) for _ in range(4)]
    results = [None] * 4

    def work(i):
        for _ in range(20):
            results[i] = plan.forward(inputs[i], inputs[i], inputs[i]).o

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for x, o in zip(inputs, results):
        np.testing.assert_allclose(o, naive(x, x, x, True), atol=2e-6)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fork():
    """A child neither uses nor destroys what the parent made, and has an instance of its own."""
    program = """
import attune, gc, numpy as np, os
x = np.ones((1, 1, 40, 16), np.float32)
def once():
    plan = attune.Plan(attune.Device("cpu"), attune.Problem(head_dim=16, q_len=40))
    assert (plan.forward(x, x, x).o == 1).all()
    return plan
plan = once()
child = os.fork()
if not child:
    del plan
    gc.collect()
    once()
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_log(caplog):
    with caplog.at_level("WARNING", "attune"):
        attune.Mask("doc[kv] == 0", 64, captures={"doc": np.zeros(10, np.int32)}, instance=attune.Instance())
    assert any("doc" in record.message for record in caplog.records)
