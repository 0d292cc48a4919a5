# SPDX-License-Identifier: MIT
"""Python's score_mod and mask_mod as text. The function is called once with symbols in place of its indices, which record what is
done to them; a tensor that they index becomes a capture. What the language does not have is an error, never an approximation."""
from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import Any, Callable, Union

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from .._library import InvalidArgument

_HELP = "give it as text instead (docs/expressions.md), or call translate with a function of the language's own operations"
_DTYPES = {torch.float32: "f", torch.float16: "f", torch.bfloat16: "f", torch.int32: "i", torch.int64: "i", torch.uint8: "i", torch.bool: "b"}


@dataclass
class Mod:
    """A mask or score expression with the tensors that it reads."""

    text: str
    captures: dict[str, Tensor] = field(default_factory=dict)


def _fail(what: str) -> InvalidArgument:
    return InvalidArgument(f"this mod cannot be translated: {what}; {_HELP}")


class Symbol:
    """An expression: its text, and its type: b(ool), i(nteger) or f(loat)."""

    def __init__(self, text: str, kind: str) -> None:
        self.text, self.kind = text, kind

    def __bool__(self) -> bool:
        raise _fail("its control flow depends on an index or a score (write torch.where, & for and, | for or)")

    __index__ = __int__ = __float__ = __iter__ = __len__ = __bool__
    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _apply(getattr(function, "__name__", str(function)), args, kwargs or {})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _apply(name, (self, *args), kwargs)


class _Reads:
    """The tensors of the mod that is being translated."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def name(self, tensor: Tensor) -> str:
        if tensor.dtype not in _DTYPES:
            raise _fail(f"it reads a tensor of {tensor.dtype}, which is none of {', '.join(map(str, _DTYPES))}")
        for name, known in self.tensors.items():
            if known is tensor:
                return name
        name = f"c{len(self.tensors)}"
        self.tensors[name] = tensor
        return name


class _Partial:
    """A tensor with fewer indices than it has dimensions: bias[h][q - kv]."""

    def __init__(self, reads: _Reads, tensor: Tensor, indices: tuple[Any, ...]) -> None:
        self.reads, self.tensor, self.indices = reads, tensor, indices

    def __getitem__(self, index: Any) -> Any:
        return _index(self.reads, self.tensor, (*self.indices, *(index if isinstance(index, tuple) else (index,))))


def _index(reads: _Reads, tensor: Tensor, indices: tuple[Any, ...]) -> Any:
    if len(indices) < tensor.dim():
        return _Partial(reads, tensor, indices)
    parts = [_symbol(x, reads) for x in indices]
    if any(part.kind != "i" for part in parts) or len(parts) > tensor.dim():
        raise _fail("it indexes a tensor with something other than one integer for each dimension")
    return Symbol(f"{reads.name(tensor)}[{', '.join(part.text for part in parts)}]", _DTYPES[tensor.dtype])


_current: list[_Reads] = []


def _symbol(value: Any, reads: _Reads) -> Symbol:
    if isinstance(value, Symbol):
        return value
    if isinstance(value, bool):
        return Symbol(str(value).lower(), "b")
    if isinstance(value, int):
        return Symbol(f"({value})" if value < 0 else str(value), "i")
    if isinstance(value, float):
        if math.isnan(value):
            raise _fail("it has a NaN")
        if math.isinf(value):
            return Symbol("(1.0 / 0.0)" if value > 0 else "(-1.0 / 0.0)", "f")
        return Symbol(f"({value!r})" if value < 0 else repr(value), "f")
    if isinstance(value, Tensor) and value.numel() == 1:
        name = reads.name(value)
        return Symbol(f"{name}[{', '.join('0' * max(1, value.dim()))}]", _DTYPES[value.dtype])
    if isinstance(value, Tensor):
        raise _fail(f"it computes with a whole tensor of shape {tuple(value.shape)}, not with one element")
    raise _fail(f"it uses a {type(value).__name__}")


_FUNCTIONS = {name: name for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "sin", "cos")}
_SAME = {"abs": "abs", "absolute": "abs", "floor": "floor", "ceil": "ceil"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"and": "&&", "or": "||", "logical_and": "&&", "logical_or": "||", "bitwise_and": "&&", "bitwise_or": "||", "xor": "!=",
          "logical_xor": "!=", "bitwise_xor": "!="}
_ARITHMETIC = {"add": "+", "sub": "-", "subtract": "-", "mul": "*", "multiply": "*"}
_CASTS = {"float": "f", "int": "i", "long": "i", "bool": "b", "half": "f", "bfloat16": "f"}
_PICK = {"minimum": "min", "maximum": "max", "min": "min", "max": "max"}


def _apply(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One operation of Python or PyTorch on symbols."""
    reads = _current[-1]
    plain = name.strip("_")
    if name.startswith("__r") and plain[1:] in {*_ARITHMETIC, *_LOGIC, "truediv", "floordiv", "mod", "pow"}:
        plain, args = plain[1:], args[::-1]
    if plain in ("new_ones", "new_zeros") and kwargs.get("dtype") is torch.bool:
        return Symbol("true" if plain == "new_ones" else "false", "b")
    if plain == "getitem" and isinstance(args[0], Tensor):
        return _index(reads, args[0], args[1] if isinstance(args[1], tuple) else (args[1],))
    if plain in ("to", "type") and len(args) == 2 and args[1] in _DTYPES:
        plain, args = {"f": "float", "i": "int", "b": "bool"}[_DTYPES[args[1]]], args[:1]
    if plain in ("clamp", "clip"):
        bounds = dict(zip(("min", "max"), args[1:])) | kwargs
        if set(bounds) - {"min", "max"}:
            raise _fail(f"{name} with {', '.join(kwargs)}")
        result = args[0]
        for bound, pick in ((bounds.get("min"), "maximum"), (bounds.get("max"), "minimum")):
            result = result if bound is None else _apply(pick, (result, bound), {})
        return result
    if kwargs.get("rounding_mode") == "floor" and plain in ("div", "divide"):
        plain = "floordiv"
        kwargs = {}
    if kwargs:
        raise _fail(f"{name} with {', '.join(kwargs)}")
    return _operate(plain, [_symbol(x, reads) for x in args], name)


