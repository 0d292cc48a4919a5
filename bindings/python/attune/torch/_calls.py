# SPDX-License-Identifier: MIT
"""The operator's memory between calls: devices, expressions, masks, plans, and the calls themselves.

All of it only saves time: it follows from the arguments of a call, and is made again where it is missing."""
from __future__ import annotations

import ast
import contextlib
import ctypes
import dataclasses
import importlib.util
import os
import pathlib
import threading
import weakref
from collections import OrderedDict
from typing import Any, Callable, Hashable, Iterator, Mapping, Optional, Sequence, TypeVar

import torch
from torch import Tensor

from .. import _abi
from .._array import DLPACK_CPU, DLPACK_CUDA, View
from .._library import InvalidArgument, Unsupported
from .._prepared import Prepared
from ..expr import Expr, Number, declare
from ..instance import Device
from ..mask import Mask
from ..plan import Plan, Problem

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
    """The most recently used values of a function. A value is made outside of the lock: of two threads that make the same, both get
    the one that was there first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forgets all values, and begins another epoch."""
        self.epoch = object()
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, Any] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of a key, made if it is not there."""
        with self._lock:
            values = self._values
            if key in values:
                values.move_to_end(key)
                value: T = values[key]
                return value
        with outside_of_graphs():
            made = make()
        with self._lock:
            values = self._values
            made = values.setdefault(key, made)
            while len(values) > self._limit:
                values.popitem(last=False)
        return made

    def renew(self, key: Hashable) -> None:
        """Says that the value of a key was used, if it is there."""
        with self._lock:
            values = self._values
            if key in values:
                values.move_to_end(key)


class Table:
    """The last values that were put there. Finding one takes no lock."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.clear()

    def clear(self) -> None:
        """Forgets all values."""
        self._lock = threading.Lock()
        self._values: dict[Hashable, Any] = {}
        self.get = self._values.get

    def put(self, key: Hashable, value: T) -> T:
        """Adds a value, in place of the oldest if there are too many."""
        with self._lock:
            values = self._values
            while len(values) >= self._limit:
                del values[next(iter(values))]
            values[key] = value
        return value


devices, expressions, masks, signatures = Cache(64), Cache(256), Cache(64), Cache(256)
calls = Table(256)


def clear() -> None:
    """Forgets devices, expressions, masks, plans and calls."""
    for cache in (calls, signatures, masks, expressions, devices):
        cache.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=clear)


def device_of(place: torch.device) -> Device:
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


@dataclasses.dataclass(frozen=True)
class Signature:
    """A plan's key: everything but the elements of the tensors and the parameters' values."""

    device: Device
    score: Optional[Expr]
    mask: Optional[Expr]
    parameters: tuple[tuple[str, bool], ...]  # names, and whether they are integers
    family: list[tuple[tuple[int, ...], Plan]]


Settings = tuple[str, str, str, str, str, float, tuple[int, ...], str]
"""Mask, the names of its captures, score, the names of its captures, the parameters with their kinds, scale, the mask's blocks and
lengths, kernel options."""

Description = tuple[Any, ...]


def describe(tensors: Sequence[Tensor]) -> Description:
    """All that calls with these tensors may depend on, but addresses and elements."""
    return tuple([(x.shape, x.stride(), x.dtype, x.device) for x in tensors])


def _types(tensors: Sequence[Tensor]) -> Description:
    return tuple([(x.dtype, x.device, x.dim()) for x in tensors])


def _words(words: str) -> list[str]:
    return words.split(",") if words else []


def sign(direction: str, lse: bool, gradient_elements: int, settings: Settings, q: Tensor, k: Tensor, v: Tensor,
         mask_captures: Sequence[Tensor], captures: Sequence[Tensor]) -> Signature:
    """The signature of a call, which is checked if it is the first."""
    mask, mask_names, score, names, parameter_names, scale, mask_shape, options = settings
    key = (direction, lse, gradient_elements, _types((q, k, v)), q.shape[1], q.shape[3], k.shape[1], v.shape[3],
           k.shape[0] == q.shape[0], mask, mask_names, _types(mask_captures), score, names, _types(captures), parameter_names, scale,
           mask_shape[:2], options)
    return signatures.get(key, lambda: _sign(settings, q, k, v, dict(zip(_words(mask_names), mask_captures)), dict(zip(_words(names), captures))))


