"""The directed history: every situation of a setup on purpose, by the shortest way there.

Situations of a row come first, each by its shortest path from a reset; then those of a batch and of
a slot's life; at last numbers at the edge of what a formula bears, a bound that alone decides, and
a large state that is erased.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final

from ringfold.fuzz.histories.configurations import MANY
from ringfold.fuzz.histories.story import Plan
from ringfold.fuzz.histories.trace import (
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
    Restore,
    Save,
    Verify,
)
from ringfold.fuzz.judging.frame import Dead
from ringfold.sim.cursors import committed, reachable
from ringfold.sim.dialects import DIALECTS, protocol_of
from ringfold.sim.setup import Setup
from ringfold.sim.situations import directed_steps

SLOW: Final = "slow-decay"
"""Strong forgetting hides a lifecycle bug within a step or two, so the directed history decays
slowly, and so does every other random one."""

GATED: Final = "ordinary"

FAST: Final = "strong-gates"

PADDED: Final = 120
"""Rows of padding in one batch, with others behind them: a kernel may be right up to 128 rows."""

EXTREMES: Final = ("large", "short-keys", "softplus-knee", "unit-gates", "zeros", "subnormal")
"""Profiles of which one window tells a formula from one that is right for ordinary numbers."""


def directed(plan: Plan) -> Iterator[Operation]:
    """Every situation of a row by its shortest path, then those of a batch and of a slot's life.

    Paths are walked side by side, as many as there are slots; each group meets the slots of the
    one before it, with what that left in them.
    """
    setup, ring = plan.setup, DIALECTS[plan.setup.dialect].has_ring
    paths = directed_steps(setup)
    runs = [*paths.values()]
    if ring:
        # A request on the brink of a fold beside one that is far from it makes a batch mixed and
        # ragged. The other has a record too, if the ring has room, which must not fold as well.
        brink, T = paths["fold"][:-1], setup.window
        calm = [(T, 0)] * len(brink)
        if calm and not protocol_of(setup).due(1, setup.ring, T):
            calm[0] = (T, 1)
        runs += [[*brink, (T, T)], [*calm, (1, 1)]][: setup.slots - 1]
    together = min(plan.rows, setup.slots - 1)
    runs.sort(key=len)  # those walked side by side end at about the same time
    tag, request = 0, 0
    for start in range(0, len(runs), together):
        group = dict(enumerate(runs[start : start + together], start=request))
        request += len(group)
        for member in group:
            tag += 1
            yield Admit(request=member, tag=tag, dead="nan")
        for step in range(max(map(len, group.values()))):
            tag += 1
            going = {member: run[step] for member, run in group.items() if step < len(run)}
            rows: list[int | None] = [*going]
            lengths = [length for length, _ in going.values()]
            accepted: list[int | None] = [n for _, n in going.values()]
            at = tag % (len(going) + 1)  # the padding row stands now in front, now behind
            rows.insert(at, None)
            lengths.insert(at, 1)
            accepted.insert(at, None)
            yield Verify(tag=tag, rows=tuple(rows), lengths=tuple(lengths), dead="nan")
            yield Commit(tag=tag, accepted=tuple(accepted), dead="nan")
        for member in group:
            yield Free(request=member)
    requests, tags = count(request), count(tag + 1)
    yield from two_lives(plan, requests, tags)
    if plan.setup.slots > 3:
        yield from _travels(plan, requests, tags)
    yield from extremes(plan, requests, tags)
    yield from _tightened(plan, requests, tags)
    yield from erased(plan, requests, tags)


def two_lives(plan: Plan, requests: Iterator[int], tags: Iterator[int]) -> Iterator[Operation]:
    """Two requests, be it in used slots: one forks from the other, steps cross, a batch idles.

    Their gates are ordinary: what slow ones would hide from a check of outputs shows here. Dead
    memory is finite: who writes where NaN was, from NaN, changes nothing that a frame could see.
    """
    if "verify" not in plan.operations:
        return
    T, first = plan.setup.window, next(requests)
    idle = [Idle(rows=2)] if "idle" in plan.operations else []
    yield Admit(request=first, tag=next(tags), dead="garbage")
    alone = next(tags)
    yield Verify(tag=alone, rows=(first,), lengths=(T,), profile=GATED)
    if plan.setup.slots <= 2:
        yield Commit(tag=alone, accepted=(1,))
        yield Free(request=first)
        return
    yield Commit(tag=alone, accepted=(0,))
    second = next(requests)
    if "fork" in plan.operations:
        yield Fork(request=second, source=first)
    else:
        yield Admit(request=second, tag=alone)
    crossed, together, last = next(tags), next(tags), next(tags)
    yield Verify(tag=crossed, rows=(first,), lengths=(T,), profile=GATED)
    yield Verify(tag=together, rows=(second,), lengths=(T,), profile=GATED)
    yield from idle
    yield Commit(tag=crossed, accepted=(1,))
    yield from idle
    yield Commit(tag=together, accepted=(T,))
    yield Verify(tag=last, rows=(second, first), lengths=(1, T), profile=GATED)
    yield Commit(tag=last, accepted=(0, T))
    yield Free(request=first)
    yield Free(request=second)


def many_rows(plan: Plan, requests: Iterator[int], tags: Iterator[int]) -> Iterator[Operation]:
    """More rows at once than a kernel may treat alike, until all have folded and been read again.

    They fold one after the other, since every second keeps one token of its first window, or where
    nothing is drafted sits the first step out; windows of one token lie between longer ones. At
    last half of them stand behind `PADDED` rows of padding, as in a captured graph.
    """
    if plan.rows < MANY:
        return
    T, many = plan.setup.window, [next(requests) for _ in range(MANY)]
    steps, verifies = 2 + plan.setup.ring // T, "verify" in plan.operations
    for request in many:
        yield Admit(request=request, tag=next(tags), dead="nan" if request == many[-1] else "leave")
    for step in range(steps):
        rows: list[int | None] = [*many]
        lengths = [1 if (row + step) % 5 == 4 else T for row in range(MANY)]
        kept = [1 if step == 0 and row % 2 else n for row, n in enumerate(lengths)]
        accepted: list[int | None] = [*kept]
        if step == 0 and not verifies:
            rows[1::2] = accepted[1::2] = [None] * (MANY // 2)
        if step == steps - 1:
            at = slice(MANY // 2, MANY // 2)
            rows[at], lengths[at], accepted[at] = [None] * PADDED, [1] * PADDED, [None] * PADDED
        yield from _step(plan, next(tags), rows, lengths, accepted, GATED, "nan")
    for request in many:
        yield Free(request=request)


def erased(plan: Plan, requests: Iterator[int], tags: Iterator[int]) -> Iterator[Operation]:
    """A large state is folded, forgotten in one window, asked for by others and folded once more.

    Of what was as large as numbers get, a decay that is stopped short of zero leaves much: behind
    the window that forgets in what outputs see, and at the next fold in the state.
    """
    setup, protocol = plan.setup, protocol_of(plan.setup)
    L, T = setup.ring, setup.window
    if "place" not in plan.operations or not DIALECTS[setup.dialect].has_ring:
        return
    whole = [t for t in reachable(L, T, protocol).transitions if t.length == t.accepted == T]
    due = [t.before for t in whole if protocol.folded(t.before, T, L, T)]
    if not due:
        return
    most = max(due, key=lambda cursors: cursors.write_pos)
    request = next(requests)
    yield Place(
        request=request,
        tag=next(tags),
        base=most.cache_base,
        records=most.write_pos,
        flush=bool(most.is_flush),
        profile="large",
    )
    for profile in ("large", FAST, *[None] * (1 + L // T)):
        yield from _step(plan, next(tags), [request], [T], [T], profile)
    yield Free(request=request)


def _step(
    plan: Plan,
    tag: int,
    rows: Sequence[int | None],
    lengths: Sequence[int],
    accepted: Sequence[int | None],
    profile: str | None,
    dead: Dead = "leave",
) -> Iterator[Operation]:
    """A verify and its commit, or, where nothing is drafted, a plain step."""
    if "verify" not in plan.operations:
        yield Decode(tag=tag, rows=tuple(rows), profile=profile, dead=dead)
        return
    yield Verify(tag=tag, rows=tuple(rows), lengths=tuple(lengths), profile=profile, dead=dead)
    yield Commit(tag=tag, accepted=tuple(accepted), dead=dead)


def _travels(plan: Plan, requests: Iterator[int], tags: Iterator[int]) -> Iterator[Operation]:
    """Requests leave for host memory and come back, and end as prefixes from which others start.

    One leaves with records behind a ring that has turned, another when it is about to fold. In the
    slot that it left, and in the one where a prefix is hit, somebody else was before.
    """
    T = plan.setup.window

    def steps(*rows: int, profile: str | None = GATED) -> Iterator[Operation]:
        window = next(tags)
        yield Verify(tag=window, rows=rows, lengths=(T,) * len(rows), profile=profile)
        yield Commit(tag=window, accepted=(T,) * len(rows))

    for run in _turned(plan.setup):
        traveller, other = next(requests), next(requests)
        yield Admit(request=traveller, tag=next(tags))
        for length, n in run:
            window = next(tags)
            yield Verify(tag=window, rows=(traveller,), lengths=(length,))
            yield Commit(tag=window, accepted=(n,))
        saves = {"save", "restore"} <= plan.operations
        if saves:
            yield Save(request=traveller, dead="garbage")
        yield Admit(request=other, tag=next(tags))
        yield from steps(other)
        if saves:
            yield Restore(request=traveller)
            yield from steps(other, traveller)
            yield from steps(traveller)
        yield Free(request=other)
        if {"donate", "hit", "evict"} <= plan.operations:
            heirs = next(requests), next(requests)
            yield Donate(request=traveller, prefix=traveller)
            for heir in heirs:
                yield Hit(request=heir, prefix=traveller)
                yield from steps(heir)
            yield from steps(*heirs)
            yield Evict(prefix=traveller, dead="garbage")
            for heir in heirs:
                yield Free(request=heir)
        else:
            yield Free(request=traveller)


def _turned(setup: Setup) -> list[list[tuple[int, int]]]:
    """Steps (length, accepted) to where records wait and the ring has turned, and a fold is due."""
    every = reachable(setup.ring, setup.window, protocol_of(setup))
    due = {step.after.is_flush for step in every.transitions}
    runs = [
        every.path(
            lambda step, flag=flag: (  # type: ignore[misc]
                step.after.write_pos > 0
                and step.after.cache_base > 0
                and step.after.is_flush == flag
            )
        )
        for flag in sorted(due)
    ]
    return [[(t.length, t.accepted) for t in run] for run in runs if run] or [[(setup.window, 1)]]


def extremes(plan: Plan, requests: Iterator[int], tags: Iterator[int]) -> Iterator[Operation]:
    """A request for each kind of number, since a large state would hide what the next one does.

    The last one forgets all that it knew in one window and nothing from then on, until its ring has
    been folded: each product with the fast gates underflows, and none between the slow ones.
    """
    T, full = plan.setup.window, 1 + plan.setup.ring // plan.setup.window
    told: list[list[str | None]] = [[name] for name in EXTREMES]
    told.append([FAST, *[None] * full])
    for profiles in told:
        request = next(requests)
        yield Admit(request=request, tag=next(tags))
        for profile in profiles:
            yield from _step(plan, next(tags), [request], [T], [T], profile)
        yield Free(request=request)


def _tightened(plan: Plan, requests: Iterator[int], tags: Iterator[int]) -> Iterator[Operation]:
    """Where a fold would be due, windows of one token are announced, for which there is room.

    At last nothing is accepted, and the longest window is announced that still fits: a fold that
    was put off is due.
    """
    setup, protocol = plan.setup, protocol_of(plan.setup)
    L, T = setup.ring, setup.window
    run = reachable(L, T, protocol).path(
        lambda t: committed(protocol, t.before, t.accepted, L, 1) != t.after
    )
    if not run:
        return
    request, now = next(requests), run[0].before
    yield Admit(request=request, tag=next(tags))
    steps = [*((step.length, step.accepted, T) for step in run[:-1])]
    steps += [(run[-1].length, run[-1].accepted, 1), (1, 1, 1), (1, 0, T)]
    for length, n, longest in steps:
        bound = min(longest, L - committed(protocol, now, n, L, longest).write_pos)
        now = committed(protocol, now, n, L, bound)
        window = next(tags)
        yield Verify(tag=window, rows=(request,), lengths=(length,))
        yield Commit(tag=window, accepted=(n,), bound=None if bound == T else bound)
    yield Free(request=request)
