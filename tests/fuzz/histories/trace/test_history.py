"""Two histories have one digest exactly if they are one run: what decides it, and nothing else."""

from __future__ import annotations

import re

from ringfold.fuzz.histories.trace import Admit, PayloadSpec, Symptom, Trace, digest
from ringfold.sim.setup import Geometry, Setup

SETUP = Setup("ring", Geometry(1, 2, 4, 4), ring=8, window=2, slots=4)
PAYLOAD = PayloadSpec(seed=1, profile="ordinary")
ADMITTED = (Admit(request=0, tag=0),)


def test_the_digest_covers_what_decides_a_run() -> None:
    """Setup, payload and operations count; target, identity, expected and seen do not."""
    trace = Trace(setup=SETUP, payload=PAYLOAD, operations=ADMITTED)
    noted = Trace(
        setup=SETUP,
        payload=PAYLOAD,
        operations=ADMITTED,
        target="sim",
        identity={"numpy": "2.3.5"},
        expected=(Symptom("state-local", "drift"),),
        seen=({"units": 12.5},),
    )
    wider = Setup("ring", Geometry(1, 2, 4, 4), ring=8, window=2, slots=5)
    others = [
        Trace(setup=wider, payload=PAYLOAD, operations=ADMITTED),
        Trace(setup=SETUP, payload=PayloadSpec(seed=2, profile="ordinary"), operations=ADMITTED),
        Trace(setup=SETUP, payload=PAYLOAD, operations=()),
    ]

    assert re.fullmatch("[0-9a-f]{12}", digest(trace))
    assert digest(noted) == digest(trace)
    assert len({digest(trace), *map(digest, others)}) == 4
