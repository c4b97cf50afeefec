"""Beam search."""

import os

from vllm import LLM
from vllm.sampling_params import BeamSearchParams

llm = LLM(os.environ["MODEL"], max_model_len=256)
params = BeamSearchParams(beam_width=3, max_tokens=8)
outputs = llm.beam_search([{"prompt": "The capital of France is"}, {"prompt": "Two plus two is"}], params)
for output in outputs:
    for sequence in output.sequences:
        print(round(sequence.cum_logprob, 3), repr(sequence.text))
    assert len(output.sequences) == 3
assert "Paris" in outputs[0].sequences[0].text
