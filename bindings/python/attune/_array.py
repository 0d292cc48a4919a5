# SPDX-License-Identifier: MIT
"""Arrays of other libraries, read and written in place: through the buffer protocol (NumPy, memoryview, array) and through DLPack
(PyTorch, JAX, CuPy)."""
from __future__ import annotations

import ctypes
import functools
import sys
from typing import Any, Sequence

from . import _abi
from ._library import InvalidArgument, lib

# Element types by the codes of the buffer protocol and of DLPack, which are (kind, bits).
_BY_FORMAT = {
    ("f", 4): _abi.ATTUNE_F32, ("f", 2): _abi.ATTUNE_F16, ("f", 8): _abi.ATTUNE_F64, ("i", 4): _abi.ATTUNE_I32,
    ("i", 8): _abi.ATTUNE_I64, ("u", 1): _abi.ATTUNE_U8, ("b", 1): _abi.ATTUNE_BOOL, ("bf", 2): _abi.ATTUNE_BF16,
    ("i", 1): _abi.ATTUNE_I8, ("e4m3", 1): _abi.ATTUNE_F8E4M3, ("e5m2", 1): _abi.ATTUNE_F8E5M2,
}
_FORMATS = {"e": "f", "f": "f", "d": "f", "b": "i", "i": "i", "l": "i", "q": "i", "B": "u", "?": "b"}
_DLPACK_KINDS = {0: "i", 1: "u", 2: "f", 4: "bf", 6: "b", 10: "e4m3", 12: "e5m2"}
# Types of keys and values that not every library has arrays of: bytes stand for them.
_AS_BYTES = (_abi.ATTUNE_F8E4M3, _abi.ATTUNE_F8E5M2, _abi.ATTUNE_Q8_0, _abi.ATTUNE_Q4_0)
DLPACK_CPU, DLPACK_CUDA = 1, 2
_HOSTS = {DLPACK_CPU, 3, 13}  # and memory that CUDA pinned or manages

DTYPES = {lib.attune_dtype_string(number).decode(): number for number in (*_BY_FORMAT.values(), *_AS_BYTES)}


def dtype_of(name: str) -> int:
    """The number of an element type's name."""
    if name not in DTYPES:
        raise InvalidArgument(f"no element type is called {name!r}: {', '.join(DTYPES)}")
    return DTYPES[name]


