# SPDX-License-Identifier: MIT
"""Plans and their calls."""
from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields
from typing import Any, Callable, Mapping, Sequence

from . import _abi
from ._array import DLPACK_CPU, DLPACK_CUDA, View, dtype_of, empty_like, fill, view
from ._library import Handle, InvalidArgument, check, field_names, lib, struct, table, text
from .expr import Expr, Number, parameter_table
from .instance import ORIGIN, Device, wrap
from .mask import Mask

Options = Mapping[str, Any]
_TEXTS = {"text": _abi.ATTUNE_TEXT, "json": _abi.ATTUNE_JSON}
_DIRECTIONS = {"forward": _abi.ATTUNE_FORWARD, "backward": _abi.ATTUNE_BACKWARD}
_CHOICES = {None: _abi.ATTUNE_AUTO, True: _abi.ATTUNE_ON, False: _abi.ATTUNE_OFF}


@dataclass(frozen=True)
class Problem:
    """attune_problem: what a plan is for. Lengths and batch are the largest of its calls; 0 and None take the header's default.

    tokens: the most rows of a call over a cache (Cache, Batch), whose mask is an expression that each call evaluates."""

    head_dim: int
    q_len: int
    kv_len: int = 0
    dtype: str = "f32"
    head_dim_v: int = 0
    batch: int = 0
    kv_batch: int = 0
    heads: int = 0
    kv_heads: int = 0
    scale: float = 0.0
    mask: Mask | Expr | None = None
    score: Expr | None = None
    lse: bool = False
    row_max: bool = False
    capture_gradient_elements: int = 0
    kv_dtype: str | None = None
    o_dtype: str | None = None
    direction: str = "forward"
    sinks: bool = False
    tokens: int = 0
    page: int = 0
    tree: bool = False
    v_dtype: str | None = None
    split_keys: int = 0
    shared_sequences: int = 0

    def _struct(self) -> _abi.attune_problem:
        if self.direction not in _DIRECTIONS:
            raise InvalidArgument(f"a plan is forward or backward, not {self.direction!r}")
        if self.mask is not None and not isinstance(self.mask, (Mask, Expr)):
            raise InvalidArgument(f"a problem's mask is {self.mask!r}: give attune.Mask({self.mask!r}, q_len, kv_len), or with tokens "
                                  f"attune.Expr('mask', {self.mask!r})")
        if self.score is not None and not isinstance(self.score, Expr):
            raise InvalidArgument(f"a problem's score is {self.score!r}: give attune.Expr('score', {self.score!r})")
        same = ("head_dim", "head_dim_v", "batch", "kv_batch", "heads", "kv_heads", "q_len", "kv_len", "scale", "lse", "row_max",
                "capture_gradient_elements", "sinks", "tokens", "page", "tree", "split_keys", "shared_sequences")
        types = {name: dtype_of(getattr(self, name)) for name in ("kv_dtype", "o_dtype", "v_dtype") if getattr(self, name)}
        made = struct(_abi.attune_problem, direction=_DIRECTIONS[self.direction], dtype=dtype_of(self.dtype),
                      score=self.score._handle if self.score else None, **types, **{name: getattr(self, name) for name in same})
        if isinstance(self.mask, Expr):
            made.mask = self.mask._handle
        elif self.mask is not None:
            check(lib.attune_problem_set_mask(ctypes.byref(made), self.mask._handle))
        return made