def _sign(settings: Settings, q: Tensor, k: Tensor, v: Tensor, mask_captures: dict[str, Tensor], captures: dict[str, Tensor]) -> Signature:
    if len({x.device for x in (q, k, v)}) != 1:
        raise InvalidArgument(f"q, k and v are on {q.device}, {k.device} and {v.device}: they must be on one device")
    if k.dtype != v.dtype:
        raise InvalidArgument(f"k is {k.dtype} and v is {v.dtype}: they must have one type")
    if q.dtype not in _NAMES or k.dtype not in _NAMES:
        raise InvalidArgument(f"q is {q.dtype} and k is {k.dtype}: {', '.join(map(str, _NAMES))} are supported")
    if k.shape[0] not in (1, q.shape[0]):
        raise InvalidArgument(f"k has a batch of {k.shape[0]}, and q of {q.shape[0]}: it must be that or 1")
    parameters = tuple((name, kind == "i") for name, kind in (word.split(":") for word in _words(settings[4])))
    numbers: dict[str, Number] = {name: 0 if integer else 0.0 for name, integer in parameters}
    score = _expr("score", settings[2], {name: view(x) for name, x in captures.items()}, numbers) if settings[2] else None
    mask = _expr("mask", settings[0], {name: view(x) for name, x in mask_captures.items()}, numbers) if settings[0] else None
    used = {name for expr in (score, mask) if expr for name in expr.captures + expr.parameters}
    if unused := {*captures, *mask_captures, *numbers} - used:
        raise InvalidArgument(f"neither the mask nor the score reads {', '.join(sorted(unused))}")
    for name in score.captures if score else ():
        if captures[name].device != q.device:
            raise InvalidArgument(f"the score reads {name}, which is on {captures[name].device}: it must be on {q.device}")
    return Signature(device_of(q.device), score, mask, parameters, [])


def _mark(tensor: Tensor) -> Hashable:
    """Equal for equal elements, of tensors of one type and shape. A CUDA tensor is known by its place and version, so that nothing
    waits for the device; who keeps the mark keeps the tensor, so that its place is not another's."""
    if tensor.is_cuda and not tensor.is_inference():
        return tensor.data_ptr(), tensor.stride(), tensor._version
    host = tensor.cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.nbytes)


@dataclasses.dataclass(frozen=True)
class Kept:
    """A mask with what it was made from. It keeps CUDA tensors, which are known by their place."""

    mask: Mask
    marks: list[Hashable]
    values: tuple[float, ...]
    tensors: list[Tensor]
    key: Hashable


class Masking:
    """Finds the masks of calls of one description. The last one is found by comparison, without hashing what it reads, while it is
    among those that are kept."""

    def __init__(self, signature: Signature, settings: Settings, q: Tensor, k: Tensor) -> None:
        q_block, kv_block, q_len, kv_len = settings[6]
        self._expr, names = signature.mask, _words(settings[1])
        self._read = [names.index(name) for name in self._expr.captures] if self._expr else []
        self._parameters = [(i, name, integer) for i, (name, integer) in enumerate(signature.parameters)
                            if self._expr and name in self._expr.parameters]
        self._device = signature.device
        self._shape = (q.shape[0], q.shape[1], k.shape[1], q_len or q.shape[2], kv_len or k.shape[2], q_block, kv_block)
        self._last: Callable[[], Optional[Kept]] = lambda: None

    def find(self, captures: Sequence[Tensor], parameters: Sequence[float]) -> Optional[Mask]:
        """The mask for these values, on the device. None if there is no mask."""
        expr = self._expr
        if expr is None:
            return None
        if any(captures[i].is_cuda for i in self._read) and torch.cuda.is_current_stream_capturing():
            raise InvalidArgument("the mask reads a CUDA tensor, and lists made from it cannot follow in a CUDA graph: give the mask's "
                                  "captures on the CPU, whose values the graph keeps")
        marks, values = [_mark(captures[i]) for i in self._read], tuple([parameters[i] for i, _, _ in self._parameters])
        kept = self._last()
        if kept is None or kept.marks != marks or kept.values != values:
            read = [captures[i] for i in self._read]
            key = (self._device, expr.hash, self._shape, values, tuple([(x.shape, x.dtype) for x in read]), tuple(marks))
            kept = masks.get(key, lambda: Kept(self._make(expr, dict(zip(expr.captures, read)), values), marks, values,
                                               [x.detach() for x in read if x.is_cuda], key))
            self._last = weakref.ref(kept)
        else:
            masks.renew(kept.key)
        return kept.mask

    def _make(self, expr: Expr, captures: dict[str, Tensor], values: tuple[float, ...]) -> Mask:
        batch, heads, kv_heads, rows, keys, *block = self._shape
        host = {name: view(x.detach().cpu()) for name, x in captures.items()}
        numbers = {name: int(value) if integer else value for (_, name, integer), value in zip(self._parameters, values)}
        mask = Mask(expr, rows, keys, batch=batch, heads=heads, kv_heads=kv_heads, block=(block[0], block[1]), captures=host,
                    parameters=numbers)
        mask.upload(self._device)
        return mask


