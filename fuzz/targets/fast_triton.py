"""Faster stand-ins for the functions in which Triton's CPU interpreter spends its time.

None of them touches arithmetic: NumPy computes what it computed before. They do once what Triton
does for every operation (wrap the language's builtins, build types, look up dtypes), and leave out
what has no effect. A stand-in takes the place of the one function text that it was written
against: where the installed Triton has another, Triton's own function stays.

To admit a new Triton, compare its functions with the ones replaced here, then add their digests.
Importing this module imports Triton; `ringfold.fuzz.targets.interpreter` is the entrance.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FunctionType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import triton
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

Function = TypeVar("Function", bound=Callable[..., Any])


class StandIn(NamedTuple):
    """`function` may replace `owner.name` where the text of that has one of the `known` digests."""

    owner: Any
    name: str
    function: Callable[..., Any]
    known: tuple[str, ...]
    stock: Callable[..., Any]
    relied_on: tuple[Callable[..., Any], ...]
    """Functions of Triton whose text belongs to the digest too."""

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"

    def fits(self) -> bool:
        """Whether the installed Triton has the text that this was written against."""
        return self.digest() in self.known

    def digest(self) -> str:
        """First 12 hex digits of the SHA-256 of the text; empty if there is none."""
        try:
            text = "".join(map(inspect.getsource, (self.stock, *self.relied_on)))
        except (OSError, TypeError):
            return ""
        return hashlib.sha256(text.encode()).hexdigest()[:12]


STAND_INS: list[StandIn] = []


def _stands_in_for(
    owner: Any, name: str, *known: str, relied_on: tuple[Callable[..., Any], ...] = ()
) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        STAND_INS.append(StandIn(owner, name, function, known, getattr(owner, name), relied_on))
        return function

    return register


@contextmanager
def standing_in(chosen: list[StandIn]) -> Iterator[None]:
    """Seat the `chosen` stand-ins, and patch the language once for all launches.

    Masks are made bool where Triton's own loads and stores take no others.

    NumPy is silent about overflow and NaN during a launch: what comes out is judged, and a GPU
    would say nothing either.
    """
    launch = interpreter.GridExecutor.__call__

    def quiet_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        with np.errstate(all="ignore"):
            return launch(self, *args, **kwargs)

    with ExitStack() as seated:
        interpreter.GridExecutor.__call__ = quiet_launch
        seated.callback(setattr, interpreter.GridExecutor, "__call__", launch)
        if BOOL_MASKS_ALONE:
            for name, place in (("create_masked_load", 1), ("create_masked_store", 2)):
                stock = getattr(interpreter.InterpreterBuilder, name)
                setattr(interpreter.InterpreterBuilder, name, _with_bool_mask(stock, place))
                seated.callback(setattr, interpreter.InterpreterBuilder, name, stock)
        for one in chosen:
            setattr(one.owner, one.name, one.function)
            seated.callback(setattr, one.owner, one.name, one.stock)
        if any(one.function is _patch_lang for one in chosen):
            # Both modules through which kernels and Triton's own jit functions see the language.
            seen = FunctionType((lambda: None).__code__, {"tl": tl, "core": core})
            seated.callback(_stock_patch_lang(seen).restore)
        yield


BOOL_MASKS_ALONE = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
"""Triton's interpreter says that the comparison of two scalars has their type, so that what it is
broadcast to is a tensor of integers, and so is a mask of which it is a part. A GPU takes it; up to
3.8 so did the interpreter, and 3.9.0 raises `mask has unsupported dtype`."""


def _with_bool_mask(stock: Callable[..., Any], place: int) -> Callable[..., Any]:
    def access(self: Any, *args: Any, **kwargs: Any) -> Any:
        mask = args[place]
        if mask.data.dtype != np.bool_:
            mask = interpreter.TensorHandle(mask.data.astype(np.bool_), mask.dtype)
        return stock(self, *args[:place], mask, *args[place + 1 :], **kwargs)

    return access


# --------------------------------------------------------------------------- launches and calls


class _Kept:
    """The scope of one launch when the language stays patched after it."""

    def restore(self) -> None:
        """Nothing to do: `standing_in` restores the language."""


_KEPT = _Kept()
_stock_patch_lang = interpreter._patch_lang
_BUILTIN_WRAPPER = core.builtin(lambda: None).__code__


@_stands_in_for(interpreter, "_patch_lang", "e5beeba74ada")
def _patch_lang(fn: Any) -> _Kept:
    """Triton patches at every launch, and again at every call of a jit function inside one."""
    return _KEPT


@_stands_in_for(interpreter, "_patch_attr", "935587c8b82c", "e0c1b7d65a24")
def _patch_attr(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Triton filters the keywords, then calls a wrapper that looks at them once more."""
    semantic = interpreter.interpreter_semantic
    wrapped = getattr(member, "__code__", None) is _BUILTIN_WRAPPER
    function = member.__wrapped__ if wrapped else member

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return function(*args, **kwargs)

    scope.set_attr(owner, name, call)


