"""Memory laid out so that a wrong address shows: strided, fenced in, and far apart.

A kernel that confuses two strides, or reads behind the end of a tensor, may be right on packed
tensors that lie in a big heap. So targets that allocate through `PooledTarget` can be given others:

* **apart**: slots of each pool and tokens of each input have a distance of their own. Between them,
  and in front of the first, is NaN; behind the last is a page that may not be touched.
* **far**: slots lie so far apart that their offsets need more than 32 bits, and so do tokens' as
  far as a batch is long. Pages that nobody touches take no memory. In front of the first is a page
  that may not be touched.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ringfold.fuzz.target import Inputs, Target
from ringfold.fuzz.targets.pooled import PooledTarget

if TYPE_CHECKING:
    import torch

Layout = Literal["packed", "apart", "far"]
LAYOUTS: Final[tuple[Layout, ...]] = get_args(Layout)

FAR_SLOT: Final = 2**30
"""Elements: slot 2 lies behind 2^31, and the stride itself is still an int32."""
FAR_TOKEN: Final = 2**28
"""Elements: token 8 of a batch lies behind 2^31, and no token of a window of 7 from its first."""
GAP: Final = 32
"""Elements by which the distances grow: as aligned as any row, so that vector loads stay legal."""

LIST_STRIDES: Final = (2, 3, 5)
"""Entries between those of one list, of the next, and of the one after it."""

MAP_NORESERVE: Final = 0x4000  # Linux; in `mmap` from Python 3.13 on
PROT_NONE: Final = 0


def laid_out(target: Target, layout: Layout) -> Target:
    """The same target, and its twin, which from now on allocate as `layout` says.

    Others than those of the `PooledTarget` kind stay as they are.
    """
    if layout != "packed" and isinstance(target, PooledTarget):
        _Allocator(target, layout)
    return target


class _Allocator:
    """Seats itself in a target, in place of the methods that allocate."""

    def __init__(self, target: PooledTarget, layout: Layout) -> None:
        self.target, self.layout = target, layout
        self.tensor: Callable[..., Any] = target.tensor
        self.tokens: Callable[..., Any] = target.tokens
        self.apart: Callable[..., Any] = target.apart
        self.zeros: Callable[..., Any] = target.zeros
        self.open: Callable[..., Any] = target.open
        self.twin: Callable[..., Any] = target.twin
        self.pool = False
        self.gaps = itertools.count(1)
        self.widths = itertools.cycle(LIST_STRIDES)
        for name in ("tensor", "tokens", "apart", "zeros", "open", "twin"):
            setattr(target, name, getattr(self, f"own_{name}"))

    def own_twin(self) -> Target | None:
        """Laid out alike."""
        twin: Target | None = self.twin()
        return None if twin is None else laid_out(twin, self.layout)

    def own_open(self, *arguments: Any) -> None:
        """What is allocated while the target opens is its pool."""
        self.gaps = itertools.count(1)
        self.pool = True
        self.open(*arguments)
        self.pool = False

    def own_zeros(self, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """Zeros, in memory of our own."""
        packed = self.zeros(shape, dtype)
        if self.pool and getattr(self.target, "contiguous_pool", False):
            return self.placed(packed, packed.stride())
        return self.placed(packed, self.strides(shape))

    def own_tensor(self, values: Any, dtype: str) -> torch.Tensor:
        """A copy of `values`, in memory of our own."""
        packed = self.tensor(values, dtype)
        return self.placed(packed, self.strides(packed.shape))

    def own_tokens(self, inputs: Inputs) -> list[torch.Tensor]:
        """Each in memory of its own, so that none has the strides of another."""
        activation = self.target.setup.dtypes.activation
        if self.target.packed_tokens:
            return [self.placed(x, x.stride()) for x in self.tokens(inputs)]
        return [self.own_tensor(x, activation) for x in inputs]

    def own_apart(self, entries: torch.Tensor) -> torch.Tensor:
        """A list whose last entry is the last of its table, and whose stride no neighbour has."""
        column = self.apart(entries)
        if self.target.packed_lists:
            return self.placed(column, column.stride())
        return self.placed(column, (next(self.widths),))

    def strides(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Those of [layer, slot or token, ...], whose second axis is stretched."""
        packed = list(_packed(shape))
        if len(shape) >= 3 and 0 not in shape:
            far = FAR_SLOT if self.pool else FAR_TOKEN
            packed[1] += GAP * next(self.gaps) + (far if self.layout == "far" else 0)
            packed[0] = packed[1] * shape[1]
        return tuple(packed)

    def placed(self, packed: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
        """A copy of `packed` with these strides."""
        import torch

        if packed.numel() == 0:
            return packed
        reach = 1 + sum((n - 1) * s for n, s in zip(packed.shape, strides, strict=True))
        if packed.is_cuda:
            flat = packed.new_full((reach,), float("nan") if packed.is_floating_point() else -1)
        else:
            flat = _fenced(reach, packed.dtype, self.layout)
        placed = torch.as_strided(flat, packed.shape, tuple(strides))
        return placed.copy_(packed)


def _fenced(count: int, dtype: torch.dtype, layout: Layout) -> torch.Tensor:
    """`count` elements that end where a closed page begins, or begin where one ends if far."""
    import torch

    size, page = dtype.itemsize, mmap.PAGESIZE
    pages = -(-count * size // page)
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = mmap.mmap(-1, (pages + 1) * page, flags=flags)
    closed = 0 if layout == "far" else pages * page
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + closed
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), page, PROT_NONE):
        raise OSError("mprotect failed")
    whole: torch.Tensor = torch.frombuffer(memory, dtype=torch.uint8)
    if layout == "far":
        return whole[page : page + count * size].view(dtype)
    flat = whole[: pages * page]
    flat.fill_(255)  # NaN in every float, -1 in every integer
    return flat[pages * page - count * size :].view(dtype)


def _packed(shape: Sequence[int]) -> Iterator[int]:
    """Strides of a contiguous tensor."""
    sizes = list(itertools.accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1))
    return reversed(sizes)
