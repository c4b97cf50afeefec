"""Conversations, with the model's default parameters changed a little."""

import os

from vllm import LLM

llm = LLM(model=os.environ["MODEL"], max_model_len=512)
sampling_params = llm.get_default_sampling_params()
sampling_params.max_tokens = 12
sampling_params.temperature = 0.0

conversation = [
    {"role": "system", "content": "You are a helpful assistant"},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! How can I assist you today?"},
    {"role": "user", "content": "What is the capital of France?"},
]
outputs = llm.chat(conversation, sampling_params, use_tqdm=False)
print(outputs[0].outputs[0].text)
assert "Paris" in outputs[0].outputs[0].text

many = llm.chat([conversation for _ in range(3)], sampling_params, use_tqdm=False)
assert len(many) == 3 and all(output.finished for output in many)

template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
plain = llm.chat(conversation, sampling_params, chat_template=template, use_tqdm=False)
assert plain[0].prompt.endswith("What is the capital of France?\n")

tokenizer = llm.get_tokenizer()
prompt = tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
assert llm.generate(prompt, sampling_params)[0].outputs[0].text == outputs[0].outputs[0].text
