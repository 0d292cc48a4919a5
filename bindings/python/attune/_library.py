# SPDX-License-Identifier: MIT
"""The loaded library, and what every call of it needs: errors, text, handles."""
from __future__ import annotations

import ctypes
import os
import pathlib
import re
import sys
import weakref
from typing import Any, Callable, Sequence, TypeVar

try:
    from . import _abi
except ImportError as error:
    raise ImportError(f"{pathlib.Path(__file__).parent} is the package's source, and what is made from the headers is missing: install it, "
                      "pip install . at the root of a clone, and leave its source out of PYTHONPATH") from error

S = TypeVar("S", bound=ctypes.Structure)


class Error(RuntimeError):
    """A call of the library failed. `status` is the name of its attune_status; the message has the value, the limit and the
    remedy."""

    status: str = "ATTUNE_INTERNAL"


class InvalidArgument(Error, ValueError):
    """An argument breaks the contract of the call."""


class Unsupported(Error, NotImplementedError):
    """Valid, but not supported by this device or version."""


class Unavailable(Error):
    """The device or its driver was not found."""


class OutOfMemory(Error, MemoryError):
    """The host or the device has too little memory."""


class DeviceLost(Error):
    """The device failed; every later call on it fails too."""


class DoesNotFit(Error, ValueError):
    """A forced option exceeds a limit of the device."""


class Cancelled(Error):
    """Stopped by the caller's callback or at a limit that the caller set."""


class ParseError(Error, ValueError):
    """An expression is invalid. `line` and `column` count from 1; the message also has the text with a caret."""

    line: int | None = None
    column: int | None = None


_KINDS: dict[int, type[Error]] = {
    _abi.ATTUNE_INVALID_ARGUMENT: InvalidArgument,
    _abi.ATTUNE_UNSUPPORTED: Unsupported,
    _abi.ATTUNE_UNAVAILABLE: Unavailable,
    _abi.ATTUNE_OUT_OF_HOST_MEMORY: OutOfMemory,
    _abi.ATTUNE_OUT_OF_DEVICE_MEMORY: OutOfMemory,
    _abi.ATTUNE_DEVICE_LOST: DeviceLost,
    _abi.ATTUNE_PARSE_ERROR: ParseError,
    _abi.ATTUNE_DOES_NOT_FIT: DoesNotFit,
    _abi.ATTUNE_CANCELLED: Cancelled,
}


def _path() -> str:
    """Beside this file; ATTUNE_LIBRARY names another."""
    if named := os.environ.get("ATTUNE_LIBRARY"):
        return named
    name = {"win32": "attune.dll", "darwin": "libattune.dylib"}.get(sys.platform, "libattune.so")
    return str(pathlib.Path(__file__).parent / name)


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(_path())
    for name, (result, parameters) in _abi.PROTOTYPES.items():
        # A library without the CUDA backend has none of its functions.
        if function := getattr(library, name, None):
            function.restype, function.argtypes = result, parameters
    number = library.attune_version()
    built = (_abi.ATTUNE_VERSION_MAJOR, _abi.ATTUNE_VERSION_MINOR)
    if (number // 1000000, number // 1000 % 1000) != built:
        raise ImportError(f"{_path()} is attune {number // 1000000}.{number // 1000 % 1000}, and this package is for {built[0]}.{built[1]}")
    return library


lib: Any = _load()


def version() -> str:
    """The version of the loaded library."""
    number = lib.attune_version()
    return f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"


def check(status: int) -> None:
    """Raises what a status says, with the library's message."""
    if status == _abi.ATTUNE_OK:
        return
    message = lib.attune_last_error().decode(errors="replace")
    error = _KINDS.get(status, Error)(message)
    error.status = lib.attune_status_string(status).decode()
    if isinstance(error, ParseError) and (found := re.search(r"line (\d+), column (\d+)", message)):
        error.line, error.column = int(found[1]), int(found[2])
    raise error


def struct(kind: type[S], **fields: Any) -> S:
    """A struct of the header with its struct_size."""
    made = kind(**fields)
    if hasattr(made, "struct_size"):
        made.struct_size = ctypes.sizeof(kind)
    return made


def table(kind: Any, rows: Sequence[Any]) -> Any:
    """An array of structs of the header, from tuples of their fields."""
    return (kind * len(rows))(*rows)


def field_names(kind: Any) -> list[str]:
    """The fields of a struct of the header, without struct_size."""
    return [name for name, *_ in kind._fields_ if name != "struct_size"]


def text(write: Callable[[Any, int, Any], int]) -> str:
    """The text that a function which takes (buffer, size, needed) writes."""
    needed = ctypes.c_size_t()
    check(write(None, 0, ctypes.byref(needed)))
    buffer = ctypes.create_string_buffer(needed.value)
    check(write(buffer, needed.value, None))
    return buffer.value.decode()


def _release(destroy: Callable[[Any], None], handle: int, process: int) -> None:
    # After a fork the child must not destroy what the parent made.
    if os.getpid() == process:
        destroy(handle)


class Handle:
    """Releases a handle of the library with the object. At exit the system does."""

    _handle: int

    def _own(self, handle: ctypes.c_void_p, destroy: Callable[[Any], None]) -> None:
        assert handle.value is not None
        self._handle = handle.value
        weakref.finalize(self, _release, destroy, handle.value, os.getpid()).atexit = False
