"""How many bytes of tensors are alive at a time: what a computation really takes, to compare with what was planned."""

from __future__ import annotations

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class PeakMemory(TorchDispatchMode):
    """Inside its block `most` is the largest sum of bytes of tensors that operations made there and that were alive together.

    What an operation allocates and frees inside itself is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage for value in (*args, *(kwargs or {}).values()) for storage in _storages(value)}
        result = function(*args, **(kwargs or {}))
        self._alive = {key: held for key, held in self._alive.items() if not held[0].expired()}
        for storage in _storages(result) - given:
            key = storage._cdata
            if key not in self._alive:
                self._alive[key] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, sum(num_bytes for _, num_bytes in self._alive.values()))
        return result


def _storages(value: Any) -> set[torch.UntypedStorage]:
    if isinstance(value, torch.Tensor):
        return set() if value.layout is torch._mkldnn else {value.untyped_storage()}  # type: ignore[attr-defined]
    return {one for part in value for one in _storages(part)} if isinstance(value, list | tuple) else set()
