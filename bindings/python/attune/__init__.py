# SPDX-License-Identifier: MIT
"""Programmable attention: the mask and the score modification are one-line expressions.

    device = attune.Device("cpu")
    mask = attune.Mask("causal && window(128)", 500)
    plan = attune.Plan(device, attune.Problem(head_dim=64, heads=8, q_len=500, mask=mask))
    o = plan.forward(q, k, v, mask=mask).o

attune.torch has the same as an operator of PyTorch."""
from ._library import (
    Cancelled, DeviceLost, DoesNotFit, Error, InvalidArgument, OutOfMemory, ParseError, Unavailable, Unsupported, version,
)
from ._array import row_bytes
from .expr import Expr, presets
from .instance import Device, DeviceInfo, Instance, default_instance, devices, profiles
from .mask import Mask, MaskLists, MaskStats
from .plan import Backward, Batch, Cache, Forward, Plan, Problem, Schedule, choose

__version__ = version()
__all__ = [
    "Backward", "Batch", "Cache", "Cancelled", "Device", "DeviceInfo", "DeviceLost", "DoesNotFit", "Error", "Expr", "Forward", "Instance",
    "InvalidArgument", "Mask", "MaskLists", "MaskStats", "OutOfMemory", "ParseError", "Plan", "Problem", "Schedule", "Unavailable",
    "Unsupported", "choose", "default_instance", "devices", "presets", "profiles", "row_bytes", "version",
]
