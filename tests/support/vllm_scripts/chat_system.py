"""Conversations with a system prompt: one, and a batch of them."""

import os

from vllm import LLM, SamplingParams

llm = LLM(model=os.environ["MODEL"], max_model_len=1024, max_num_seqs=8, dtype="auto", seed=0)
sampling_params = SamplingParams(temperature=0.0, max_tokens=16, stop=["\n"], repetition_penalty=1.05)

system = {"role": "system", "content": "You are a geography teacher. Answer in one short sentence."}
questions = ["What is the capital of France?", "What is the capital of Italy?", "Which is the largest ocean?"]
messages_list = [[system, {"role": "user", "content": question}] for question in questions]

[single] = llm.chat(messages_list[0], sampling_params)
outputs = llm.chat(messages=messages_list, sampling_params=sampling_params, use_tqdm=True)
for question, output in zip(questions, outputs, strict=True):
    print(f"{question} {output.outputs[0].text!r} ({output.outputs[0].finish_reason})")
assert outputs[0].outputs[0].text == single.outputs[0].text
assert all(output.outputs[0].text.strip() for output in outputs)
assert outputs[0].prompt.count("geography teacher") == 1
assert outputs[1].num_cached_tokens > 0
