"""Attention and quantisation kernels. Public door: quire_kernels.ops."""
__version__ = "0.1.0"
