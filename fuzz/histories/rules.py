"""What may come next in a history: one function a rule, whoever makes the choices.

A rule reads the story so far, asks `story.draw` for its choices and returns the operations that
come next: none, if nothing of its kind is legal now. `generate` follows the rules with seeded
choices, `ringfold.fuzz.running.machine` lets Hypothesis choose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ringfold.fuzz.histories.story import PADDING, Story, as_told
from ringfold.fuzz.histories.trace import (
    CHUNK,
    CHUNK_MAX,
    Admit,
    Commit,
    Decode,
    Donate,
    Evict,
    Fork,
    Free,
    Hit,
    Idle,
    Operation,
    Place,
    Prefill,
    Repeat,
    Restore,
    Save,
    Verify,
)

Operations = Sequence[Operation]

CHUNKED: Final = 0.5
"""How often the rest of a prompt is prefilled, where a target can."""
BRANCHING: Final = 0.5
"""How often long chunks may share their first tokens with another prompt."""
LONG: Final = 0.1
"""How often chunks may be long."""
WAITING: Final = 0.1
"""How often requests are prefilled that wait with records: the next turn of a session."""

CUT: Final = 0.5
"""How often a prefix lacks the last tokens of its request, where a target owns that."""
THOUGHT: Final = 0.1
"""How often these may be more than a window has."""

EXTREME: Final = 0.3
"""How often all or nothing of a window is accepted, rather than what luck says."""

REPEATED_STEPS_MAX: Final = 3
"""Steps inside of a repeat."""

REPEATED_OPERATIONS_MAX: Final = 2048
"""Verifies and commits of one repeat: a GPU takes as long for a batch of one row as for many."""

PREFIXES_MAX: Final = 2
"""What is kept for later takes seats away from now."""


# ------------------------------------------------------------------ who is seated


def admit(story: Story) -> Operations:
    """A request is seated after its prefill."""
    if story.vacant <= 0:
        return []
    request, tag = story.requests, story.next_tag()
    admission = Admit(request=request, tag=tag, dead=story.dead())
    return [admission, *rest_of_prompts(story, [request], tag + 1)]


def rest_of_prompts(story: Story, requests: Sequence[int], tag: int) -> Operations:
    """What follows an admission, where a target can prefill it: chunks, often of one token last."""
    if "prefill" not in story.plan.operations or not story.draw.chance(CHUNKED):
        return []
    chunks = [chunk(story, requests, tag)]
    if story.draw.chance(0.5):
        chunks.append(Prefill(tag=tag + 1, rows=tuple(requests), lengths=(1,) * len(requests)))
    return chunks


def chunk(story: Story, requests: Sequence[int], tag: int) -> Prefill:
    """Some tokens for each; now and then more than what prefill kernels work in at a time."""
    draw, branch = story.draw, None
    most = CHUNK_MAX if draw.chance(LONG) else 2 * story.setup.window
    lengths = draw.integers(1, [most] * len(requests)).tolist()
    if most == CHUNK_MAX and "branch" in story.plan.operations and draw.chance(BRANCHING):
        branch = CHUNK * draw.integer(1, CHUNK_MAX // CHUNK - 1)
    rows = tuple(requests)
    return Prefill(tag=tag, rows=rows, lengths=tuple(lengths), branch=branch, dead=story.dead())


def place(story: Story) -> Operations:
    """A request is seated in any state that the protocol reaches."""
    if not story.dialect.has_ring or story.vacant <= 0:
        return []
    unseen, draw = story.unseen, story.draw
    somewhere = int(unseen.places[draw.integer(0, len(unseen.places) - 1)])
    left = unseen.unfinished(draw) if draw.chance(story.temper.seeking) else None
    at = story.numbered.at(somewhere if left is None else left)
    return [
        Place(
            request=story.requests,
            tag=story.next_tag(),
            base=at.cache_base,
            records=at.write_pos,
            flush=bool(at.is_flush),
            profile=story.profile(),
            dead=story.dead(),
        )
    ]


def free(story: Story) -> Operations:
    """A request leaves, be it with a window in flight; the last one stays."""
    if len(story.seats) <= 1:
        return []
    return [Free(request=story.draw.pick(story.seats.tolist()), dead=story.dead())]


def fork(story: Story) -> Operations:
    """A request is seated on a copy of another one's checkpoint, which lacks no record."""
    idle = story.idle()
    sources = idle[story.waiting(idle) == 0].tolist()
    if not sources or story.vacant <= 0:
        return []
    source = story.draw.pick(sources)
    return [Fork(request=story.requests, source=source, dead=story.dead())]


