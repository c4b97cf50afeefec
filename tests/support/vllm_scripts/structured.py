"""Answers that can only be one of some, match a pattern or fit a schema."""

import json
import os
import re

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

llm = LLM(os.environ["MODEL"], max_model_len=512)

choice = SamplingParams(structured_outputs=StructuredOutputsParams(choice=["Positive", "Negative"]), temperature=0.0)
[output] = llm.generate("Classify this sentiment: the weather is wonderful!", choice)
print(output.outputs[0].text)
assert output.outputs[0].text in ("Positive", "Negative")

pattern = r"\w{1,12}@\w{1,12}\.com\n"
regex = SamplingParams(structured_outputs=StructuredOutputsParams(regex=pattern), stop=["\n"], max_tokens=40, seed=3)
[output] = llm.generate("Write an email address for Alan Turing, who works at Enigma. End in .com:", regex)
print(output.outputs[0].text)
assert output.outputs[0].finish_reason == "stop"
assert re.fullmatch(pattern.removesuffix(r"\n"), output.outputs[0].text)

schema = {
    "type": "object",
    "properties": {"brand": {"enum": ["BMW", "Fiat"]}, "doors": {"type": "integer", "minimum": 2, "maximum": 5}},
    "required": ["brand", "doors"],
    "additionalProperties": False,
}
as_json = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema), temperature=0.0, max_tokens=40)
[output] = llm.generate("Describe a car as JSON with the fields brand and doors:", as_json)
print(output.outputs[0].text)
car = json.loads(output.outputs[0].text)
assert car["brand"] in ("BMW", "Fiat") and 2 <= car["doors"] <= 5
