"""/tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from starlette.responses import Response

from quire.errors import RequestError
from quire.server.bodies.prompts import beside, checked_ids, encode, encode_chat, too_long, tools_of
from quire.server.bodies.reading import post
from quire.server.flight.frontend import Frontend
from quire.server.service.bodies import DetokenizeBody, TokenizeBody
from quire.server.tasks import GENERATE


def router(frontend: Frontend) -> APIRouter:
    """Both."""
    routes = APIRouter()

    @post(routes, "/tokenize", TokenizeBody)
    async def tokenize(request: Request, body: TokenizeBody) -> Response:
        frontend.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise RequestError("exactly one of prompt and messages is needed", param="prompt", code="invalid_value")
        if body.prompt is not None:
            [tokens] = await encode(frontend, [body.prompt], add_special_tokens=body.add_special_tokens is not False)
        else:
            frontend.check_model(body.model, GENERATE)  # others have no chat template
            prompt = await encode_chat(
                frontend,
                body.messages or [],
                add_generation_prompt=body.generation_prompt,
                continue_final_message=body.continues,
                tools=(await tools_of(body)).offered,
                variables=body.template_variables,
            )
            tokens = prompt.token_ids

        def answer() -> Response:
            content: dict[str, Any] = {
                "count": len(tokens),
                "max_model_len": frontend.ready.max_model_len,
                "tokens": tokens,
            }
            if body.return_token_strs:
                content["token_strs"] = [frontend.tokenizer.spelling(token) for token in tokens]
            return JSONResponse(content)

        return await beside(len(tokens), answer)

    @post(routes, "/detokenize", DetokenizeBody)
    async def detokenize(request: Request, body: DetokenizeBody) -> Response:
        frontend.check_model(body.model)
        limit = frontend.ready.max_model_len
        if len(body.tokens) > limit:
            raise too_long(f"tokens has {len(body.tokens)}", limit, "tokens")
        tokens = checked_ids(frontend, body.tokens, "tokens") if body.tokens else []
        text = await beside(
            len(tokens), lambda: frontend.tokenizer.decode(tokens, skip_special_tokens=body.skip_special_tokens)
        )
        return JSONResponse({"prompt": text})

    return routes
