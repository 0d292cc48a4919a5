# SPDX-License-Identifier: MIT
"""Instances and devices."""
from __future__ import annotations

import ctypes
import logging
import os
import threading
from dataclasses import dataclass
from typing import Any

from . import _abi
from ._library import Handle, check, field_names, lib, struct

_LEVELS = {
    _abi.ATTUNE_LOG_ERROR: logging.ERROR, _abi.ATTUNE_LOG_WARNING: logging.WARNING,
    _abi.ATTUNE_LOG_INFO: logging.INFO, _abi.ATTUNE_LOG_DEBUG: logging.DEBUG,
}
_BACKENDS = {
    _abi.ATTUNE_BACKEND_CPU: "cpu", _abi.ATTUNE_BACKEND_VULKAN: "vulkan",
    _abi.ATTUNE_BACKEND_CUDA: "cuda", _abi.ATTUNE_BACKEND_OPENCL: "opencl",
}


def _write(user: Any, level: int, message: bytes) -> None:
    logging.getLogger("attune").log(_LEVELS.get(level, logging.ERROR), message.decode(errors="replace"))


_log = _abi.attune_log_fn(_write)


class Instance(Handle):
    """attune_instance: what devices, expressions and masks are made from. Messages go to logging's "attune".

    cpu_threads: threads of the CPU device; 0 = the cores that the process may use.
    compile_threads: threads that compile the kernels of one plan.
    cache_folder: of compiled kernels; None = the user's cache folder, "" = no cache."""

    def __init__(self, *, cpu_threads: int = 0, compile_threads: int = 0, cache_folder: str | None = None) -> None:
        level = logging.getLogger("attune").getEffectiveLevel()
        shown = [number for number, known in _LEVELS.items() if known >= level]
        desc = struct(_abi.attune_instance_desc, cpu_threads=cpu_threads, compile_threads=compile_threads, log=_log,
                      log_level=max(shown, default=_abi.ATTUNE_LOG_ERROR),
                      cache_folder=None if cache_folder is None else os.fsencode(cache_folder))
        handle = ctypes.c_void_p()
        check(lib.attune_instance_create(ctypes.byref(desc), ctypes.byref(handle)))
        self._own(handle, lib.attune_instance_destroy)

    def devices(self) -> list[DeviceInfo]:
        """The devices, and for each backend without one the reason. The CPU is the first."""
        count = ctypes.c_uint32()
        check(lib.attune_device_count(self._handle, ctypes.byref(count)))
        found = []
        for index in range(count.value):
            info = struct(_abi.attune_device_info)
            check(lib.attune_device_describe(self._handle, index, ctypes.byref(info)))
            found.append(DeviceInfo._of(info))
        return found

    def load_pack(self, path: str | os.PathLike[str]) -> None:
        """Loads kernels that `attune compile` wrote. Load only packs that you trust."""
        check(lib.attune_instance_pack_load(self._handle, os.fsencode(path)))


_default: Instance | None = None
_lock = threading.Lock()


def default_instance() -> Instance:
    """The instance that is used where none is given."""
    global _default
    with _lock:
        _default = _default or Instance(compile_threads=min(8, os.cpu_count() or 1))
        return _default


def _forget() -> None:
    # The parent's instance must not be used in the child.
    global _default, _lock
    _default, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@dataclass(frozen=True)
class DeviceInfo:
    """attune_device_info. `limits` has the fields of attune_limits."""

    id: str
    backend: str
    available: bool
    name: str
    driver: str
    uuid: str
    reason: str
    limits: dict[str, int | bool]

    def __repr__(self) -> str:
        return f"<attune.DeviceInfo {self.id}: {self.name if self.available else f'unavailable: {self.reason}'}>"

    @classmethod
    def _of(cls, info: _abi.attune_device_info) -> DeviceInfo:
        words = {name: getattr(info, name).decode(errors="replace") for name in ("id", "name", "driver", "uuid", "reason")}
        limits = {name: getattr(info.limits, name) for name in field_names(_abi.attune_limits)}
        return cls(backend=_BACKENDS[info.backend], available=info.available, limits=limits, **words)


