"""How likely the model found what it wrote, and what it read."""

import math
import os

from vllm import LLM, SamplingParams

llm = LLM(os.environ["MODEL"], max_model_len=256)
params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=3, prompt_logprobs=1)
[output] = llm.generate("The capital of France is", params)

completion = output.outputs[0]
for token_id, candidates in zip(completion.token_ids, completion.logprobs, strict=True):
    chosen = candidates[token_id]
    print(repr(chosen.decoded_token), chosen.rank, round(chosen.logprob, 3))
    assert chosen.rank == 1 and len(candidates) >= 3
total = sum(candidates[i].logprob for i, candidates in zip(completion.token_ids, completion.logprobs, strict=True))
assert math.isclose(completion.cumulative_logprob, total, rel_tol=1e-5)

assert output.prompt_logprobs[0] is None
for token_id, candidates in zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True):
    assert candidates[token_id].logprob <= 0
