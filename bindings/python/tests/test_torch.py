# SPDX-License-Identifier: MIT
"""attune.torch on the CPU, and on CUDA where there is a GPU."""
import concurrent.futures
import json
import math
import subprocess
import sys
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import attune  # noqa: E402
import attune.torch as at  # noqa: E402
from attune.torch import _calls, _operator  # noqa: E402

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request):
    torch.manual_seed(1)
    return request.param


def normal(*shape, device="cpu", dtype=torch.float32, grad=True):
    return torch.randn(shape, dtype=torch.float32).to(device, dtype).requires_grad_(grad)


def reference(q, k, v, allowed=None, score=None, scale=None):
    """O and LSE in float64, by autograd's own operations. allowed and score are functions of (b, h, q, kv)."""
    q, k, v = (x.double() for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (x.expand(q.shape[0], -1, -1, -1).repeat_interleave(group, 1) for x in (k, v))
    s = q @ k.transpose(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    index = torch.meshgrid(*(torch.arange(n, device=q.device) for n in s.shape), indexing="ij")
    if score:
        s = score(s, *index)
    if allowed:
        s = s.masked_fill(~allowed(*index), -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - torch.where(torch.isinf(lse), 0, lse)[..., None])
    return p @ v, lse


def near(made, expected, tolerance=1e-4):
    torch.testing.assert_close(made.double().cpu(), expected.double().cpu(), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_goldens(golden, device, dtype):
    q, k, v = (torch.from_numpy(golden[name]).to(device, dtype).requires_grad_() for name in "qkv")
    captures = {name: torch.from_numpy(x).to(device).requires_grad_(name in golden.wanted) for name, x in golden.captures.items()}
    o, lse = at.attention(q, k, v, golden.mask or None, golden.score or None, captures=captures, scale=golden.scale, return_lse=True)
    o.backward(torch.from_numpy(golden["do"]).to(device, dtype))
    # bf16 has eight bits of mantissa: an error of half a unit in each of q, k, v and o.
    tolerance = 2e-5 if dtype == torch.float32 else 4e-2
    names = {"o": o, "lse": lse, "dq": q.grad, "dk": k.grad, "dv": v.grad}
    names |= {f"d_{name}": captures[name].grad for name in golden.wanted}
    for name, made in names.items():
        expected = torch.from_numpy(golden[name])
        near(made, expected, tolerance * max(1.0, expected[expected.isfinite()].abs().max().item()))
        assert made.dtype == (dtype if name in ("o", "dq", "dk", "dv") else torch.float32)


def test_gradcheck():
    q, k, v = (normal(*shape).double().detach().requires_grad_() for shape in ((2, 2, 5, 8), (1, 1, 6, 8), (1, 1, 6, 16)))
    slopes = torch.rand(2)

    def call(q, k, v):
        return at.attention(q, k, v, "q + 2 >= kv", "20 * tanh((score + slopes[h] * (kv - q)) / 20)", captures={"slopes": slopes},
                            return_lse=True)

    assert torch.autograd.gradcheck(call, (q, k, v))


@pytest.mark.filterwarnings("ignore:Input #")
def test_gradcheck_single(device):
    """In f32, with steps to match: the sum of a few outputs, which kernels of every device have."""
    q, k, v = (normal(1, 2, 6, 16, device=device) for _ in range(3))
    assert torch.autograd.gradcheck(lambda q, k, v: at.attention(q, k, v, "causal", "softcap(3.0)", return_lse=True), (q, k, v),
                                    eps=1e-2, atol=2e-2, rtol=2e-2, fast_mode=True, nondet_tol=1e-4)


def test_capture_gradients(device):
    q, k, v = normal(2, 4, 70, 32, device=device), normal(2, 2, 90, 32, device=device), normal(2, 2, 90, 16, device=device)
    slopes, bias = normal(4, device=device), normal(161, 4, device=device, dtype=torch.bfloat16)
    tau = torch.tensor(1.5, device=device, requires_grad=True)
    doc = torch.randint(0, 3, (90,), dtype=torch.int32)
    text = "(score + slopes[h] * (kv - q) * 0.01 + bias[q - kv + 90, h]) * tau[0]"
    o, lse = at.attention(q, k, v, "doc[q] == doc[kv] || kv == 0", text, captures={"slopes": slopes, "bias": bias, "tau": tau, "doc": doc},
                          return_lse=True)
    inputs = (q, k, v, slopes, bias, tau)
    on = doc.to(device)
    expected = reference(q, k, v, lambda b, h, i, j: (on[i] == on[j]) | (j == 0),
                         lambda s, b, h, i, j: (s + slopes.double()[h] * (j - i) * 0.01 + bias.double()[i - j + 90, h]) * tau.double())
    weight = torch.randn_like(lse)
    gradients = torch.autograd.grad((o * o).sum() + (lse * weight).sum(), inputs)
    wanted = torch.autograd.grad((expected[0] ** 2).sum() + (expected[1] * weight).sum(), inputs)
    near(o, expected[0])
    near(lse, expected[1])
    for x, made, correct in zip(inputs, gradients, wanted):
        assert made.dtype == x.dtype and made.shape == x.shape
        near(made, correct, (1e-2 if x.dtype == torch.bfloat16 else 2e-4) * max(1.0, correct.abs().max().item()))


def test_partial_gradients(device):
    """Only what is asked for; a loss of LSE alone; none at all."""
    q, k, v = normal(1, 2, 20, 16, device=device), normal(1, 2, 20, 16, device=device, grad=False), normal(1, 2, 20, 16, device=device)
    _, lse = at.attention(q, k, v, "causal", return_lse=True)
    lse.sum().backward()
    expected = reference(q, k, v, lambda b, h, i, j: i >= j)[1]
    near(q.grad, torch.autograd.grad(expected.sum(), q)[0])
    assert k.grad is None and (v.grad == 0).all()
    with torch.no_grad():
        o = at.attention(q, k, v, "causal")
    assert not o.requires_grad
    with torch.inference_mode():
        near(at.attention(q, k, v, "causal"), o)


def arguments(device, grad=True):
    q, k, v = normal(1, 4, 20, 16, device=device, grad=grad), normal(1, 2, 24, 16, device=device, grad=grad), \
        normal(1, 2, 24, 8, device=device, grad=grad)
    slopes, doc = normal(4, device=device, grad=grad), torch.randint(0, 2, (24,), dtype=torch.int32)
    return (q, k, v, "doc[q] == doc[kv] && kv < n", "doc", [doc], "score + slopes[h] * c", "slopes", [slopes], "n:i,c:f", [20.0, 0.5],
            0.25, [16, 32, 0, 0], "", True, False)


def test_opcheck(device):
    torch.library.opcheck(torch.ops.attune.attention.default, arguments(device))
    plain = list(arguments(device))
    plain[3:11] = "causal", "", [], "", "", [], "", []
    torch.library.opcheck(torch.ops.attune.attention.default, tuple(plain))
    # Heads within tokens: the outputs have the inputs' layout.
    swapped = list(arguments(device))
    swapped[:3] = (x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in swapped[:3])
    torch.library.opcheck(torch.ops.attune.attention.default, tuple(swapped))
    assert at.attention(*swapped[:3]).transpose(1, 2).is_contiguous()
    q, k, v, *rest, _, _ = arguments(device, grad=False)
    o, lse = torch.ops.attune.attention(q, k, v, *rest, True, False)
    torch.library.opcheck(torch.ops.attune.attention_backward.default,
                          (q, k, v, o, lse, torch.randn_like(o), torch.randn_like(lse), *rest, [0], False),
                          test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile(device, backend):
    """No graph breaks; a new mask, other captures and other lengths give the eager results."""
    torch._dynamo.reset()
    compiles = []

    def count(graph, inputs):
        compiles.append(graph)
        return torch._dynamo.lookup_backend(backend)(graph, inputs)

    def block(x, w, slopes, doc, mask):
        batch, length, _ = x.shape
        q, k, v = (x @ w).view(batch, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        o, lse = at.attention(q, k, v, mask if mask else "causal && doc[q] == doc[kv]", "score + slopes[h] * (kv - q)",
                              captures={"slopes": slopes} if mask else {"slopes": slopes, "doc": doc}, return_lse=True)
        return torch.nn.functional.gelu(o.transpose(1, 2).reshape(batch, length, 64)).sum() + lse.sum()

    compiled = torch.compile(block, backend=count, fullgraph=True)
    w, slopes = normal(64, 192, device=device), normal(4, device=device)
    for length in (40, 56, 72) if backend == "aot_eager" else (40,):
        x = normal(2, length, 64, device=device)
        doc = torch.randint(0, 2, (length,), dtype=torch.int32)
        mask = at.create_block_mask("causal && doc[q] == doc[kv]", None, None, length, length, captures={"doc": doc})
        for given in (None, mask) if backend == "aot_eager" else (mask,):
            made, expected = compiled(x, w, slopes, doc, given), block(x, w, slopes, doc, given)
            near(made, expected)
            for a, b in zip(torch.autograd.grad(made, (x, w, slopes)), torch.autograd.grad(expected, (x, w, slopes))):
                near(a, b, 1e-3)
        settled = len(compiles) if length < 72 else settled
    assert len(compiles) == settled


def test_lengths(device):
    """Growing lengths, as in decode, make few plans."""
    at.clear()
    k, v = normal(1, 2, 300, 16, device=device, grad=False), normal(1, 2, 300, 16, device=device, grad=False)
    for length in range(1, 300, 7):
        q = normal(1, 4, 1, 16, device=device, grad=False)
        near(at.attention(q, k[:, :, :length], v[:, :, :length]), reference(q, k[:, :, :length], v[:, :, :length])[0])
    (signature,) = _operator.signatures._values.values()
    assert len(signature.family) <= 10


def test_mask_cache(device):
    """A mask is made once, and again when what it reads has changed, in place too."""
    at.clear()
    q = normal(1, 2, 60, 16, device=device, grad=False)
    for place in {"cpu", device}:
        doc = torch.zeros(60, dtype=torch.int32, device=place)

        def check(count):
            on = doc.to(device)
            near(at.attention(q, q, q, "doc[q] == doc[kv]", captures={"doc": doc}),
                 reference(q, q, q, lambda b, h, i, j: on[i] == on[j])[0])
            assert len(_operator.masks) == count

        begin = len(_operator.masks)
        check(begin + 1)
        check(begin + 1)
        doc[30:] = 1
        check(begin + 2)
        doc = doc.clone()
        check(begin + 2 if place == "cpu" else begin + 3)
    mask = at.create_block_mask("causal && doc[q] == doc[kv]", None, None, 80, 80, captures={"doc": torch.zeros(80, dtype=torch.int32)})
    near(at.attention(q, q, q, mask), reference(q, q, q, lambda b, h, i, j: i >= j)[0])
    assert "<svg" in mask._repr_html_()


def test_contents_of_a_mask_are_compared():
    """Whoever writes to a capture on the CPU, and whether it was the last one that was used or not."""
    at.clear()
    q, doc = normal(1, 2, 60, 16, grad=False), torch.zeros(60, dtype=torch.int32)
    for end in (60, 20, 20, 40, 60, 40):
        doc.numpy()[:] = np.arange(60) >= end
        near(at.attention(q, q, q, "doc[q] == doc[kv]", captures={"doc": doc}),
             reference(q, q, q, lambda b, h, i, j: doc[i] == doc[j])[0])
    assert len(_operator.masks) == 3
    strided = torch.zeros(60, 2, dtype=torch.int32)
    strided[:30, 0] = 1
    near(at.attention(q, q, q, "doc[q] == doc[kv]", captures={"doc": strided[:, 0]}),
         reference(q, q, q, lambda b, h, i, j: strided[i, 0] == strided[j, 0])[0])


def test_parameters(device):
    """New values of parameters, of the score and of the mask."""
    q = normal(1, 2, 40, 16, device=device, grad=False)
    for c, n in ((2.0, 30), (3.0, 30), (3.0, 20), (2.0, 30)):
        near(at.attention(q, q, q, "kv < n", "score * c", parameters={"c": c, "n": n}),
             reference(q, q, q, lambda b, h, i, j: j < n, lambda s, *_: s * c)[0])


def test_other_layouts_in_backward(device):
    """The backward pass may get tensors that lie otherwise than the forward pass's: hooks of saved tensors, expanded gradients."""
    q, k, v = (normal(2, 50, 4, 16, device=device, grad=False).transpose(1, 2).requires_grad_() for _ in range(3))
    expected = torch.autograd.grad(reference(q, k, v)[0].sum(), (q, k, v))
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.clone(memory_format=torch.contiguous_format), lambda x: x):
        o = at.attention(q, k, v)
    for made, correct in zip(torch.autograd.grad(o.sum(), (q, k, v)), expected):
        near(made, correct, 2e-4)
    columns = [x.detach().transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in (q, k, v)]
    o, lse = at.attention(*columns, return_lse=True)
    for made, correct in zip(torch.autograd.grad(o.sum() + 0 * lse.sum(), columns), expected):
        near(made, correct, 2e-4)


def test_threads(device):
    """The same call in several threads at once, each with tensors of its own."""
    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        q, k, v, s = (torch.randn(shape, generator=generator).to(device).requires_grad_() for shape in (*((1, 2, 60, 16),) * 3, (2,)))
        doc = torch.arange(60, dtype=torch.int32) // (seed + 5)
        for _ in range(50):
            o = at.attention(q, k, v, "document(doc)", "score + s[h] * kv * c", captures={"doc": doc, "s": s}, parameters={"c": seed / 100})
            made = (o, *torch.autograd.grad((o * o).sum(), (q, k, v, s)))
        on = doc.to(device)
        o = reference(q, k, v, lambda b, h, i, j: on[i] == on[j], lambda x, b, h, i, j: x + s.double()[h] * j * (seed / 100))[0]
        for a, b in zip(made, (o, *torch.autograd.grad((o * o).sum(), (q, k, v, s)))):
            near(a, b, 1e-3)

    at.clear()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))


def test_caches_are_bounded():
    """Calls of many lengths keep a few hundred of their descriptions, and no tensor."""
    at.clear()
    kept = []
    for length in range(1, 400):
        q = torch.randn(1, 1, 1, 8)
        k = torch.randn(1, 1, length, 8)
        kept.append(weakref.ref(k))
        at.attention(q, k, k)
    assert len(_calls.calls._values) == 256 and sum(x() is not None for x in kept[:-1]) == 0
    often = {}
    for length in range(1, 200):
        q, k = torch.randn(1, 1, 30, 8), torch.randn(1, 1, length, 8)
        at.attention(q, q, q, "causal")
        often[id(next(x.mask for x in _operator.masks._values.values() if x.mask.source.startswith("q >= kv")))] = None
        at.attention(q, k, k, "kv != 3")
    assert len(_operator.masks) == 64 and len(often) == 1


def test_shapes(device):
    """Strided inputs, broadcast keys, mixed types, gradients through a broadcast."""
    whole = normal(3, 50, 4 * 16, device=device)
    q = whole.view(3, 50, 4, 16).transpose(1, 2)
    k, v = normal(1, 1, 50, 16, device=device), normal(1, 1, 50, 24, device=device)
    o = at.attention(q, k, v)
    expected = reference(q, k, v)[0]
    near(o, expected)
    weight = torch.randn_like(o)
    for made, correct in zip(torch.autograd.grad(o, (whole, k, v), weight), torch.autograd.grad(expected, (whole, k, v), weight.double())):
        near(made, correct, 2e-4)
    near(at.attention(q, k.expand(3, 4, -1, -1), v.expand(3, 4, -1, -1)), expected)
    with torch.no_grad():
        near(at.attention(q, k.bfloat16(), v.bfloat16()), expected, 2e-2)
        near(at.attention(q.transpose(2, 3).contiguous().transpose(2, 3), k, v), expected)


def test_errors(device):
    q = normal(1, 2, 20, 16, device=device)
    ids = torch.zeros(20, dtype=torch.int32, device=device)
    for words, kind, what in (
        (dict(mask="q >= kv & true"), attune.ParseError, "line 1, column 9"),
        (dict(mask="causal", captures={"ids": ids}), attune.InvalidArgument, "ids"),
        (dict(mask="causal", parameters={"n": 3}), attune.InvalidArgument, "n"),
        (dict(score="score + ids[kv]"), attune.ParseError, "ids"),
        (dict(score="score + s[kv]", captures={"s": ids.double()}), attune.InvalidArgument, "float64|f64"),
        (dict(kernel_options={"BLOCKM": 3}), attune.InvalidArgument, "BLOCK_M"),
        (dict(scale=0.0), attune.InvalidArgument, "scale"),
        (dict(mask=lambda b, h, q, kv: q and kv), attune.InvalidArgument, "text"),
    ):
        with pytest.raises(kind, match=what):
            at.attention(q, q, q, **words)
    with pytest.raises(attune.InvalidArgument, match="one type"):
        at.attention(q, q, q.bfloat16())
    with pytest.raises(attune.InvalidArgument, match="only the last"):
        at.attention(q, q, q[:, :, :10])
    with pytest.raises(attune.Unsupported, match="multiple of 8"):
        at.attention(q[..., :12], q[..., :12], q)
    with pytest.raises(attune.InvalidArgument, match="length, head_dim"):
        at.attention(q[0], q[0], q[0])
    if device == "cuda":
        with pytest.raises(attune.InvalidArgument, match="ids, which is on cpu"):
            at.attention(q, q, q, score="score + ids[kv]", captures={"ids": ids.cpu()})
        with pytest.raises(attune.InvalidArgument, match="one device"):
            at.attention(q, q.cpu(), q.cpu())


slopes, doc, bias, temperature = torch.rand(4), torch.randint(0, 3, (40,)), torch.randn(4, 100), torch.tensor(0.7)
SCORES = {
    "softcap": lambda score, b, h, q, kv: 20 * torch.tanh(score / 20),
    "alibi": lambda score, b, h, q, kv: score + slopes[h] * (kv - q),
    "alibi, as in attention-gym": lambda score, b, h, q_idx, kv_idx: score + (kv_idx - q_idx) * torch.exp2(-((h + 1) * 8.0 / 4)),
    "table": lambda score, b, h, q, kv: score + bias[h][(q - kv).clamp(-40, 40) + 40],
    "temperature": lambda score, b, h, q, kv: score * temperature,
    "where": lambda score, b, h, q, kv: torch.where(q >= kv, score, -float("inf")),
    "division": lambda score, b, h, q, kv: score + q / (kv + 1) - (q // 3) % 2 + torch.minimum(q, kv) * 0.1,
    "methods": lambda score, b, h, q, kv: (score.tanh() + (q == kv).float() - (q - kv).abs() * 1e-2).sigmoid(),
    "condition times number": lambda score, b, h, q, kv: score + (q > kv) * 0.5,
}
MASKS = {
    "causal": lambda b, h, q, kv: q >= kv,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv < 8),
    "documents": lambda b, h, q, kv: (doc[q] == doc[kv]) & (kv <= q),
    "prefix": lambda b, h, q, kv: (kv < 5) | ~(kv > q),
    "blocks": lambda b, h, q, kv: torch.logical_or(q // 7 == kv // 7, kv == 0),
    "heads": lambda b, h, q, kv: (h % 2 == 0) | (kv <= q),
}


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", SCORES)
def test_translate_scores(name):
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (normal(2, 4, 40, 16, grad=False) for _ in range(3))
    near(at.flex_attention(q, k, v, score_mod=SCORES[name]), flex_attention(q, k, v, score_mod=SCORES[name]), 1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("name", MASKS)
def test_translate_masks(name):
    from torch.nn.attention.flex_attention import and_masks, flex_attention
    from torch.nn.attention.flex_attention import create_block_mask as flex_block_mask

    q, k, v = (normal(1, 4, 40, 16, grad=False) for _ in range(3))
    for mod in (MASKS[name], and_masks(MASKS[name], lambda b, h, q, kv: kv != 3)):
        made = at.flex_attention(q, k, v, block_mask=at.create_block_mask(mod, None, 4, 40, 40))
        near(made, flex_attention(q, k, v, block_mask=flex_block_mask(mod, None, 4, 40, 40, device="cpu")), 1e-5)


def test_translate_gradient():
    """A tensor that a mod captures has its gradient, a single number too."""
    q, k, v = (normal(1, 4, 40, 16) for _ in range(3))
    tau, table = torch.tensor(0.7, requires_grad=True), torch.randn(4, 100, requires_grad=True)

    def mod(score, b, h, q, kv):
        return score * tau + table[h, q - kv + 50]

    made = torch.autograd.grad(at.flex_attention(q, k, v, mod).pow(2).sum(), (q, tau, table))
    expected = torch.autograd.grad(reference(q, k, v, score=mod)[0].pow(2).sum(), (q, tau, table))
    for a, b in zip(made, expected):
        near(a, b)


@pytest.mark.parametrize("mod, what", [
    (lambda b, h, q, kv: q >= kv and q < 5, "control flow"),
    (lambda b, h, q, kv: torch.cumsum(q, 0) > 0, "cumsum"),
    (lambda b, h, q, kv: q + kv, "returns a condition"),
    (lambda s, b, h, q, kv: q >= kv, "returns a condition"),
    (lambda b, h, q: q, "3 arguments"),
    (lambda b, h, q, kv: doc[q, kv] > 0, "one integer for each dimension"),
    (lambda s, b, h, q, kv: s + slopes, "whole tensor"),
    (lambda s, b, h, q, kv: s + "1", "uses a str"),
    (lambda s, b, h, q, kv: torch.erf(s), "erf"),
    (lambda s, b, h, q, kv: s + slopes.double()[h], "float64"),
    (lambda s, b, h, q, kv: s.clamp(other=3), "clamp"),
    (lambda s, b, h, q, kv: torch.div(s, 3, rounding_mode="trunc"), "rounding_mode"),
])
def test_translate_errors(mod, what):
    with pytest.raises(attune.InvalidArgument, match=what):
        at.translate(mod)


def test_flex_arguments():
    q, k = normal(1, 4, 20, 16, grad=False), normal(1, 2, 20, 16, grad=False)
    with pytest.raises(attune.InvalidArgument, match="enable_gqa"):
        at.flex_attention(q, k, k)
    o, lse = at.flex_attention(q, k, k, enable_gqa=True, return_lse=True, scale=0.3)
    expected = reference(q, k, k, scale=0.3)
    near(o, expected[0], 1e-5)
    near(lse, expected[1], 1e-5)
    from torch.nn.attention import flex_attention as flex

    with pytest.raises(attune.InvalidArgument, match="create_block_mask"):
        at.flex_attention(q, q, q, block_mask=flex.create_block_mask(MASKS["causal"], None, None, 20, 20, device="cpu"))
    if hasattr(flex, "AuxRequest"):
        near(at.flex_attention(q, q, q, return_aux=flex.AuxRequest(lse=True))[1].lse, reference(q, q, q)[1], 1e-5)
        with pytest.raises(attune.InvalidArgument, match="max_scores"):
            at.flex_attention(q, q, q, return_aux=flex.AuxRequest(max_scores=True))


def test_core_takes_tensors():
    """attune.Plan on tensors, through DLPack."""
    q = normal(1, 2, 30, 16, grad=False)
    plan = attune.Plan(attune.Device("cpu"), attune.Problem(head_dim=16, heads=2, q_len=30))
    o = plan.forward(q, q, q).o
    assert isinstance(o, torch.Tensor)
    near(o, reference(q, q, q)[0], 1e-5)
    half = attune.Plan(attune.Device("cpu"), attune.Problem(head_dim=16, heads=2, q_len=30, dtype="bf16"))
    near(half.forward(q.bfloat16(), q.bfloat16(), q.bfloat16()).o, reference(q, q, q)[0], 3e-2)


def test_fork():
    program = """
import attune.torch as at, os, torch
q = torch.randn(1, 2, 30, 16)
o = at.attention(q, q, q, "causal")
x = q.clone().requires_grad_()
made = at.attention(x, x, x, "causal")
child = os.fork()
if not child:
    assert (at.attention(q, q, q, "causal") == o).all()
    made.sum().backward()
    os._exit(0)
raise SystemExit(os.waitpid(child, 0)[1])
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_compiler_of_pytorch():
    """NVRTC is found where pip puts it, and the library takes the one that is loaded."""
    program = """
import attune.torch as at, torch
path = at._operator.load_compiler()
if torch.version.cuda:
    assert path and path in open("/proc/self/maps").read(), path
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")
def test_streams_and_graphs():
    """On PyTorch's current stream, from its allocator; in a CUDA graph."""
    q = normal(1, 4, 500, 64, device="cuda", dtype=torch.bfloat16, grad=False)
    expected = at.attention(q, q, q, "causal")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        doubled = q * 2 / 2
        made = at.attention(doubled, doubled, doubled, "causal")
    stream.synchronize()
    assert (made == expected).all()
    graph = torch.cuda.CUDAGraph()
    static = q.clone()
    with torch.cuda.graph(graph):
        made = at.attention(static, static, static, "causal")
    static.copy_(q.flip(2))
    graph.replay()
    torch.cuda.synchronize()
    near(made, at.attention(q.flip(2), q.flip(2), q.flip(2), "causal"), 1e-6)


def allocated(run):
    """The most bytes that PyTorch's allocator on the CPU had given out during a call, beyond those before it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profile:
        run()
    now = most = 0
    for event in sorted((e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most, now


def test_memory_of_a_step():
    """A step allocates its results and the plan's workspace, and the workspace is gone with the call."""
    at.clear()
    q, k, v, d_o = (torch.randn(1, heads, 512, 64) for heads in (8, 2, 2, 8))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    for _ in range(2):  # the first makes the plans
        for x in leaves:
            x.grad = None
        kept = []
        forward = allocated(lambda: kept.append(at.attention(q, k, v, mask="causal")))
        backward = allocated(lambda: kept[0].backward(d_o))
    plans = {plan.problem.direction: plan for made in _operator.signatures._values.values() for _, plan in made.family}
    o, lse, gradients = q.numel() * 4, 8 * 512 * 4, sum(x.numel() for x in leaves) * 4
    assert forward[1] == o + lse and o + lse <= forward[0] <= o + lse + plans["forward"].workspace_size + 1024
    assert backward[1] <= gradients and gradients <= backward[0] <= gradients + plans["backward"].workspace_size + 1024


def test_whoever_looks_sees_the_operator(device):
    """Calls leave out the dispatcher only where nothing else is to see them."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.utils._python_dispatch import TorchDispatchMode

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            names.append(str(function))
            return function(*args, **(kwargs or {}))

    names = []
    q = normal(1, 2, 20, 16, device=device)
    with Seen():
        at.attention(q, q, q, "causal").sum().backward()
    assert "attune.attention.default" in names and "attune.attention_backward.default" in names
    graph = make_fx(lambda x: at.attention(x, x, x, "causal"))(q.detach())
    assert "attune.attention" in graph.code
    with FakeTensorMode():
        x = torch.empty(1, 2, 20, 16, device=device, requires_grad=True)
        o = at.attention(x, x, x, "causal")
        o.sum().backward()
        assert o.shape == x.grad.shape == x.shape
    with pytest.raises(RuntimeError):
        torch.func.vmap(lambda x: at.attention(x, x, x, "causal"))(q.detach()[None])
    # A kind of tensor of its own is asked; its answer is its own affair.
    class Other(torch.Tensor):
        @classmethod
        def __torch_function__(cls, function, types, args=(), kwargs=None):
            names.append(str(function))
            return super().__torch_function__(function, types, args, kwargs or {})

    names.clear()
    at.attention(q.detach().as_subclass(Other), q, q, "causal")
    assert any("attune" in name for name in names)
    # A gradient of a gradient is refused, as ever.
    made = at.attention(q, q, q, "causal")
    (first,) = torch.autograd.grad(made.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        first.sum().backward()


def test_low_memory(device):
    """Some heads at a time: the same gradients, also of captures and LSE, whatever the layout and the batch."""
    for batch, heads, kv_heads, swapped in ((1, 12, 6, False), (1, 12, 6, True), (2, 6, 3, False), (1, 7, 7, False), (1, 4, 1, False)):
        q, k, v = normal(batch, heads, 150, 32, device=device), normal(batch, kv_heads, 170, 32, device=device), \
            normal(batch, kv_heads, 170, 24, device=device)
        slopes = normal(150, device=device)
        if swapped:
            q, k, v = (x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in (q, k, v))
        found = []
        for low in (False, True):
            o, lse = at.attention(q, k, v, "q >= kv - 20", "score + slopes[q] * (q - kv)", captures={"slopes": slopes}, return_lse=True, low_memory=low)
            found.append([o, *torch.autograd.grad((o * o).sum() + (lse * lse).sum(), (q, k, v, slopes))])
        for a, b in zip(*found):
            near(a, b, 2e-5 * max(1.0, b.abs().max().item()))
            assert a.stride() == b.stride()
    with pytest.raises(attune.InvalidArgument, match="reads the head"):
        at.attention(q, k, v, score="score + h", low_memory=True).sum().backward()
    with pytest.raises(attune.InvalidArgument, match="reads the head"):
        at.attention(q, k, v, score="alibi(s)", captures={"s": torch.ones(4, device=device)}, low_memory=True).sum().backward()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_of_a_step_with_low_memory(dtype):
    """The workspace of all groups but the last lies in the gradients."""
    at.clear()
    q, k, v, d_o = (torch.randn(1, heads, 512, 64, dtype=dtype) for heads in (32, 8, 8, 32))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    o = [at.attention(q, k, v, "causal", low_memory=low) for low in (False, True)]
    for x in o:  # makes the plans
        x.backward(d_o, retain_graph=True)
    least = {plan.problem.kv_heads: plan.workspace_size for made in _operator.signatures._values.values()
             for _, plan in made.family if plan.problem.direction == "backward"}
    for x in leaves:
        x.grad = None
    gradients = sum(x.numel() * x.element_size() for x in leaves)
    assert least[1] < least[8]
    spare = 32 * 512 * 4 * 5 // 8 + 256
    assert gradients <= allocated(lambda: o[1].backward(d_o))[0] <= gradients + spare + least[1] + 1024


def test_dflash_step_with_low_memory_on_an_h200():
    """The planner's workspaces fit where low_memory has them lie: three quarters of the heads in dQ, the rest in half of LSE's size."""
    def workspace(kv_heads, options=None):
        problem = attune.Problem(head_dim=128, heads=4 * kv_heads, kv_heads=kv_heads, dtype="bf16", q_len=8192, kv_len=16384, lse=True,
                                 direction="backward", mask=attune.Expr("mask", "q >= kv"))
        return json.loads(attune.choose("h200", problem, options, format="json"))["choice"]["workspace"]

    head, spare = 4 * 8192 * 128 * 2, 32 * 8192 * 4 * 5 // 8
    for size, left in ((2, 6), (2, 4), (1, 3), (1, 2)):
        assert size * workspace(1) <= left * head + spare and workspace(size) <= left * head + spare
    assert workspace(1) > head + spare >= workspace(2, {"bwd_KERNEL": "cuda_sm80"})
    assert workspace(2, {"bwd_KERNEL": "cuda_sm80"}) <= spare


@pytest.mark.parametrize("dtype, name", [(torch.float8_e4m3fn, "f8e4m3"), (torch.float8_e5m2, "f8e5m2"), (torch.int8, "i8")])
def test_quantised_cache_of_tensors(dtype, name):
    """A pool of PyTorch's own f8, or i8, by DLPack: what append writes is what PyTorch reads, and what forward computes with."""
    device, causal = attune.Device("cpu"), attune.Expr("mask", "q >= kv")
    plan = attune.Plan(device, attune.Problem(head_dim=32, heads=4, kv_heads=2, q_len=6, kv_len=8, tokens=6, page=4, kv_dtype=name, mask=causal))
    pools = [torch.zeros(3, 2, 4, 32, dtype=dtype) for _ in range(2)]
    factors = [torch.zeros(3, 2, 4) for _ in range(2)]
    cache = attune.Cache(*pools, pages=torch.tensor([[2, 0]], dtype=torch.int32), k_scale=factors[0], v_scale=factors[1])
    batch = attune.Batch(torch.tensor([6], dtype=torch.int32), q_start=torch.tensor([0, 6], dtype=torch.int32))
    q, k, v = torch.randn(6, 4, 32), torch.randn(6, 2, 32), torch.randn(6, 2, 32)
    plan.append(cache, k, v, batch=batch)
    o = plan.forward(q, cache=cache, batch=batch).o
    read = [(pool.double() * factor[..., None])[[2, 0]].transpose(0, 1).reshape(2, 8, 32)[:, :6] for pool, factor in zip(pools, factors)]
    for got, wanted in zip(read, (k, v)):
        assert (got - wanted.transpose(0, 1)).abs().max() < {"f8e4m3": 0.15, "f8e5m2": 0.3, "i8": 0.02}[name]
    keys, values = (x.repeat_interleave(2, 0) for x in read)
    expected = torch.nn.functional.scaled_dot_product_attention(q.double().transpose(0, 1), keys, values, is_causal=True)
    assert (o.transpose(0, 1) - expected).abs().max() < 1e-5
