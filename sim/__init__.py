"""The simulator: what a ReplaySSM implementation stores, and how its cursors move.

Imports NumPy, msgspec and `ringfold.oracle`; never torch or triton.
"""
