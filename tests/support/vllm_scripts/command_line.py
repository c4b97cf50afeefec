"""Engine arguments from a command line, and a prompt."""

import os

from vllm import LLM, EngineArgs, SamplingParams
from vllm.utils import FlexibleArgumentParser


def create_parser() -> FlexibleArgumentParser:
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model=os.environ["MODEL"], max_model_len=256)
    group = parser.add_argument_group("Sampling parameters")
    group.add_argument("--max_tokens", type=int)
    group.add_argument("--temperature", type=float)
    return parser


def main() -> None:
    args = vars(create_parser().parse_args(["--max_num_seqs", "4", "--dtype=float", "--max_tokens", "3"]))
    max_tokens, temperature = args.pop("max_tokens"), args.pop("temperature")
    llm = LLM(**args)
    params = llm.get_default_sampling_params()
    params.max_tokens = max_tokens
    if temperature is not None:
        params.temperature = temperature
    [output] = llm.generate("The capital of France is", params)
    tokenizer = llm.get_tokenizer()
    stops = SamplingParams(
        max_tokens=8, stop_token_ids=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|im_end|>")]
    )
    [other] = llm.generate({"prompt_token_ids": tokenizer("The capital of France is").input_ids}, stops)
    print(output.outputs[0].text, other.outputs[0].text, output.metrics)
    assert len(output.outputs[0].token_ids) <= 3


if __name__ == "__main__":
    main()
