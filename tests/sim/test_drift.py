"""What a drift study reports is the machine's doing, and none of the study's own.

In float64 every protocol's state, outputs and words are those of the text, so the bookkeeping of
windows, positions and comparisons adds nothing. With float32 states the errors stay within the
oracle's units. Then the claims that `docs/drift.md` makes of 100,000 tokens are made of a short
text: closed-loop folding keeps its state, open-loop folding of bfloat16 records does not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ringfold.oracle import gdn
from ringfold.sim import drift
from ringfold.sim.dialects import DIALECTS
from ringfold.sim.drift import Case, Precision, Study, Text, Track, Walker, cases_of, run
from ringfold.sim.precision import EXACT
from ringfold.sim.setup import Dtypes, Geometry, SetupError

SMALL = Study(
    geometry=Geometry(1, 2, 8, 8),
    tokens=200,
    gates=(-1.0, -7.0),
    similarities=(0.0, 0.9),
    seeds=2,
    vocabulary=64,
)
BASE = [Case(dialect, precision) for dialect in DIALECTS for precision in drift.PRECISIONS]
DOCS = Path(__file__).parents[2] / "docs"
EXACT_TOL = 1e-12  # seen 8.1e-16 (state) and 7.4e-16 (outputs), relative
LOST_TOKEN = 1e-2  # seen 0.48: the largest entry that a lost token of 20 leaves wrong
OPEN_OVER_CLOSED = 1000  # seen 5,100 to 51,000 after 1,000 tokens
CLOSED_GROWTH = 10  # seen 0.9 to 2.1, from 100 to 1,000 tokens


def walked(study: Study, *cases: Case) -> list[Track]:
    """What a study finds of these cases."""
    text = Text(study)
    return run(text, [Walker(case, text) for case in cases], lambda bounds, tracks: None)[1]


KERNELS = {
    "sglang-snapshots==0.5.23": "recurrent verify and snapshots, 0.5.23",
    "sglang==0.5.18": "`fold-every-commit`, 0.5.18",
    "sglang==0.5.16": "`ring`, 0.5.16",
    "triton": "`ring`, ours",
    "sglang==0.5.23": "`compact`, 0.5.23",
    "sglang-packed==0.5.23": "plain decode, packed, 0.5.23",
    "sglang-decode==0.5.23": "`decode-ring`, 0.5.23",
}
"""What the page calls them."""


def largest(values: list[list[float]]) -> float:
    """Of all gates and similarities."""
    return max(map(max, values))


def kept(name: str) -> list[Track]:
    """Results that are kept beside the page."""
    found = msgspec.json.decode((DOCS / "results" / name).read_bytes())
    return msgspec.convert(found["tracks"], list[Track])


@pytest.fixture(scope="module")
def tracks() -> list[Track]:
    """Of 100,000 tokens."""
    return kept("drift-100k.json")


def digits(value: float) -> str:
    """As the page has it."""
    return f"{value:.1e}".replace("e-0", "e-")


def flips(track: Track) -> int:
    """Words that differ, in all texts."""
    return sum(sum(map(sum, point.flips)) for point in track.points)


@pytest.fixture
def exact(monkeypatch: pytest.MonkeyPatch) -> str:
    """A precision in which nothing is rounded."""
    monkeypatch.setitem(drift.PRECISIONS, "exact", Precision(EXACT, Dtypes(), "float64"))
    return "exact"


class TestText:
    """The text that all machines are given."""

    def test_it_is_what_the_recurrence_makes_of_its_inputs(self) -> None:
        """Outputs and the state at the end are those of `gdn.scan`."""
        text = Text(SMALL)
        start = text.state.copy()
        chunk = text.decode(50)
        outputs, state = gdn.scan(start, gdn.prepare(chunk.tokens, text.parameters))

        np.testing.assert_array_equal(chunk.outputs, outputs)
        np.testing.assert_array_equal(text.state, state)

    def test_a_word_is_the_one_that_scores_highest(self) -> None:
        """And the next input embeds it."""
        text = Text(SMALL)
        chunk = text.decode(20)
        scores = np.einsum("...x,wx->...w", chunk.outputs.reshape(2, 4, 20, -1), text.head)

        np.testing.assert_array_equal(chunk.words, scores.argmax(-1))
        np.testing.assert_array_equal(text.word, chunk.words[:, :, -1])

    def test_it_does_not_run_in_circles(self) -> None:
        """Many different words are said."""
        words = Text(SMALL).decode(200).words

        assert min(len(np.unique(row)) for gate in words for row in gate) > 20

    def test_it_is_the_same_however_it_is_cut(self) -> None:
        """Where points lie decides nothing."""
        whole, parts = Text(SMALL), Text(SMALL)
        chunk = whole.decode(30)
        pieces = [parts.decode(count) for count in (10, 1, 19)]

        for field, cut in zip(
            chunk.tokens, zip(*(p.tokens for p in pieces), strict=True), strict=True
        ):
            np.testing.assert_array_equal(field, np.concatenate(cut, 2))
        np.testing.assert_array_equal(whole.units.error, parts.units.error)

    def test_similarity_is_the_mean_cosine_of_keys(self) -> None:
        """0.9 of their variance is common to all; in 8 dimensions that varies from text to text."""
        keys = Text(SMALL).decode(200).tokens.k[:, :, :, 0]
        keys = keys / np.linalg.norm(keys, axis=-1, keepdims=True)
        cosine = np.einsum("grtk,grsk->grts", keys, keys).mean((0, 2, 3))

        assert (abs(cosine[:2]) < 0.2).all()
        assert (cosine[2:] > 0.7).all()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("acceptance", [0.0, 0.7, 1.0])
def test_an_exact_machine_says_every_word_of_the_text(
    dialect: str, acceptance: float, exact: str
) -> None:
    """State, outputs and words are the text's: the study's own bookkeeping loses nothing."""
    (track,) = walked(SMALL, Case(dialect, exact, 8, acceptance))

    assert max(largest(p.state) for p in track.points) < EXACT_TOL
    assert max(largest(p.output) for p in track.points) < EXACT_TOL
    assert not any(token for gate in track.first_flip for kind in gate for token in kind)


def test_a_token_that_is_not_committed_is_seen(exact: str) -> None:
    """It could be seen: the same walk with one token less is far off."""
    text = Text(SMALL)
    walker = Walker(Case("ring", exact, 8), text)
    commit, windows = walker.machine.commit, []

    def forgetful(slots: Any, accepted: Any, bound: int) -> None:
        windows.append(accepted)
        commit(slots, accepted - (len(windows) == 5), bound)

    walker.machine.commit = forgetful  # type: ignore[method-assign]
    walker.walk(text.decode(20))
    off = np.abs(walker.represented() - text.state).max() / np.abs(text.state).max()

    assert off > LOST_TOKEN


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_float32_machine_stays_within_the_units(dialect: str) -> None:
    """Open-loop too, as long as its records are float32."""
    (track,) = walked(SMALL, Case(dialect, "fp32", 16))

    assert 0 < max(largest(p.state_units) for p in track.points) < 1


def test_closed_loop_keeps_its_state_where_open_loop_does_not() -> None:
    """With bfloat16 records: flat on one side, orders of magnitude more on the other."""
    study = msgspec.structs.replace(SMALL, tokens=1000)
    closed, opened = walked(
        study, Case("ring", "bf16-records", 16), Case("open-loop", "bf16-records", 16)
    )
    hundred = next(i for i, p in enumerate(closed.points) if p.tokens == 100)
    early, late, drifted = (
        np.array(p.state) for p in (closed.points[hundred], closed.points[-1], opened.points[-1])
    )

    assert (drifted / late).min() > OPEN_OVER_CLOSED
    assert (late / early).max() < CLOSED_GROWTH


def test_flips_and_the_first_of_them_agree() -> None:
    """A text has a first flip if and only if flips were counted, and no earlier than counted."""
    study = msgspec.structs.replace(SMALL, tokens=500)
    (track,) = walked(study, Case("ring", "kernel", 16))
    for gate in range(2):
        for similarity in range(2):
            at = [t for t in track.first_flip[gate][similarity] if t is not None]
            counted = [(p.tokens, p.flips[gate][similarity]) for p in track.points]
            first_point = next((tokens for tokens, flips in counted if flips), None)

            assert bool(at) == (first_point is not None)
            if first_point is not None:
                assert min(at) < first_point
                assert all(tokens <= min(at) for tokens, _ in counted if tokens < first_point)


def test_a_case_knows_nothing_of_the_others() -> None:
    """Alone or in company it gives the same numbers."""
    case, other = Case("ring", "kernel", 16), Case("open-loop", "fp32", 64)

    assert walked(SMALL, case) == walked(SMALL, other, case)[1:]


def test_a_long_study_holds_the_short_ones() -> None:
    """Cut at a point it is, digit for digit, what a shorter study of the same texts finds."""
    case = Case("ring", "kernel", 16)
    long, short = (walked(msgspec.structs.replace(SMALL, tokens=n), case)[0] for n in (200, 50))

    assert drift.cut(long, 50) == short
    assert not drift.cut(long, 60).points
    assert not drift.cut(short, 200).points


def test_results_come_as_they_are_reached() -> None:
    """At every point, with all that is known by then."""
    seen = []
    text = Text(SMALL)
    walkers = [Walker(Case("ring", "fp32"), text)]
    run(text, walkers, lambda bounds, tracks: seen.append(len(tracks[0].points)))

    assert seen == [1, 2, 3, 4, 5]
    assert drift.points_until(200) == [10, 20, 50, 100, 200]


def test_cases_that_differ_in_nothing_are_walked_once() -> None:
    """The recurrent verify has no records; sweeps belong to the precision that rounds them."""
    cases = cases_of(["snapshots", "ring"], ["fp32", "tf32", "bf16-records"], [16, 8], [0.7, 1.0])

    assert cases == [
        Case("snapshots", "fp32", 16, 0.7),
        Case("snapshots", "fp32", 16, 1.0),
        Case("ring", "fp32", 16, 0.7),
        Case("ring", "tf32", 16, 0.7),
        Case("ring", "bf16-records", 16, 0.7),
        Case("ring", "bf16-records", 8, 0.7),
        Case("ring", "bf16-records", 16, 1.0),
    ]


def test_a_case_that_could_differ_is_walked() -> None:
    """Deltas that are rounded matter without a ring; how many drafts are kept, only with drafts.

    The records of plain decoding have the states' dtype, so only that rounds them.
    """
    precisions = ["fp32", "tf32", "bf16-records", "bf16-state"]
    without_ring = cases_of(["linear-cache"], precisions, [16, 8], [0.7, 1.0])
    without_drafts = cases_of(["decode-ring"], precisions, [16, 8], [0.7, 1.0])

    assert without_ring == [
        *(Case("linear-cache", p, 16, 0.7) for p in ("fp32", "bf16-records", "bf16-state")),
        Case("linear-cache", "bf16-records", 16, 1.0),
    ]
    assert without_drafts == [
        *(Case("decode-ring", p, 16, 0.7) for p in ("fp32", "tf32", "bf16-state")),
        Case("decode-ring", "bf16-state", 8, 0.7),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Study(tokens=0), "tokens is 0, but must be in 1"),
        (lambda: Study(seeds=65), "seeds is 65"),
        (lambda: Study(gates=(9.0,)), r"gate is 9\.0, but must be an A_log in -20\.\.5"),
        (lambda: Study(similarities=(1.5,)), r"similarity is 1\.5"),
        (lambda: Case("ring", "fp8"), "precision is 'fp8', but must be one of fp32"),
        (lambda: Case("ring", "fp32", 16, 1.5), r"acceptance is 1\.5"),
        (lambda: Walker(Case("ring", "fp32", 4), Text(SMALL)), "at least two windows"),
    ],
)
def test_an_illegal_study_is_refused(make: Any, message: str) -> None:
    """The message names the value and its limit."""
    with pytest.raises(SetupError, match=message):
        make()


class TestPage:
    """`docs/drift.md` says what the results kept beside it say."""

    def test_its_table_is_that_of_the_results(self, tracks: list[Track]) -> None:
        """A row a case: states after 1,000 and 100,000 tokens, and words flipped."""
        page = (DOCS / "drift.md").read_text(encoding="utf-8")
        for track in tracks:
            early, late = (
                digits(largest(p.state)) for p in track.points if p.tokens in (1000, 100_000)
            )
            row = f"| `{track.case.dialect}` {track.case.precision} | {early} | {late} | "

            assert row in page
            assert (
                f" | {flips(track):,} of 2,400,000 | " in page[page.index(row) :].partition("\n")[0]
            )

    def test_closed_loop_is_flat_and_open_loop_is_orders_above(self, tracks: list[Track]) -> None:
        """At every gate strength and similarity."""
        closed, opened = (
            next(t for t in tracks if (t.case.dialect, t.case.precision) == (name, "bf16-records"))
            for name in ("ring", "open-loop")
        )
        early, late = (
            np.array(next(p.state for p in closed.points if p.tokens == n)) for n in (1000, 100_000)
        )
        drifted = np.array(opened.points[-1].state)

        assert (late / early).max() < CLOSED_GROWTH
        assert (drifted / late).min() > OPEN_OVER_CLOSED

    def test_every_dialect_is_there(self, tracks: list[Track]) -> None:
        """Of those that the issue of a fold can meet, none is left out."""
        assert {track.case.dialect for track in tracks} == set(DIALECTS)

    def test_the_tables_of_the_sweep(self) -> None:
        """A row a dialect: states and flips by precision, errors by ring length and rate."""
        page = (DOCS / "drift.md").read_text(encoding="utf-8")
        found = {track.case: track for track in kept("drift-20k.json")}
        assert {track.points[-1].tokens for track in found.values()} == {20_000}

        def error(track: Track) -> str:
            outputs = max(largest(p.output) for p in track.points if p.tokens > 1000)
            return f"{digits(largest(track.points[-1].state))} / {digits(outputs)}"

        for dialect in DIALECTS:
            by_precision = [found.get(Case(dialect, p)) for p in drift.PRECISIONS]
            states = [t and digits(largest(t.points[-1].state)) for t in by_precision]
            flipped = [t and f"{flips(t):,}" for t in by_precision]
            for cells in (states, flipped):
                assert f"| `{dialect}` | {' | '.join(c or 'as fp32' for c in cells)} |" in page
            swept = next(c.precision for c in found if c.dialect == dialect and c not in BASE)
            lengths = [Case(dialect, swept, ring) for ring in (8, 16, 64)]
            rates = [Case(dialect, swept, 16, rate) for rate in (0.0, 1.0)]
            errors = ["" if (t := found.get(c)) is None else error(t) for c in lengths + rates]
            assert f"| `{dialect}` | {swept} | {' | '.join(errors)} |" in page

    def test_released_kernels(self) -> None:
        """A row a kernel: the state early and late, outputs, and flips."""
        page = (DOCS / "drift.md").read_text(encoding="utf-8")
        table = page.partition("| kernel | state at 1,000 |")[2].partition("\n\n")[0]
        rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
        found = kept("drift-10k-h200.json")

        assert len(rows) == len(found)
        for track in found:
            early = next(p for p in track.points if p.tokens == 1000)
            outputs = max(largest(p.output) for p in track.points if p.tokens >= 1000)
            errors = largest(early.state), largest(track.points[-1].state), outputs
            (row,) = (cells for cells in rows if cells[0] == KERNELS[track.case.target])
            assert row[1:] == [*map(digits, errors), f"{flips(track):,}"]
