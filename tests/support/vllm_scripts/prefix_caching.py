"""Prompts that begin alike: the second batch finds the beginning in the cache, and answers the same."""

import os

from vllm import LLM, SamplingParams, TokensPrompt

prefix = (
    "You are an expert school principal, skilled in effectively managing faculty and staff. Draft 10-15 questions for a "
    "potential first grade Head Teacher for my K-12, all-girls', independent school that emphasizes community, joyful "
    "discovery, and life-long learning. Based on these information, fulfill the following paragraph: "
)
prompts = [prefix + end for end in ("Hello, my name is", "The capital of France is", "The future of AI is")]
params = SamplingParams(temperature=0.0, max_tokens=6)

llm = LLM(model=os.environ["MODEL"], enable_prefix_caching=True, max_model_len=512, block_size=16)
cold = llm.generate(prompts[0], params)
warm = llm.generate(prompts, params)
print([output.num_cached_tokens for output in warm])
assert cold[0].num_cached_tokens == 0 and all(output.num_cached_tokens >= 48 for output in warm)
assert warm[0].outputs[0].text == cold[0].outputs[0].text

assert llm.reset_prefix_cache()
ids = [TokensPrompt(prompt_token_ids=output.prompt_token_ids) for output in warm]
again = llm.generate(ids, params)
assert again[0].num_cached_tokens == 0
assert [output.outputs[0].token_ids for output in again] == [output.outputs[0].token_ids for output in warm]
