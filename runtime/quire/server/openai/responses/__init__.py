"""/v1/responses, stateless: `body` is what comes in, `writer` what goes out, `routes` what connects them."""
