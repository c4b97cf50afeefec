"""An engine made from command line flags and driven step by step."""

import argparse
import os

from vllm import EngineArgs, LLMEngine, RequestOutput, SamplingParams


def create_test_prompts() -> list[tuple[str, SamplingParams]]:
    return [
        ("A robot may not injure a human being", SamplingParams(temperature=0.0)),
        ("To be or not to be,", SamplingParams(temperature=0.8, top_k=5, presence_penalty=0.2)),
        ("What is the meaning of life?", SamplingParams(n=2, temperature=0.8, top_p=0.95, frequency_penalty=0.1)),
    ]


def process_requests(engine: LLMEngine, test_prompts: list[tuple[str, SamplingParams]]) -> int:
    request_id = finished = 0
    while test_prompts or engine.has_unfinished_requests():
        if test_prompts:
            prompt, sampling_params = test_prompts.pop(0)
            engine.add_request(str(request_id), prompt, sampling_params)
            request_id += 1
        request_outputs: list[RequestOutput] = engine.step()
        for request_output in request_outputs:
            if request_output.finished:
                print(request_output)
                finished += 1
    return finished


parser = EngineArgs.add_cli_args(argparse.ArgumentParser())
args = parser.parse_args(["--model", os.environ["MODEL"], "--max-model-len", "256"])
engine = LLMEngine.from_engine_args(EngineArgs.from_cli_args(args))
assert process_requests(engine, create_test_prompts()) == 3
