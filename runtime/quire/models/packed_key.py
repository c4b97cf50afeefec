"""The key of packed weights that are kept: equal where packing would make the same bytes of the same files, and else different.

In it is all that packing looks at: the model's description, the names of its tensors, in which numbers it computes, how its matrices
are stacked, the tokens of the text that tells what matters, the versions of what packs, and what the files hold. Where they lie is not in
it, nor how many threads there are or which instruction set, for packed bytes do not depend on them (of `int4` the last bits do,
where two processors multiply the text in another order: both are right).

Files are not hashed whole: that reads all of what a start with a cache need not read at all. A file is told by its size, its header,
a page in the middle of each tensor, and its digest where one is known that was checked (a hub's cache, `quire fetch`), else the time of its last
change. Two files of one architecture have the same size and header, but no training leaves a page of every matrix as it was; whoever edits
a few numbers in place changes the time. What would go unseen is an edit that hides from both on purpose.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import msgspec

from quire.fetch.mark import checked_digest
from quire.models import calibration, packed_file
from quire.models.checkpoint import Checkpoint, TensorFile
from quire.models.description import DecoderDescription
from quire.models.packing import Matrix
from quire.models.precision import Precision
from quire_kernels.weight_bytes import PACKING

SAMPLE = 4096
"""Bytes that are read of each tensor."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


def key_of(
    checkpoint: Checkpoint,
    description: DecoderDescription,
    precision: Precision,
    matrices: Sequence[Matrix],
    tokens: Sequence[int],
) -> str:
    """32 hexadecimal digits. Raises OSError where a file cannot be read, ModelError where it is another one by now."""
    names = checkpoint.names
    told = {
        "versions": [packed_file.VERSION, PACKING, calibration.VERSION],
        "model": asdict(replace(description, eos_token_ids=())),
        "names": [names.top, names.layer, sorted(names.unpermute)],
        "numbers": [precision.quantization, str(precision.dtype), str(precision.rounded_to)],
        "matrices": [msgspec.to_builtins(packed_file.shape_of(matrix)) for matrix in matrices],
        "tokens": list(tokens),
        "files": [told_by(file) for file in checkpoint.files()],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32]


def told_by(file: TensorFile) -> list[int | str]:
    """What tells a file of weights from others: see above."""
    found = hashlib.sha256()
    with file.path.open("rb", buffering=0) as opened:
        stat = os.fstat(opened.fileno())
        version = _digest(file.path) or f"changed {stat.st_mtime_ns}"
        found.update(os.pread(opened.fileno(), file.header_bytes, 0))
        for start, size in file.spans:
            middle = start + max(size - SAMPLE, 0) // 2
            found.update(os.pread(opened.fileno(), min(size, SAMPLE), middle))
    return [stat.st_size, version, found.hexdigest()]


def _digest(path: Path) -> str | None:
    """Of the whole content, where somebody has checked it: the hub's cache calls files by it, `quire fetch` writes it down."""
    real = path.resolve()
    if real.parent.name == "blobs" and _DIGEST.fullmatch(real.name):
        return real.name
    return checked_digest(path)