def _operate(plain: str, args: list[Symbol], name: str) -> Symbol:
    kinds = {x.kind for x in args}
    texts = [x.text for x in args]
    number = "f" if "f" in kinds else "i"
    if plain in _FUNCTIONS and len(args) == 1 and "b" not in kinds:
        return Symbol(f"{_FUNCTIONS[plain]}({texts[0]})", "f")
    if plain in _SAME and len(args) == 1 and "b" not in kinds:
        return Symbol(f"{_SAME[plain]}({texts[0]})", args[0].kind)
    if plain in _CASTS and len(args) == 1:
        return _cast(args[0], _CASTS[plain])
    if len(args) == 1 and plain in ("neg", "negative") and "b" not in kinds:
        return Symbol(f"(-{texts[0]})", number)
    if len(args) == 1 and plain in ("invert", "logical_not", "bitwise_not") and kinds == {"b"}:
        return Symbol(f"(!{texts[0]})", "b")
    if len(args) == 3 and plain == "where" and args[0].kind == "b":
        chosen = args[1:] if args[1].kind == args[2].kind else [_cast(x, "f") for x in args[1:]]
        return Symbol(f"({texts[0]} ? {chosen[0].text} : {chosen[1].text})", chosen[0].kind)
    if len(args) == 2:
        if plain in _COMPARE and ("b" not in kinds or kinds == {"b"} and plain in ("eq", "ne")):
            return Symbol(f"({texts[0]} {_COMPARE[plain]} {texts[1]})", "b")
        if plain in _LOGIC and kinds == {"b"}:
            return Symbol(f"({texts[0]} {_LOGIC[plain]} {texts[1]})", "b")
        # A condition times a number is that number or 0.
        left, right = (_cast(x, "i") if x.kind == "b" and "b" != number and len(kinds) == 2 else x for x in args)
        if "b" not in {left.kind, right.kind}:
            if plain in _ARITHMETIC:
                return Symbol(f"({left.text} {_ARITHMETIC[plain]} {right.text})", number)
            if plain in _PICK:
                return Symbol(f"{_PICK[plain]}({left.text}, {right.text})", number)
            if plain in ("truediv", "div", "divide", "true_divide"):
                return Symbol(f"({_cast(left, 'f').text} / {right.text})", "f")
            if plain in ("floordiv", "floor_divide"):
                quotient = f"({left.text} / {right.text})"
                return Symbol(quotient if number == "i" else f"floor({quotient})", number)
            if plain in ("mod", "remainder"):
                return Symbol(f"({left.text} % {right.text})", number)
            if plain == "pow":
                if number == "i":
                    raise _fail("a power of integers")
                return Symbol(f"pow({left.text}, {right.text})", "f")
    raise _fail(f"{name} of {', '.join({'b': 'a condition', 'i': 'an integer', 'f': 'a number'}[x.kind] for x in args)} is not in the language")


