"""Errors of the kernels; the class tells the caller what to do.

    KernelError
    ├── ArgumentError        also a ValueError: the caller passed a shape, type, device or index that cannot be; fix the call
    └── UnavailableError     also a RuntimeError: the chosen implementation cannot run here; choose another or rebuild

Every message names the argument or the environment variable, what it was, and what it may be.
"""

from __future__ import annotations


class KernelError(Exception):
    """Base of all errors this package raises on purpose."""


class ArgumentError(KernelError, ValueError):
    """An argument has the wrong shape, type, device or content; the message names it."""


class UnavailableError(KernelError, RuntimeError):
    """An implementation or an instruction set that was asked for cannot run here; the message says why."""
