"""Two targets part where the oracle tells them apart, or where a bit does if bits are asked for.

Both sides are machines of the simulator, sound ones and some with a bug, so it is known who is
wrong and from which operation on. The number that is shown is looked up again here, by walking the
history on each target by itself and reading what it returned; what the recurrence has is taken
from the recurrent machine and not from the walk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from typer.testing import CliRunner

from ringfold.fuzz.cli import app
from ringfold.fuzz.comparing.compare import compare, histories
from ringfold.fuzz.comparing.parting import Seen, differing, divergence, record
from ringfold.fuzz.histories.trace import Admit, Commit, PayloadSpec, Trace, Verify, load, save
from ringfold.fuzz.targets.registry import resolve
from ringfold.fuzz.targets.simulated import SimulatedTarget
from ringfold.sim.machine import Batch, Window
from ringfold.sim.ring import Ring
from ringfold.sim.setup import Geometry, Setup

WRONG = "sim:fold-one-short"


def trace_of(dialect: str = "ring", steps: int = 8) -> Trace:
    """One request, two of two tokens kept each time: at L = 8 a fold every third step."""
    setup = Setup(dialect, Geometry(1, 2, 8, 4), ring=8, window=2, slots=2)
    operations: list[Any] = [Admit(request=0, tag=0)]
    for tag in range(1, steps + 1):
        operations += [Verify(tag=tag, rows=(0,), lengths=(2,)), Commit(tag=tag, accepted=(2,))]
    return Trace(
        setup=setup,
        payload=PayloadSpec(seed=3, profile="slow-decay"),
        operations=tuple(operations),
    )


class Off(Ring):
    """Returns one output, of the third verify, one ULP further from zero."""

    verifies = 0

    def reconstruct(self, *arguments: Any) -> Any:
        """As it should be, but for a bit."""
        outputs, d, k = super().reconstruct(*arguments)
        self.verifies += 1
        if self.verifies == 3:
            outputs[0, 0, 1, 1, 2] = np.nextafter(outputs[0, 0, 1, 1, 2], np.float32(np.inf))
        return outputs, d, k


class Lost(Ring):
    """Stores nothing of the second token of a window."""

    def record(self, batch: Batch, cursors: Any, window: Window, d: Any, k: Any) -> None:
        """The state lacks it."""
        shorter = batch._replace(lengths=np.minimum(batch.lengths, 1))
        super().record(shorter, cursors, window, d, k)


def simulated(name: str, machine: type[Ring]) -> SimulatedTarget:
    return SimulatedTarget(name, machine)


class Loud(Ring):
    """Multiplies its queries by a number of its own."""

    def scale(self) -> Any:
        """A tenth too much."""
        return np.float32(1.1) * super().scale()


class TestDivergence:
    """One history."""

    def test_two_of_a_kind_do_not_part(self) -> None:
        """Not by a bit; and all that both have was compared."""
        one, other = (record(trace_of(), resolve("sim")) for _ in range(2))

        assert divergence(one, other, bits=True) is None
        assert one.seen.keys() == other.seen.keys()
        whats = [key.what for key in one.seen]
        assert whats.count("output") == 8
        assert whats.count("state") >= 8

    def test_one_bit_is_found_where_it_is(self) -> None:
        """Operation, layer, token, head, element, both numbers; and the oracle blames nobody."""
        off = record(trace_of(), simulated("off", Off))
        sound = record(trace_of(), resolve("sim"))

        found = divergence(sound, off, bits=True)

        assert found is not None
        assert (found.operation, found.kind, found.targets) == (5, "verify", ("sim", "off"))
        assert found.oracle == ("", "")
        assert found.value is not None
        assert found.value.where == "layer 0, token 1, value_head 1, v 2"
        assert (found.value.what, found.value.ulp, found.value.elements) == ("output", "1", 1)
        a, b = map(np.float32, found.value.values)
        assert b == np.nextafter(a, np.float32(np.inf))
        assert "Both are within the oracle's limits" in found.sentence()
        assert divergence(sound, off) is None

    @pytest.mark.parametrize("swapped", [False, True])
    def test_who_is_wrong_is_said(self, swapped: bool) -> None:
        """Whichever stands first; and with the oracle's own sentence."""
        walks = [record(trace_of(), resolve("sim")), record(trace_of(), simulated("lost", Lost))]

        found = divergence(walks[swapped], walks[not swapped])

        assert found is not None
        assert [bool(said) for said in found.oracle] == [swapped, not swapped]
        assert "lost is wrong." in found.sentence()
        assert "state-local" in found.sentence() or "records" in found.sentence()

    def test_the_numbers_are_the_targets_own(self) -> None:
        """What each returned, and beside them what the recurrent machine returns."""
        walks = [
            record(trace_of(), target)
            for target in (simulated("loud", Loud), resolve("sim"), resolve("sim@snapshots"))
        ]
        found = divergence(walks[0], walks[1])
        assert found is not None
        assert found.value is not None
        key = next(key for key in walks[0].seen if key.operation == found.operation)
        at = tuple(int(part.rsplit(" ", 1)[1]) for part in found.value.where.split(", "))
        loud, sound, recurrent = (float(walk.seen[key].got[at]) for walk in walks)

        assert found.value.values == (f"{loud:.9g}", f"{sound:.9g}")
        assert loud == pytest.approx(1.1 * sound, rel=1e-2)  # tf32
        assert float(found.value.expected) == pytest.approx(recurrent, rel=1e-5)

    def test_two_that_are_wrong_alike_do_not_part(self) -> None:
        """The oracle does not tell them apart."""
        walks = [record(trace_of(), simulated(name, Lost)) for name in ("a", "b")]

        assert walks[0].verdict.mismatches
        assert divergence(walks[0], walks[1], bits=True) is None


