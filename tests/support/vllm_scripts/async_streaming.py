"""Text as it comes, from several streams of one engine; one of them is left early."""

import asyncio
import os
import uuid

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM


async def stream_response(engine: AsyncLLM, prompt: str, request_id: str) -> str:
    sampling_params = SamplingParams(
        max_tokens=12, temperature=0.8, top_p=0.95, seed=42, output_kind=RequestOutputKind.DELTA
    )
    text = ""
    async for output in engine.generate(request_id=request_id, prompt=prompt, sampling_params=sampling_params):
        for completion in output.outputs:
            text += completion.text
        if output.finished:
            print(f"{request_id}: {text!r}")
            break
    return text


async def main() -> None:
    engine_args = AsyncEngineArgs(model=os.environ["MODEL"], enforce_eager=True, max_model_len=256)
    engine = AsyncLLM.from_engine_args(engine_args)
    try:
        prompts = ["The future of artificial intelligence is", "In a galaxy far, far away", "The key to happiness is"]
        alone = await stream_response(engine, prompts[0], "stream-alone")
        texts = await asyncio.gather(*(stream_response(engine, p, f"stream-{i}") for i, p in enumerate(prompts)))
        assert texts[0] == alone

        final = None
        async for output in engine.generate(
            "Count: 1, 2, 3,", SamplingParams(temperature=0, max_tokens=6), str(uuid.uuid4())
        ):
            if final is not None:
                assert output.outputs[0].text.startswith(final.outputs[0].text)
            final = output
        assert final is not None and final.finished

        reasons = []
        async for output in engine.generate("Never ending", SamplingParams(max_tokens=200, ignore_eos=True), "gone"):
            reasons.append(output.outputs[0].finish_reason)
            await engine.abort("gone")
        assert reasons[-1] == "abort"
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
