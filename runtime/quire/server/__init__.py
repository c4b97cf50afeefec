"""The OpenAI endpoint: HTTP on one side, the engine process on the other.

`app.create_app` holds the routes, `frontend.Frontend` the requests in flight, `run.serve` the process: start, signals,
drain. Routes are thin and know no sockets of the engine; the frontend knows no HTTP. Nothing here imports torch.

A route that generates reads its body (`protocol`, `tools`), makes an `ask.Ask` of it, and writes in its own way what
`answers.follow` reads in the text (`quire.outputs.parts`).
"""
