# SPDX-License-Identifier: MIT
"""Attention as an operator of PyTorch: on the CPU and on CUDA, with autograd and torch.compile.

    o = attune.torch.attention(q, k, v, mask="causal && document(doc)", captures={"doc": doc})"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional, Union

import torch
from torch import Tensor

from .._library import InvalidArgument
from ..expr import Number
from ..mask import Mask
from ..plan import Options
from . import _operator
from ._operator import clear
from ._translate import Mod, translate

__all__ = ["BlockMask", "Mod", "attention", "clear", "create_block_mask", "flex_attention", "translate"]

ModLike = Union[str, Mod, Callable[..., Any]]


@dataclass
class BlockMask:
    """A mask with the tensors that it reads and the longest lengths that it is for. Its lists are made at its first use on a device,
    and kept while it is among the most recently used."""

    text: str
    q_len: int
    kv_len: int
    captures: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, Number] = field(default_factory=dict)
    block: tuple[int, int] = (128, 128)

    def mask(self, batch: int = 1, heads: int = 1, kv_heads: int = 0) -> Mask:
        """As attune.Mask, which has lists, figures and pictures."""
        return Mask(self.text, self.q_len, self.kv_len, batch=batch, heads=heads, kv_heads=kv_heads, block=self.block,
                    captures={name: _operator.view(x.detach().cpu()) for name, x in self.captures.items()}, parameters=self.parameters)

    def _repr_html_(self) -> str:
        return self.mask()._repr_html_()


def create_block_mask(mask_mod: ModLike, B: Optional[int], H: Optional[int], Q_LEN: int, KV_LEN: int, device: Any = None,
                      BLOCK_SIZE: Union[int, tuple[int, int]] = 128, *, captures: Optional[Mapping[str, Tensor]] = None,
                      parameters: Optional[Mapping[str, Number]] = None) -> BlockMask:
    """FlexAttention's create_block_mask, from text or a Python mask_mod. The mask is built once here, so that what is wrong with it
    is said here. B, H: as there; the device follows from each call, and need not be given."""
    mod = translate(mask_mod)
    block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else (BLOCK_SIZE[0], BLOCK_SIZE[1])
    made = BlockMask(mod.text, Q_LEN, KV_LEN, {**mod.captures, **_captures(captures)}, dict(parameters or {}), block)
    made.mask(B or 1, H or 1)
    return made


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Union[ModLike, BlockMask, None] = None, score: Optional[ModLike] = None, *,
              captures: Optional[Mapping[str, Tensor]] = None, parameters: Optional[Mapping[str, Number]] = None,
              scale: Optional[float] = None, return_lse: bool = False, kernel_options: Optional[Options] = None,
              low_memory: bool = False) -> Any:
    """softmax(score(scale * q k^T)) v over the pairs that the mask allows; with return_lse also LSE, the natural logarithm of the sums.

    q is [batch, heads, q_len, head_dim], k [batch or 1, kv_heads, kv_len, head_dim], v likewise with its own head_dim; query head h
    reads key head h / (heads / kv_heads). o has q's layout in memory.

    mask, score: expressions as text ("causal && document(doc)"), or what translate makes of a Python mod; mask may be a BlockMask.
    captures: the tensors that they read by name. Those of the score are on q's device, and have gradients; those of the mask best
    lie on the CPU, since lists are made there. parameters: numbers by name.
    scale: default 1 / sqrt(head_dim). kernel_options: FlexAttention's, such as {"BLOCK_M": 64, "bwd_DETERMINISTIC": True}.
    low_memory: the backward pass takes some heads at a time, whose workspace lies in gradients that are still to be computed, so that
    it holds hardly more than the gradients, and takes longer. Mask and score must not read the head.

    Gradients flow to q, k, v, the score's captures, and from LSE."""
    tensors = _captures(captures) if captures else {}
    numbers = dict(parameters) if parameters else {}
    score_text, mask_text, mask_shape = "", "", (128, 128, 0, 0)
    mask_tensors, score_tensors = tensors, tensors
    if isinstance(mask, BlockMask):
        if any(numbers.get(name, value) != value for name, value in mask.parameters.items()):
            raise InvalidArgument("a parameter has another value than the BlockMask was made with")
        mask_text, mask_tensors, numbers = mask.text, _captures(mask.captures), {**numbers, **mask.parameters}
        mask_shape = (*mask.block, mask.q_len, mask.kv_len)
    elif mask is not None:
        mask_text, mask_tensors = _text(mask, tensors)
    if score is not None:
        score_text, score_tensors = _text(score, tensors)
    if scale is not None and scale == 0:
        raise InvalidArgument("scale is 0: every score would be")
    settings = (mask_text, ",".join(mask_tensors), score_text, ",".join(score_tensors), _kinds(numbers) if numbers else "",
                0.0 if scale is None else scale, mask_shape, _options(kernel_options) if kernel_options else "")
    o, lse = _operator.call(q, k, v, settings, tuple([float(value) for value in numbers.values()]),
                            [x.detach() if x.requires_grad else x for x in mask_tensors.values()] if mask_text else [],
                            list(score_tensors.values()), return_lse, low_memory)
    return (o, lse) if return_lse else o


def _captures(captures: Optional[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {name: x.reshape(1) if x.dim() == 0 else x for name, x in (captures or {}).items()}


def _text(mod: ModLike, tensors: dict[str, Tensor]) -> tuple[str, dict[str, Tensor]]:
    if isinstance(mod, str):
        return mod, tensors
    if not isinstance(mod, Mod):
        if torch.compiler.is_compiling():
            raise InvalidArgument("a Python mod cannot be translated while torch.compile traces: call attune.torch.translate before")
        mod = translate(mod)
    return mod.text, {**tensors, **_captures(mod.captures)}


def _kinds(numbers: Mapping[str, Number]) -> str:
    return ",".join(f"{name}:{'i' if isinstance(value, int) else 'f'}" for name, value in numbers.items())


def _options(options: Options) -> str:
    return "{" + ", ".join(f"{key!r}: {options[key]!r}" for key in sorted(options)) + "}"


def flex_attention(query: Tensor, key: Tensor, value: Tensor, score_mod: Optional[ModLike] = None, block_mask: Optional[BlockMask] = None,
                   scale: Optional[float] = None, enable_gqa: bool = False, return_lse: bool = False,
                   kernel_options: Optional[Options] = None, *, return_aux: Any = None) -> Any:
    """torch.nn.attention.flex_attention.flex_attention's signature. block_mask is attune.torch.create_block_mask's."""
    if block_mask is not None and not isinstance(block_mask, BlockMask):
        raise InvalidArgument(f"block_mask is a {type(block_mask).__module__}.{type(block_mask).__name__}: make it with "
                              "attune.torch.create_block_mask, which takes the same mask_mod")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise InvalidArgument(f"query has {query.shape[1]} heads and key {key.shape[1]}: set enable_gqa=True")
    if getattr(return_aux, "max_scores", False):
        raise InvalidArgument("return_aux.max_scores is not available: attune.Plan.forward has row_max")
    wanted = return_lse or bool(getattr(return_aux, "lse", False))
    result = attention(query, key, value, block_mask, score_mod, scale=scale, return_lse=wanted, kernel_options=kernel_options)
    if return_aux is None:
        return result
    from torch.nn.attention.flex_attention import AuxOutput

    o, lse = result if wanted else (result, None)
    return o, AuxOutput(lse=lse, max_scores=None)