class TestCompare:
    """Many histories."""

    def compared(self, one: str, other: str, windows: int = 250, **options: Any) -> Any:
        """Two targets by name, some windows long."""
        a, b = resolve(one), resolve(other)
        fixed = {"ring": options.pop("ring", None)}
        return compare(a, b, histories(a, b, 1, **fixed), windows_max=windows, seed=1, **options)

    def test_dialects_are_compared_by_what_they_stand_for(self) -> None:
        """None is wrong, folds happen in both, and few states have the same bits."""
        report = self.compared("sim", "sim@compact")

        assert report.divergence is None
        assert report.inconclusive == []
        assert report.windows >= 250
        assert min(report.folds) > 10
        assert report.identical["state"] < report.compared["state"]

    def test_two_machines_with_one_walk_have_the_same_bits(self) -> None:
        """`fold-every-commit` claims those of `snapshots`."""
        report = self.compared("sim@fold-every-commit", "sim@snapshots", bits=True)

        assert report.divergence is None
        assert report.identical == report.compared
        assert set(report.compared) == {"output", "state"}

    def test_a_bug_is_found_and_kept(self, tmp_path: Path) -> None:
        """The trace fails on the one that is wrong, and on no other."""
        report = self.compared("sim", WRONG, 3000, run_dir=tmp_path)
        kept = load(Path(report.trace))

        assert report.divergence is not None
        assert [bool(said) for said in report.divergence.oracle] == [False, True]
        assert kept.target == WRONG
        assert record(kept, resolve(WRONG)).verdict.mismatches
        assert not record(kept, resolve("sim")).verdict.mismatches
        assert report.reproduce[0].endswith(f"compare sim {WRONG} --trace {report.trace}")

    def test_what_is_told_has_the_names_of_the_command_line(self, tmp_path: Path) -> None:
        """A class of somebody's own is not resolved by what it calls itself."""
        names = ("mine:Right", "mine:Wrong")
        report = self.compared("sim", WRONG, 3000, run_dir=tmp_path, names=names)

        assert load(Path(report.trace)).target == "mine:Wrong"
        assert "mine:Wrong is wrong" in report.divergence.sentence()
        assert report.reproduce[0].endswith(f"compare mine:Right mine:Wrong --trace {report.trace}")
        assert report.reproduce[1].endswith(f"{report.trace} --target mine:Wrong")
        assert list(report.identities) == list(names)

    def test_a_difference_that_nobody_is_blamed_for_is_kept_too(self, tmp_path: Path) -> None:
        """A replay of it agrees, a comparison to the bit does not."""
        report = self.compared("sim@open-loop", "sim", bits=True, run_dir=tmp_path)
        assert report.divergence is not None
        kept = load(Path(report.trace))
        walks = [record(kept, resolve(name)) for name in report.targets]

        assert kept.expected == "agree"
        assert Path(report.trace).parent.name.startswith("differ-")
        assert all(not walk.verdict.mismatches for walk in walks)
        again = divergence(walks[0], walks[1], bits=True)
        assert again is not None
        assert again.operation == report.divergence.operation

    def test_what_never_folded_proves_nothing_of_a_flush(self) -> None:
        """A history that ends before the first fold."""
        a, b = resolve("sim"), resolve("sim@open-loop")

        report = compare(a, b, iter([trace_of(steps=2)]))

        assert report.folds == (0, 0)
        assert [reason.partition(",")[0] for reason in report.inconclusive] == [
            "sim never folded",
            "sim@open-loop never folded",
        ]

    def test_targets_with_nothing_in_common_are_inconclusive(self) -> None:
        """A decode ring takes no windows."""
        report = compare(resolve("sim@decode-ring"), resolve("sim"), iter([trace_of()]))

        assert "nothing was compared" in report.inconclusive[0]

    def test_a_ring_of_one_is_plain_decoding_to_the_bit(self) -> None:
        """Each step folds, and nothing differs; with a longer ring something soon does."""
        one = self.compared("sim@decode-ring", "sim@snapshots", 60, bits=True, ring=1)
        two = self.compared("sim@decode-ring", "sim@snapshots", 60, bits=True, ring=2)

        assert one.divergence is None
        assert one.inconclusive == []
        assert one.folds[0] == one.windows >= 60
        assert two.divergence is not None
        assert two.divergence.oracle == ("", "")