def kernel_options(options: Options | None) -> _abi.attune_kernel_options:
    """attune_kernel_options of FlexAttention's names, such as {"BLOCK_M": 64, "fwd_num_stages": 2}."""
    made = struct(_abi.attune_kernel_options)
    kinds = {name: kind for name, kind, *_ in _abi.attune_pass_options._fields_}
    for key, value in (options or {}).items():
        part, name = made.any, key
        for prefix in ("fwd", "bwd"):
            if key.startswith(f"{prefix}_"):
                part, name = getattr(made, prefix), key[4:]
        # FlexAttention writes num_warps and num_stages small, and all others in capitals.
        field = name.lower()
        if field not in kinds or name != (field if field.startswith("num_") else field.upper()):
            known = ", ".join(known if known.startswith("num_") else known.upper() for known in kinds)
            raise InvalidArgument(f"no kernel option is called {key!r}: {known}, each also with fwd_ or bwd_ before it")
        kind = kinds[field]
        try:
            if kind is ctypes.c_int:
                value = _CHOICES[value]
            elif field == "kernel":
                value = value.encode()
            setattr(part, field, value)
        except (KeyError, AttributeError, TypeError, ValueError):
            raise InvalidArgument(f"kernel option {key} cannot be {value!r}") from None
    return made


def choose(profile: str, problem: Problem, options: Options | None = None, *, format: str = "text") -> str:
    """The plan on a device that need not be here (attune.profiles()), with its reasons: "text" or "json"."""
    known = struct(_abi.attune_profile)
    check(lib.attune_profile_find(profile.encode(), ctypes.byref(known)))
    what, chosen = problem._struct(), kernel_options(options)
    return text(lambda *out: int(lib.attune_plan_choose_explain(
        ctypes.byref(known.limits), ctypes.byref(what), ctypes.byref(chosen), _format(format), *out)))


def _format(name: str) -> int:
    if name not in _TEXTS:
        raise InvalidArgument(f"no format is called {name!r}: {', '.join(_TEXTS)}")
    return _TEXTS[name]


def on_device(device: Device, source: View) -> None:
    """Fails unless the device reads the view in place."""
    wanted = DLPACK_CUDA if device.backend == "cuda" else DLPACK_CPU
    if source.device[0] != wanted and not (wanted == DLPACK_CPU and source.device[0] in (3, 13)):
        raise InvalidArgument(f"an array is not in memory that {device.info.id} reads in place (DLPack's device type "
                              f"{source.device[0]}; {wanted} is)")


def tensor(device: Device, source: View) -> _abi.attune_tensor:
    """attune_tensor of a view, which the caller holds until the call is done. A view without elements has no buffer."""
    on_device(device, source)
    made = _abi.attune_tensor(dtype=source.dtype)
    fill(made, source.shape, source.strides)
    if 0 not in source.shape:
        made.buffer, made.offset = device.memory, source.address - ORIGIN
    return made


def capture_table(device: Device, views: Mapping[str, View]) -> Any:
    """attune_capture of views."""
    return table(_abi.attune_capture, [(name.encode(), tensor(device, v)) for name, v in views.items()])


class Workspace:
    """A call's buffer of workspace, released with it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.handles: list[ctypes.c_void_p] = []

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            lib.attune_buffer_destroy(handle)

    def create(self, size: int) -> int | None:
        """A new buffer."""
        handle = ctypes.c_void_p()
        check(lib.attune_buffer_create(self.device._handle, size, ctypes.byref(handle)))
        self.handles.append(handle)
        return handle.value

    def wrap(self, begin: int, size: int) -> int | None:
        """A buffer of an array's bytes: workspace may begin there, whatever the address."""
        handle = wrap(self.device, begin, size)
        self.handles.append(handle)
        return handle.value


@dataclass(frozen=True)
class Cache:
    """attune_cache: the keys and values of sequences in pages, as arrays in the device's memory.

    k: [pages, kv_heads, page, head_dim] in any strides, of the plan's kv_dtype. v: likewise, of its v_dtype; None = the first head_dim_v
    columns of k. f8e4m3, f8e5m2, q8_0 and q4_0 may be arrays of bytes (u8), whose last dimension is row_bytes(type, head_dim).
    pages: the block table, i32 [sequences, most pages], or one list with pages_start, i32 [sequences + 1]; None = sequence b is page b.
    k_scale, v_scale: factors of f8 and i8, f32 [1], [kv_heads] or [pages, kv_heads, page], which append computes."""

    k: Any
    v: Any = None
    pages: Any = None
    pages_start: Any = None
    k_scale: Any = None
    v_scale: Any = None


