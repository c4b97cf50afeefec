"""/v1/messages, as Anthropic's clients speak it: `body` is what comes in, `writer` what goes out, `routes` what connects them."""