def _plan(signature: Signature, direction: str, lse: bool, gradient_elements: int, settings: Settings, q: Tensor, k: Tensor, v: Tensor,
          mask: Optional[Mask]) -> Plan:
    """A plan for the call. One for larger lengths serves smaller ones down to the half; the first is for the exact lengths, and
    the later ones of the same signature are for the next powers of two, so that growing lengths make few plans."""
    family, options = signature.family, settings[7]
    sizes = (q.shape[0], q.shape[2], k.shape[2])
    for most, plan in family:
        if all(large // 2 < size <= large for size, large in zip(sizes, most)):
            return plan
    if family:
        sizes = (1 << (sizes[0] - 1).bit_length(), 1 << (sizes[1] - 1).bit_length(), 1 << (sizes[2] - 1).bit_length())
    batch, rows, keys = sizes
    problem = Problem(
        head_dim=q.shape[3], head_dim_v=v.shape[3], heads=q.shape[1], kv_heads=k.shape[1], dtype=_NAMES[q.dtype],
        kv_dtype=None if k.dtype == q.dtype else _NAMES[k.dtype], scale=settings[5], score=signature.score, lse=lse,
        direction=direction, capture_gradient_elements=gradient_elements, batch=batch,
        kv_batch=1 if k.shape[0] != q.shape[0] else batch, q_len=rows, kv_len=keys, mask=mask)
    with outside_of_graphs():
        made = Plan(signature.device, problem, ast.literal_eval(options) if options else None)
    # The plan has the mask's expression; its lists may go.
    made.problem = dataclasses.replace(problem, mask=None)
    family.append((sizes, made))
    return made


class Call:
    """A forward or backward pass over tensors of one description: checked, planned and prepared. It holds no tensor, and threads
    share it."""

    def __init__(self, direction: str, settings: Settings, tensors: dict[str, Tensor],
                 made: Mapping[str, tuple[Sequence[int], Sequence[int], torch.dtype]], mask_captures: Sequence[Tensor],
                 captures: Sequence[Tensor], parameters: Sequence[float], mask: Optional[Mask] = None, wanted: Sequence[int] = ()) -> None:
        """tensors: those of such a call, by their names as arguments. made: sizes, strides and type of those that each call makes.
        wanted: the captures whose gradients are. mask: for a call that is a part of another with more heads, that one's."""
        q, k, v, names = tensors["q"], tensors["k"], tensors["v"], _words(settings[3])
        lse = "lse" in tensors or "lse" in made
        elements = sum(captures[i].numel() for i in wanted)
        signature = sign(direction, lse, elements, settings, q, k, v, mask_captures, captures)
        if k.shape[:3] != v.shape[:3]:
            raise InvalidArgument(f"k is {tuple(k.shape)} and v is {tuple(v.shape)}: only the last size may differ")
        self._place, self._device = q.device, signature.device
        self._own = 0 if q.is_cuda else self._device._queue(None)
        self.masking = Masking(signature, settings, q, k)
        self.plan = _plan(signature, direction, lse, elements, settings, q, k, v, mask or self.masking.find(mask_captures, parameters))
        self._size = self.plan.workspace_size
        read = signature.score.captures if signature.score else ()
        #: The captures that the score reads, and those of them whose gradients are wanted.
        self.read = [names.index(name) for name in read]
        self.wanted = [i for i in wanted if names[i] in read]
        numbers: dict[str, Number] = {name: 0.0 for name, _ in signature.parameters}
        views = {name: view(x) for name, x in tensors.items()} | {name: _future(q, *x) for name, x in made.items()}
        sums = {names[i]: _future(q, captures[i].shape, dense(captures[i].shape), torch.float32) for i in self.wanted}
        self._prepared = Prepared(self.plan, views, {names[i]: view(captures[i]) for i in self.read}, sums, numbers)
        #: Sizes and strides of the tensors that each call makes.
        self.made = [(tuple(size), tuple(stride)) for size, stride, _ in made.values()]

    def run(self, mask: Optional[Mask], addresses: list[int], parameters: Sequence[float], lent: Optional[Tensor] = None) -> None:
        """The call, on PyTorch's current stream. addresses: of the tensors, the captures that are read and the gradients that are
        wanted. Workspace is lent, or from PyTorch's allocator, which begins at multiples of 512 on CUDA: once freed, what takes
        it on the same stream comes after this call."""
        begin = 0
        if self._size:
            memory = torch.empty(self._size, dtype=torch.uint8, device=self._place) if lent is None else lent
            begin = memory.data_ptr()
        self._prepared.run(self._own or self._stream(), mask, begin, addresses, parameters)

    def _stream(self) -> int:
        stream = torch._C._cuda_getCurrentRawStream(self._place.index)
        if self._device.has_queue(stream):
            return self._device._queue(stream)
        with outside_of_graphs():
            return self._device._queue(stream)


def dense(size: Sequence[int]) -> list[int]:
    """The strides of a contiguous tensor."""
    strides = [1] * len(size)
    for i in range(len(size) - 1, 0, -1):
        strides[i - 1] = strides[i] * max(size[i], 1)
    return strides


def _future(beside: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> View:
    """The view of a tensor that a call will make, on another's device."""
    return View(0, (DLPACK_CUDA if beside.is_cuda else DLPACK_CPU, beside.device.index or 0), _DTYPES[dtype], size, stride, None)
