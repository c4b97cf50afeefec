"""The edge to the network: `listener` has sockets and connections, `tls` certificates, `layer` what every request passes; `access` and
`tracing` tell of it. Nothing here knows a body."""
