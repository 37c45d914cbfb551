"""The truth: Gated DeltaNet in NumPy float64, knowing nothing of rings, kernels or rounding.

Read `gdn` first, it is the definition. `chunked` derives the same numbers a second way and so
checks the first; `convolution` is the layer in front; `units` says how far a right fp32
computation may lie from all this.
"""