def save(story: Story) -> Operations:
    """A request is retracted to host memory, with records that wait or without."""
    idle = story.idle()
    if len(story.seats) <= 1 or not len(idle):
        return []
    return [Save(request=story.draw.pick(idle.tolist()), dead=story.dead())]


def restore(story: Story) -> Operations:
    """A request comes back, into whatever slot is free."""
    if not story.saved or story.vacant <= 0:
        return []
    return [Restore(request=story.draw.pick(story.saved), dead=story.dead())]


def donate(story: Story) -> Operations:
    """A request ends and leaves its state to the prefix cache."""
    idle = story.idle()
    if len(story.seats) <= 1 or not len(idle) or len(story.prefixes) >= PREFIXES_MAX:
        return []
    request = story.draw.pick(idle.tolist())
    return [Donate(request=request, prefix=story.kept, cut=cut(story), dead=story.dead())]


def cut(story: Story) -> int:
    """How many tokens a prefix lacks: those behind a stop, now and then a longer thought."""
    T = story.setup.window
    if "cut" not in story.plan.operations or not story.draw.chance(CUT):
        return 0
    return story.draw.integer(1, 3 * T if story.draw.chance(THOUGHT) else T)


def hit(story: Story) -> Operations:
    """A request is seated on a copy of a prefix."""
    if not story.prefixes or story.vacant <= 0:
        return []
    prefix = story.draw.pick(story.prefixes)
    return [Hit(request=story.requests, prefix=prefix, dead=story.dead())]


def evict(story: Story) -> Operations:
    """The prefix cache gives a state up."""
    if not story.prefixes:
        return []
    return [Evict(prefix=story.draw.pick(story.prefixes), dead=story.dead())]


# ------------------------------------------------------------------ steps


def verify(story: Story) -> Operations:
    """A window for some of the requests that have none in flight, in any order."""
    idle, draw, temper = story.idle(), story.draw, story.temper
    most = min(len(idle), story.plan.rows, story.room)
    if most <= 0:
        return []
    count = draw.integer(1, most) if draw.chance(temper.partial) else most
    rows = story.padded(draw.some(idle, count))
    real = rows != PADDING
    lengths = np.where(real, story.bounds[rows], story.setup.window)
    if draw.chance(temper.ragged):
        lengths = draw.integers(1, lengths)
    tag, intents = story.next_tag(), np.full_like(rows, -1)
    seeking = np.flatnonzero(real & draw.chances(temper.seeking, len(rows)))
    seekers = rows[seeking]
    steps = story.unseen.steps(draw, story.places[seekers], story.bounds[seekers])
    lengths[seeking] = np.where(steps.accepted < 0, lengths[seeking], steps.lengths)
    intents[seeking] = steps.accepted
    story.intents[tag] = intents
    return [
        Verify(
            tag=tag,
            rows=as_told(rows),
            lengths=tuple(lengths.tolist()),
            profile=story.profile(),
            dead=story.dead(),
        )
    ]


def commit(story: Story) -> Operations:
    """Some tokens of each row of a window in flight are kept, and a bound for the next is said."""
    if not story.flights:
        return []
    draw, temper, T = story.draw, story.temper, story.setup.window
    flight = draw.pick(story.flights)
    rows, lengths = flight.rows, flight.lengths
    ends = lengths.cumsum()
    lucky = np.append(0, draw.chances(temper.greed, ends[-1]).cumsum())
    accepted = lucky[ends] - lucky[ends - lengths]
    extreme = np.flatnonzero(draw.chances(EXTREME, len(rows)))
    accepted[extreme] = np.where(draw.chances(0.5, len(extreme)), 0, lengths[extreme])
    intents = story.intents.get(flight.tag, np.full_like(rows, -1))
    accepted = np.where(intents < 0, accepted, intents)
    here = (rows != PADDING) & story.seated[rows]
    accepted[~here] = PADDING
    bound = int(story.longest(rows[here], accepted[here]).min(initial=T))
    if draw.chance(temper.tightening):
        bound = draw.integer(1, bound)
    track = None
    if "track" in story.plan.operations and draw.chance(temper.tracking):
        track = draw.integer(1, T)
    return [
        Commit(
            tag=flight.tag,
            accepted=as_told(accepted),
            bound=None if bound == T else bound,
            track=track,
            dead=story.dead(),
        )
    ]


