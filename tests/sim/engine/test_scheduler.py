"""A server does what its workload asks, whatever comes in between.

A busy workload (conversations, forks, a small prefix cache, an attention cache that runs full,
clients that leave, drafts that adapt) is served once a protocol, and its events are held against a
ledger that is kept here from the events alone: who is seated, how many tokens everyone has. That
the same events are a legal history for any implementation is asserted where they become a trace.
"""

from __future__ import annotations

import doctest
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ringfold.sim.cursors import COMPACT_NARROW, Protocol
from ringfold.sim.dialects import DIALECTS, VERIFIERS
from ringfold.sim.engine import events as ev
from ringfold.sim.engine.scheduler import Engine, graph_rows
from ringfold.sim.engine.workload import Workload

BUSY = Workload(
    requests=200,
    tokens=40,
    running=16,
    acceptance=0.6,
    prompt=20,
    chunk=8,
    samples=2,
    turns=3,
    gap=4.0,
    aborts=0.1,
    cached=6,
    context=700,
    adaptive=True,
)


@cache
def served(
    dialect: str, load: Workload = BUSY, protocol: Protocol | None = None
) -> tuple[ev.Event, ...]:
    """All that happened."""
    return tuple(Engine(load, DIALECTS[dialect], protocol).run())


def tokens_by_request(happened: tuple[ev.Event, ...], prompt: bool) -> Counter[int]:
    """Tokens of the prompts, or of the answers, that windows and decode steps committed."""
    counted: Counter[int] = Counter()
    for event in happened:
        if isinstance(event, ev.Commit | ev.Decode) and event.prompt == prompt:
            accepted = np.ones(event.rows.size, np.int64)
            if isinstance(event, ev.Commit):
                accepted = np.maximum(event.accepted, 0)
            counted.update(dict(zip(event.rows.tolist(), accepted.tolist(), strict=True)))
    return counted


def left(happened: tuple[ev.Event, ...]) -> set[int]:
    """Requests whose clients left with a window in flight."""
    return {
        int(row)
        for event in happened
        if isinstance(event, ev.Commit)
        for row in event.rows[event.accepted < 0]
    }


@pytest.mark.parametrize("dialect", DIALECTS)
def test_everything_happens(dialect: str) -> None:
    """No kind of event is missing; without drafts nothing is verified, and nobody leaves one."""
    happened = served(dialect)
    kinds = {type(event) for event in happened}
    everything = set(ev.Event.__args__)

    assert kinds == everything - (set() if dialect in VERIFIERS else {ev.Verify, ev.Commit})


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_answer_is_as_long_as_was_asked(dialect: str) -> None:
    """To the token; of those whose clients left it is shorter."""
    happened = served(dialect)
    answers, gone = tokens_by_request(happened, prompt=False), left(happened)

    for request in range(BUSY.requests):
        if request in gone:
            assert answers[request] < BUSY.tokens
        else:
            assert answers[request] == BUSY.tokens
    assert (len(gone) > 0) == (dialect in VERIFIERS)


class Tokens:
    """How many tokens everyone's state has seen, from the events alone."""

    def __init__(self, dialect: str) -> None:
        self.donates = DIALECTS[dialect].donates
        self.seen: Counter[int] = Counter()
        self.kept: dict[int, int] = {}
        self.waiting: Counter[int] = Counter()

    def follow(self, event: ev.Event) -> None:
        """Count an event in."""
        match event:
            case ev.Prefill(request, tokens):
                self.seen[request] = tokens
            case ev.Hit(request, prefix):
                self.seen[request] = self.kept[prefix]
            case ev.Fork(request, source):
                assert not self.waiting[source]
                self.seen[request] = self.seen[source]
            case ev.Donate(request, prefix):
                lost = self.waiting[request] if self.donates == "checkpoint" else 0
                self.kept[prefix] = self.seen[request] - lost
            case ev.Commit(rows, accepted):
                self.seen.update(dict(zip(rows.tolist(), np.maximum(accepted, 0), strict=True)))
            case ev.Decode(rows):
                self.seen.update(rows.tolist())
        if isinstance(event, ev.Commit | ev.Decode):
            for request, records in zip(event.rows.tolist(), event.after.write_pos, strict=True):
                self.waiting[request] = int(records)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_prompt_is_read_once(dialect: str) -> None:
    """Prefilled, forked or hit, each answer begins behind the whole conversation, token by token.

    What a prefix has lost since the last fold, where its checkpoint alone was donated, is read
    again.
    """
    tokens, prompts = Tokens(dialect), BUSY.prompts()
    started: set[int] = set()
    for event in served(dialect):
        if isinstance(event, ev.Commit | ev.Decode) and not event.prompt:
            for request in set(event.rows.tolist()) - started:
                first = request - request % BUSY.samples
                turn = first // BUSY.samples % BUSY.turns
                before = tokens.seen[first - BUSY.samples] if turn else 0
                assert tokens.seen[request] == before + prompts[first]
                started.add(request)
        tokens.follow(event)
    assert len(started) == BUSY.requests


