"""Several answers to a prompt, the same ones every time."""

import os

from vllm import LLM, SamplingParams

llm = LLM(os.environ["MODEL"], max_model_len=256, seed=0)
params = SamplingParams(n=3, temperature=1.0, seed=1234, max_tokens=10)
first, again = (llm.generate("Once upon a time", params)[0] for _ in range(2))
for output in first.outputs:
    print(output.index, output.finish_reason, repr(output.text))
assert [o.text for o in first.outputs] == [o.text for o in again.outputs]
assert len({o.text for o in first.outputs}) == 3

own = [SamplingParams(temperature=0.0, max_tokens=4), SamplingParams(temperature=0.9, seed=7, max_tokens=6, stop=["."])]
short, long = llm.generate(["One, two,", "The sky is"], own)
print(repr(short.outputs[0].text), repr(long.outputs[0].text))
assert "." not in long.outputs[0].text
