"""What the served model can do, and which routes that is. One word each, as `/v1/models` lists them."""

from __future__ import annotations

from quire.errors import RequestError
from quire.request import EngineReady

GENERATE, EMBED, SCORE = "generate", "embed", "score"
ROUTES = {
    GENERATE: "/v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /generate",
    EMBED: "/v1/embeddings",
    SCORE: "/v1/score, /v1/rerank",
}
_WORDS = {GENERATE: "generate text", EMBED: "make embeddings", SCORE: "score texts"}


def tasks_of(ready: EngineReady) -> tuple[str, ...]:
    """Vectors that stand for texts also say how near texts are; those of a head that judges say nothing else."""
    if ready.pooling is None:
        return (GENERATE,)
    return (EMBED, SCORE) if ready.pooling.task == "embed" else (SCORE,)


def refusal(name: str, ready: EngineReady, task: str) -> RequestError | None:
    """What to answer where the model cannot do a task; None where it can."""
    tasks = tasks_of(ready)
    if task in tasks:
        return None
    able = " and ".join(_WORDS[one] for one in tasks)
    routes = ", ".join(ROUTES[one] for one in tasks)
    remedy = "; a server started with --pooling makes vectors" if tasks == (GENERATE,) else ""
    return RequestError(
        f"the model {name!r} cannot {_WORDS[task]}: it can {able}, at {routes}{remedy}",
        param="model",
        code="unsupported_task",
    )
