"""Attention and quantisation kernels. The public door is `quire_kernels.ops`; errors are in `quire_kernels.errors`."""

__version__ = "0.1.0"
