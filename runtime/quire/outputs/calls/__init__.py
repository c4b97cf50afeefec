"""Calls of functions in the text of an answer, in the formats that models were trained on.

    parser     what all parsers do: text comes in pieces, parts go out as soon as they are certain
    scanner    one JSON value, character by character
    hermes, llama, mistral, glm    a parser for each format
    formats    which there are, which one a chat template writes, how a grammar makes a model write one
    grammar    that grammar, in Lark

Four promises. The parts, joined, do not depend on where the text was cut. Arguments are JSON: a call that does not go on as JSON ends
there, unfinished, and the rest is text. A call names a function of the request; what looks like one and does not is text. Nothing
of the text is lost but marks of the format and blanks around them.
"""
