"""The OpenAI endpoint: HTTP on one side, the engine process on the other.

`app.create_app` holds the routes, `flight.frontend.Frontend` the requests in flight, `run.serve` the process: start, signals,
drain. Routes are thin and know no sockets of the engine; the frontend knows no HTTP. Nothing here imports torch.

A route that generates (`openai`, `anthropic`, `service`) gets its body read (`bodies`), makes an `ask.Ask` of it, and writes in its own way
what `answers.shapes.follow` reads in the text (`quire.outputs.parts`). Around all of them are `edge` and `auth`. `reference` makes docs/fields.md.
"""