def test_prompts_end_one_token_into_a_chunk() -> None:
    """An eighth of them by choice: a state is extended by a single token."""
    ones = [e for e in served("ring") if isinstance(e, ev.Decode) and e.prompt]

    assert len(ones) > 10
    assert np.mean(BUSY.prompts() % BUSY.chunk == 1) > 1 / 8


@pytest.mark.parametrize("dialect", DIALECTS)
def test_seats(dialect: str) -> None:
    """Only who is seated takes part, never more than may run, and each in a slot of its own."""
    seated: set[int] = set()
    saved: set[int] = set()
    prefixes: set[int] = set()
    for event in served(dialect):
        match event:
            case ev.Prefill(request) | ev.Fork(request, _) | ev.Hit(request, _):
                assert request not in seated | saved
                seated.add(request)
            case ev.Restore(request):
                saved.remove(request)
                seated.add(request)
            case ev.Save(request):
                seated.remove(request)
                saved.add(request)
            case ev.Free(request):
                seated.remove(request)
            case ev.Donate(request, prefix):
                seated.remove(request)
                assert prefix not in prefixes
                prefixes.add(prefix)
            case ev.Evict(prefix):
                prefixes.remove(prefix)
            case ev.Verify(rows) | ev.Decode(rows):
                assert set(rows.tolist()) <= seated
                assert len(set(rows.tolist())) == rows.size
        if isinstance(event, ev.Hit):
            assert event.prefix in prefixes
        assert len(seated) <= BUSY.running
        assert len(seated) + len(prefixes) <= BUSY.running + BUSY.cached
    assert not seated | saved


def test_batches_are_as_wide_as_a_graph() -> None:
    """One of 1, 2, 4, or a multiple of 8; a prompt's windows are no graph's."""
    rounds = 0
    for event in served("ring"):
        if isinstance(event, ev.Verify | ev.Decode) and not getattr(event, "prompt", True):
            rows = event.rows.size + event.padding
            assert rows in (1, 2, 4) or rows % 8 == 0
            assert event.padding < 8
            rounds += 1
    assert rounds > 10
    assert [graph_rows(n) for n in (1, 3, 5, 8, 9, 33)] == [1, 4, 8, 8, 16, 40]


def test_the_attention_cache_holds_every_round() -> None:
    """Of all who decode, and the window that each may add; one alone is never retracted."""
    tokens, rounds = Tokens("ring"), 0
    for event in served("ring"):
        if isinstance(event, ev.Verify) and event.padding + event.rows.size > 1:
            drafted = sum(tokens.seen[request] for request in event.rows.tolist())
            assert drafted + BUSY.window * event.rows.size <= (BUSY.context or 0)
            rounds += 1
        tokens.follow(event)
    assert rounds > 10


