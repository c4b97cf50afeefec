"""Stopping at token ids that the tokenizer tells, as models with several turn markers need it."""

import os

from vllm import LLM, SamplingParams

llm = LLM(model=os.environ["MODEL"], tokenizer=None, tokenizer_mode="auto", max_model_len=512, generation_config="auto")
tokenizer = llm.get_tokenizer()

stop_token_ids = [tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
messages = [{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}]
prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
params = SamplingParams(temperature=0.0, max_tokens=32, stop_token_ids=stop_token_ids)
[output] = llm.generate([prompt], params)
print(output.outputs[0].text, output.outputs[0].stop_reason)
assert output.outputs[0].finish_reason == "stop"
assert tokenizer.decode(output.outputs[0].token_ids, skip_special_tokens=True) == output.outputs[0].text

[comma] = tokenizer.encode(",", add_special_tokens=False)
counting = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=[comma])
[until] = llm.generate(["1, 2, 3, 4"], counting)
print(repr(until.outputs[0].text), until.outputs[0].stop_reason, tokenizer.convert_ids_to_tokens(comma))
assert until.outputs[0].finish_reason == "stop" and until.outputs[0].stop_reason == comma
assert "," not in until.outputs[0].text

default = llm.get_default_sampling_params()
assert (default.temperature, default.max_tokens) == (1.0, 16)
assert len(tokenizer) >= tokenizer.vocab_size > stop_token_ids[0]