# --------------------------------------------------------------------------- types and tensors

_stock_unwrap = core._unwrap_if_constexpr
_stock_block_type = core.block_type.__init__
_stock_tensor = core.tensor.__init__
_stock_np_dtype = interpreter._get_np_dtype

_PLAIN = frozenset({int, float, bool, str, type(None), core.tensor, core.dtype, core.block_type})
_NO_SHAPE = core.tuple([])
_ONE = core.constexpr(1)
_block_types: dict[Any, Any] = {}
_np_dtypes: dict[str, np.dtype[Any]] = {}


@_stands_in_for(core, "_unwrap_if_constexpr", "cfc55ab11e03", "54db2f51b2d3")
def _unwrap_if_constexpr(o: Any) -> Any:
    """Triton asks for the rarest kinds first."""
    kind = type(o)
    if kind in _PLAIN:
        return o
    return o.value if kind is core.constexpr else _stock_unwrap(o)


@_stands_in_for(core.block_type, "__init__", "403f4b016ec5")
def _block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """Triton validates the shape of every type it builds, and prints a name for it.

    Kept beside that: `dims`, the shape as plain integers, and `of_tensors`, the shape and the size
    as a tensor of the type has them.
    """
    try:
        dims = tuple(map(_unwrap_if_constexpr, shape))
        shared = _block_types.get((element_ty.name, dims))
    except TypeError:
        shared = None  # Triton says what is wrong with the shape
    if shared is None:
        _stock_block_type(self, element_ty, shape)
        dims = tuple(self.shape.values)
        of_tensors = core.tuple([core.constexpr(s) for s in dims]), core.constexpr(self.numel)
        shared = self.shape, self.numel, self.name, dims, of_tensors
        _block_types[element_ty.name, dims] = shared
    self.element_ty = element_ty
    self.shape, self.numel, self.name, self.dims, self.of_tensors = shared


@_stands_in_for(core.tensor, "__init__", "d9b043b5c989")
def _tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002 - Triton's name for it
    """Triton wraps each dimension of each tensor anew."""
    if not type.is_block():
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = _NO_SHAPE, _ONE
    elif hasattr(type, "of_tensors"):
        self.handle, self.type, self.dtype = handle, type, type.element_ty
        self.shape, self.numel = type.of_tensors
    else:
        _stock_tensor(self, handle, type)


@_stands_in_for(interpreter, "_get_np_dtype", "8f20d41e3207")
def _get_np_dtype(tt_dtype: Any) -> np.dtype[Any]:
    """Triton builds the whole table for every look-up."""
    element = tt_dtype.element_ty if isinstance(tt_dtype, core.block_type) else tt_dtype
    try:
        return _np_dtypes[element.name]
    except KeyError:
        found: np.dtype[Any] = _stock_np_dtype(tt_dtype)
        _np_dtypes[element.name] = found
        return found


# --------------------------------------------------------------------------- rules of operations

_joint_dims: dict[Any, tuple[int, ...]] = {}
_stock_sanitize = TritonSemantic.binary_op_sanitize_overflow_impl
_stock_broadcast = TritonSemantic.broadcast_impl_value


@_stands_in_for(
    TritonSemantic,
    "binary_op_sanitize_overflow_impl",
    "b62eab09d2b0",
    "8ecb23553fd0",
    "bb804ef3a678",
    relied_on=(TritonSemantic.device_assert,),  # which does nothing unless debugging
)
def _binary_op_sanitize_overflow_impl(self: Any, lhs: Any, rhs: Any, binary_op: Any) -> None:
    """Triton computes the overflow check of each integer operation, then drops the result."""
    if self.builder.options.debug:
        _stock_sanitize(self, lhs, rhs, binary_op)


@_stands_in_for(
    TritonSemantic, "broadcast_impl_value", "9b7949138c0d", "4217098736a2", "90c3a175f679"
)
def _broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Triton walks along both shapes each time; what two shapes make is looked up here."""
    # Scalars have no `dims`; neither has a block type that was built before this stood in.
    left, right = getattr(lhs.type, "dims", None), getattr(rhs.type, "dims", None)
    if left is not None and left == right:
        return lhs, rhs
    joint = _joint_dims.get((left, right))
    if joint is not None:
        return _broadcast(self, lhs, joint), _broadcast(self, rhs, joint)
    both: tuple[Any, Any] = _stock_broadcast(self, lhs, rhs)
    if left is not None and right is not None and len(left) == len(right):
        _joint_dims[left, right] = both[0].type.dims
    return both


def _broadcast(semantic: Any, value: Any, dims: tuple[int, ...]) -> Any:
    if value.type.dims == dims:
        return value
    handle = semantic.builder.create_broadcast(value.handle, dims)
    return semantic.tensor(handle, core.block_type(value.type.element_ty, list(dims)))
