"""Prove, before a launch, that ``flex_attention`` kernels are compiled and will be hit.

The command line is ``flexwarm``; importing this package imports neither torch nor triton.
"""

__version__ = "0.1.0"
