"""Swarm testing: every history has a temper of its own, drawn once, with some features left out.

Histories in which everything happens at its average rate are all alike: nothing runs long, since
everything interrupts it. So each draws how often which rule is followed, and leaves out some rules
and habits altogether.

Source: Groce, Zhang, Eide, Chen, Regehr, *Swarm Testing* (2012).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ringfold.fuzz.histories.draws import Draw
from ringfold.fuzz.judging.frame import Dead

FACTORS: Final = (1, 1, 2, 4)
"""By what a rule's weight is multiplied."""

LEFT_OUT: Final = 0.3
"""How often a rule that is not essential is left out."""

ESSENTIAL: Final = frozenset({"verify", "commit", "admit"})
"""Without these nothing happens; where a target has no verify, its decode is essential."""


class Temper(NamedTuple):
    """What one history tends to do. Shares are probabilities."""

    weights: Mapping[str, int]
    """How often each rule is followed; 0 if it is left out."""
    dead: tuple[Dead, ...]
    """What dead memory is filled with."""
    padding: float
    """Of one more padding row in a batch."""
    partial: float
    """Of batches without some of the requests that could be in it."""
    ragged: float
    """Of batches whose windows differ in length."""
    greed: float
    """How much of a window is accepted."""
    tightening: float
    """Of commits that announce shorter windows."""
    colour: float
    """Of windows with a payload profile of their own."""
    tracking: float
    """Of commits that also store a state for a prefix cache."""
    seeking: float
    """Of rows that take a step which no history has taken yet, where there is one."""


def temper(draw: Draw, weights: Mapping[str, int], *, seeks: bool = True) -> Temper:
    """Draw one; `weights` are the usual ones of the rules that a target has."""
    essential = ESSENTIAL if "verify" in weights else {"decode", "admit"}
    return Temper(
        weights={
            rule: usual * draw.pick(FACTORS) * (rule in essential or not draw.chance(LEFT_OUT))
            for rule, usual in weights.items()
        },
        dead=draw.pick((("leave",), ("garbage",), ("nan",), ("leave", "nan"))),
        padding=draw.pick((0.0, 0.1, 0.3, 0.5)),
        partial=draw.pick((0.0, 0.3, 0.6, 1.0)),
        ragged=draw.pick((0.0, 0.3, 0.6, 1.0)),
        greed=draw.pick((0.2, 0.6, 0.9)),
        tightening=draw.pick((0.0, 0.0, 0.5)),
        colour=draw.pick((0.0, 0.1, 0.5)),
        tracking=draw.pick((0.0, 0.3, 0.6)),
        seeking=draw.pick((0.0, 0.8, 1.0, 1.0)) if seeks else 0.0,
    )
