"""A batch of prompts, sampled."""

import os

from vllm import LLM, SamplingParams

prompts = [
    "Hello, my name is",
    "The president of the United States is",
    "The capital of France is",
    "The future of AI is",
]
sampling_params = SamplingParams(temperature=0.8, top_p=0.95, top_k=50, max_tokens=8)

llm = LLM(
    model=os.environ["MODEL"],
    gpu_memory_utilization=0.8,
    max_model_len=256,
    enforce_eager=True,
    trust_remote_code=False,
)
outputs = llm.generate(prompts, sampling_params)
for output in outputs:
    generated_text = output.outputs[0].text
    print(f"Prompt: {output.prompt!r}, Generated text: {generated_text!r}")
    assert len(output.outputs[0].token_ids) <= 8
assert [output.prompt for output in outputs] == prompts