@dataclass(frozen=True)
class Batch:
    """attune_batch: the sequences of a call, as i32 arrays in the device's memory.

    kv_len: the keys of each sequence, [sequences]. q_start: its first row, and the end, [sequences + 1]; rows are then [tokens, heads,
    dim]; None = [sequences, heads, rows, dim]. kv_first: the first key that is kept. tree: which of its sequence's last keys a row sees,
    bits of [tokens, words]. count: [1], the sequences of this call; None = all. shared: how many of its first keys a sequence has in
    common with the one before, [sequences]; results are undefined if that is not so. On GPUs it is read in plans with shared_sequences."""

    kv_len: Any
    q_start: Any = None
    kv_first: Any = None
    tree: Any = None
    count: Any = None
    shared: Any = None


class Schedule(Handle):
    """The work of a step's calls, as Plan.schedule divides it; for the layers' calls of forward."""

    def __init__(self, plan: Plan) -> None:
        handle = ctypes.c_void_p()
        check(lib.attune_buffer_create(plan.device._handle, plan.schedule_size, ctypes.byref(handle)))
        self._own(handle, lib.attune_buffer_destroy)


def _views(of: Cache | Batch, stream: int | None, write: Sequence[str] = ()) -> dict[str, View]:
    """Those of its arrays that are given."""
    given = {field.name: getattr(of, field.name) for field in fields(of)}
    return {name: view(x, write=name in write, stream=stream) for name, x in given.items() if x is not None}


@dataclass(frozen=True)
class Forward:
    """The results of Plan.forward; lse and row_max where they were asked for."""

    o: Any
    lse: Any = None
    row_max: Any = None


@dataclass(frozen=True)
class Backward:
    """The results of Plan.backward; captures has the gradients that were asked for."""

    d_q: Any
    d_k: Any
    d_v: Any
    captures: dict[str, Any]
    d_sinks: Any = None


