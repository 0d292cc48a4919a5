# SPDX-License-Identifier: MIT
"""Calls that are made again and again with other addresses alone: for bindings of other libraries."""
from __future__ import annotations

import array
import ctypes
import struct
from typing import Any, Mapping, Sequence

from . import _abi
from ._array import View
from ._library import check, lib
from ._library import struct as made
from .expr import Number, parameter_table
from .instance import ORIGIN, wrap
from .mask import Mask
from .plan import Plan, capture_table, tensor

_KINDS = {"forward": (_abi.attune_forward_args, "attune_forward"), "backward": (_abi.attune_backward_args, "attune_backward")}


def _function(name: str) -> Any:
    # A function object of its own, whose arguments are addresses.
    function = lib[name]
    function.restype, function.argtypes = ctypes.c_int, [ctypes.c_void_p] * 4
    return function


_FUNCTIONS = {direction: _function(name) for direction, (_, name) in _KINDS.items()}


class Prepared:
    """A call of a plan with everything but addresses and the values of parameters. It is kept as the words of its arguments, with
    the tables that these point to behind them. Each run fills in a copy, so that threads may run it at once, and it holds nothing
    of any array."""

    def __init__(self, plan: Plan, views: Mapping[str, View], captures: Mapping[str, View], gradients: Mapping[str, View],
                 parameters: Mapping[str, Number]) -> None:
        """Views: of the arrays of one such call. Runs take the addresses in the order views, captures, gradients."""
        kind, _ = _KINDS[plan.problem.direction]
        self._function, self._plan = _FUNCTIONS[plan.problem.direction], plan
        args = made(kind, **{name: tensor(plan.device, x) for name, x in views.items()})
        self._wraps = plan.workspace_size > 0 and plan.device.backend == "cpu"
        if plan.workspace_size and not self._wraps:
            args.workspace = plan.device.memory
        offset = _abi.attune_tensor.offset.offset
        places = [getattr(kind, name).offset + offset for name in views]
        numbers: list[int] = []
        pointers: list[tuple[int, int]] = []
        image = bytearray(ctypes.sizeof(kind))
        self._names: list[Any] = []  # the tables have the addresses of names
        for field, count, rows in (("captures", "capture_count", capture_table(plan.device, captures)),
                                   ("capture_gradients", "capture_gradient_count", capture_table(plan.device, gradients)),
                                   ("parameters", "parameter_count", parameter_table(parameters))):
            if not len(rows):
                continue
            setattr(args, count, len(rows))
            pointers.append((getattr(kind, field).offset // 8, len(image)))
            begins = range(len(image), len(image) + ctypes.sizeof(rows), ctypes.sizeof(rows._type_))
            if field == "parameters":
                numbers += [begin + _abi.attune_parameter.value.offset for begin in begins]
            else:
                places += [begin + _abi.attune_capture.tensor.offset + offset for begin in begins]
            image += bytes(rows)
            self._names.append(rows)
        image[: ctypes.sizeof(kind)] = bytes(args)
        self._words = array.array("q", bytes(image))
        self._places, self._numbers, self._pointers = [place // 8 for place in places], numbers, pointers
        self._mask, self._workspace, self._begin = (
            field.offset // 8 for field in (kind.mask, kind.workspace, kind.workspace_offset))

    def run(self, queue: int, mask: Mask | None, workspace: int, addresses: Sequence[int], numbers: Sequence[float] = ()) -> None:
        """The call. The mask is on the plan's device. workspace: the address of the plan's workspace_size bytes, a multiple of 256 on
        CUDA; ignored by a plan that needs none. The caller holds what lies at the addresses."""
        words = self._words[:]
        for place, address in zip(self._places, addresses):
            words[place] = address - ORIGIN
        if mask is not None:
            words[self._mask] = mask._handle
        begin = words.buffer_info()[0]
        for place, offset in self._pointers:
            words[place] = begin + offset
        for place, number in zip(self._numbers, numbers):
            struct.pack_into("d", words, place, number)
        plan = self._plan
        if not self._wraps:
            words[self._begin] = workspace - ORIGIN if plan.workspace_size else 0
            check(self._function(plan._handle, queue, begin, None))
            return
        # The CPU uses a workspace to the end of its buffer, which must therefore be that of the bytes.
        buffer = wrap(plan.device, workspace, plan.workspace_size)
        try:
            words[self._workspace] = buffer.value or 0
            check(self._function(plan._handle, queue, begin, None))
        finally:
            lib.attune_buffer_destroy(buffer)