def test_whom_retraction_takes_has_decoded_least() -> None:
    """Of those that decode."""
    decoded: Counter[int] = Counter()
    decoding: set[int] = set()
    taken = 0
    for event in served("snapshots"):
        match event:
            case ev.Save(request):
                decoding.discard(request)
                assert all(decoded[request] <= decoded[other] for other in decoding)
                taken += 1
            case ev.Free(request) | ev.Donate(request, _):
                decoding.discard(request)
            case ev.Commit(rows, accepted, prompt=False):
                decoded.update(dict(zip(rows.tolist(), np.maximum(accepted, 0), strict=True)))
                decoding |= set(rows[accepted >= 0].tolist())
            case ev.Decode(rows, prompt=False):
                decoded.update(rows.tolist())
                decoding |= set(rows.tolist())
    assert taken > 10


def accepted_by_round(load: Workload) -> dict[int, list[int]]:
    """What each request accepted, round by round."""
    rounds: dict[int, list[int]] = defaultdict(list)
    for event in served("ring", load):
        if isinstance(event, ev.Commit) and not event.prompt:
            for request, n in zip(event.rows.tolist(), event.accepted.tolist(), strict=True):
                rounds[request].append(n)
    return rounds


def test_a_request_meets_the_same_luck_on_another_server() -> None:
    """Choices belong to the request, so a smaller batch and a smaller cache change none of them."""
    steady = msgspec.structs.replace(BUSY, adaptive=False)
    smaller = msgspec.structs.replace(steady, running=5, cached=2, context=300)

    assert accepted_by_round(steady) == accepted_by_round(smaller)
    assert [type(e) for e in served("ring", steady)] != [type(e) for e in served("ring", smaller)]


def test_the_seed_decides() -> None:
    """The same events again, and others for another seed."""
    few = msgspec.structs.replace(BUSY, requests=20)

    def shown(load: Workload) -> list[str]:
        return [repr(event) for event in Engine(load, DIALECTS["ring"]).run()]

    assert shown(few) == shown(few) != shown(msgspec.structs.replace(few, seed=1))


@pytest.mark.parametrize(("acceptance", "longest", "shortest"), [(1.0, 4, 4), (0.05, 2, 1)])
def test_drafts_adapt(acceptance: float, longest: int, shortest: int) -> None:
    """All are accepted: as many as there may be. Hardly any: soon none, now and then one."""
    load = Workload(requests=8, running=8, tokens=100, acceptance=acceptance, adaptive=True)
    lengths = [
        1 if isinstance(event, ev.Decode) else int(event.lengths[0])
        for event in served("ring", load)
        if isinstance(event, ev.Verify | ev.Decode)
    ]

    assert max(lengths[10:]) == longest
    assert min(lengths) == shortest


def test_an_idle_server_keeps_step() -> None:
    """Between two conversations that are far apart there are batches of nothing but padding."""
    load = Workload(requests=3, running=4, tokens=4, gap=50.0)
    idle = [event for event in served("ring", load) if isinstance(event, ev.Idle)]

    assert len(idle) > 20
    assert {event.padding for event in idle} == {1}


def test_a_narrow_state_folds_at_every_commit() -> None:
    """Another protocol of the same dialect: nothing waits, so every prompt can be forked."""
    load = msgspec.structs.replace(BUSY, running=64, context=None)
    kinds = Counter(type(event) for event in served("compact", load, COMPACT_NARROW))
    wide = Counter(type(event) for event in served("compact", load))

    assert kinds[ev.Fork] > wide[ev.Fork]


def test_a_thousand_concurrent_requests() -> None:
    """All are served: seats, prefixes, retractions and all."""
    load = msgspec.structs.replace(
        BUSY, requests=3000, tokens=20, running=1000, gap=0.0, aborts=0.0, cached=50, context=25_000
    )
    happened = served("ring", load)
    most = max(event.rows.size for event in happened if isinstance(event, ev.Verify | ev.Decode))
    answers = tokens_by_request(happened, prompt=False)

    assert most == 1000
    assert len(answers) == 3000
    assert {type(event) for event in happened} >= {ev.Save, ev.Hit, ev.Fork, ev.Evict}


def test_the_page_is_right() -> None:
    """The example of `docs/engine.md` runs, and prints what it says."""
    page = Path(__file__).parents[3] / "docs" / "engine.md"

    assert doctest.testfile(str(page), module_relative=False).failed == 0
