"""The C++ kernels for CPU tensors, as `quire_kernels.dispatch` wants them.

The extension borrows tensors through DLPack's C exchange API: data, shape and strides, no copy. It checks shapes and
types, then the values that could lead out of bounds (block ids, slots, positions), and raises `ArgumentError`. Importing this module fails where the extension is not built, or with `UnavailableError` where
`QUIRE_CPU_ISA` asks for an instruction set this CPU lacks.
"""

from __future__ import annotations

from quire_kernels._cpu import (
    available_isas,
    dequantize_gguf,
    fused_add_rms_norm,
    gelu_tanh_mul,
    head_rms_norm,
    isa,
    num_threads,
    pack_gguf,
    pack_weight,
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
    "NAME",
    "available_isas",
    "dequantize_gguf",
    "fused_add_rms_norm",
    "gelu_tanh_mul",
    "head_rms_norm",
    "isa",
    "num_threads",
    "pack_gguf",
    "pack_weight",
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

isa()  # fails here, not in the first step, where QUIRE_CPU_ISA asks for what this CPU lacks
