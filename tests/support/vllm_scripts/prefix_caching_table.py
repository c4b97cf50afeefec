"""Questions about one long table: the second question finds the table in the cache."""

import os
import time

from vllm import LLM, SamplingParams

NAMES = [
    "John Doe",
    "Jane Smith",
    "Alice Johnson",
    "Bob Brown",
    "Carol White",
    "Dave Green",
    "Emma Black",
    "Frank Gray",
]
LONG_PROMPT = (
    "You are a helpful assistant that recognizes the content of tables in markdown format. Here is a table.\n# Table\n"
)
LONG_PROMPT += "| ID | Name | Age | Occupation |\n|----|------|-----|------------|\n"
LONG_PROMPT += "".join(f"| {i} | {name} | {20 + 3 * i} | Engineer |\n" for i, name in enumerate(NAMES, 1))


def get_generation_time(llm, sampling_params, prompts):
    start_time = time.time()
    output = llm.generate(prompts, sampling_params=sampling_params)
    print(f"Output: {output[0].outputs[0].text!r} Generation time: {time.time() - start_time:.2f} seconds.")
    return output[0]


llm = LLM(model=os.environ["MODEL"], enable_prefix_caching=True, gpu_memory_utilization=0.9, max_model_len=1024)
sampling_params = SamplingParams(temperature=0, max_tokens=8)

first = get_generation_time(llm, sampling_params, LONG_PROMPT + "Question: what is the age of John Doe? Your answer: ")
second = get_generation_time(
    llm, sampling_params, LONG_PROMPT + "Question: what is the age of Emma Black? Your answer: "
)
assert first.num_cached_tokens == 0
assert second.num_cached_tokens > 0.7 * len(second.prompt_token_ids)

llm.reset_prefix_cache()
again = get_generation_time(llm, sampling_params, second.prompt)
assert again.num_cached_tokens == 0 and again.outputs[0].token_ids == second.outputs[0].token_ids
