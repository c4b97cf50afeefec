"""One OpenAI endpoint in front of every LLMDeployment.

    __main__ ─▶ app ─┬▶ proxy ─▶ {relay, upstream, registry, choose, hold} ─▶ {traffic, endpoints, sse, body, headers} ─▶ errors
                     └▶ kube ──▶ registry

`endpoints`, `registry`, `choose`, `traffic`, `body`, `headers` and `sse` are pure: state in, answer out, no I/O and no clock of their own.
`kube` is the only module that talks to the Kubernetes API, `upstream` the only one that talks to runtime pods.
The package must not import quire_operator, kopf, torch or the engine.
"""

__version__ = "0.1.0"
