"""What a person at the terminal wants to know when the server is up. Pure."""

from __future__ import annotations

import json
from typing import Any

from quire.config import ServeConfig
from quire.request import EngineReady
from quire.server.tasks import EMBED, GENERATE, SCORE, tasks_of

EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    GENERATE: ("/chat/completions", {"messages": [{"role": "user", "content": "Hello!"}]}),
    EMBED: ("/embeddings", {"input": "Hello!"}),
    SCORE: ("/rerank", {"query": "Who is there?", "documents": ["Hello!", "Nobody."]}),
}


def announcement(config: ServeConfig, ready: EngineReady, name: str, took_s: float) -> str:
    """Some lines, the last ones a command to try. took_s: how long the start took."""
    host = "127.0.0.1" if config.host in ("0.0.0.0", "::") else config.host
    scheme = "http" if config.ssl_certfile is None else "https"
    root = f"{scheme}://{f'[{host}]' if ':' in host else host}:{config.port}"
    url = f"{root}/v1"
    info, tokens = ready.info, ready.num_blocks * ready.block_size
    key = " -H 'authorization: Bearer KEY'" if config.api_key or config.api_key_file else ""
    path, body = EXAMPLES[tasks_of(ready)[0]]
    lines = [
        f"quire serves {name} at {url} (ready after {took_s:.1f} s)",
        f"  model       {config.model}, up to {ready.max_model_len} tokens a request",
        f"  running on  {info.get('device', '?')}, {info.get('dtype', '?')}",
    ]
    if ready.num_blocks:
        lines.append(
            f"  KV cache    {ready.num_blocks} blocks of {ready.block_size}: {tokens} tokens for all requests together"
        )
    if ready.pooling is not None and ready.pooling.task == "embed":
        lines.append(f"  vectors     of {ready.pooling.size} numbers ({info.get('pooling', '?')} pooling)")
    if config.web_page and GENERATE in tasks_of(ready):
        lines.append(f"  chat        {root}/ in a browser")
    return "\n".join(
        [
            *lines,
            f"  try         curl {url}{path}{key} -H 'content-type: application/json' \\",
            f"                -d '{json.dumps({'model': name, **body})}'",
        ]
    )
