"""Answers that are guided, as it was written before structured outputs had their name."""

import json
import os

from vllm import LLM, SamplingParams
from vllm.sampling_params import GuidedDecodingParams

llm = LLM(model=os.environ["MODEL"], max_model_len=512, guided_decoding_backend="auto")

guided_decoding_params = GuidedDecodingParams(choice=["Positive", "Negative"])
sampling_params = SamplingParams(guided_decoding=guided_decoding_params, temperature=0)
outputs = llm.generate(prompts="Classify this sentiment: the food was awful!", sampling_params=sampling_params)
print(outputs[0].outputs[0].text)
assert outputs[0].outputs[0].text in ("Positive", "Negative")

digits = SamplingParams(guided_decoding=GuidedDecodingParams(regex="[0-9]{3}", backend="auto"), max_tokens=8, seed=1)
schema = {
    "type": "object",
    "properties": {"age": {"type": "integer"}},
    "required": ["age"],
    "additionalProperties": False,
}
as_json = SamplingParams(guided_decoding=GuidedDecodingParams(json=schema), max_tokens=24, temperature=0.0)
numbers, person = llm.generate(["Three digits:", "Describe a person as JSON:"], [digits, as_json])
print(numbers.outputs[0].text, person.outputs[0].text)
assert len(numbers.outputs[0].text) == 3 and numbers.outputs[0].text.isdigit()
if person.outputs[0].finish_reason == "stop":
    assert isinstance(json.loads(person.outputs[0].text)["age"], int)
