"""The C++ kernels for CPU tensors, as `quire_kernels.dispatch` wants them.

The extension borrows tensors through DLPack's C exchange API: data, shape and strides, no copy. It checks shapes and
types, then the values that could lead out of bounds (block ids, slots, positions), and raises `ArgumentError`.

Importing this module fails where the extension is not built, or with `UnavailableError` where `QUIRE_CPU_ISA` asks for an
instruction set that this CPU lacks, or on which its products are wrong. `FALLBACK` says which one was passed over for that, and
is empty where none was.
"""

from __future__ import annotations

from quire_kernels import start_check
from quire_kernels._cpu import (
    available_isas,
    dequantize_gguf,
    fused_add_rms_norm,
    gelu_tanh_mul,
    head_rms_norm,
    isa,
    num_threads,
    pack_gguf,
    pack_weights,
    packed_linear,
    paged_attention,
    rms_norm,
    rope,
    set_num_threads,
    silu_mul,
    unpack_weight,
    use_isa,
    write_kv,
)

__all__ = [
    "FALLBACK",
    "NAME",
    "available_isas",
    "dequantize_gguf",
    "fused_add_rms_norm",
    "gelu_tanh_mul",
    "head_rms_norm",
    "isa",
    "num_threads",
    "pack_gguf",
    "pack_weights",
    "packed_linear",
    "paged_attention",
    "rms_norm",
    "rope",
    "set_num_threads",
    "silu_mul",
    "unpack_weight",
    "use_isa",
    "write_kv",
]

NAME = "cpu"

FALLBACK = start_check.settle()  # here, not in the first step: nobody computes yet
