# SPDX-License-Identifier: MIT
"""The operator of PyTorch, and what it keeps between calls: devices, expressions, masks and plans.

The operator's arguments are all that determines a result: texts, numbers and tensors. Its caches only save time, so that it is a
pure function for autograd and torch.compile, and the backward pass finds again, or makes again, what the forward pass used."""
from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import importlib.util
import os
import pathlib
import re
import threading
from collections import OrderedDict
from typing import Any, Callable, Hashable, Iterator, Optional, Sequence, TypeVar

import torch
from torch import Tensor

from .. import _abi
from .._array import DLPACK_CPU, DLPACK_CUDA, View
from .._library import InvalidArgument, Unsupported
from ..expr import Expr, Number, declare
from ..instance import Device
from ..mask import Mask
from ..plan import Buffers, Plan, Problem

T = TypeVar("T")

_DTYPES = {
    torch.float32: _abi.ATTUNE_F32, torch.float16: _abi.ATTUNE_F16, torch.bfloat16: _abi.ATTUNE_BF16, torch.float64: _abi.ATTUNE_F64,
    torch.int32: _abi.ATTUNE_I32, torch.int64: _abi.ATTUNE_I64, torch.uint8: _abi.ATTUNE_U8, torch.bool: _abi.ATTUNE_BOOL,
}
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.float64: "f64"}


def load_compiler() -> Optional[str]:
    """Loads the NVRTC that PyTorch's packages bring, which the loader does not look for. Returns its path, or None: then the system's
    is used."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(pathlib.Path(folder).glob("*/lib/libnvrtc.so.*")):
            if path.suffix == f".{(torch.version.cuda or '').partition('.')[0]}":
                ctypes.CDLL(str(path))
                return str(path)
    return None


@contextlib.contextmanager
def outside_of_graphs() -> Iterator[None]:
    """While a CUDA graph is captured, allocations and copies that are not part of it are still allowed here, as in PyTorch's allocator."""
    initialized: Callable[[], bool] = torch.cuda.is_initialized
    if not (initialized() and torch.cuda.is_current_stream_capturing()):
        yield
        return
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(2)  # CU_STREAM_CAPTURE_MODE_RELAXED; receives the previous one
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


class Cache:
    """The most recently used values of a function. A value is made outside of the lock: two threads may make the same."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forgets all values."""
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                value: T = self._values[key]
                return value
        with outside_of_graphs():
            made = make()
        with self._lock:
            self._values[key] = made
            while len(self._values) > self._limit:
                self._values.popitem(last=False)
        return made


devices, expressions, masks, signatures = Cache(64), Cache(256), Cache(64), Cache(256)


def clear() -> None:
    """Forgets devices, expressions, masks and plans."""
    for cache in (signatures, masks, expressions, devices):
        cache.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clear)


def _device(place: torch.device) -> Device:
    if place.type not in ("cpu", "cuda"):
        raise Unsupported(f"attune.torch has tensors on the CPU and on CUDA devices, not on {place.type}")
    # On CUDA this is the primary context, which is PyTorch's.
    name = "cpu" if place.type == "cpu" else f"cuda:{place.index}"

    def make() -> Device:
        if place.type == "cuda":
            load_compiler()
        return Device(name)

    return devices.get(name, make)


def view(tensor: Tensor) -> View:
    """The elements of a tensor."""
    if tensor.dtype not in _DTYPES:
        raise InvalidArgument(f"a tensor is {tensor.dtype}: {', '.join(str(known) for known in _DTYPES)} are supported")
    if tensor.numel() > 1 and not any(tensor.stride()):
        tensor = tensor.contiguous()
    kind = DLPACK_CUDA if tensor.is_cuda else DLPACK_CPU
    return View(tensor.data_ptr(), (kind, tensor.device.index or 0), _DTYPES[tensor.dtype], tensor.shape, tensor.stride(), tensor)


def _expr(kind: str, text: str, views: dict[str, View], parameters: dict[str, Number]) -> Expr:
    declared = declare(views, parameters)
    key = (kind, text, tuple(declared["captures"].items()), tuple(declared["parameters"].items()))
    return expressions.get(key, lambda: Expr(kind, text, **declared))


