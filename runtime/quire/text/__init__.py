"""Text on one side, token ids on the other: vocabulary, chat templates, incremental decoding, stop strings.

`load_tokenizer(path)` reads a Hugging Face folder or a GGUF file and gives a `Tokenizer`; a `TextStream` turns the ids
of one sequence into text that is safe to send. The engine process imports this package only
where weights are rounded to 4 bits, and this package never imports torch or transformers.
"""

from quire.text.chat import ChatTemplate
from quire.text.load import load_tokenizer
from quire.text.stream import Detokenizer, StopMatcher, TextStream
from quire.text.tokenizer import IN_THREAD_CHARS, Tokenizer

__all__ = ["IN_THREAD_CHARS", "ChatTemplate", "Detokenizer", "StopMatcher", "TextStream", "Tokenizer", "load_tokenizer"]