class Plan(Handle):
    """attune_plan: the kernels of a problem on a device, chosen and compiled. Several threads may use it at once."""

    def __init__(self, device: Device, problem: Problem, options: Options | None = None) -> None:
        if not isinstance(device, Device):
            raise InvalidArgument(f"a plan's device is {device!r}: give attune.Device({device!r})")
        what, chosen = problem._struct(), kernel_options(options)
        handle = ctypes.c_void_p()
        check(lib.attune_plan_create(device._handle, ctypes.byref(what), ctypes.byref(chosen), ctypes.byref(handle)))
        self._own(handle, lib.attune_plan_destroy)
        self.device, self.problem = device, problem
        #: Bytes of workspace that a call needs.
        self.workspace_size = int(lib.attune_plan_workspace_size(handle))
        #: Bytes of a schedule; 0 for plans that have none.
        self.schedule_size = int(lib.attune_plan_schedule_size(handle))

    def explain(self, format: str = "text") -> str:
        """The choice and its reasons: "text" or "json"."""
        return text(lambda *out: int(lib.attune_plan_explain(self._handle, _format(format), *out)))

    def choice(self, q_len: int = 0, kv_len: int = 0) -> dict[str, Any]:
        """attune_plan_choice of the longest calls, or of calls of these lengths."""
        made = struct(_abi.attune_plan_choice)
        if q_len or kv_len:
            check(lib.attune_plan_choice_at(self._handle, q_len, kv_len, ctypes.byref(made)))
        else:
            check(lib.attune_plan_choice_get(self._handle, ctypes.byref(made)))
        chosen = {name: getattr(made, name) for name in field_names(type(made))}
        direction = next(name for name, number in _DIRECTIONS.items() if number == made.direction)
        return chosen | {"kernel": made.kernel.decode(), "direction": direction}

    def __repr__(self) -> str:
        return f"<attune.Plan {self.choice()['kernel']}, {self.problem.direction}, on {self.device.info.id}>"

    def forward(self, q: Any, k: Any = None, v: Any = None, *, o: Any = None, lse: Any = None, row_max: Any = None,
                mask: Mask | None = None, captures: Mapping[str, Any] | None = None, parameters: Mapping[str, Number] | None = None,
                sinks: Any = None, cache: Cache | None = None, batch: Batch | None = None, schedule: Schedule | None = None,
                workspace: Any = None, stream: int | None = None) -> Forward:
        """attune_forward, over [batch, heads, length, dim] arrays in the device's memory, read in place.

        o: the output; without it a new array of q's library. lse, row_max: an output array, or True for a new one.
        captures, parameters: of the score expression, and over a cache also of the mask's. sinks: a logit of each head in the
        denominator alone, [heads]. cache, batch: in place of k, v and mask, for plans with tokens; rows of a new o that are of no
        sequence have any values. schedule: of the plan's schedule(), for this batch; without it the call divides its own work.
        workspace: bytes (u8) in the device's memory that the call may use, workspace_size of them or more; without it the call
        allocates them. stream: the CUDA stream (default: the legacy default stream)."""
        if (cache is None) != (batch is None) or (cache is None) != (k is not None and v is not None) or (
                cache is not None and (k is not None or v is not None or mask is not None)):
            raise InvalidArgument("a call is over k and v, with a mask or without, or over cache and batch")
        if schedule is not None and cache is None:
            raise InvalidArgument("a schedule is for calls over cache and batch")
        queue = self._queue(stream)
        inputs = {"q": q, "k": k, "v": v, "sinks": sinks}
        views = {name: view(x, stream=stream) for name, x in inputs.items() if x is not None}
        rows = views["q"].shape[:-1]
        width = (self.problem.head_dim_v or self.problem.head_dim,) if cache else views["v"].shape[3:]
        o = self._output(True if o is None else o, q, (*rows, *width), self.problem.o_dtype or self.problem.dtype)
        lse, row_max = (self._output(x, q, rows, "f64" if self.problem.dtype == "f64" else "f32") for x in (lse, row_max))
        for name, x in (("o", o), ("lse", lse), ("row_max", row_max)):
            if x is not None:
                views[name] = view(x, write=True, stream=stream)
        served = (self._stored(cache, stream), _views(batch, stream)) if cache and batch else None
        self._forward(queue, views, mask, {name: view(x, stream=stream) for name, x in (captures or {}).items()},
                      parameters or {}, self._lent(workspace, stream), served, schedule)
        return Forward(o, lse, row_max)

    def schedule(self, q: Any, *, cache: Cache, batch: Batch, captures: Mapping[str, Any] | None = None,
                 parameters: Mapping[str, Number] | None = None, sinks: Any = None, o: Any = None, into: Schedule | None = None,
                 workspace: Any = None, stream: int | None = None) -> Schedule | None:
        """attune_schedule: divides the work of a batch once, for all calls of forward with these lengths: those of a model's layers
        whose plans have the same choice.

        The arguments are those of one of the calls. into: the schedule that is written, such as the last step's; without it a new
        one. None for plans that have no schedules (schedule_size is 0), which forward takes too."""
        if not self.schedule_size:
            return None
        made = into or Schedule(self)
        source = view(q, stream=stream)
        width = self.problem.head_dim_v or self.problem.head_dim
        views = {"q": source} | ({"sinks": view(sinks, stream=stream)} if sinks is not None else {})
        o = self._output(True if o is None else o, q, (*source.shape[:-1], width), self.problem.o_dtype or self.problem.dtype)
        views["o"] = view(o, write=True, stream=stream)
        self._forward(self._queue(stream), views, None, {name: view(x, stream=stream) for name, x in (captures or {}).items()},
                      parameters or {}, self._lent(workspace, stream), (self._stored(cache, stream), _views(batch, stream)), made,
                      lib.attune_schedule)
        return made

    def _stored(self, cache: Cache, stream: int | None, write: Sequence[str] = ()) -> dict[str, View]:
        """The views of a cache, with bytes as elements of the problem's types."""
        k_dtype = self.problem.kv_dtype or self.problem.dtype
        types = {"k": k_dtype, "v": self.problem.v_dtype or k_dtype}
        return {name: x.elements(dtype_of(types[name])) if name in types else x for name, x in _views(cache, stream, write).items()}

    def append(self, cache: Cache, k: Any, v: Any = None, *, batch: Batch | None = None, slots: Any = None, cosine: Any = None,
               sine: Any = None, positions: Any = None, rotary_first: int = 0, interleaved: bool = False, k_norm: Any = None,
               q_norm: Any = None, norm_epsilon: float = 0.0, q: Any = None, q_out: Any = None, stream: int | None = None) -> None:
        """attune_append: writes the rows k and v, [tokens, kv_heads, dim], into the cache, as the last keys of the sequences of batch, or
        to slots (i64; page * keys of a page + key, negative = not written).

        cosine, sine: RoPE's, f32 [positions, columns / 2]. k_norm, q_norm: weights of RMSNorm. q: queries, which are normalised and
        rotated likewise into q_out (which may be q)."""
        queue = self._queue(stream)
        inputs = {"k": k, "v": v, "slots": slots, "cosine": cosine, "sine": sine, "positions": positions, "k_norm": k_norm,
                  "q_norm": q_norm, "q": q}
        views = {name: view(x, stream=stream) for name, x in inputs.items() if x is not None}
        if q_out is not None:
            views["q_out"] = view(q_out, write=True, stream=stream)
        stored = self._stored(cache, stream, ("k", "v", "k_scale", "v_scale"))
        pool = struct(_abi.attune_cache, **self._tensors(stored))
        args = struct(_abi.attune_append_args, cache=ctypes.pointer(pool), rotary_first=rotary_first, interleaved=interleaved,
                      norm_epsilon=norm_epsilon, **self._tensors(views))
        lengths = _views(batch, stream) if batch is not None else {}
        if batch is not None:
            args.batch = ctypes.pointer(struct(_abi.attune_batch, **self._tensors(lengths)))
        check(lib.attune_append(self._handle, queue, ctypes.byref(args), None))

    def backward(self, q: Any, k: Any, v: Any, o: Any, lse: Any, d_o: Any, *, d_lse: Any = None, d_q: Any = None, d_k: Any = None,
                 d_v: Any = None, mask: Mask | None = None, captures: Mapping[str, Any] | None = None,
                 capture_gradients: Mapping[str, Any] | None = None, parameters: Mapping[str, Number] | None = None,
                 sinks: Any = None, d_sinks: Any = None, workspace: Any = None, stream: int | None = None) -> Backward:
        """attune_backward: the gradients of a loss from those of o and of lse.

        d_q, d_k, d_v: the outputs; without them new arrays of q's library. capture_gradients: f32 arrays that the gradients are
        added to. d_sinks: the output of the sinks' gradient, or True for a new one. The other arguments are those of forward."""
        gradients = dict(capture_gradients or {})
        queue = self._queue(stream)
        inputs = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "d_o": d_o} | {
            name: x for name, x in (("d_lse", d_lse), ("sinks", sinks)) if x is not None}
        views = {name: view(x, stream=stream) for name, x in inputs.items()}
        outputs = {"d_q": d_q, "d_k": d_k, "d_v": d_v}
        for name, x in outputs.items():
            source = name[2:]
            dtype = lib.attune_dtype_string(views[source].dtype).decode()
            outputs[name] = self._output(True, q, views[source].shape, dtype) if x is None else x
            views[name] = view(outputs[name], write=True, stream=stream)
        if d_sinks is not None and sinks is None:
            raise InvalidArgument("d_sinks needs the sinks of the forward pass")
        if sinks is not None:
            d_sinks = self._output(d_sinks, q, views["sinks"].shape, lib.attune_dtype_string(views["sinks"].dtype).decode())
        if d_sinks is not None:
            views["d_sinks"] = view(d_sinks, write=True, stream=stream)
        self._backward(queue, views, mask, {name: view(x, stream=stream) for name, x in (captures or {}).items()},
                       {name: view(x, write=True, stream=stream) for name, x in gradients.items()}, parameters or {},
                       self._lent(workspace, stream))
        return Backward(outputs["d_q"], outputs["d_k"], outputs["d_v"], gradients, d_sinks)

    def _queue(self, stream: int | None) -> int:
        if stream is not None and self.device.backend != "cuda":
            raise InvalidArgument(f"{self.device.info.id} has no streams")
        return self.device._queue(stream)

    @staticmethod
    def _output(wanted: Any, like: Any, shape: Sequence[int], dtype: str) -> Any:
        if wanted is True:
            return empty_like(like, shape, dtype_of(dtype))
        return None if wanted is None or wanted is False else wanted

    def _tensors(self, views: Mapping[str, View]) -> dict[str, _abi.attune_tensor]:
        return {name: tensor(self.device, x) for name, x in views.items()}

    @staticmethod
    def _lent(workspace: Any, stream: int | None) -> View | None:
        return None if workspace is None else view(workspace, write=True, stream=stream)

    def _workspace(self, memory: Workspace, lent: View | None) -> int | None:
        """Workspace that is lent, or of this call alone."""
        if not self.workspace_size:
            return None
        if lent is None:
            return memory.create(self.workspace_size)
        begin, end = lent.extent()
        if lent.dtype != _abi.ATTUNE_U8 or len(lent.shape) != 1 or lent.strides != (1,):
            raise InvalidArgument("a workspace is a contiguous array of bytes (u8) of one dimension")
        on_device(self.device, lent)
        return memory.wrap(begin, end - begin)

    def _upload(self, mask: Mask | None) -> None:
        """Checks what a call gives as its mask, since an expression is easily taken for one."""
        if mask is not None and not isinstance(mask, Mask):
            raise TypeError(f"mask is {type(mask).__name__}, expected the attune.Mask that the plan was made with")
        if mask is not None:
            mask.upload(self.device)

    def _forward(self, queue: int, views: Mapping[str, View], mask: Mask | None, captures: Mapping[str, View],
                 parameters: Mapping[str, Number], workspace: View | None, served: tuple[Mapping[str, View], Mapping[str, View]] | None = None,
                 schedule: Schedule | None = None, call: Any = lib.attune_forward) -> None:
        """forward on views. served: of a cache and a batch. call: another function with the same arguments."""
        self._upload(mask)
        with Workspace(self.device) as memory:
            read, numbers = capture_table(self.device, captures), parameter_table(parameters)
            args = struct(_abi.attune_forward_args, mask=mask._handle if mask else None, captures=read, capture_count=len(read),
                          parameters=numbers, parameter_count=len(numbers), workspace=self._workspace(memory, workspace),
                          schedule=schedule._handle if schedule else None, **self._tensors(views))
            if served is not None:
                pool, sequences = struct(_abi.attune_cache, **self._tensors(served[0])), struct(_abi.attune_batch, **self._tensors(served[1]))
                args.cache, args.batch = ctypes.pointer(pool), ctypes.pointer(sequences)
            check(call(self._handle, queue, ctypes.byref(args), None))

    def _backward(self, queue: int, views: Mapping[str, View], mask: Mask | None, captures: Mapping[str, View],
                  gradients: Mapping[str, View], parameters: Mapping[str, Number], workspace: View | None) -> None:
        """backward on views."""
        self._upload(mask)
        with Workspace(self.device) as memory:
            read, wanted = capture_table(self.device, captures), capture_table(self.device, gradients)
            numbers = parameter_table(parameters)
            args = struct(_abi.attune_backward_args, mask=mask._handle if mask else None, captures=read, capture_count=len(read),
                          capture_gradients=wanted, capture_gradient_count=len(wanted), parameters=numbers,
                          parameter_count=len(numbers), workspace=self._workspace(memory, workspace), **self._tensors(views))
            check(lib.attune_backward(self._handle, queue, ctypes.byref(args), None))