class Queue(Handle):
    """A CUDA stream of the caller."""

    def __init__(self, device: Device, stream: int) -> None:
        handle = ctypes.c_void_p()
        check(lib.attune_cuda_queue_wrap(device._handle, stream, ctypes.byref(handle)))
        self._own(handle, lib.attune_cuda_queue_destroy)


def wrap(device: Device, begin: int, size: int) -> ctypes.c_void_p:
    """A buffer of bytes at an address that the device reads in place, whose owner keeps them; attune_buffer_destroy releases it."""
    handle = ctypes.c_void_p()
    function = lib.attune_cuda_buffer_wrap if device.backend == "cuda" else lib.attune_buffer_wrap
    check(function(device._handle, begin, size, ctypes.byref(handle)))
    return handle


#: Where Memory begins: a multiple of every alignment.
ORIGIN = 256


class Memory(Handle):
    """A buffer of all addresses from ORIGIN on. It owns nothing and costs nothing: a call touches only the bytes that its tensors
    describe, which belong to arrays that the call's caller holds. No array therefore needs a buffer of its own; workspace does, where a
    device uses all that its buffer has."""

    def __init__(self, device: Device) -> None:
        self._own(wrap(device, ORIGIN, 1 << 63), lib.attune_buffer_destroy)


class Device(Handle):
    """attune_device: "cpu", "cuda:0", "vulkan:0". "cuda:0@a6000" has the limits of another device's profile."""

    def __init__(self, id: str = "cpu", *, instance: Instance | None = None) -> None:
        self.instance = instance or default_instance()
        handle = ctypes.c_void_p()
        check(lib.attune_device_open(self.instance._handle, id.encode(), ctypes.byref(handle)))
        self._own(handle, lib.attune_device_destroy)
        info = struct(_abi.attune_device_info)
        check(lib.attune_device_info_get(self._handle, ctypes.byref(info)))
        self.info = DeviceInfo._of(info)
        self.backend = self.info.backend
        self._queues: dict[int, Queue] = {}
        self._memory: Memory | None = None

    @property
    def memory(self) -> int:
        """The buffer of all addresses, which a tensor's offset counts from ORIGIN in."""
        if self._memory is None:
            with _lock:
                self._memory = self._memory or Memory(self)
        return self._memory._handle

    def __repr__(self) -> str:
        return f"<attune.Device {self.info.id}: {self.info.name}>"

    def has_queue(self, stream: int) -> bool:
        """Whether a CUDA stream was used before: its queue then need not be made."""
        return (stream or 1) in self._queues

    def _queue(self, stream: int | None) -> int:
        """The queue of a CUDA stream (its number; None = the legacy default stream), and the device's own elsewhere."""
        if self.backend != "cuda":
            return int(lib.attune_device_queue(self._handle))
        stream = stream or 1  # CU_STREAM_LEGACY
        if stream not in self._queues:
            self._queues.setdefault(stream, Queue(self, stream))
        return self._queues[stream]._handle

    def measure(self, dtype: str) -> tuple[float, float]:
        """The measured peaks: operations and bytes per second."""
        from ._array import dtype_of

        flops, bandwidth = ctypes.c_double(), ctypes.c_double()
        check(lib.attune_device_measure(self._handle, dtype_of(dtype), ctypes.byref(flops), ctypes.byref(bandwidth)))
        return flops.value, bandwidth.value


def devices() -> list[DeviceInfo]:
    """The devices of the default instance."""
    return default_instance().devices()


def profiles() -> dict[str, str]:
    """The known devices that plans can be made for without one: name and description."""
    found = {}
    for index in range(lib.attune_profile_count()):
        profile = struct(_abi.attune_profile)
        check(lib.attune_profile_get(index, ctypes.byref(profile)))
        found[profile.name.decode()] = profile.description.decode()
    return found
