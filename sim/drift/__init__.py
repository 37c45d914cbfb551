"""Drift: how far a machine's state and outputs have wandered after many thousand tokens.

One *text* is decoded greedily by the float64 recurrence: a toy head reads each output and names the
next word, whose embedding, with noise that stands for the rest of a model, is the next input. Every
machine then verifies this text window by window, and at each token three things are compared: the
state that its memory stands for, its output, and the word that the same head reads from it. The
first word that differs is where greedy decoding would have parted.

Rows are configurations too: gate strengths lie along the layer axis, key similarities and seeds
along the row axis of one batch, so a case walks them all at once.
"""

from ringfold.sim.drift.run import run
from ringfold.sim.drift.study import PRECISIONS, Case, Precision, Study, cases_of
from ringfold.sim.drift.text import Array, Text
from ringfold.sim.drift.track import Bound, Point, Track, cut, points_until
from ringfold.sim.drift.walker import Walker

__all__ = [
    "PRECISIONS", "Array", "Bound", "Case", "Point", "Precision", "Study", "Text", "Track",
    "Walker", "cases_of", "cut", "points_until", "run",
]  # fmt: skip