def decode(story: Story) -> Operations:
    """A plain step of one token, for requests that have no window in flight."""
    # It commits with the longest bound, for which a tight one may have left no room.
    idle = story.idle()
    able = idle[story.longest(idle, 1) == story.setup.window]
    most = min(len(able), story.plan.rows, story.room)
    if most <= 0:
        return []
    draw = story.draw
    some = draw.some(able, draw.integer(1, most))
    rows, stores = as_told(story.padded(some)), tuple[int, ...]()
    if "store" in story.plan.operations and draw.chance(story.temper.tracking):
        stores = tuple(some[: draw.integer(1, len(some))].tolist())
    return [
        Decode(
            tag=story.next_tag(),
            rows=rows,
            stores=stores,
            profile=story.profile(),
            dead=story.dead(),
        )
    ]


def prefill(story: Story) -> Operations:
    """More of some prompts: a chunk, or the next turn of a request that keeps its slot."""
    draw, able = story.draw, story.idle()
    if not draw.chance(WAITING):
        able = able[story.waiting(able) == 0]
    most = min(len(able), story.plan.rows)
    if most <= 0:
        return []
    some = draw.some(able, draw.integer(1, most))
    return [chunk(story, some.tolist(), story.next_tag())]


def idle(story: Story) -> Operations:
    """A batch of padding."""
    return [Idle(rows=story.draw.integer(1, 3), dead=story.dead())]


def repeat(story: Story) -> Operations:
    """The same few steps many times over: what is slow to go wrong has time to."""
    draw, T = story.draw, story.setup.window
    able = story.settled()
    most = min(len(able), story.plan.rows)
    windows_max = min(story.plan.horizon, story.room)
    if not most or "verify" not in story.plan.operations:
        return []
    steps = draw.integer(1, REPEATED_STEPS_MAX)
    tag, windows, inside = story.next_tag(), 0, list[Operation]()
    for step in range(steps):
        rows = story.padded(draw.some(able, draw.integer(1, most)))
        lengths = draw.integers(1, [T] * len(rows))
        accepted = np.where(rows == PADDING, PADDING, draw.integers(0, lengths))
        batch, drafted = as_told(rows), tuple(lengths.tolist())
        window = Verify(tag=tag + step, rows=batch, lengths=drafted, dead=story.dead())
        commit = Commit(tag=tag + step, accepted=as_told(accepted), dead=story.dead())
        inside += [window, commit]
        windows += int((rows != PADDING).sum())
    turns = min(windows_max // windows, REPEATED_OPERATIONS_MAX // len(inside))
    if turns < 2:
        return []
    # As often a few turns as many.
    most_doublings = turns.bit_length() - 1
    doublings = draw.integer(1, most_doublings)
    times = draw.integer(2 ** (doublings - 1) + 1, 2**doublings)
    return [Repeat(times=times, operations=tuple(inside))]


# ------------------------------------------------------------------ all of them


class Rule(NamedTuple):
    """One kind of thing to do next."""

    tell: Callable[[Story], Operations]
    weight: int
    """How often it is usually followed."""
    needs: str
    """The operation that a target must own."""


RULES: Final[Mapping[str, Rule]] = {
    "verify": Rule(verify, 20, "verify"),
    "commit": Rule(commit, 20, "commit"),
    "admit": Rule(admit, 4, "admit"),
    "place": Rule(place, 4, "place"),
    "free": Rule(free, 3, "free"),
    "fork": Rule(fork, 6, "fork"),
    "decode": Rule(decode, 3, "decode"),
    "prefill": Rule(prefill, 2, "prefill"),
    "idle": Rule(idle, 1, "idle"),
    "save": Rule(save, 2, "save"),
    "restore": Rule(restore, 4, "restore"),
    "donate": Rule(donate, 1, "donate"),
    "hit": Rule(hit, 2, "hit"),
    "evict": Rule(evict, 1, "evict"),
    "repeat": Rule(repeat, 1, "verify"),
}


def usual(story_operations: frozenset[str]) -> dict[str, int]:
    """The usual weights of the rules that a target has."""
    return {name: rule.weight for name, rule in RULES.items() if rule.needs in story_operations}


def whatever_is_next(story: Story) -> Operations:
    """By one of the rules, each as often as the history's temper has it."""
    weights = story.temper.weights
    return RULES[story.draw.weighted([*weights], [*weights.values()])].tell(story)