class TestCommand:
    """`ringfold compare`."""

    def run(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Exit code, and the object that was printed."""
        result = CliRunner().invoke(app, ["compare", *arguments, "--json"])
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        return result.exit_code, json.loads(lines[-1]) if lines else {}

    def test_exit_codes(self, tmp_path: Path) -> None:
        """0 for two that do not part, 1 for two that do, 3 for what proves nothing."""
        path = tmp_path / "trace.json"
        save(msgspec.structs.replace(trace_of(steps=2), target="sim"), path)
        at = ("--run-dir", str(tmp_path))

        code, found = self.run("sim", "sim@compact", "--max-windows", "100", *at)
        assert (code, found["divergence"]) == (0, None)
        code, found = self.run("sim", WRONG, "--max-windows", "3000", *at)
        assert code == 1
        assert found["divergence"]["targets"] == ["sim", WRONG]
        code, found = self.run("sim", "sim@compact", "--trace", str(path), *at)
        assert code == 3
        assert found["histories"] == 1

    def test_for_people(self, tmp_path: Path) -> None:
        """A sentence, and the line that shows it again."""
        arguments = ["compare", "sim", WRONG, "--max-windows", "3000", "--run-dir", str(tmp_path)]
        result = CliRunner().invoke(app, arguments)

        assert f"{WRONG} is wrong." in result.stdout.replace("\n", " ")
        assert "reproduce: ringfold compare" in result.stdout


def test_numbers_of_two_dtypes_are_compared_as_numbers() -> None:
    """Bits of float16 and float32 can't be."""
    half: NDArray[Any] = np.array([1.5, np.nan], np.float16)
    single = np.array([1.5, np.nan], np.float32)
    nothing = np.zeros(2)

    assert not differing(Seen(half, nothing), Seen(single, nothing)).any()
    assert differing(Seen(half, nothing), Seen(single + 1, nothing))[0]
