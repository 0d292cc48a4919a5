# SPDX-License-Identifier: MIT
"""The operator of PyTorch.

The operator's arguments are all that determines a result: texts, numbers and tensors. What is kept between calls only saves time, so
that it is a pure function for autograd and torch.compile, and the backward pass finds again, or makes again, what the forward pass
used."""
from __future__ import annotations

import re
from typing import Any, Callable, Optional, Sequence

import torch
from torch import Tensor

from .._library import InvalidArgument
from ..mask import Mask
from ._calls import (
    Call, Masking, Settings, calls, clear, dense, describe, load_compiler, masks, outside_of_graphs, sign, signatures, view,
)

__all__ = ["attention", "attention_backward", "call", "clear", "load_compiler", "masks", "outside_of_graphs", "signatures", "view"]


def rows(tensor: Tensor) -> Tensor:
    """With contiguous rows, which kernels read."""
    if tensor.dim() != 4:
        raise InvalidArgument(f"a tensor is {tuple(tensor.shape)}: q, k and v are [batch, heads, length, head_dim]")
    return tensor if tensor.stride(3) == 1 else tensor.contiguous()


def distinct(tensor: Tensor) -> Tensor:
    """With more than one element in memory, if it has more than one."""
    return tensor.contiguous() if tensor.numel() > 1 and not any(tensor.stride()) else tensor


