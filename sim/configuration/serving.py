"""What a server does with its flags: windows, rings, dtypes, and who else touches a state.

`serve` works out what a release makes of a configuration, if it takes it. A `Release` row holds
what differs between releases; where each fact stands is said beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ringfold.sim.configuration.flags import Configuration
from ringfold.sim.cursors import COMPACT, COMPACT_NARROW, DECODE_RING, NO_RING, RING, Protocol


class Release(NamedTuple):
    """What a range of releases does around its kernels."""

    first: str
    last: str
    dialect: str
    """How it verifies a GDN window from records."""
    adaptive_steps: tuple[int, ...]
    """`speculative/adaptive_spec_params.py`: candidates of all batch sizes."""
    shortens_donation: bool
    """Whether a finished request's prefix is cut to what its checkpoint holds, by the cursor that
    the commit moves (0.5.16, `mamba_radix_cache.py:cache_finished_req`). From 0.5.20 on the commit
    moves another one, and the cache that serves (`components/mamba.py:prepare_for_caching_req`)
    reads the old one."""
    tracks: bool
    """Whether a replaying commit stores the state for the prefix cache in a second slot
    (`spec_utils.py:commit_mamba_states_after_verify`)."""
    mixes: bool
    """Whether a running request's token may ride in a prefill batch while drafting
    (`spec_info.py:supports_mixed_chunk`)."""
    replays_kda: bool
    """Whether KDA layers replay too, by folding at every commit."""
    spec_flag: str


RELEASES: Final = (
    Release(
        "0.5.16", "0.5.16", "ring", (0, 1, 3, 7), True, False, False, False,
        "enable_gdn_replayssm_spec",
    ),
    Release(
        "0.5.17", "0.5.18", "fold-every-commit", (0, 1, 3, 7), False, True, False, True,
        "enable_linear_replayssm_spec",
    ),
    Release(
        "0.5.19", "0.5.19", "fold-every-commit", (0, 1, 3, 7), False, True, True, True,
        "enable_linear_replayssm_spec",
    ),
    Release(
        "0.5.20", "0.5.23", "compact", (0, 1, 3, 5, 7), False, True, True, True,
        "enable_linear_replayssm_spec",
    ),
)  # fmt: skip


DOT_ROWS_MIN: Final[Mapping[str, int]] = {"h200": 16, "b200": 16, "mi300": 1, "cpu": 1}
"""How many products `tl.dot` wants to add up at least, of 16 bits or 32 (`min_dot_size` in Triton's
`backends/*/compiler.py`). The interpreter, which is what runs here on a CPU, takes any number."""


def ordered(version: str) -> tuple[int, ...]:
    """A version as numbers; raises `ValueError` where it is none."""
    return tuple(int(part) for part in version.split("."))


def release_of(version: str) -> Release:
    """The row that a version belongs to.

    Raises:
        ValueError: naming the versions that are known.
    """
    for row in RELEASES:
        try:
            if ordered(row.first) <= ordered(version) <= ordered(row.last):
                return row
        except ValueError:
            break
    raise ValueError(
        f"release {version!r} is not known: "
        f"choose one of {RELEASES[0].first} to {RELEASES[-1].last}"
    )


class Serving(NamedTuple):
    """What happens in a server of these flags."""

    replays: bool
    """Whether windows are verified from records; else by the recurrence and its snapshots."""
    fallback: str
    """Why they are not, if they were to be."""
    kda: bool
    counts: tuple[int, ...]
    """Window lengths that occur, shortest first; empty where nothing is drafted."""
    width: int
    """Children of one drafted token; above 1 the window is a tree."""
    ring: int
    protocol: Protocol
    """How the cursors move that a request's records have."""
    dot_rows: int
    """Of `DOT_ROWS_MIN`, on this server's machine."""
    state: str
    record: str
    activation: str
    donates: bool
    """A finished request's slot goes to the prefix cache as it is."""
    tracks: bool
    """A second slot holds the state at an interval, for the prefix cache."""
    mixes: bool
    to_host: bool
    """A retracted request's state goes to host memory and comes back."""
    block_diffusion: bool
    """The drafting worker commits by itself."""
    shares_ring: bool
    """Plain decoding is buffered in the same ring."""


def serve(flags: Configuration, release: Release) -> Serving:
    """What `release` makes of the flags, leaving aside whether it refuses them."""
    counts, width = _windows(flags, release)
    replays, fallback = _replays(flags, release)
    kda = flags.model == "kda"
    state = flags.state or "float32"
    protocol = NO_RING
    if replays and counts and not kda:
        narrow = state in ("float16", "bfloat16")
        compact = COMPACT_NARROW if narrow else COMPACT
        protocol = {"ring": RING, "compact": compact}.get(release.dialect, NO_RING)
    elif flags.decode_ring and not counts and not kda:
        protocol = DECODE_RING
    strategy = _strategy(flags)
    return Serving(
        replays=replays and bool(counts),
        fallback=fallback if counts else fallback or "nothing is drafted",
        kda=kda,
        counts=counts,
        width=width,
        ring=flags.ring,
        protocol=protocol,
        dot_rows=DOT_ROWS_MIN[flags.hardware],
        state=state,
        record=flags.record,
        activation=flags.activation,
        donates=strategy == "no_buffer",
        tracks=strategy == "extra_buffer",
        mixes=flags.mixed and (not counts or (release.mixes and flags.algorithm != "NGRAM")),
        to_host=flags.disaggregation == "decode",
        block_diffusion=flags.algorithm == "DFLASH",
        shares_ring=flags.replay == "both",
    )


def _replays(flags: Configuration, release: Release) -> tuple[bool, str]:
    if not flags.replays:
        return False, "the flag is off, as it is by default"
    if flags.model == "mamba2":
        return False, "the model has no gated delta rule: the configurator drops the flag"
    if flags.model == "kda" and not release.replays_kda:
        return False, "gates are a vector over K: the configurator drops the flag for KDA"
    return True, ""


def _windows(flags: Configuration, release: Release) -> tuple[tuple[int, ...], int]:
    drafts = flags.drafts
    match flags.algorithm:
        case "none":
            return (), 1
        case "NGRAM":
            return (drafts.tokens or 12,), flags.breadth or 10
        case "DFLASH":
            return (drafts.tokens or 16,), 1
    width = drafts.topk or 1
    if flags.adaptive and width == 1:
        return tuple(step + 1 for step in release.adaptive_steps), 1
    if width == 1:
        return ((3 if drafts.steps is None else drafts.steps) + 1,), 1
    return (drafts.tokens or 4,), width


def _strategy(flags: Configuration) -> str:
    """Which way of caching prefixes `auto` becomes."""
    if flags.radix != "auto":
        return flags.radix
    overlaps = flags.overlap and flags.hardware != "cpu"
    paged = flags.page is not None and flags.page > 1
    return "extra_buffer" if (overlaps or paged) and flags.hardware != "cpu" else "no_buffer"