def row_bytes(dtype: str, columns: int) -> int:
    """The bytes of so many columns of an element type: of a row of a cache's array of bytes."""
    number = dtype_of(dtype)
    block = lib.attune_dtype_block(number)
    if columns % block:
        raise InvalidArgument(f"{columns} columns are no multiple of {block}, the elements of a block of {dtype}")
    return int(columns // block * lib.attune_dtype_size(number))


@functools.lru_cache(maxsize=None)
def _sizes(dtype: int) -> tuple[int, int]:
    """The bytes of an element, or of a block of elements, and the elements of a block."""
    return int(lib.attune_dtype_size(dtype)), int(lib.attune_dtype_block(dtype))


class View:
    """Where the elements of an array are. Strides are in elements. `owner` keeps them there."""

    __slots__ = ("address", "device", "dtype", "shape", "strides", "owner", "_exported")

    def __init__(self, address: int, device: tuple[int, int], dtype: int, shape: Sequence[int], strides: Sequence[int],
                 owner: object) -> None:
        self.address, self.device, self.dtype = address, device, dtype
        self.shape, self.strides, self.owner = tuple(shape), tuple(strides), owner

    def extent(self) -> tuple[int, int]:
        """The address of the first byte that an element has, and of the byte after the last."""
        size, block = _sizes(self.dtype)
        counts, begin, end = self.shape, self.address, self.address
        if 0 in counts:
            return begin, begin
        if block > 1:
            counts = (*counts[:-1], counts[-1] // block)
        for count, stride in zip(counts, self.strides):
            if stride > 0:
                end += (count - 1) * stride
            else:
                begin += (count - 1) * stride
        return self.address + (begin - self.address) * size, self.address + (end - self.address + 1) * size

    def elements(self, dtype: int) -> View:
        """Bytes as elements of a type that arrays seldom have (f8e4m3, f8e5m2, q8_0, q4_0), or the view itself."""
        if self.dtype != _abi.ATTUNE_U8 or dtype not in _AS_BYTES:
            return self
        size, block, name = lib.attune_dtype_size(dtype), lib.attune_dtype_block(dtype), lib.attune_dtype_string(dtype).decode()
        if size == 1:
            return View(self.address, self.device, dtype, self.shape, self.strides, self.owner)
        if not self.shape or self.shape[-1] % size or self.shape[-1] > 1 and self.strides[-1] != 1:
            raise InvalidArgument(f"an array of bytes is {self.shape} with strides {self.strides}: its last dimension must have whole "
                                  f"blocks of {size} bytes, one after another, to be {name}")
        outer = [stride if count > 1 else 0 for count, stride in zip(self.shape[:-1], self.strides)]
        if any(stride % size for stride in outer):
            raise InvalidArgument(f"an array of bytes has the strides {self.strides}: to be {name} they must be multiples of {size}")
        return View(self.address, self.device, dtype, (*self.shape[:-1], self.shape[-1] // size * block),
                    [*(stride // size for stride in outer), 1], self.owner)

    def host(self) -> _abi.attune_array:
        """As attune_array."""
        if self.device[0] not in _HOSTS:
            raise InvalidArgument("this array must be in host memory: copy it to the CPU first")
        made = _abi.attune_array(data=self.address, dtype=self.dtype)
        fill(made, self.shape, self.strides)
        return made


def fill(made: Any, shape: Sequence[int], strides: Sequence[int]) -> None:
    """Sets rank, size and stride of an attune_array or attune_tensor."""
    rank = len(shape)
    if rank > _abi.ATTUNE_MAX_RANK:
        raise InvalidArgument(f"an array has {rank} dimensions, and {_abi.ATTUNE_MAX_RANK} is the limit")
    made.rank = rank
    made.size[:rank] = shape
    # All strides 0 means contiguous. The stride of a dimension of one element is free.
    strides = [stride if size > 1 else 1 for size, stride in zip(shape, strides)]
    if shape and not any(strides):
        raise InvalidArgument(f"an array of {tuple(shape)} repeats one element in every dimension: make it contiguous")
    made.stride[:rank] = strides


class _Buffer(ctypes.Structure):
    """Py_buffer of Python's C API."""

    _fields_ = [
        ("buf", ctypes.c_void_p), ("obj", ctypes.py_object), ("len", ctypes.c_ssize_t), ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int), ("ndim", ctypes.c_int), ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)), ("internal", ctypes.c_void_p),
    ]


_RECORDS, _WRITABLE = 0x1C, 0x1  # strides and format, as PyBUF_RECORDS_RO; PyBUF_WRITABLE
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes, _release_buffer.restype = [ctypes.POINTER(_Buffer)], None


class _BufferOwner:
    def __init__(self, source: object, write: bool) -> None:
        self.buffer = _Buffer()
        _get_buffer(source, self.buffer, _RECORDS | (_WRITABLE if write else 0))

    def __del__(self) -> None:
        _release_buffer(self.buffer)


def _of_buffer(source: object, write: bool) -> View:
    owner = _BufferOwner(source, write)
    b = owner.buffer
    code = (b.format or b"B").decode()
    code = code[1:] if code[:1] in ("@", "=", "<" if sys.byteorder == "little" else ">") else code
    dtype = _BY_FORMAT.get((_FORMATS.get(code, ""), b.itemsize))
    if dtype is None:
        raise InvalidArgument(f"an array has the element type {code!r}: {', '.join(DTYPES)} are supported")
    if any(b.strides[i] % b.itemsize for i in range(b.ndim)):
        raise InvalidArgument("an array's strides are no multiples of its element size")
    return View(b.buf or 0, (DLPACK_CPU, 0), dtype, b.shape[: b.ndim], [b.strides[i] // b.itemsize for i in range(b.ndim)], owner)


class _DLTensor(ctypes.Structure):
    """DLTensor of DLPack, which begins the DLManagedTensor of a capsule called dltensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


def _of_dlpack(source: Any, stream: int | None) -> View:
    on_gpu = source.__dlpack_device__()[0] == DLPACK_CUDA
    capsule = source.__dlpack__(stream=stream) if on_gpu and stream else source.__dlpack__()
    # The capsule is not consumed: it owns the tensor, and releases it with the view.
    t = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    shape = t.shape[: t.ndim]
    if t.strides:
        strides = t.strides[: t.ndim]
    else:
        strides = [1] * t.ndim
        for i in range(t.ndim - 2, -1, -1):
            strides[i] = strides[i + 1] * shape[i + 1]
    dtype = _BY_FORMAT.get((_DLPACK_KINDS.get(t.code, ""), t.bits // 8)) if t.lanes == 1 else None
    if dtype is None:
        raise InvalidArgument(f"an array has DLPack's element type {t.code} of {t.bits} bits: {', '.join(DTYPES)} are supported")
    return View((t.data or 0) + t.byte_offset, (t.device_type, t.device_id), dtype, shape, strides, capsule)


def view(source: Any, *, write: bool = False, stream: int | None = None) -> View:
    """The elements of an array, which are not copied. write: the call will change them. stream: the CUDA stream that they must be
    ready on."""
    if isinstance(source, View):
        return source
    if hasattr(source, "__dlpack__") and source.__dlpack_device__()[0] not in _HOSTS:
        return _of_dlpack(source, stream)
    try:
        return _of_buffer(source, write)
    except TypeError:
        if hasattr(source, "__dlpack__"):
            return _of_dlpack(source, stream)
        raise TypeError(f"{type(source).__name__} has neither the buffer protocol nor DLPack: make an array of it, as by numpy.asarray") from None
    except (BufferError, ValueError) as error:
        if write and not isinstance(error, InvalidArgument):
            raise InvalidArgument(f"an output cannot be written: {error}") from None
        raise


def empty_like(source: Any, shape: Sequence[int], dtype: int) -> Any:
    """A new array of the library that `source` is of."""
    name = lib.attune_dtype_string(dtype).decode()
    kind = type(source).__module__.partition(".")[0]
    if kind == "torch":
        import torch

        kinds = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
        return torch.empty(tuple(shape), dtype=kinds[name], device=source.device)
    if kind in ("numpy", "cupy") and name != "bf16":
        import importlib

        return importlib.import_module(kind).empty(tuple(shape), dtype={"f32": "f4", "f16": "f2", "f64": "f8"}[name])
    if kind in ("builtins", "array", "ctypes") and name != "bf16":
        count = lib.attune_dtype_size(dtype)
        for size in shape:
            count *= size
        kind_of: Any = {"f32": "f", "f16": "e", "f64": "d"}[name]
        return memoryview(bytearray(count)).cast(kind_of, tuple(shape))
    raise InvalidArgument(f"no array of {name} can be made for a {type(source).__name__}: pass the outputs")
