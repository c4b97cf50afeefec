"""The engine: schedules sequences, runs the model, samples, and sends tokens. It does not know text or HTTP.

`scheduler` and `kvcache` decide (no torch), `runner` and `sampler` compute, `core` is the step, `process` and `client` are
the two ends of the engine process.
"""
