"""The Python API: `LLM` in process, `AsyncLLMEngine` over an engine process, with the names that users of vLLM know."""
