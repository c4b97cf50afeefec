"""Imports torch without what an engine does not use. The engine's process begins with it.

torch's own import takes all of it: thousands of Python functions for the `meta` device, operators of compilers, export, quantisation of
modules, distributions, docstrings (2.13: half of its CPU time beside loading the library). So those modules are empty ones meanwhile, and
forgotten afterwards: an import finds the real ones. Whoever expects all to be there (models through transformers, processors of others)
asks for it (`import_rest`).
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

LATER: dict[str, tuple[str, ...]] = {
    "torch.distributions": (),
    "torch.nested": (),
    "torch.ao": (),
    "torch.nn.intrinsic": (),
    "torch.nn.qat": (),
    "torch.nn.quantizable": (),
    "torch.nn.quantized": (),
    "torch._size_docs": (),
    "torch._storage_docs": (),
    "torch._tensor_docs": (),
    "torch.quantization": (),
    "torch.masked": (),
    "torch.export": (),
    "torch.func": ("vmap",),
    "torch._higher_order_ops": ("cond", "while_loop"),
    "torch._higher_order_ops.invoke_subgraph": ("NestedCompileRegionOptions",),
    "torch.distributed._meta_registrations": (),
    "torch._meta_registrations": (),
}
"""Modules in the order in which torch imports them, and the names that others take from them meanwhile."""


class Absent:
    """Stands for what such a name means."""

    def __init__(self, *_: object, **__: object) -> None:
        raise NotImplementedError("this part of torch was not imported; quire.models.lean_torch.import_rest does it")


def import_torch() -> None:
    """Does nothing where torch is there already."""
    if "torch" in sys.modules:
        return
    empty = {name: ModuleType(name) for name in LATER}
    for name, taken in LATER.items():
        vars(empty[name]).update(dict.fromkeys(taken, Absent))
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


def import_rest() -> None:
    """What was left out, where it was."""
    for name, taken in LATER.items():
        module = importlib.import_module(name)
        for other in [other for other in sys.modules.values() if isinstance(other, ModuleType)]:
            for word in taken:
                if vars(other).get(word) is Absent:
                    setattr(other, word, getattr(module, word))
