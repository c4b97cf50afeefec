"""Who may ask, and how much: API keys, JSON web tokens, rates.

`guard.Guard` is what the edge asks. `keys`, `rates` and `jwt_keys` decide; `keyring`, `jwks` and `jwt_check` read files and an address. What
cannot be checked is refused: no failure here lets a request pass.
"""
