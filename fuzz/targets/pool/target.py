"""`sglang-pool==VERSION`: a release's own pool, backend and commit, in a worker process.

A pool is opened anew for every history; the process, which takes long to start, serves all of them,
and the twin too: the same pool with its replay flag off. Its memory is shared with this process, so
it is read, framed and poisoned as that of any other target.

A server steps a batch at a time: it verifies windows of one length and commits them at once. So a
history of this target does that too (`lockstep`), and one that does not is refused.

`sglang-pool==VERSION+tracks` is the server whose prefix cache has an extra buffer: each request
owns two more slots, in which a commit stores the state at an interval's end and a prefill that of
its last whole chunk, in turn. That is what the cache keeps of a request, and it takes the latter as
soon as it is there.

`sglang-pool==VERSION+tracks+overlap` processes the result of a plain step as a server with
overlapped scheduling does, when the next one is on its way.

`sglang-pool==VERSION+tracks+page=128` has pages of so many tokens, which are what a prefix cache
keeps, and what prompts are tracked in if they are longer than a chunk.

`sglang-pool==VERSION+graph`, on a GPU, replays captured CUDA graphs of the verify and the commit.
"""

from __future__ import annotations

import atexit
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ringfold.fuzz.histories.trace import CHUNK
from ringfold.fuzz.judging.arrays import DTYPES
from ringfold.fuzz.target import (
    IEEE,
    Device,
    Floats,
    HeadParameters,
    Inputs,
    Precision,
    RefusedError,
    Request,
    Target,
    View,
)
from ringfold.fuzz.targets import environments
from ringfold.fuzz.targets.pool import views
from ringfold.fuzz.targets.pool.precision import precision
from ringfold.fuzz.targets.pool.process import WorkerError, WorkerProcess, command
from ringfold.fuzz.targets.sglang_compact import short_ring
from ringfold.fuzz.targets.sglang_release import Release
from ringfold.sim.dialects import (
    COMPACT_DIALECT,
    CONVOLUTION,
    FOLD_EVERY_COMMIT_DIALECT,
    RING_DIALECT,
    SNAPSHOTS_DIALECT,
    Dialect,
)
from ringfold.sim.setup import Setup

IDENTITY_WIDTH: Final = 4
"""Of a convolution that only hands the token on, where the setup has none."""

_DIALECTS: Final = {
    dialect.name: dialect
    for dialect in (RING_DIALECT, FOLD_EVERY_COMMIT_DIALECT, COMPACT_DIALECT, SNAPSHOTS_DIALECT)
}
_workers: dict[tuple[str, Device, int], WorkerProcess] = {}


def worker_of(release: str, device: Device = "cpu", page: int = 1) -> WorkerProcess:
    """The process that serves this release, not yet started unless it was used before.

    Its pools have pages of `page` tokens.

    Raises:
        WorkerError: there is no Python to import it with.
        WheelError: the release's wheel is not here.
    """
    key = release, device, page
    if key not in _workers:
        python = environments.interpreter(device)
        if python is None:
            raise WorkerError(environments.lacking(release, device))
        variables = environments.variables(release, device=device)
        variables["RINGFOLD_POOL_PAGE"] = str(page)
        _workers[key] = WorkerProcess(release, command(python, "pool.worker"), variables)
        atexit.register(_workers[key].close)
    return _workers[key]


def pool_of(
    release: str,
    name: str,
    device: Device = "cpu",
    *,
    tracks: bool = False,
    graphs: bool = False,
    overlaps: bool = False,
    page: int = 1,
) -> SglangPool:
    """The pool of a release such as ``sglang==0.5.16``, not yet opened.

    `tracks` asks for the one with an extra buffer, `overlaps` for one whose plain steps are
    processed late besides, `page` for pages of so many tokens, `graphs` for one whose steps are
    captured.

    Raises:
        WheelError: its wheel is not here, or it speaks no dialect that is known.
        WorkerError: there is no environment.
    """
    dialect = Release(release).dialect
    worker = worker_of(release, device, page)
    return SglangPool(
        release,
        name,
        dialect,
        worker,
        tracks=tracks,
        device=device,
        graphs=graphs,
        overlaps=overlaps,
        page=page,
    )


OPERATIONS: Final = frozenset(
    {
        *("admit", "prefill", "free", "fork", "verify", "commit", "decode", "idle"),
        *("save", "restore", "donate", "hit", "evict"),
    }
)
TRACKING: Final = frozenset({"track", "store", "cut", "branch"})
"""What there is besides where states are stored apart."""


