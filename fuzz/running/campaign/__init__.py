"""A campaign: many histories on some targets, in worker processes, within a budget.

Which histories run, and in which order, is a `Course`: the same seed and the same number of windows
give the same traces and the same verdicts, by any number of workers, unless a time limit cuts the
list.
"""

from ringfold.fuzz.running.campaign.report import Finding, Report, Tally
from ringfold.fuzz.running.campaign.run import Campaign, Engine

__all__ = ["Campaign", "Engine", "Finding", "Report", "Tally"]
