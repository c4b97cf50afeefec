"""The configuration: one frozen tree (`fields`), described in words (`describe`), read from outside (`load`).

The command line, the `QUIRE_*` environment variables, the YAML file of `--config` and the operator's `spec.engine`
all map to the fields mechanically: `max_num_seqs` is `--max-num-seqs`, `QUIRE_MAX_NUM_SEQS`, `max_num_seqs:` and
`maxNumSeqs`. Order of precedence: flag, environment, file, default.
"""

from quire.config.fields import ALIASES, DEFAULT_MODEL, Device, DType, EngineConfig, ServeConfig, Size, parse_bytes
from quire.config.load import load

__all__ = ["ALIASES", "DEFAULT_MODEL", "DType", "Device", "EngineConfig", "ServeConfig", "Size", "load", "parse_bytes"]
