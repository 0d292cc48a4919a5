# SPDX-License-Identifier: MIT
"""Block masks."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Callable, Mapping

from . import _abi, _picture
from ._array import view
from ._library import Handle, InvalidArgument, check, lib, struct, text
from .expr import Expr, Number, declare, host_captures, parameter_table
from .instance import Device, Instance, default_instance


@dataclass(frozen=True)
class MaskStats:
    """attune_mask_stats. pairs is None unless it was counted."""

    density: float
    block_density: float
    pairs: int | None
    full_blocks: int
    partial_blocks: int
    blocks: int
    bytes: int


@dataclass(frozen=True)
class MaskLists:
    """attune_mask_lists: the lists of block columns (kv) and of block rows (q), partial and full. The arrays are memory of the
    mask: `numpy.asarray(lists.kv_indices)` copies nothing."""

    q_block: int
    kv_block: int
    batch: int
    heads: int
    q_len: int
    kv_len: int
    q_blocks: int
    kv_blocks: int
    kv_num_blocks: memoryview
    kv_offsets: memoryview
    kv_indices: memoryview
    full_kv_num_blocks: memoryview
    full_kv_offsets: memoryview
    full_kv_indices: memoryview
    q_num_blocks: memoryview
    q_offsets: memoryview
    q_indices: memoryview
    full_q_num_blocks: memoryview
    full_q_offsets: memoryview
    full_q_indices: memoryview


def _progress(call: Callable[[float], bool | None] | None, raised: list[BaseException]) -> Any:
    """attune_progress_fn of a callable, which stops the work by returning False or raising."""

    def step(user: Any, done: float) -> int:
        try:
            return int(call is not None and call(done) is False)
        except BaseException as error:  # raised again where the call returns
            raised.append(error)
            return 1

    return _abi.attune_progress_fn(step) if call else _abi.attune_progress_fn()


class Mask(Handle):
    """attune_mask, FlexAttention's BlockMask: which blocks of the q x kv plane are empty, partial or full.

    source: the expression, as text or Expr.
    batch, heads, kv_heads: of the calls, where the expression reads b, h or h_kv.
    block: rows and columns of a block.
    captures: arrays in host memory; parameters: numbers. Both are copied.
    start, total: the mask is of the keys [start, start + kv_len) of total keys.
    progress: called with the share that is done; returning False stops. max_work: a limit for untrusted expressions."""

    _wanted: tuple[int, int]

    def __init__(self, source: str | Expr, q_len: int, kv_len: int | None = None, *, batch: int = 1, heads: int = 1,
                 kv_heads: int = 0, block: tuple[int, int] = (128, 128), captures: Mapping[str, Any] | None = None,
                 parameters: Mapping[str, Number] | None = None, start: int = 0, total: int = 0,
                 progress: Callable[[float], bool | None] | None = None, max_work: int = 0,
                 instance: Instance | None = None) -> None:
        arrays, views = host_captures(captures or {})
        numbers = parameter_table(parameters or {})
        shown = str(source)
        if isinstance(source, str):
            declared = declare(dict(zip(captures or {}, views)), parameters or {})
            source = Expr("mask", source, instance=instance, **declared)
        raised: list[BaseException] = []
        call = _progress(progress, raised)
        desc = struct(_abi.attune_mask_desc, q_block=block[0], kv_block=block[1], batch=batch, heads=heads, kv_heads=kv_heads,
                      q_len=q_len, kv_len=q_len if kv_len is None else kv_len, kv_start=start, kv_total=total, progress=call,
                      max_work=max_work)
        handle = ctypes.c_void_p()
        status = lib.attune_mask_create(source.instance._handle, ctypes.byref(desc), source._handle, arrays, len(arrays), numbers,
                                        len(numbers), ctypes.byref(handle))
        if raised:
            raise raised[0]
        check(status)
        self._keep(handle, source.instance, shown, batch, heads)

    def _keep(self, handle: ctypes.c_void_p, instance: Instance, source: str, batch: int, heads: int) -> Mask:
        self._own(handle, lib.attune_mask_destroy)
        self.instance, self.source, self._wanted = instance, source, (batch, heads)
        return self

    @classmethod
    def _made(cls, instance: Instance, source: str, wanted: tuple[int, int], create: Callable[[Any], int]) -> Mask:
        handle = ctypes.c_void_p()
        check(create(ctypes.byref(handle)))
        return cls.__new__(cls)._keep(handle, instance, source, *wanted)

    @classmethod
    def from_dense(cls, dense: Any, *, batch: int = 1, heads: int = 1, kv_heads: int = 0, block: tuple[int, int] = (128, 128),
                   instance: Instance | None = None) -> Mask:
        """From an array [batch or 1, heads or 1, q_len, kv_len] of bool or u8, which is copied."""
        instance = instance or default_instance()
        source = view(dense)
        if len(source.shape) != 4:
            raise InvalidArgument(f"a dense mask has 4 dimensions, and this one has {len(source.shape)}")
        array = source.host()
        desc = struct(_abi.attune_mask_desc, q_block=block[0], kv_block=block[1], batch=batch, heads=heads, kv_heads=kv_heads,
                      q_len=source.shape[2], kv_len=source.shape[3])
        return cls._made(instance, "dense", (batch, heads), lambda out: lib.attune_mask_create_dense(
            instance._handle, ctypes.byref(desc), ctypes.byref(array), out))

    def __and__(self, other: Mask) -> Mask:
        return self._made(self.instance, f"({self.source}) && ({other.source})", self._wanted,
                          lambda out: lib.attune_mask_and(self._handle, other._handle, out))

    def __or__(self, other: Mask) -> Mask:
        return self._made(self.instance, f"({self.source}) || ({other.source})", self._wanted,
                          lambda out: lib.attune_mask_or(self._handle, other._handle, out))

    def __invert__(self) -> Mask:
        return self._made(self.instance, f"!({self.source})", self._wanted, lambda out: lib.attune_mask_not(self._handle, out))

    def part(self, *, batch: slice = slice(None), heads: slice = slice(None), q_blocks: slice = slice(None)) -> Mask:
        """attune_mask_slice: batches, heads and block rows. b, h and q of the expression stay those of the whole mask."""
        sizes = {"batch": self._wanted[0], "head": self._wanted[1], "q_block": self.lists().q_blocks}
        fields, left = {}, []
        for name, plural, part in (("batch", "batch", batch), ("head", "heads", heads), ("q_block", "q_blocks", q_blocks)):
            begin, end, step = part.indices(sizes[name])
            if step != 1 or end <= begin:
                raise InvalidArgument(f"{part} of {sizes[name]} {plural} is empty, or has a step")
            fields[f"{name}0"], fields[plural] = begin, end - begin
            left.append(end - begin)
        what = struct(_abi.attune_mask_range, **fields)
        return self._made(self.instance, self.source, (left[0], left[1]),
                          lambda out: lib.attune_mask_slice(self._handle, ctypes.byref(what), out))

    def extended(self, q_len: int, kv_len: int, *, captures: Mapping[str, Any] | None = None,
                 progress: Callable[[float], bool | None] | None = None, max_work: int = 0) -> Mask:
        """attune_mask_extend: the mask of longer sequences. captures: those that have grown; the others are kept.

        progress, max_work: of this call, as in the constructor, whose own are not kept."""
        arrays, _views = host_captures(captures or {})
        raised: list[BaseException] = []
        work = struct(_abi.attune_mask_work, progress=_progress(progress, raised), max_work=max_work)
        handle = ctypes.c_void_p()
        status = lib.attune_mask_extend(self._handle, q_len, kv_len, arrays, len(arrays), ctypes.byref(work), ctypes.byref(handle))
        if raised:
            raise raised[0]
        check(status)
        return type(self).__new__(type(self))._keep(handle, self.instance, self.source, *self._wanted)

    def lists(self) -> MaskLists:
        """The block lists."""
        lists = struct(_abi.attune_mask_lists)
        check(lib.attune_mask_lists_get(self._handle, ctypes.byref(lists)))
        rows = {"kv": lists.batch * lists.heads * lists.q_blocks, "q": lists.batch * lists.heads * lists.kv_blocks}
        fields: dict[str, Any] = {name: getattr(lists, name) for name in (
            "q_block", "kv_block", "batch", "heads", "q_len", "kv_len", "q_blocks", "kv_blocks")}
        for side in ("kv", "full_kv", "q", "full_q"):
            count = rows[side[-2:] if side.endswith("kv") else "q"]
            fields[f"{side}_offsets"] = self._memory(getattr(lists, f"{side}_offsets"), ctypes.c_int64, count + 1)
            fields[f"{side}_num_blocks"] = self._memory(getattr(lists, f"{side}_num_blocks"), ctypes.c_int32, count)
            fields[f"{side}_indices"] = self._memory(getattr(lists, f"{side}_indices"), ctypes.c_int32, fields[f"{side}_offsets"][-1])
        return MaskLists(**fields)

    def _memory(self, pointer: Any, kind: Any, count: int) -> memoryview:
        if not count:
            return memoryview(b"").cast("i")
        array = (kind * count).from_address(ctypes.addressof(pointer.contents))
        array._mask = self
        return memoryview(array).cast("B").cast("q" if kind is ctypes.c_int64 else "i").toreadonly()

    def stats(self, *, exact: bool = False, progress: Callable[[float], bool | None] | None = None, max_work: int = 0) -> MaskStats:
        """Density and size. exact evaluates every partial block; progress and max_work are for that."""
        made = struct(_abi.attune_mask_stats)
        if exact:
            raised: list[BaseException] = []
            work = struct(_abi.attune_mask_work, progress=_progress(progress, raised), max_work=max_work)
            status = lib.attune_mask_stats_count(self._handle, ctypes.byref(work), ctypes.byref(made))
            if raised:
                raise raised[0]
            check(status)
        elif progress or max_work:
            raise InvalidArgument("progress and max_work are for exact statistics")
        else:
            check(lib.attune_mask_stats_get(self._handle, False, ctypes.byref(made)))
        return MaskStats(made.density, made.block_density, made.pairs if made.pairs >= 0 else None, made.full_blocks,
                         made.partial_blocks, made.blocks, made.bytes)

    def upload(self, device: Device) -> None:
        """Copies the lists to a device. Plan.forward and Plan.backward do it at the first use."""
        check(lib.attune_mask_upload(self._handle, device._handle))

    def text(self, *, batch: int = 0, head: int = 0, columns: int = 64, rows: int = 32) -> str:
        """A picture of one batch and head in characters."""
        return text(lambda *out: int(lib.attune_mask_draw_text(self._handle, batch, head, columns, rows, *out)))

    def pixels(self, *, batch: int = 0, head: int = 0, width: int = 256, height: int = 256) -> tuple[int, int, bytes]:
        """Width, height and 8-bit RGB of a picture of at most this size, a pixel for each block or group of blocks."""
        w, h = ctypes.c_uint32(width), ctypes.c_uint32(height)
        check(lib.attune_mask_draw_pixels(self._handle, batch, head, None, ctypes.byref(w), ctypes.byref(h)))
        pixels = (ctypes.c_uint8 * (3 * w.value * h.value))()
        check(lib.attune_mask_draw_pixels(self._handle, batch, head, pixels, ctypes.byref(w), ctypes.byref(h)))
        return w.value, h.value, bytes(pixels)

    def svg(self, *, batch: int = 0, head: int = 0, size: int = 480) -> str:
        """A picture of one batch and head, with axes in tokens and a legend. size: pixels of the longer side."""
        return _picture.svg(self, batch, head, size)

    def _repr_html_(self) -> str:
        return self.svg()

    def __repr__(self) -> str:
        lists, stats = self.lists(), self.stats()
        return (f"<attune.Mask {self.source}: {lists.q_len} x {lists.kv_len}, {stats.block_density:.1%} of "
                f"{stats.blocks} blocks, {stats.full_blocks} full>")