def _cast(x: Symbol, kind: str) -> Symbol:
    if x.kind == kind:
        return x
    if kind == "f":
        return Symbol(f"({x.text} ? 1.0 : 0.0)" if x.kind == "b" else f"({x.text} * 1.0)", "f")
    if kind == "i" and x.kind == "b":
        return Symbol(f"({x.text} ? 1 : 0)", "i")
    if kind == "b" and x.kind != "b":
        return Symbol(f"({x.text} != {'0' if x.kind == 'i' else '0.0'})", "b")
    raise _fail("it makes an integer of a number with a fraction")


def _method(name: str) -> Callable[..., Any]:
    return lambda *args: _apply(name, args, {})


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor"):
    setattr(Symbol, f"__{_name}__", _method(f"__{_name}__"))
    setattr(Symbol, f"__r{_name}__", _method(f"__r{_name}__"))
for _name in (*_COMPARE, "neg", "abs", "invert"):
    setattr(Symbol, f"__{_name}__", _method(f"__{_name}__"))


class _Mode(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        words = kwargs or {}

        def touched(value: Any) -> bool:
            return isinstance(value, (Symbol, _Partial)) or isinstance(value, (tuple, list)) and any(map(touched, value))

        if touched(tuple(args)) or touched(tuple(words.values())):
            return _apply(getattr(function, "__name__", str(function)), tuple(args), words)
        return function(*args, **words)


def translate(mod: Union[str, Mod, Callable[..., Any]]) -> Mod:
    """A score_mod(score, b, h, q_idx, kv_idx) or mask_mod(b, h, q_idx, kv_idx) as text with captures.

    Translates arithmetic, comparisons, & | ~, torch.where and the language's functions, on indices, constants, single numbers and
    elements of tensors. Anything else is an error. Text is taken as it is."""
    if isinstance(mod, str):
        return Mod(mod)
    if isinstance(mod, Mod):
        return mod
    count = len(inspect.signature(mod).parameters)
    if count not in (4, 5):
        raise InvalidArgument(f"a mod takes (score, b, h, q_idx, kv_idx) or (b, h, q_idx, kv_idx), and this one takes {count} arguments")
    arguments = [Symbol("score", "f")] * (count - 4) + [Symbol(name, "i") for name in ("b", "h", "q", "kv")]
    reads = _Reads()
    _current.append(reads)
    try:
        with _Mode():
            result = _symbol(mod(*arguments), reads)
    finally:
        _current.pop()
    if (result.kind == "b") != (count == 4):
        raise _fail("a mask_mod returns a condition, and a score_mod a number")
    return Mod(result.text, reads.tensors)
