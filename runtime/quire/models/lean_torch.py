"""Imports torch without what only compilers and shape inference use. The engine's process begins with it.

torch ends its import by registering thousands of Python functions for the `meta` device (2.13: a quarter of the whole import, CPU time). An
engine computes on real devices only. So those modules are empty ones meanwhile, and forgotten afterwards: whoever wants them
(`register_meta`, for models through transformers, whose structure is examined on the meta device) gets the real ones.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

_LATER = ("torch._meta_registrations", "torch.distributed._meta_registrations")


def import_torch() -> None:
    """Does nothing where torch is there already."""
    if "torch" in sys.modules:
        return
    empty = {name: ModuleType(name) for name in _LATER}
    sys.modules.update(empty)
    try:
        import torch  # noqa: F401
    finally:
        for name, module in empty.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if getattr(sys.modules.get(parent), child, None) is module:
                delattr(sys.modules[parent], child)


def register_meta() -> None:
    """What was left out, where it was."""
    for name in _LATER:
        importlib.import_module(name)
