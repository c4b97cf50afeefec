"""A list of prompts, each with parameters of its own, in the forms that people mix."""

import os

from vllm import LLM, SamplingParams

llm = LLM(os.environ["MODEL"], tensor_parallel_size=1, max_model_len=512, max_num_batched_tokens=512, swap_space=0)
tokenizer = llm.get_tokenizer()

prompts = [
    "The capital of France is",
    {"prompt": "Roses are red, violets are"},
    {"prompt_token_ids": tokenizer.encode("One, two, three, four,")},
    "Dear customer,",
    "A B C D E F",
]
params = [
    SamplingParams(temperature=0, max_tokens=5),
    SamplingParams(temperature=0.7, top_p=0.9, top_k=40, min_p=0.02, n=2, seed=11, max_tokens=6),
    SamplingParams(
        temperature=0, max_tokens=8, min_tokens=4, logprobs=1, stop=[" seven"], include_stop_str_in_output=True
    ),
    SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1, max_tokens=8),
    SamplingParams(temperature=0, max_tokens=6, prompt_logprobs=1, skip_special_tokens=False, logit_bias={5: -100}),
]
outputs = llm.generate(prompts, params, use_tqdm=False)
for prompt, output in zip(prompts, outputs, strict=True):
    print(repr(prompt), [completion.text for completion in output.outputs], output.outputs[0].finish_reason)
assert [len(output.outputs) for output in outputs] == [1, 2, 1, 1, 1]
assert "Paris" in outputs[0].outputs[0].text
assert outputs[2].prompt_token_ids == tokenizer.encode("One, two, three, four,")
assert len(outputs[2].outputs[0].logprobs) == len(outputs[2].outputs[0].token_ids) >= 4
assert len(outputs[4].prompt_logprobs) == len(outputs[4].prompt_token_ids)

[alone] = llm.generate(prompts[1], params[1])
assert [completion.text for completion in alone.outputs] == [completion.text for completion in outputs[1].outputs]