def layout(q: Tensor, head_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and strides of a tensor of q's sizes but the last, in the layout that q has: heads within a token where they are so there."""
    batch, heads, length, _ = q.shape
    if q.stride(1) < q.stride(2):
        return (batch, heads, length, head_dim), (length * heads * head_dim, head_dim, heads * head_dim, 1)
    return (batch, heads, length, head_dim), (heads * length * head_dim, length * head_dim, head_dim, 1)


def like(q: Tensor, head_dim: int) -> Tensor:
    """A new tensor of this layout."""
    return q.new_empty_strided(*layout(q, head_dim))


def real(q: Tensor) -> torch.dtype:
    """The type of LSE."""
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def lse_like(q: Tensor, wanted: bool) -> Tensor:
    """LSE, or nothing."""
    return q.new_empty(q.shape[:3] if wanted else (0,), dtype=real(q))


def spared(q: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, int]:
    """A tensor for dQ; the bytes that it and a spare part behind it lie in; and the bytes of a head. Where dQ's heads are not pieces of
    memory one after another, the bytes are the spare part alone, and a head has none."""
    spare = -(-lse.numel() * lse.element_size() * 5 // 8 // 256) * 256
    if q.shape[0] != 1 or q.stride(1) < q.stride(2):
        return like(q, q.shape[3]), q.new_empty(spare, dtype=torch.uint8), 0
    size = q.numel() * q.element_size()
    memory = q.new_empty(size + spare, dtype=torch.uint8)
    return memory[:size].view(q.dtype).view(q.shape), memory, size // q.shape[1]


def forward_settled(settings: Settings, parameters: tuple[float, ...], mask_captures: Sequence[Tensor], captures: Sequence[Tensor],
                    with_lse: bool, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Optional[Tensor], Optional[Mask]]:
    """O, LSE if wanted, and the mask."""
    key = (settings, with_lse, describe((q, k, v, *captures, *mask_captures)))
    call = calls.get(key)
    if call is None:
        given = (q, k, v, *captures)
        read = (rows(q), rows(k), rows(v), *map(distinct, captures))
        if any(x is not y for x, y in zip(given, read)):
            return forward_settled(settings, parameters, mask_captures, read[3:], with_lse, *read[:3])
        made = {"o": (*layout(q, v.shape[3]), q.dtype)} | ({"lse": (q.shape[:3], dense(q.shape[:3]), real(q))} if with_lse else {})
        call = calls.put(key, Call("forward", settings, {"q": q, "k": k, "v": v}, made, mask_captures, captures, parameters))
    mask = call.masking.find(mask_captures, parameters)
    o = q.new_empty_strided(*call.made[0])
    addresses = [q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr()]
    lse = None
    if with_lse:
        lse = q.new_empty_strided(*call.made[1], dtype=real(q))
        addresses.append(lse.data_ptr())
    for i in call.read:
        addresses.append(captures[i].data_ptr())
    call.run(mask, addresses, parameters)
    return o, lse, mask


def backward_call(settings: Settings, parameters: tuple[float, ...], mask_captures: Sequence[Tensor], captures: Sequence[Tensor],
                  wanted: tuple[int, ...], given: tuple[Tensor, ...], outputs: tuple[Tensor, ...] = (),
                  mask: Optional[Mask] = None) -> tuple[Call, tuple[Tensor, ...], Sequence[Tensor]]:
    """The call of a backward pass, and its tensors as it reads them. given: q, k, v, o, d_o, LSE, and d_lse if there is one. outputs: d_q,
    d_k and d_v if they lie in larger ones."""
    key = (settings, wanted, describe((*given, *captures, *mask_captures, *outputs)))
    call = calls.get(key)
    if call is None:
        read, reads = (*map(rows, given[:5]), *map(distinct, given[5:])), [distinct(x) for x in captures]
        if any(x is not y for x, y in zip((*given, *captures), (*read, *reads))):
            return backward_call(settings, parameters, mask_captures, reads, wanted, read, outputs, mask)
        tensors = dict(zip(("q", "k", "v", "o", "d_o", "lse", "d_lse"), given)) | dict(zip(("d_q", "d_k", "d_v"), outputs))
        made = {f"d_{name}": (*layout(tensors[name], tensors[name].shape[3]), tensors[name].dtype) for name in "qkv"} if not outputs else {}
        call = calls.put(key, Call("backward", settings, tensors, made, mask_captures, captures, parameters, mask, wanted))
    return call, given, captures


def gradients(settings: Settings, parameters: tuple[float, ...], mask_captures: Sequence[Tensor], captures: Sequence[Tensor],
              wanted: tuple[int, ...], low_memory: bool, mask: Optional[Mask], given: tuple[Tensor, ...],
              ) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """The gradients of q, k, v and of the captures whose numbers are wanted. mask: the forward pass's, if it is known."""
    sums = {i: torch.zeros_like(captures[i], dtype=torch.float32, memory_format=torch.contiguous_format) for i in wanted}
    if low_memory:
        d_q, d_k, d_v = in_groups(settings, parameters, mask_captures, captures, wanted, mask, given, sums)
    else:
        call, given, captures = backward_call(settings, parameters, mask_captures, captures, wanted, given, mask=mask)
        d_q, d_k, d_v = [x.new_empty_strided(*made) for x, made in zip(given, call.made)]
        launch(call, mask or call.masking.find(mask_captures, parameters), (*given, d_q, d_k, d_v), captures, sums, parameters)
    if not wanted:
        return d_q, d_k, d_v, []
    return d_q, d_k, d_v, [sums[i].to(captures[i].dtype, copy=captures[i].dtype != torch.float32) for i in wanted]


def launch(call: Call, mask: Optional[Mask], tensors: Sequence[Tensor], captures: Sequence[Tensor], sums: dict[int, Tensor],
           parameters: tuple[float, ...], lent: Optional[Tensor] = None) -> None:
    """Runs a backward pass."""
    addresses = [x.data_ptr() for x in tensors]
    for i in call.read:
        addresses.append(captures[i].data_ptr())
    for i in call.wanted:
        addresses.append(sums[i].data_ptr())
    call.run(mask, addresses, parameters, lent)


def in_groups(settings: Settings, parameters: tuple[float, ...], mask_captures: Sequence[Tensor], captures: Sequence[Tensor],
              wanted: tuple[int, ...], mask: Optional[Mask], given: tuple[Tensor, ...], sums: dict[int, Tensor],
              ) -> tuple[Tensor, Tensor, Tensor]:
    """A backward pass over a few heads of K and V at a time. dQ, whose heads take head_bytes, lies in `memory` with a spare part behind
    it. The workspace of a group lies in what later groups write dQ to. The last groups have too little of it: on CUDA they are computed
    by the kernels that need least, whose workspace fits into the spare part; else they have a workspace of their own."""
    given = (*map(rows, given[:5]), *given[5:])
    q, k, v, lse = given[0], given[1], given[2], given[5]
    signature = sign("backward", True, sum(x.numel() for x in sums.values()), settings, q, k, v, mask_captures, captures)
    for expr in (signature.mask, signature.score):
        if expr and re.search(r"\b(h|h_kv)\b", expr.print()):
            raise InvalidArgument(f"low_memory computes some heads at a time, and \"{expr}\" reads the head")
    found = mask or Masking(signature, settings, q, k).find(mask_captures, parameters)
    d_q, memory, head_bytes = spared(q, lse)
    d_k, d_v = like(k, k.shape[3]), like(v, v.shape[3])
    group, count, done = q.shape[1] // k.shape[1], k.shape[1], 0

    def part(begin: int, end: int, options: str) -> tuple[Call, tuple[Tensor, ...], Sequence[Tensor]]:
        few, kv_few = slice(begin * group, end * group), slice(begin, end)
        cut = tuple([x[:, kv_few] if x is k or x is v else x[:, few] for x in given])
        outputs = (d_q[:, few], d_k[:, kv_few], d_v[:, kv_few])
        call, read, reads = backward_call((*settings[:7], options), parameters, mask_captures, captures, wanted, cut, outputs, found)
        return call, (*read, *outputs), reads

    def attempt(size: int, options: str, room: Tensor, must: bool) -> bool:
        call, tensors, reads = part(done, done + size, options)
        fits = call.plan.workspace_size <= room.numel()
        if fits or must:
            launch(call, found, tensors, reads, sums, parameters, room if fits else None)
        return fits or must

    def room(size: int) -> Tensor:
        begin = (done + size) * group * head_bytes
        return memory[begin + -(memory.data_ptr() + begin) % 256 :]

    def most(one: int) -> int:
        size = count - done
        while size and size * one > room(size).numel():
            size -= 1
        return size

    def first(options: str) -> int:
        return part(0, 1, options)[0].plan.workspace_size

    options = settings[7]
    one = first(options)
    while done < count and (size := most(one)) and attempt(size, options, room(size), False):
        done += size
    options = options or ("{'bwd_KERNEL': 'cuda_sm80'}" if q.is_cuda else "")
    while done < count:
        spare = room(count - done)
        size = min(count - done, max(1, spare.numel() // max(1, first(options))))
        attempt(size, options, spare, True)
        done += size
    return d_q, d_k, d_v


_tags = [torch.Tag.cudagraph_unsafe] if hasattr(torch.Tag, "cudagraph_unsafe") else []


@torch.library.custom_op("attune::attention", mutates_args=(), tags=_tags)
def attention(q: Tensor, k: Tensor, v: Tensor, mask: str, mask_names: str, mask_captures: list[Tensor], score: str, names: str,
              captures: list[Tensor], parameter_names: str, parameters: list[float], scale: float, mask_shape: list[int], options: str,
              with_lse: bool, low_memory: bool) -> tuple[Tensor, Tensor]:
    """O and LSE. low_memory is for the backward pass."""
    settings = (mask, mask_names, score, names, parameter_names, scale, tuple(mask_shape), options)
    o, lse, _ = forward_settled(settings, tuple(parameters), mask_captures, captures, with_lse, q, k, v)
    return o, lse_like(q, False) if lse is None else lse


@attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, mask: str, mask_names: str, mask_captures: list[Tensor], score: str, names: str,
      captures: list[Tensor], parameter_names: str, parameters: list[float], scale: float, mask_shape: list[int], options: str,
      with_lse: bool, low_memory: bool) -> tuple[Tensor, Tensor]:
    return like(q, v.shape[3]), lse_like(q, with_lse)


@torch.library.custom_op("attune::attention_backward", mutates_args=(), tags=_tags)
def attention_backward(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Optional[Tensor], mask: str,
                       mask_names: str, mask_captures: list[Tensor], score: str, names: str, captures: list[Tensor],
                       parameter_names: str, parameters: list[float], scale: float, mask_shape: list[int], options: str,
                       wanted: list[int], low_memory: bool) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    """The gradients of q, k, v and of the captures whose numbers are wanted."""
    settings = (mask, mask_names, score, names, parameter_names, scale, tuple(mask_shape), options)
    given = (q, k, v, o, d_o, lse) if d_lse is None else (q, k, v, o, d_o, lse, d_lse)
    return gradients(settings, tuple(parameters), mask_captures, captures, tuple(wanted), low_memory, None, given)


@attention_backward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, d_o: Tensor, d_lse: Optional[Tensor], mask: str, mask_names: str,
      mask_captures: list[Tensor], score: str, names: str, captures: list[Tensor], parameter_names: str, parameters: list[float],
      scale: float, mask_shape: list[int], options: str,
      wanted: list[int], low_memory: bool) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    return (like(q, q.shape[3]), like(k, k.shape[3]), like(v, v.shape[3]),
            [torch.empty_like(captures[i], memory_format=torch.contiguous_format) for i in wanted])


def _setup_context(ctx: Any, inputs: Any, output: Any) -> None:
    q, k, v, mask, mask_names, mask_captures, score, names, captures, *rest, with_lse, low_memory = inputs
    ctx.texts, ctx.rest, ctx.counts = (mask, mask_names, score, names), rest, (len(mask_captures), len(captures))
    ctx.with_lse, ctx.low_memory = with_lse, low_memory
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, *output, *mask_captures, *captures)


def _backward(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
    if not ctx.with_lse:
        raise RuntimeError("attune::attention was called without LSE, which its backward pass reads")
    q, k, v, o, lse, *others = ctx.saved_tensors
    mask, mask_names, score, names = ctx.texts
    mask_captures, captures = others[: ctx.counts[0]], others[ctx.counts[0] :]
    needed = ctx.needs_input_grad[8]
    flags = list(needed) if isinstance(needed, (list, tuple)) else [bool(needed) and x.is_floating_point() for x in captures]
    wanted = [i for i, flag in enumerate(flags) if flag]
    d_q, d_k, d_v, sums = attention_backward(q, k, v, o, lse, torch.zeros_like(o) if d_o is None else d_o, d_lse, mask, mask_names,
                                             mask_captures, score, names, captures, *ctx.rest, wanted, ctx.low_memory)
    d_captures: list[Optional[Tensor]] = [None] * len(captures)
    for i, x in zip(wanted, sums):
        d_captures[i] = x
    # PyTorch takes an empty list of numbers for one of tensors.
    parameters: Optional[list[None]] = None if ctx.rest[1] else []
    return d_q, d_k, d_v, None, None, [None] * len(mask_captures), None, None, d_captures, None, parameters, None, None, None, None, None


attention.register_autograd(_backward, setup_context=_setup_context)


@torch.autograd.function.once_differentiable
def _once(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
    return _eager_gradients(ctx, d_o, d_lse)


def _eager_gradients(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
    q, k, v, o, lse, *others = ctx.saved_tensors
    settings, parameters, count, low_memory, mask, epoch = ctx.kept
    mask_captures, captures = others[:count], others[count:]
    wanted = tuple([i for i, needed in enumerate(ctx.needs_input_grad[4:]) if needed]) if captures else ()
    # Of a sum it is one element, expanded.
    d_o = torch.zeros_like(o) if d_o is None else rows(d_o)
    # After clear, and in the child of a fork, the mask is made again.
    d_q, d_k, d_v, sums = gradients(settings, parameters, mask_captures, captures, wanted, low_memory, mask if epoch is masks.epoch else None,
                                    (q, k, v, o, d_o, lse) if d_lse is None else (q, k, v, o, d_o, lse, d_lse))
    if not captures:
        return None, d_q, d_k, d_v
    d_captures: list[Optional[Tensor]] = [None] * len(captures)
    for i, x in zip(wanted, sums):
        d_captures[i] = x
    return (None, d_q, d_k, d_v, *d_captures)


class Eager(torch.autograd.Function):
    """The operator without PyTorch's dispatcher, whose way through Python takes longer than all else of a small call."""

    @staticmethod
    def forward(ctx: Any, how: tuple[Settings, tuple[float, ...], list[Tensor], bool], q: Tensor, k: Tensor, v: Tensor,
                *captures: Tensor) -> tuple[Tensor, Optional[Tensor]]:
        settings, parameters, mask_captures, low_memory = how
        epoch = masks.epoch
        o, lse, mask = forward_settled(settings, parameters, mask_captures, captures, True, q, k, v)
        ctx.kept = settings, parameters, len(mask_captures), low_memory, mask, epoch
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, o, lse, *mask_captures, *captures)
        return o, lse

    @staticmethod
    def backward(ctx: Any, d_o: Optional[Tensor], d_lse: Optional[Tensor]) -> Any:
        # With create_graph, what the gradients would need to be differentiated again is an error.
        return _once(ctx, d_o, d_lse) if torch.is_grad_enabled() else _eager_gradients(ctx, d_o, d_lse)


# PyTorch declares apply without types.
apply_eager: Callable[..., tuple[Tensor, Tensor]] = Eager.apply
_PLAIN = {Tensor, torch.nn.Parameter}


def plain(tensors: Sequence[Tensor]) -> bool:
    """Whether nothing but autograd is to see the operator: no compiler, mode, transform or kind of tensor of its own."""
    return (not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack() == 0 and torch._C._len_torch_function_stack() == 0
            and torch._C._functorch.peek_interpreter_stack() is None and _PLAIN.issuperset(map(type, tensors)))


def call(q: Tensor, k: Tensor, v: Tensor, settings: Settings, parameters: tuple[float, ...], mask_captures: list[Tensor],
         captures: list[Tensor], return_lse: bool, low_memory: bool) -> tuple[Tensor, Optional[Tensor]]:
    """The operator, by the shortest way."""
    differentiable = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad
                                                  or any([x.requires_grad for x in captures]))
    if not plain((q, k, v, *mask_captures, *captures)):
        mask, mask_names, score, names, parameter_names, scale, mask_shape, options = settings
        made: tuple[Tensor, Tensor] = torch.ops.attune.attention(
            q, k, v, mask, mask_names, mask_captures, score, names, captures, parameter_names, parameters, scale, mask_shape, options,
            return_lse or differentiable, low_memory)
        return made
    if differentiable:
        return apply_eager((settings, parameters, mask_captures, low_memory), q, k, v, *captures)
    return forward_settled(settings, parameters, mask_captures, captures, return_lse, q, k, v)[:2]
