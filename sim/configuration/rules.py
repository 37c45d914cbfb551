"""The rules by which SGLang itself takes, changes or refuses a configuration, as a table.

A row holds for a range of releases and stands at one place in them. Read it as *in releases
`first` to `last`, where `when` holds, the release does `what`, because `reason`*. `refuses` rows
are validation's, `refuses late` rows those of the pool that is built after it; `adjusts` rows
change something and go on; `falls back` rows leave the flag without effect; `reads` names the
flags that a row asks.

The table is what releases do. What would be safe is `safety.py`'s, and the two are compared by
`ringfold configuration compare`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Literal, NamedTuple

from ringfold.sim.configuration.flags import Configuration
from ringfold.sim.configuration.serving import Release, ordered, release_of, serve

What = Literal["refuses", "refuses late", "adjusts", "falls back", "warns"]
When = Callable[[Configuration, Release], bool]

ARGS: Final = "srt/server_args.py"
HOOK: Final = "srt/arg_groups/attention_hook.py"
POOL: Final = "srt/mem_cache/memory_pool.py"
CONFIGURATOR: Final = "srt/mem_cache/kv_cache_configurator.py"


class Rule(NamedTuple):
    """One rule, in the releases `first` to `last`."""

    name: str
    first: str
    last: str
    reads: tuple[str, ...]
    what: What
    when: When
    reason: str
    """Why the release does so, as it says itself or as its code shows."""
    effect: str
    """What comes of it."""
    where: tuple[str, str]
    """File and function, under `sglang/`."""


def spec(when: When) -> When:
    """Asked only where windows are to be replayed."""
    return lambda c, r: c.replays and when(c, r)


def decode(when: When) -> When:
    """Asked only where plain decoding is to be buffered."""
    return lambda c, r: c.decode_ring and when(c, r)


def backend(flags: Configuration, release: Release) -> str:
    """The decode backend that the rules see."""
    narrow_on_blackwell = flags.hardware == "b200" and flags.state == "bfloat16"
    return flags.backend or ("flashinfer" if narrow_on_blackwell else "triton")


def _at(
    first: str, last: str, early: tuple[str, str], late: tuple[str, str]
) -> tuple[tuple[str, str, tuple[str, str]], ...]:
    """The same rule before and after arguments moved out of one file, in 0.5.19."""
    return ((first, "0.5.18", early), ("0.5.19", last, late))


EARLY: Final = (ARGS, "_handle_linear_attn_backend")
LATE: Final = (HOOK, "handle_linear_attn_backend")


def _both(
    name: str,
    first: str,
    reads: tuple[str, ...],
    what: What,
    when: When,
    reason: str,
    effect: str,
) -> tuple[Rule, ...]:
    """A rule of the linear backends' handler, which moved in 0.5.19."""
    return tuple(
        Rule(name, since, until, reads, what, when, reason, effect, where)
        for since, until, where in _at(first, "0.5.23", EARLY, LATE)
    )


