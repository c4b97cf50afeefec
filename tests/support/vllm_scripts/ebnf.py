"""Answers of a context-free grammar in EBNF."""

import os
import re

from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

queries = """
    root ::= query ";"
    query ::= "SELECT " columns " FROM " table (" WHERE " condition)?
    columns ::= "*" | column (", " column){0,2}
    column ::= "name" | "age" | "city"
    table ::= "people" | "towns"
    condition ::= column " = " number
    number ::= [1-9] [0-9]{0,2}   # no longer one
"""

llm = LLM(os.environ["MODEL"], max_model_len=512)
prompts = ["A query for the ages of all people:", "A query for everything about the town with the name 12:"]
outputs = llm.generate(
    prompts, SamplingParams(structured_outputs=StructuredOutputsParams(grammar=queries), max_tokens=60, temperature=0.0)
)
column = "(name|age|city)"
for output in outputs:
    print(output.outputs[0].text)
    assert output.outputs[0].finish_reason == "stop"
    assert re.fullmatch(
        rf"SELECT (\*|{column}(, {column}){{0,2}}) FROM (people|towns)( WHERE {column} = [1-9]\d{{0,2}})?;",
        output.outputs[0].text,
    )
