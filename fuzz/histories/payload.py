"""The numbers of a history, each a pure function of what it belongs to.

A token's data depends on (seed, request, window tag, iteration, index in the window, layer,
tensor, head, element) and on nothing else: not on when it is drawn, nor on what was drawn before.
So one may delete a step, rename a slot, accept in other portions, cut a window or shrink the
geometry, and all that is left keeps its numbers.

Where each part of the key goes in Philox's counter and key:

    counter 0   four elements of a head (bits 0 to 11), head (bits 12 and up)
    counter 1   index in the window (bits 0 to 9), tensor (10 to 15), layer (16 and up)
    counter 2   tag
    counter 3   request (2^32 - 1 for padding)
    key         seed, iteration
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from ringfold.fuzz.histories.profiles import DT_BIAS, PROFILES, Bits, between, limits, unit
from ringfold.fuzz.histories.trace import REQUEST_MAX, WORD_MAX, TraceError
from ringfold.fuzz.target import Floats, HeadParameters, Inputs, Request
from ringfold.oracle.gdn import Tokens, live
from ringfold.sim.philox import philox4x32
from ringfold.sim.precision import rounded
from ringfold.sim.setup import Setup

Ints: TypeAlias = NDArray[np.integer[Any]]
Words: TypeAlias = NDArray[np.uint32]

PADDING: Final = -1
"""The request of a padding row."""

KEY_SCALE: Final = np.float32(2.0**-4)
"""Without the L2 norm a step multiplies errors by |1 - beta |k|^2|, which must stay below 1:
256 elements below 2^-4 have |k|^2 < 1. A scale that followed K would change with it."""


class Tensor(IntEnum):
    """What a random number is for; part of its key."""

    Q = 0
    K = 1
    V = 2
    GATE = 3
    CHOICE = 4
    BASE = 5
    STATE = 6
    HEAD = 7
    WEIGHT = 8
    PAST = 9


def _lanes(heads: int, width: int, tensor: Tensor) -> Words:
    """Counter words 0 and 1, [2, heads * blocks], of a tensor that has `width` words a head."""
    blocks = np.arange(-(-width // 4), dtype=np.uint32)
    zero = (np.arange(heads, dtype=np.uint32) << np.uint32(12))[:, None] | blocks
    return np.stack([zero.ravel(), np.full(zero.size, tensor << 10, np.uint32)])


class Payload:
    """All numbers of one trace; `tensors` (see `load_tensors`) replace what the seed would give."""

    def __init__(
        self,
        setup: Setup,
        seed: int,
        profile: str,
        tensors: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Raises KeyError for a profile that is not in `PROFILES`."""
        self.setup = setup
        self.seed = seed
        self.profile = PROFILES[profile]
        self.tensors = dict(tensors or {})
        self.limits = limits(setup)
        g = setup.geometry
        self._shapes = (
            (g.heads, g.key_dim, Tensor.Q),
            (g.heads, g.key_dim, Tensor.K),
            (g.value_heads, g.value_dim, Tensor.V),
            (g.value_heads, 4, Tensor.GATE),
            (1, 4, Tensor.CHOICE),
        )
        lanes = [_lanes(*shape) for shape in self._shapes]
        self._lanes = np.concatenate(lanes, axis=1)  # one Philox call for all tensors
        self._ends = np.cumsum([each.shape[1] for each in lanes])
        self._layers = np.arange(setup.layers, dtype=np.uint32) << np.uint32(16)
        self._base = self._constant(g.heads, g.key_dim, Tensor.BASE)  # [layer, H, K]

    def parameters(self) -> HeadParameters:
        """A_log and dt_bias of every head, [layer, HV] float32."""
        words = self._constant(self.setup.geometry.value_heads, 4, Tensor.HEAD)
        return HeadParameters(
            A_log=self.tensors.get("A_log", between(words[..., 0], *self.profile.A_log)),
            dt_bias=self.tensors.get("dt_bias", between(words[..., 1], *DT_BIAS)),
            convolution=self._weight(),
        )

    def _weight(self) -> Floats | None:
        """Of the convolution, [layer, channel, W]."""
        setup = self.setup
        if not setup.convolution:
            return None
        words = self._constant(setup.channels, setup.convolution, Tensor.WEIGHT)
        # Without the L2 norm the sum over taps must not make keys longer than they are.
        scale = 1.0 if setup.l2norm else 1 / setup.convolution
        return rounded(unit(words) * np.float32(scale), setup.dtypes.activation)

    def past(self, request: Request, tag: int, iteration: int = 0) -> Floats:
        """The last projections of a prefill, [layer, channel, W - 1], oldest first."""
        return np.asarray(self.pasts(np.array([request]), np.array([tag]), iteration)[:, 0])

    def pasts(self, requests: Ints, tags: Ints, iteration: int = 0) -> Floats:
        """The same of many requests [row], each with its tag: [layer, row, channel, W - 1]."""
        setup, taps = self.setup, self.setup.convolution - 1
        lanes = _lanes(setup.channels, taps, Tensor.PAST)
        tag, request = (_words(of)[:, None] for of in (tags, requests))
        words = philox4x32(
            (lanes[0], lanes[1] | self._layers[:, None, None], tag, request),
            (self.seed, iteration),
        )  # [layer, row, block, 4]
        words = words.reshape(setup.layers, len(requests), setup.channels, -1)[..., :taps]
        return rounded(unit(words), setup.dtypes.activation)

    def window(
        self,
        requests: Ints,
        lengths: Ints,
        tag: int,
        iteration: int = 0,
        profile: str | None = None,
    ) -> Inputs:
        """Tokens of a batch, packed row after row, in values that the activation dtype holds.

        requests [B] (`PADDING` for padding rows, which get tokens too), lengths [B].
        """
        requests, lengths = np.asarray(requests, np.int64), np.asarray(lengths, np.int64)
        starts = np.cumsum(lengths) - lengths
        index = np.arange(lengths.sum()) - np.repeat(starts, lengths)  # [token]
        owner = np.repeat(requests, lengths) & 0xFFFFFFFF
        layers, tokens = self.setup.layers, len(index)
        words = philox4x32(
            (
                self._lanes[0],
                self._lanes[1] | self._layers[:, None, None] | _words(index)[:, None],
                _words(tag),
                _words(owner)[:, None],
            ),
            (self.seed, iteration),
        )  # [layer, token, lane, 4]

        n = layers * tokens
        parts = np.split(words.reshape(n, self._ends[-1], 4), self._ends[:-1], axis=1)
        q, k, v, gate, choice = (
            part.reshape(n, heads, 4 * (part.shape[1] // heads))[..., :width]
            for part, (heads, width, _) in zip(parts, self._shapes, strict=True)
        )
        bits = Bits(q, k, v, gate, choice[:, 0], np.repeat(self._base, tokens, axis=0))
        made = (PROFILES[profile] if profile else self.profile).tokens(bits, self.limits)
        if not self.setup.l2norm:
            made = made._replace(k=made.k * KEY_SCALE)
        inputs = Inputs(
            *(
                rounded(x, self.setup.dtypes.activation).reshape(layers, tokens, *x.shape[1:])
                for x in made
            )
        )
        if self.tensors:
            self._replace(inputs, requests, lengths, starts, tag)
        return inputs

    def state(
        self, request: Request, tag: int, iteration: int = 0, profile: str | None = None
    ) -> Floats:
        """The state after a prefill, [layer, HV, V, K], in values that the checkpoint holds."""
        states = self.states(np.array([request]), np.array([tag]), iteration, profile)
        return np.asarray(states[:, 0])

    def states(
        self, requests: Ints, tags: Ints, iteration: int = 0, profile: str | None = None
    ) -> Floats:
        """The same of many requests [row], each with its tag: [layer, row, HV, V, K]."""
        g = self.setup.geometry
        lanes = _lanes(g.value_heads, g.key_dim, Tensor.STATE).reshape(2, g.value_heads, 1, -1)
        rows = np.arange(g.value_dim, dtype=np.uint32)[:, None]  # v has the place of the index
        tag, request = (_words(of)[:, None, None, None] for of in (tags, requests))
        words = philox4x32(
            (lanes[0], lanes[1] | self._layers[:, None, None, None, None] | rows, tag, request),
            (self.seed, iteration),
        )  # [layer, row, HV, V, block, 4]
        words = words.reshape(*words.shape[:4], -1)[..., : g.key_dim]
        drawn = (PROFILES[profile] if profile else self.profile).state(words, self.limits)
        states = rounded(drawn, self.setup.dtypes.state)
        for row, at in enumerate(zip(requests, tags, strict=True) if self.tensors else ()):
            explicit = self.tensors.get("state/{}/{}".format(*at))
            if explicit is not None:
                states[:, row] = explicit
        return states

    def _constant(self, heads: int, width: int, tensor: Tensor) -> Words:
        """Words that belong to no request: [layer, heads, width]."""
        lanes = _lanes(heads, width, tensor)
        words = philox4x32(
            (lanes[0], lanes[1] | self._layers[:, None], _words(0), _words(0)), (self.seed, 0)
        )
        return words.reshape(self.setup.layers, heads, -1)[..., :width]

    def _replace(
        self, inputs: Inputs, requests: Ints, lengths: Ints, starts: Ints, tag: int
    ) -> None:
        """Explicit tensors over as many of a window's first tokens as they have."""
        for request, length, start in zip(requests, lengths, starts, strict=True):
            for name, values in zip(Inputs._fields, inputs, strict=True):
                explicit = self.tensors.get(f"{name}/{request}/{tag}")
                if explicit is not None:
                    given = explicit[:, :length]
                    values[:, start : start + given.shape[1]] = given


def _words(values: int | Ints) -> Words:
    return np.asarray(values, np.uint32)


def tokens_of(inputs: Inputs, lengths: Ints) -> Tokens:
    """Packed inputs [layer, token, ...] as padded tokens [layer, B, Tmax, ...], zero behind."""
    return Tokens(*(padded(x, lengths) for x in inputs))


def padded(packed: NDArray[Any], lengths: Ints) -> NDArray[Any]:
    """[layer, token, ...] as [layer, B, Tmax, ...], zero behind each row's length."""
    lengths = np.asarray(lengths)
    longest = int(lengths.max(initial=0))
    values = np.zeros((packed.shape[0], len(lengths), longest, *packed.shape[2:]), packed.dtype)
    values[:, live(lengths, longest)] = packed
    return values


def packed(padded: NDArray[Any], lengths: Ints) -> NDArray[Any]:
    """The inverse of `padded`: [layer, B, Tmax, ...] as [layer, token, ...]."""
    return np.asarray(padded[:, live(np.asarray(lengths), padded.shape[2])])


# ---------------------------------------------------------------------------- explicit tensors

TENSORS_BYTES_MAX: Final = 256 * 2**20
TENSORS_MAX: Final = 100_000
QK_MAX: Final = 2.0**56
TOKENS: Final = -1  # in a shape: any number of tokens, from one up to the ring's length


def load_tensors(path: Path | str, setup: Setup) -> dict[str, Floats]:
    """Read a safetensors file of float32 tensors that replace parts of a payload.

    Names and shapes (`request` and `tag` are decimal numbers; they hold in every iteration):

        A_log, dt_bias             [layer, HV]
        state/request/tag          [layer, HV, V, K]
        q/request/tag, k/...       [layer, token, H, K]
        v/request/tag              [layer, token, HV, V]
        a/request/tag, b/...       [layer, token, HV]

    Raises `TraceError` for anything else: another name, shape or dtype, a value that is not finite
    or that the setup's dtype does not hold exactly, |q| or |k| from 2^56, a file that is too big.
    """
    path = Path(path)
    if not path.is_file():
        raise TraceError(f"{path}: is not a file: put it beside the trace that names it")
    if (size := path.stat().st_size) > TENSORS_BYTES_MAX:
        raise TraceError(
            f"{path}: has {size} bytes, but at most {TENSORS_BYTES_MAX} are allowed: "
            f"keep only the tensors that differ from the payload"
        )
    try:
        with safe_open(path, framework="numpy") as file:
            names = list(file.keys())
            if len(names) > TENSORS_MAX:
                raise TraceError(
                    f"{path}: holds {len(names)} tensors, over {TENSORS_MAX}: use fewer"
                )
            return {name: _checked(path, file, name, setup) for name in names}
    except (SafetensorError, OSError) as error:
        raise TraceError(f"{path}: is not a safetensors file: {error}") from None


def _checked(path: Path, file: Any, name: str, setup: Setup) -> Floats:
    """One tensor, looked at before it is read."""

    def refuse(what: str, limit: str, remedy: str) -> TraceError:
        return TraceError(f"{path}: tensor {name[:60]!r} {what}, but must {limit}: {remedy}")

    kind, shape = _expected(name, setup)
    if not shape:
        raise refuse("has no meaning", "be named like q/3/17", "see payload.load_tensors")
    part = file.get_slice(name)
    if part.get_dtype() != "F32":
        raise refuse(f"is {part.get_dtype()}", "be F32", "convert it to float32")
    found = tuple(part.get_shape())
    fits = len(found) == len(shape) and all(
        1 <= n <= setup.ring if want == TOKENS else n == want
        for n, want in zip(found, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join(f"1..{setup.ring}" if n == TOKENS else str(n) for n in shape)
        raise refuse(f"has shape {list(found)}", f"have shape [{wanted}]", "match the setup")
    values: Floats = file.get_tensor(name)
    if not np.isfinite(values).all():
        raise refuse("holds NaN or infinity", "be finite", "use finite numbers")
    dtype = {"A_log": "float32", "dt_bias": "float32", "state": setup.dtypes.state}.get(
        kind, setup.dtypes.activation
    )
    if not np.array_equal(rounded(values, dtype), values):
        raise refuse(f"does not fit {dtype}", f"hold {dtype} values", f"round it to {dtype} first")
    if kind in {"q", "k"} and np.abs(values).max() >= QK_MAX:
        raise refuse(f"reaches {np.abs(values).max():g}", "stay below 2^56", "scale it down")
    return values


def _expected(name: str, setup: Setup) -> tuple[str, tuple[int, ...]]:
    """Kind and shape of the tensor called `name`; an empty shape if there is no such tensor."""
    g, layers = setup.geometry, setup.layers
    if name in {"A_log", "dt_bias"}:
        return name, (layers, g.value_heads)
    number = "(0|[1-9][0-9]{0,9})"
    parts = re.fullmatch(f"([a-z]+)/{number}/{number}", name)
    if not parts or int(parts[2]) > REQUEST_MAX or int(parts[3]) > WORD_MAX:
        return name, ()
    kind = parts[1]
    shapes = {
        "state": (layers, g.value_heads, g.value_dim, g.key_dim),
        "q": (layers, TOKENS, g.heads, g.key_dim),
        "k": (layers, TOKENS, g.heads, g.key_dim),
        "v": (layers, TOKENS, g.value_heads, g.value_dim),
        "a": (layers, TOKENS, g.value_heads),
        "b": (layers, TOKENS, g.value_heads),
    }
    return kind, shapes.get(kind, ())
