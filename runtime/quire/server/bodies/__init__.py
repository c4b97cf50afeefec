"""What comes in. `fields` is how a body says what becomes of each of its fields, `reading` makes a route of a body; `sampling`,
`conversation`, `formats` and `tools` are what bodies of several endpoints share, `prompts` makes token ids of them."""