RULES: Final[tuple[Rule, ...]] = (
    Rule(
        "off by default", "0.5.16", "0.5.16", ("replay",), "falls back",
        lambda c, r: not c.replays,
        "the flag's default is false",
        "recurrent verify, with a snapshot for each drafted token",
        (ARGS, "ServerArgs"),
    ),
    Rule(
        "off by default", "0.5.17", "0.5.19", ("replay",), "falls back",
        lambda c, r: not c.replays,
        "the flag's default is false; its old name is an alias",
        "recurrent verify, with a snapshot for each drafted token",
        (ARGS, "ServerArgs"),
    ),
    Rule(
        "off by default", "0.5.20", "0.5.23", ("replay",), "falls back",
        lambda c, r: not c.replays,
        "the flag's default is false; its old name is an alias",
        "recurrent verify, with a snapshot for each drafted token",
        ("srt/arg_groups/fields/exec_.py", "enable_linear_replayssm_spec"),
    ),
    # ------------------------------------------------------------ verification by replay
    *_both(
        "linear drafts", "0.5.16", ("replay", "drafts"), "refuses",
        spec(lambda c, r: c.drafts.topk not in (None, 1)),
        "the window's mask is strictly lower triangular: a token's parent is the one before it",
        "asked before the drafting algorithm sets topk itself, so n-gram drafts pass",
    ),
    Rule(
        "decode backend", "0.5.16", "0.5.16", ("replay", "backend", "state", "hardware"),
        "refuses",
        spec(lambda c, r: backend(c, r) != "triton"),
        "the replay is a Triton kernel",
        "a 16-bit state on Blackwell chooses FlashInfer, and is refused by it",
        EARLY,
    ),
    *_both(
        "decode backend", "0.5.17", ("replay", "backend", "state", "hardware"), "refuses",
        spec(lambda c, r: backend(c, r) not in ("triton", "flashinfer")),
        "others do not write the records",
        "verification of GDN is replayed by Triton whichever backend decodes",
    ),
    Rule(
        "no extra buffer", "0.5.16", "0.5.16", ("replay", "radix"), "refuses",
        spec(lambda c, r: c.radix == "extra_buffer"),
        "a state that is tracked inside a window would have to be folded first",
        "asked of the flag as it was typed: `auto`, which becomes extra buffer wherever steps "
        "overlap, passes",
        EARLY,
    ),
    Rule(
        "no disaggregation", "0.5.16", "0.5.16", ("replay", "disaggregation"), "refuses",
        spec(lambda c, r: c.disaggregation != "null"),
        "the decode server's pool is not built with the flag",
        "",
        EARLY,
    ),
    *_both(
        "no prefill server", "0.5.17", ("replay", "disaggregation"), "refuses",
        spec(lambda c, r: c.disaggregation == "prefill"),
        "a prefill server never verifies",
        "the decode server's pool is built with the flag from here on",
    ),
    Rule(
        "ring of one at least", "0.5.16", "0.5.16", ("replay", "ring"), "refuses",
        spec(lambda c, r: c.ring < 1),
        "a ring has rows", "", EARLY,
    ),
    Rule(
        "ring a power of two", "0.5.16", "0.5.16", ("replay", "ring"), "refuses",
        spec(lambda c, r: c.ring & (c.ring - 1) != 0),
        "rows wrap by a mask",
        "from 0.5.17 on only the pool of a KDA model asks",
        EARLY,
    ),
    Rule(
        "room for two windows", "0.5.16", "0.5.16",
        ("replay", "ring", "drafts", "adaptive", "algorithm"), "refuses",
        spec(lambda c, r: c.ring < 2 * max(serve(c, r).counts, default=0)),
        "the flag to fold is raised one window ahead",
        "the longest of adaptive draft counts is asked; that bounds change between steps is not",
        (ARGS, "_validate_gdn_replayssm_spec_ring"),
    ),
    Rule(
        "float32 state", "0.5.16", "0.5.16", ("replay", "state"), "refuses",
        spec(lambda c, r: c.state not in (None, "float32")),
        "the claim of equal bits means nothing against a rounded checkpoint",
        "a state dtype that is left out becomes float32",
        EARLY,
    ),
    *_both(
        "float32 state", "0.5.17", ("replay", "state"), "warns",
        spec(lambda c, r: c.state not in (None, "float32")),
        "a 16-bit checkpoint is rounded at every fold",
        "from 0.5.20 on it is then folded at every commit; left out it becomes float32",
    ),
    *_both(
        "one protocol for a ring", "0.5.16", ("replay",), "refuses",
        lambda c, r: c.replay == "both",
        "both use the ring's storage and move its cursors in ways that exclude each other",
        "",
    ),
    Rule(
        "GDN models only", "0.5.16", "0.5.16", ("replay", "model"), "falls back",
        spec(lambda c, r: c.model != "gdn"),
        "the ring's gates are one number a head",
        "recurrent verify with its snapshots; nothing is said",
        (CONFIGURATOR, "_build_hybrid_req_pool"),
    ),
    Rule(
        "GDN and KDA models only", "0.5.17", "0.5.23", ("replay", "model"), "falls back",
        spec(lambda c, r: c.model == "mamba2"),
        "others have no delta rule",
        "recurrent verify with its snapshots; nothing is said",
        (CONFIGURATOR, "_build_hybrid_req_pool"),
    ),
    Rule(
        "block diffusion drafts KDA only", "0.5.17", "0.5.23", ("replay", "algorithm", "model"),
        "refuses late",
        spec(
            lambda c, r: c.algorithm == "DFLASH"
            and c.model != "kda"
            and c.disaggregation != "decode"
        ),
        "its worker commits through the backend, which has a fold for KDA alone",
        "the server dies when it builds its pool; the pool of a decode server does not ask",
        (CONFIGURATOR, "_build_hybrid_req_pool"),
    ),
    Rule(
        "ring of a KDA model", "0.5.17", "0.5.23", ("replay", "ring", "model"), "refuses late",
        spec(
            lambda c, r: c.model == "kda"
            and (c.ring & (c.ring - 1) != 0 or c.ring < 2 * max(serve(c, r).counts, default=0))
        ),
        "its window of records is as long as the ring",
        "asked by the pool; a GDN model's ring is not asked",
        (POOL, "__init__"),
    ),
    Rule(
        "verified from the ring", "0.5.16", "0.5.23", ("replay",), "adjusts",
        spec(lambda c, r: c.model == "gdn"),
        "the backend asks whether rings and cursors are there, not for the flag",
        "without them the recurrent verify runs, and asserts that there are snapshots",
        ("srt/layers/attention/linear/gdn_backend.py", "forward_extend"),
    ),
    Rule(
        "cursors of verification stay", "0.5.16", "0.5.23", ("replay",), "adjusts",
        spec(lambda c, r: True),
        "the metadata of plain decoding moves cursors only under the flag of the decode ring",
        "steps of other requests, idle and padding rows leave a request's ring alone",
        ("srt/layers/attention/hybrid_linear_attn_backend.py", "_forward_metadata"),
    ),
    # ------------------------------------------------------------ the decode ring
    Rule(
        "decode ring: backend", "0.5.16", "0.5.17", ("replay", "backend"), "refuses",
        decode(lambda c, r: backend(c, r) != "triton"),
        "its kernel is Triton's", "", EARLY,
    ),
    *(
        Rule(
            "decode ring: backend", first, last, ("replay", "backend"), "refuses",
            decode(lambda c, r: backend(c, r) not in ("triton", "helion")),
            "its kernel is Triton's, or Helion's for KDA", "", where,
        )
        for first, last, where in (("0.5.18", "0.5.18", EARLY), ("0.5.19", "0.5.23", LATE))
    ),
    *_both(
        "decode ring: no extra buffer", "0.5.16", ("replay", "radix"), "refuses",
        decode(lambda c, r: serve(c, r).tracks),
        "the donated slot would keep a cursor that is not its own",
        "asked of the strategy as it was worked out, unlike verification's",
    ),
    *_both(
        "decode ring: no disaggregation", "0.5.16", ("replay", "disaggregation"), "refuses",
        decode(lambda c, r: c.disaggregation != "null"),
        "the decode server's pool is not built with this flag", "",
    ),
    *_both(
        "decode ring: of one at least", "0.5.16", ("replay", "ring"), "refuses",
        decode(lambda c, r: c.ring < 1),
        "a ring has rows", "",
    ),
    # ------------------------------------------------------------ memory
    Rule(
        "memory for snapshots", "0.5.16", "0.5.16", ("replay", "drafts"), "adjusts",
        lambda c, r: bool(serve(c, r).counts),
        "the sizing charges snapshots whether they are kept or not, and never rings",
        "rings are allocated beyond the budget, of the size of what was charged in their place",
        (CONFIGURATOR, "_handle_max_mamba_cache"),
    ),
    Rule(
        "memory for rings", "0.5.17", "0.5.23", ("replay", "ring"), "adjusts",
        spec(lambda c, r: c.model != "mamba2"),
        "the sizing charges rings and no snapshots",
        "a ring for each slot to 0.5.19, from 0.5.20 on for each running request",
        (CONFIGURATOR, "_handle_max_mamba_cache"),
    ),
)  # fmt: skip


def rules_of(version: str) -> Iterator[Rule]:
    """The rules of one release."""
    for rule in RULES:
        if ordered(rule.first) <= ordered(version) <= ordered(rule.last):
            yield rule


def refusals(flags: Configuration, version: str, late: bool = False) -> tuple[Rule, ...]:
    """The rules by which a release's validation refuses; with `late`, those of its pool."""
    what = "refuses late" if late else "refuses"
    release = release_of(version)
    return tuple(r for r in rules_of(version) if r.what == what and r.when(flags, release))