def _contents(tensor: Tensor) -> Hashable:
    """Equal for equal contents. A CUDA tensor is known by its place and version, so that nothing waits for the device; the cache
    keeps it, so that its place is not another's."""
    shape = (tuple(tensor.shape), tensor.dtype)
    if tensor.is_cuda and not tensor.is_inference():
        return (*shape, tensor.data_ptr(), tensor.stride(), tensor._version)
    host = tensor.detach().cpu().contiguous()
    return (*shape, host.reshape(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b"")


@dataclasses.dataclass(frozen=True)
class Signature:
    """A plan's key: everything but the elements of the tensors and the parameters' values."""

    score: Optional[Expr]
    mask: Optional[Expr]
    parameters: tuple[tuple[str, bool], ...]  # names, and whether they are integers
    family: list[tuple[tuple[int, ...], Plan]]


def _describe(tensors: Sequence[Tensor]) -> tuple[Hashable, ...]:
    return tuple([(x.dtype, x.device, x.dim()) for x in tensors])


class Call:
    """The arguments that forward and backward share, checked, with the mask and the device."""

    def __init__(self, direction: str, q: Tensor, k: Tensor, v: Tensor, mask: str, mask_names: str, mask_captures: Sequence[Tensor],
                 score: str, names: str, captures: Sequence[Tensor], parameter_names: str, parameters: Sequence[float], scale: float,
                 mask_shape: Sequence[int], options: str, *, lse: bool, gradient_elements: int = 0, whole: Optional[Call] = None) -> None:
        """whole: the call of which this is a part with fewer heads: its mask serves all parts."""
        self.q, self.k, self.v = q, k, v = rows(q), rows(k), rows(v)
        self.scale, self.options, self.direction, self.lse = scale, options, direction, lse
        self.gradient_elements = gradient_elements
        self.device = _device(q.device)
        self.captures, self.mask_captures = dict(zip(split(names), captures)), dict(zip(split(mask_names), mask_captures))
        key = (direction, lse, gradient_elements, _describe((q, k, v)), q.shape[1], q.shape[3], k.shape[1], v.shape[3],
               k.shape[0] == q.shape[0], mask, mask_names, _describe(mask_captures), score, names, _describe(captures), parameter_names,
               scale, tuple(mask_shape[:2]), options)
        self.signature = signatures.get(key, lambda: self._sign(mask, score, parameter_names))
        self.parameters: dict[str, Number] = {
            name: int(value) if integer else value for (name, integer), value in zip(self.signature.parameters, parameters)}
        if k.shape[:3] != v.shape[:3]:
            raise InvalidArgument(f"k is {tuple(k.shape)} and v is {tuple(v.shape)}: only the last size may differ")
        self.views = {name: view(self.captures[name]) for name in self.signature.score.captures} if self.signature.score else {}
        self.mask: Optional[Mask] = whole.mask if whole else self._mask(self.signature.mask, mask_shape) if self.signature.mask else None

    def _sign(self, mask: str, score: str, parameter_names: str) -> Signature:
        q, k, v = self.q, self.k, self.v
        if len({x.device for x in (q, k, v)}) != 1:
            raise InvalidArgument(f"q, k and v are on {q.device}, {k.device} and {v.device}: they must be on one device")
        if k.dtype != v.dtype:
            raise InvalidArgument(f"k is {k.dtype} and v is {v.dtype}: they must have one type")
        if q.dtype not in _NAMES or k.dtype not in _NAMES:
            raise InvalidArgument(f"q is {q.dtype} and k is {k.dtype}: {', '.join(map(str, _NAMES))} are supported")
        if k.shape[0] not in (1, q.shape[0]):
            raise InvalidArgument(f"k has a batch of {k.shape[0]}, and q of {q.shape[0]}: it must be that or 1")
        parameters = tuple((name, kind == "i") for name, kind in (word.split(":") for word in split(parameter_names)))
        numbers: dict[str, Number] = {name: 0 if integer else 0.0 for name, integer in parameters}
        score_expr = _expr("score", score, {name: view(x) for name, x in self.captures.items()}, numbers) if score else None
        mask_expr = _expr("mask", mask, {name: view(x) for name, x in self.mask_captures.items()}, numbers) if mask else None
        used = {name for expr in (score_expr, mask_expr) if expr for name in expr.captures + expr.parameters}
        if unused := {*self.captures, *self.mask_captures, *numbers} - used:
            raise InvalidArgument(f"neither the mask nor the score reads {', '.join(sorted(unused))}")
        for name in score_expr.captures if score_expr else ():
            if self.captures[name].device != q.device:
                raise InvalidArgument(f"the score reads {name}, which is on {self.captures[name].device}: it must be on {q.device}")
        return Signature(score_expr, mask_expr, parameters, [])

    def _mask(self, expr: Expr, mask_shape: Sequence[int]) -> Mask:
        q, k = self.q, self.k
        captures = {name: self.mask_captures[name].detach() for name in expr.captures}
        parameters = {name: self.parameters[name] for name in expr.parameters}
        q_block, kv_block, q_len, kv_len = mask_shape
        shape = (q.shape[0], q.shape[1], k.shape[1], q_len or q.shape[2], kv_len or k.shape[2], q_block, kv_block)
        key = (q.device, expr.hash, shape, tuple(parameters.items()), tuple(map(_contents, captures.values())))

        def make() -> tuple[Mask, list[Tensor]]:
            if any(x.is_cuda for x in captures.values()) and torch.cuda.is_current_stream_capturing():
                raise InvalidArgument("the mask reads a CUDA tensor, and lists made from it cannot follow in a CUDA graph: give the mask's "
                                      "captures on the CPU, whose values the graph keeps")
            batch, heads, kv_heads, rows, keys, *block = shape
            host = {name: view(x.cpu()) for name, x in captures.items()}
            mask = Mask(expr, rows, keys, batch=batch, heads=heads, kv_heads=kv_heads, block=(block[0], block[1]), captures=host,
                        parameters=parameters)
            mask.upload(self.device)
            return mask, list(captures.values())

        return masks.get(key, make)[0]

    def plan(self) -> Plan:
        """A plan for the call. One for larger lengths serves smaller ones down to the half; the first is for the exact lengths, and
        the later ones of the same signature are for the next powers of two, so that growing lengths make few plans."""
        q, k, v, family = self.q, self.k, self.v, self.signature.family
        sizes = (q.shape[0], q.shape[2], k.shape[2])
        for most, plan in family:
            if all(large // 2 < size <= large for size, large in zip(sizes, most)):
                return plan
        if family:
            sizes = (1 << (sizes[0] - 1).bit_length(), 1 << (sizes[1] - 1).bit_length(), 1 << (sizes[2] - 1).bit_length())
        batch, rows, keys = sizes
        problem = Problem(
            head_dim=q.shape[3], head_dim_v=v.shape[3], heads=q.shape[1], kv_heads=k.shape[1], dtype=_NAMES[q.dtype],
            kv_dtype=None if k.dtype == q.dtype else _NAMES[k.dtype], scale=self.scale, score=self.signature.score, lse=self.lse,
            direction=self.direction, capture_gradient_elements=self.gradient_elements, batch=batch,
            kv_batch=1 if k.shape[0] != q.shape[0] else batch, q_len=rows, kv_len=keys, mask=self.mask)
        with outside_of_graphs():
            made = Plan(self.device, problem, ast.literal_eval(self.options) if self.options else None)
        # The plan has the mask's expression; its lists may go.
        made.problem = dataclasses.replace(problem, mask=None)
        family.append((sizes, made))
        return made

    def queue(self) -> int:
        """PyTorch's current stream."""
        if not self.q.is_cuda:
            return self.device._queue(None)
        stream = torch.cuda.current_stream(self.q.device).cuda_stream
        if self.device.has_queue(stream):
            return self.device._queue(stream)
        with outside_of_graphs():
            return self.device._queue(stream)

    def workspace(self, plan: Plan, lent: Optional[Tensor] = None) -> Callable[[Buffers], Optional[int]]:
        """Workspace from PyTorch's allocator, or a lent one. Once freed, what takes it on the same stream comes after this call."""

        def make(buffers: Buffers) -> Optional[int]:
            if not plan.workspace_size:
                return None
            memory = torch.empty(plan.workspace_size, dtype=torch.uint8, device=self.q.device) if lent is None else lent
            return buffers.wrap(memory.data_ptr(), plan.workspace_size, memory).value

        return make


def split(words: str) -> list[str]:
    """The words between commas."""
    return words.split(",") if words else []


def rows(tensor: Tensor) -> Tensor:
    """With contiguous rows, which kernels read."""
    if tensor.dim() != 4:
        raise InvalidArgument(f"a tensor is {tuple(tensor.shape)}: q, k and v are [batch, heads, length, head_dim]")
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def like(q: Tensor, head_dim: int) -> Tensor:
    """A new tensor of q's sizes but the last, in the layout that q has: heads within a token where they are so there."""
    batch, heads, length, _ = q.shape
    if q.stride(1) < q.stride(2):
        return q.new_empty((batch, length, heads, head_dim)).transpose(1, 2)
    return q.new_empty((batch, heads, length, head_dim))


def lse_like(q: Tensor, wanted: bool) -> Tensor:
    """LSE, or nothing."""
    shape = q.shape[:3] if wanted else (0,)
    return q.new_empty(shape, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32)


def spared(q: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, int]:
    """A tensor for dQ; the bytes that it and a spare part behind it lie in; and the bytes of a head. Where dQ's heads are not pieces of
    memory one after another, the bytes are the spare part alone, and a head has none."""
    spare = -(-lse.numel() * lse.element_size() * 5 // 8 // 256) * 256
    if q.shape[0] != 1 or q.stride(1) < q.stride(2):
        return like(q, q.shape[3]), q.new_empty(spare, dtype=torch.uint8), 0
    size = q.numel() * q.element_size()
    memory = q.new_empty(size + spare, dtype=torch.uint8)
    return memory[:size].view(q.dtype).view(q.shape), memory, size // q.shape[1]


def in_groups(whole: Call, part: Callable[[slice, slice, str, Optional[Call]], Call],
              run: Callable[[Call, slice, slice, Optional[Tensor]], None], memory: Tensor, head_bytes: int) -> None:
    """A backward pass over a few heads of K and V at a time. `memory` has dQ, whose heads take head_bytes, and a spare part. The workspace of a group lies in what later groups write dQ to. The last groups have too little of it: on CUDA they are
    computed by the kernels that need least, whose workspace fits into the spare part; else they have a workspace of their own."""
    for expr in (whole.signature.mask, whole.signature.score):
        if expr and re.search(r"\b(h|h_kv)\b", expr.print()):
            raise InvalidArgument(f"low_memory computes some heads at a time, and \"{expr}\" reads the head")
    group, count, done = whole.q.shape[1] // whole.k.shape[1], whole.k.shape[1], 0

    def attempt(size: int, options: str, room: Tensor, must: bool) -> bool:
        heads, kv_heads = slice(done * group, (done + size) * group), slice(done, done + size)
        call = part(heads, kv_heads, options, whole)
        fits = call.plan().workspace_size <= room.numel()
        if fits or must:
            run(call, heads, kv_heads, room if fits else None)
        return fits or must

    def room(size: int) -> Tensor:
        begin = (done + size) * group * head_bytes
        return memory[begin + -(memory.data_ptr() + begin) % 256 :]

    def most(one: int) -> int:
        size = count - done
        while size and size * one > room(size).numel():
            size -= 1
        return size

    def first(options: str) -> int:
        return part(slice(0, group), slice(0, 1), options, whole).plan().workspace_size

    one = first(whole.options)
    while done < count and (size := most(one)) and attempt(size, whole.options, room(size), False):
        done += size
    options = whole.options or ("{'bwd_KERNEL': 'cuda_sm80'}" if whole.q.is_cuda else "")
    while done < count:
        spare = room(count - done)
        size = min(count - done, max(1, spare.numel() // max(1, first(options))))
        attempt(size, options, spare, True)
        done += size


_tags = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []


def forward(q: Tensor, k: Tensor, v: Tensor, mask: str, mask_names: str, mask_captures: list[Tensor], score: str, names: str,
            captures: list[Tensor], parameter_names: str, parameters: list[float], scale: float, mask_shape: list[int], options: str,
            with_lse: bool, low_memory: bool) -> tuple[Tensor, Tensor]:
    """O and LSE. low_memory is for the backward pass."""
    call = Call("forward", q, k, v, mask, mask_names, mask_captures, score, names, captures, parameter_names, parameters, scale,
                mask_shape, options, lse=with_lse)
    o, lse = like(q, v.shape[3]), lse_like(q, with_lse)
    plan = call.plan()
    views = {"q": view(call.q), "k": view(call.k), "v": view(call.v), "o": view(o)}
    if with_lse:
        views["lse"] = view(lse)
    plan.forward_views(call.queue(), views, call.mask, call.views, call.parameters, call.workspace(plan))
    return o, lse


attention = torch.library.custom_op("attune::attention", forward, mutates_args=(), tags=_tags)


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: str, mask_names: str, mask_captures: list[Tensor], score: str, names: str,
      captures: list[Tensor], parameter_names: str, parameters: list[float], scale: float, mask_shape: list[int], options: str,
      with_lse: bool, low_memory: bool) -> tuple[Tensor, Tensor]:
    return like(q, v.shape[3]), lse_like(q, with_lse)


def backward(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Optional[Tensor], mask: str, mask_names: str,
             mask_captures: list[Tensor], score: str, names: str, captures: list[Tensor], parameter_names: str,
             parameters: list[float], scale: float, mask_shape: list[int], options: str, wanted: list[int],
             low_memory: bool) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """The gradients of q, k, v and of the captures whose numbers are wanted."""
    sums = {i: torch.zeros_like(captures[i], dtype=torch.float32, memory_format=torch.contiguous_format) for i in wanted}
    read = {split(names)[i]: x for i, x in sums.items()}
    elements = sum(x.numel() for x in read.values())

    every = slice(None)

    def cut(tensor: Tensor, heads: slice) -> Tensor:
        return tensor if heads is every else tensor[:, heads]

    def part(heads: slice, kv_heads: slice, chosen: str, whole: Optional[Call]) -> Call:
        return Call("backward", cut(q, heads), cut(k, kv_heads), cut(v, kv_heads), mask, mask_names, mask_captures, score, names, captures,
                    parameter_names, parameters, scale, mask_shape, chosen, lse=True, gradient_elements=elements, whole=whole)

    call = part(every, every, options, None)
    d_q, memory, head_bytes = spared(q, lse) if low_memory else (like(q, q.shape[3]), q, 0)
    d_k, d_v = like(k, k.shape[3]), like(v, v.shape[3])
    gradients = {name: view(x) for name, x in read.items() if name in call.views}
    o, d_o = rows(o), rows(d_o)

    def run(call: Call, heads: slice, kv_heads: slice, lent: Optional[Tensor]) -> None:
        plan = call.plan()
        views = {"q": view(call.q), "k": view(call.k), "v": view(call.v), "d_k": view(cut(d_k, kv_heads)), "d_v": view(cut(d_v, kv_heads))}
        for name, tensor in (("o", o), ("lse", lse), ("d_o", d_o), ("d_q", d_q), ("d_lse", d_lse)):
            if tensor is not None:
                views[name] = view(cut(tensor, heads))
        plan.backward_views(call.queue(), views, call.mask, call.views, gradients, call.parameters, call.workspace(plan, lent))

    if low_memory:
        in_groups(call, part, run, memory, head_bytes)
    else:
        run(call, every, every, None)
    return d_q, d_k, d_v, [sums[i].to(captures[i].dtype, copy=captures[i].dtype != torch.float32) for i in wanted]


attention_backward = torch.library.custom_op("attune::attention_backward", backward, mutates_args=(), tags=_tags)


@attention_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Optional[Tensor], mask: str, mask_names: str,
      mask_captures: list[Tensor], score: str, names: str, captures: list[Tensor], parameter_names: str, parameters: list[float],
      scale: float, mask_shape: list[int], options: str,
      wanted: list[int], low_memory: bool) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    return (like(q, q.shape[3]), like(k, k.shape[3]), like(v, v.shape[3]),
            [torch.empty_like(captures[i], memory_format=torch.contiguous_format) for i in wanted])


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, mask_names, mask_captures, score, names, captures, *rest, with_lse, low_memory = inputs
    ctx.texts, ctx.rest, ctx.counts = (mask, mask_names, score, names), rest, (len(mask_captures), len(captures))
    ctx.with_lse, ctx.low_memory = with_lse, low_memory
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, *mask_captures, *captures)


def _backward(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
    if not ctx.with_lse:
        raise RuntimeError("attune::attention was called without LSE, which its backward pass reads")
    q, k, v, o, lse, *others = ctx.saved_tensors
    mask, mask_names, score, names = ctx.texts
    mask_captures, captures = others[: ctx.counts[0]], others[ctx.counts[0] :]
    needed = ctx.needs_input_grad[8]
    flags = list(needed) if isinstance(needed, (list, tuple)) else [bool(needed) and x.is_floating_point() for x in captures]
    wanted = [i for i, flag in enumerate(flags) if flag]
    d_q, d_k, d_v, sums = attention_backward(q, k, v, o, lse, torch.zeros_like(o) if d_o is None else d_o, d_lse, mask, mask_names,
                                             mask_captures, score, names, captures, *ctx.rest, wanted, ctx.low_memory)
    d_captures: list[Optional[Tensor]] = [None] * len(captures)
    for i, x in zip(wanted, sums):
        d_captures[i] = x
    # PyTorch takes an empty list of numbers for one of tensors.
    parameters: Optional[list[None]] = None if ctx.rest[1] else []
    return d_q, d_k, d_v, None, None, [None] * len(mask_captures), None, None, d_captures, None, parameters, None, None, None, None, None


attention.register_autograd(_backward, setup_context=_setup_context)


class Eager(torch.autograd.Function):
    """The operator without PyTorch's dispatcher, whose way through Python takes longer than all else of a small call."""

    @staticmethod
    def forward(ctx: Any, texts: tuple[str, str, str, str], mask_captures: list[Tensor], rest: Any, with_lse: bool,
                low_memory: bool, q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> tuple[Tensor, Tensor]:
        mask, mask_names, score, names = texts
        o, lse = forward(*(q, k, v, mask, mask_names, mask_captures, score, names, list(captures), *rest, with_lse, low_memory))
        ctx.texts, ctx.rest, ctx.count, ctx.low_memory = texts, rest, len(mask_captures), low_memory
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, o, lse, *mask_captures, *captures)
        return o, lse

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        q, k, v, o, lse, *others = ctx.saved_tensors
        mask, mask_names, score, names = ctx.texts
        mask_captures, captures = others[: ctx.count], others[ctx.count :]
        wanted = [i for i, needed in enumerate(ctx.needs_input_grad[8:]) if needed]
        d_q, d_k, d_v, sums = backward(*(q, k, v, o, lse, torch.zeros_like(o) if d_o is None else d_o, d_lse, mask, mask_names, mask_captures,
                                         score, names, captures, *ctx.rest, wanted, ctx.low_memory))
        d_captures: list[Optional[Tensor]] = [None] * len(captures)
        for i, x in zip(wanted, sums):
            d_captures[i] = x
        return (None, None, None, None, None, d_q, d_k, d_v, *d_captures)


# PyTorch declares apply without types.
apply_eager: Callable[..., tuple[Tensor, Tensor]] = Eager.apply


def plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing but autograd is to see the operator: no compiler, mode, transform or kind of tensor of its own."""
    return (not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None and all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors))


def call(q: Tensor, k: Tensor, v: Tensor, texts: tuple[str, str, str, str], mask_captures: list[Tensor], captures: list[Tensor],
         rest: Any, with_lse: bool, low_memory: bool) -> tuple[Tensor, Tensor]:
    """The operator, by the shortest way. texts: mask, its captures' names, score, its captures' names; rest: the arguments behind the
    captures."""
    mask, mask_names, score, names = texts
    if not plain((q, k, v, *mask_captures, *captures)):
        made: tuple[Tensor, Tensor] = torch.ops.attune.attention(q, k, v, mask, mask_names, mask_captures, score, names, captures, *rest, with_lse,
                                                                 low_memory)
        return made
    if with_lse and torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *captures)):
        return apply_eager(texts, mask_captures, rest, with_lse, low_memory, q, k, v, *captures)
    return forward(*(q, k, v, mask, mask_names, mask_captures, score, names, captures, *rest, with_lse, low_memory))
