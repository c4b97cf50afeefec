"""What `/metrics` shows: the engine's metrics (`engine`), on demand also under the names of another engine (`vllm`)."""

from quire.metrics.engine import EngineMetrics

__all__ = ["EngineMetrics"]