class SglangPool:
    """The integration as it is released, one pool."""

    lockstep = True
    convolves = True

    def __init__(
        self,
        release: str,
        name: str,
        dialect: str,
        worker: WorkerProcess,
        pool: str = "replay",
        tracks: bool = False,
        device: Device = "cpu",
        graphs: bool = False,
        overlaps: bool = False,
        page: int = 1,
    ) -> None:
        self.release, self.name, self.worker, self.pool = release, name, worker, pool
        self.tracks, self.graphs, self.overlaps = tracks, graphs, overlaps
        self.page = page
        self.keeps_tracked = tracks
        self.tracked_chunk = max(CHUNK, page) if tracks else None
        self.operations = OPERATIONS | TRACKING if tracks else OPERATIONS
        if overlaps:
            self.operations |= {"overlap"}
        self.device = device
        self.precision: Precision = IEEE
        known = _DIALECTS[dialect]
        # A server cuts off what a batch's padding rows return. A verify shifts its tokens into the
        # convolution's window, and the commit puts the window of the last accepted one there.
        writes = (*known.verify_writes, CONVOLUTION.name)
        self.dialect: Dialect = known._replace(
            zeroes_padding=False, verify_writes=writes, decodes_in_place=True
        )
        if tracks:  # whatever waits, the state that was stored apart is whole
            self.dialect = self.dialect._replace(donates="state")
        self.started = -1
        self.seats: dict[Request, dict[str, int]] = {}
        self.batch: list[Request] = []
        self.tokens = 0

    def identity(self) -> Mapping[str, str]:
        """Release, versions in its environment, SHA-256 of the files that drive the pool."""
        fields = self.worker.call("identity").fields
        return {"release": self.release, **fields}

    def refuses(self, setup: Setup) -> str:
        """What the release's model code never asks of its pool, or the interpreter can't do."""
        g, dtypes = setup.geometry, setup.dtypes
        if not setup.l2norm:
            return "its backend always normalises queries and keys"
        dtype_names = (dtypes.activation, dtypes.record, dtypes.state)
        if self.device == "cpu" and "bfloat16" in dtype_names:
            return "bfloat16 is silently wrong in Triton's CPU interpreter; use float16 or float32"
        if dtypes.record != dtypes.activation:
            return "its records have the dtype of the activations"
        if self.dialect.name != "compact" and dtypes.state != "float32":
            return f"its records are for a float32 state, not {dtypes.state}"
        if g.key_dim & (g.key_dim - 1) or g.key_dim < 32:
            return f"its kernels want K a power of two from 32 on, not {g.key_dim}"
        return short_ring(self.device, setup.ring) if self.dialect.name == "compact" else ""

    def open(self, setup: Setup, parameters: HeadParameters) -> None:
        """Have the release build a pool and a backend, and map the pool's memory."""
        if because := self.refuses(setup):
            raise RefusedError(f"target {self.name}: {because}")
        self.setup, g = setup, setup.geometry
        self.precision = precision(setup, self.dialect, self.device)
        # The chunked prefill says of itself that it does not support float32.
        prefills = {"prefill"} if setup.dtypes.activation != "float32" else set[str]()
        self.operations = (self.operations - {"prefill"}) | prefills
        weight = parameters.convolution
        if weight is None:  # of the window only the token itself
            weight = np.zeros((setup.layers, setup.channels, IDENTITY_WIDTH), np.float32)
            weight[..., -1] = 1.0
        fields = {
            "heads": g.heads,
            "value_heads": g.value_heads,
            "key_dim": g.key_dim,
            "value_dim": g.value_dim,
            "ring": setup.ring,
            "window": setup.window,
            "slots": setup.slots,
            "layers": setup.layers,
            "activation": setup.dtypes.activation,
            "state": setup.dtypes.state,
            "convolution": setup.convolution,
            "replay": self.pool == "replay",
            "tracks": self.tracks,
            "graphs": self.graphs,
            "overlaps": self.overlaps,
            "width": weight.shape[-1],
            "buffers": [*views.NAMES[self.dialect.name].values()],
        }
        arrays = [parameters.A_log, parameters.dt_bias, weight]
        reply = self.worker.call("open", {"pool": self.pool, "setup": fields}, arrays)
        self.started = self.worker.starts
        self.seats, self.batch = {}, []
        self.shown = views.of(self.dialect, setup, self.worker.pid, **reply.fields)
        self.convolved = self.before = self.shown[CONVOLUTION.name].array
        if not setup.convolution:
            del self.shown[CONVOLUTION.name]

    def admit(self, request: Request, state: Floats, past: Floats | None = None) -> None:
        """Through the pool's own allocation and clearing.

        State and last projections are what a prefill leaves.
        """
        self._seat(request, "admit", [state] if past is None else [state, past])

    def fork(self, request: Request, source: Request) -> None:
        """Through the pool's copy on write."""
        self._seat(request, "fork", source=source)

    def free(self, request: Request) -> None:
        """Give slot and row back to the pool."""
        del self.seats[request]
        self._ask("free", request=request)

    def save(self, request: Request) -> None:
        """Through the release's retraction to host memory."""
        del self.seats[request]
        self._ask("save", request=request)

    def restore(self, request: Request) -> None:
        """Through the release's resumption."""
        self._seat(request, "restore")

    def donate(self, request: Request, prefix: int, cut: int = 0) -> Mapping[str, int]:
        """Through the release's prefix cache, which takes a finished request's slot.

        The length of the key says which tokens the cache takes the state to hold.
        """
        waiting = self._waiting(request)
        del self.seats[request]
        reply = self._ask("donate", request=request, prefix=prefix, cut=cut).fields
        if cut or self.overlaps:
            if reply["slot"] is None:
                return {}
            if reply["behind"] is None:
                raise RuntimeError(f"the key of prefix {prefix} ends with no token of its request")
            return {name: reply[name] for name in ("slot", "behind")}
        claims = 0 if self.dialect.donates == "state" else waiting
        if reply["lacks"] != claims:
            raise RuntimeError(
                f"the key of prefix {prefix} lacks the last {reply['lacks']} tokens, but "
                f"{claims} were to be left out"
            )
        return {"slot": reply["slot"]}

    def hit(self, request: Request, prefix: int) -> None:
        """Through the match of a prompt in the prefix cache, and its copy on write."""
        self._seat(request, "hit", prefix=prefix)

    def evict(self, prefix: int) -> None:
        """Through the prefix cache's own eviction."""
        self._ask("evict", prefix=prefix)

    def prefill(
        self,
        rows: Sequence[Request],
        lengths: Sequence[int],
        inputs: Inputs,
        branch: int | None = None,
    ) -> NDArray[Any]:
        """Chunks of several prompts in one forward pass.

        Where they are longer than `branch` tokens, another prompt begins with so many of them.
        """
        if self.batch:
            raise self._refusal(f"a prefill before requests {self.batch} were committed")
        chunk = self.tracked_chunk
        stored = [0 if chunk is None else n // chunk * chunk for n in lengths]
        branches = [branch is not None and n > branch for n in lengths]
        stored = [branch or 0 if b else n for n, b in zip(stored, branches, strict=True)]
        fields = {"rows": [*rows], "lengths": [*lengths], "stored": stored, "branches": branches}
        reply = self._ask("prefill", self._projections(inputs), **fields)
        for row, seat in zip(rows, reply.fields["seats"], strict=True):
            self.seats[row].update(seat)
        return self._activations(reply.arrays[0])

    def verify(
        self, rows: Sequence[Request | None], lengths: Sequence[int], inputs: Inputs
    ) -> NDArray[Any]:
        """One forward pass."""
        if len(set(lengths)) != 1:
            raise self._refusal(f"windows of {list(lengths)} tokens in a batch")
        tokens, real = lengths[0], [row for row in rows if row is not None]
        if self.batch and (real, tokens) != (self.batch, self.tokens):
            raise self._refusal(f"a verify before that of requests {self.batch} was committed")
        if self.batch:  # once more, from another state
            self.convolved[...] = self.before
        elif self.pool == "snapshots":
            self.before = self.convolved.copy()
        if not real:
            self._ask("idle")
            nothing = np.full(inputs.v.shape, np.nan)
            return nothing.astype(DTYPES[self.setup.dtypes.activation])
        outputs = self._batch("verify", rows, inputs, tokens, tokens=tokens)
        self.batch, self.tokens = real, tokens
        return outputs

    def commit(self, rows: Sequence[Request | None], accepted: Sequence[int], bound: int) -> None:
        """The worker's commit after a verify; the release's bound is the step's own length."""
        self.track(rows, accepted, bound, None)

    def track(
        self,
        rows: Sequence[Request | None],
        accepted: Sequence[int],
        bound: int,
        tokens: int | None,
    ) -> None:
        """The same, with requests of a length at which an interval ends after so many tokens."""
        kept = [(row, n) for row, n in zip(rows, accepted, strict=True) if row is not None]
        if [row for row, _ in kept] != self.batch:
            raise self._refusal(f"a commit of other requests than were verified, {self.batch}")
        if any(n < 1 for _, n in kept):
            raise self._refusal(f"{[n for _, n in kept]} tokens accepted, but it always keeps one")
        if self.batch and bound != self.tokens:
            raise self._refusal(f"a bound of {bound}, but it goes by the {self.tokens} it drafts")
        reply = self._ask(
            "commit",
            rows=[row for row, _ in kept],
            accepted=[n for _, n in kept],
            tokens=self.tokens,
            track=tokens,
        )
        for (row, _), seat in zip(kept, reply.fields["seats"], strict=True):
            self.seats[row].update(seat)  # whoever holds it sees where the last track lies
        self.batch = []

    def decode(
        self, rows: Sequence[Request | None], inputs: Inputs, stores: Sequence[Request] = ()
    ) -> NDArray[Any]:
        """The backend's decode step, on checkpoints in place: it knows nothing of their rings.

        Those whose state it stores are of a length at which an interval ends.
        """
        if self.batch:
            raise self._refusal(f"a decode before requests {self.batch} were committed")
        return self._batch("decode", rows, inputs, 1, stores=[*stores])

    def seat(self, request: Request) -> Mapping[str, int]:
        """Slot and row that the pool gave it."""
        return self.seats[request]

    def views(self) -> Mapping[str, View]:
        """The pool's tensors, in memory that is shared with the worker."""
        return self.shown

    def twin(self) -> Target | None:
        """The same pool with its replay flag off: a snapshot of every drafted token."""
        if self.pool != "replay":
            return None
        name = f"{self.release} pool without replay"
        return SglangPool(
            self.release,
            name,
            "snapshots",
            self.worker,
            "snapshots",
            tracks=self.tracks,
            device=self.device,
            graphs=self.graphs,
            overlaps=self.overlaps,
            page=self.page,
        )

    def captured(self) -> Mapping[str, Any]:
        """How often graphs were replayed since it was opened, and why others were not captured."""
        fields: Mapping[str, Any] = self._ask("captured").fields
        return fields

    def _waiting(self, request: Request) -> int:
        """Records that the request's checkpoint lacks."""
        if "write_pos" not in self.shown:
            return 0
        buffer, cursors = self.shown["write_pos"]
        return int(cursors[self.seats[request][buffer.axes[0]]])

    # Asking the worker.

    def _ask(self, verb: str, arrays: Sequence[NDArray[Any]] = (), **fields: Any) -> Any:
        if self.worker.starts != self.started:
            raise WorkerError(f"{self.name}: its worker died, and with it the pool")
        return self.worker.call(verb, {"pool": self.pool, **fields}, arrays)

    def _batch(
        self,
        verb: str,
        rows: Sequence[Request | None],
        inputs: Inputs,
        width: int,
        **fields: Any,
    ) -> NDArray[Any]:
        """A forward pass of `width` tokens a row.

        Its padding stands behind the other rows, as in a captured graph.
        """
        if len(rows) > self.setup.slots - 1:
            raise self._refusal(f"a batch of {len(rows)} rows, but {self.setup.slots - 1} can run")
        real = [i for i, row in enumerate(rows) if row is not None]
        order = [*real, *(i for i, row in enumerate(rows) if row is None)]
        take = (np.array(order)[:, None] * width + np.arange(width)).ravel()
        arrays = self._projections(Inputs(*(x[:, take] for x in inputs)))
        fields |= {"rows": [rows[i] for i in real], "padding": len(rows) - len(real)}
        reply = self._ask(verb, arrays, **fields)
        for i, seat in zip(real, reply.fields.get("seats", []), strict=False):
            self.seats[fields["rows"][real.index(i)]].update(seat)
        (packed,) = reply.arrays
        outputs = self._activations(np.empty_like(packed))
        outputs[:, take] = self._activations(packed)
        return outputs

    def _activations(self, bits: NDArray[Any]) -> NDArray[Any]:
        """Outputs in the dtype of the activations, of which the worker sends the bits."""
        return bits.view(DTYPES[self.setup.dtypes.activation])

    @staticmethod
    def _projections(inputs: Inputs) -> list[NDArray[Any]]:
        """What goes into the convolution, [layer, token, channel], and both gates' inputs."""
        q, k, v, a, b = inputs
        return [np.concatenate([x.reshape(*x.shape[:2], -1) for x in (q, k, v)], -1), a, b]

    def _seat(
        self, request: Request, verb: str, arrays: Sequence[NDArray[Any]] = (), **fields: Any
    ) -> None:
        self.seats[request] = self._ask(verb, arrays, request=request, **fields).fields

    def _refusal(self, what: str) -> RefusedError:
        return RefusedError(
            f"target {self.name}: {what}; a server verifies windows of one length for a batch and "
            "commits them at once"
        )
