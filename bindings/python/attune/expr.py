# SPDX-License-Identifier: MIT
"""Expressions."""
from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any, Mapping, Union

from . import _abi
from ._array import View, dtype_of, view
from ._library import Handle, InvalidArgument, check, lib, struct, table, text
from .instance import Instance, default_instance

Number = Union[int, float]
_KINDS = {"mask": _abi.ATTUNE_EXPR_MASK, "score": _abi.ATTUNE_EXPR_SCORE}
_FORMATS = {
    "text": _abi.ATTUNE_EXPR_TEXT, "ir": _abi.ATTUNE_EXPR_IR, "c": _abi.ATTUNE_EXPR_C, "gradient": _abi.ATTUNE_EXPR_GRADIENT,
}


class Expr(Handle):
    """attune_expr: a mask ("q >= kv") or a score ("50 * tanh(score / 50)"), parsed and typed. ParseError has the place.

    captures: name -> (element type, dimensions), such as {"doc": ("i32", 1)}.
    parameters: name -> "i32" or "f32"."""

    def __init__(self, kind: str, source: str, *, captures: Mapping[str, tuple[str, int]] | None = None,
                 parameters: Mapping[str, str] | None = None, instance: Instance | None = None) -> None:
        if kind not in _KINDS:
            raise InvalidArgument(f"an expression is a mask or a score, not {kind!r}")
        self.kind = kind
        self.instance = instance or default_instance()
        for name, declared_as in (captures or {}).items():
            if not isinstance(declared_as, (tuple, list)) or len(declared_as) != 2:
                raise TypeError(f"the capture {name!r} is {declared_as!r}, expected (element type, dimensions), such as ('f32', 1)")
        symbols = [(name.encode(), _abi.ATTUNE_SYMBOL_CAPTURE, dtype_of(dtype), rank) for name, (dtype, rank) in (captures or {}).items()]
        symbols += [(name.encode(), _abi.ATTUNE_SYMBOL_PARAMETER, dtype_of(dtype), 0) for name, dtype in (parameters or {}).items()]
        declared = table(_abi.attune_symbol, symbols)
        handle = ctypes.c_void_p()
        check(lib.attune_expr_create(self.instance._handle, _KINDS[kind], source.encode(), declared, len(symbols), ctypes.byref(handle)))
        self._own(handle, lib.attune_expr_destroy)
        used = [_abi.attune_symbol() for _ in range(lib.attune_expr_symbol_count(handle))]
        for index, symbol in enumerate(used):
            check(lib.attune_expr_symbol_get(handle, index, ctypes.byref(symbol)))
        #: The captures and parameters that the expression reads.
        self.captures = tuple(s.name.decode() for s in used if s.kind == _abi.ATTUNE_SYMBOL_CAPTURE)
        self.parameters = tuple(s.name.decode() for s in used if s.kind == _abi.ATTUNE_SYMBOL_PARAMETER)

    def print(self, format: str = "text") -> str:
        """The simplified expression: "text", "ir", "c", or "gradient", the derivatives of a score."""
        if format not in _FORMATS:
            raise InvalidArgument(f"no format is called {format!r}: {', '.join(_FORMATS)}")
        return text(lambda *out: int(lib.attune_expr_print(self._handle, _FORMATS[format], *out)))

    def __str__(self) -> str:
        return self.print()

    def __repr__(self) -> str:
        return f"<attune.Expr {self.kind}: {self}>"

    @cached_property
    def hash(self) -> int:
        """128 bits, the same for expressions that simplify to the same."""
        words = (ctypes.c_uint64 * 2)()
        lib.attune_expr_hash(self._handle, words)
        return int(words[0]) << 64 | int(words[1])

    def __call__(self, *, b: int = 0, h: int = 0, q: int = 0, kv: int = 0, h_kv: int = 0, q_len: int = 1, kv_len: int = 1,
                 score: float = 0.0, **values: Any) -> float:
        """Evaluates the expression at one point. `values` are captures (arrays in host memory) and parameters."""
        point = _abi.attune_point(b=b, h=h, q=q, kv=kv, h_kv=h_kv, q_len=q_len, kv_len=kv_len, score=score)
        arrays, keep = host_captures({name: value for name, value in values.items() if not isinstance(value, (int, float))})
        numbers = parameter_table({name: value for name, value in values.items() if isinstance(value, (int, float))})
        result = ctypes.c_float()
        check(lib.attune_expr_evaluate(self._handle, ctypes.byref(point), arrays, len(arrays), numbers, len(numbers),
                                       ctypes.byref(result)))
        del keep
        return result.value


def declare(captures: Mapping[str, View], parameters: Mapping[str, Number]) -> dict[str, Any]:
    """The declarations that values call for, as arguments of Expr."""
    return {"captures": {name: (lib.attune_dtype_string(v.dtype).decode(), len(v.shape)) for name, v in captures.items()},
            "parameters": {name: "i32" if isinstance(value, int) else "f32" for name, value in parameters.items()}}


def host_captures(captures: Mapping[str, Any]) -> tuple[Any, list[View]]:
    """attune_host_capture of arrays, and what they must outlive."""
    views = {name: view(array) for name, array in captures.items()}
    return table(_abi.attune_host_capture, [(name.encode(), v.host()) for name, v in views.items()]), list(views.values())


def parameter_table(parameters: Mapping[str, Number]) -> Any:
    """attune_parameter of numbers."""
    return table(_abi.attune_parameter, [(name.encode(), value) for name, value in parameters.items()])


def presets() -> dict[str, str]:
    """The presets of the language: signature and text."""
    found = {}
    for index in range(lib.attune_preset_count()):
        preset = struct(_abi.attune_preset)
        check(lib.attune_preset_get(index, ctypes.byref(preset)))
        found[preset.signature.decode()] = preset.text.decode()
    return found
