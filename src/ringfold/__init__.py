"""A reference simulator and differential tester for ReplaySSM.

Four rooms, whose imports point one way: ``oracle <- sim <- fuzz -> kernels``.
"""

__version__ = "0.1.0"
