"""LangChain's OpenAIEmbeddings: documents and a query, as base64 (what the client asks for) and as numbers."""

from __future__ import annotations

import math
import sys

from langchain_openai import OpenAIEmbeddings

url, model = sys.argv[1:]
texts = ["A cat sits on the mat.", "The stock market fell.", "Kittens like rugs."]
common = {"model": model, "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": 120}
# without it the client makes token ids itself, of OpenAI's own vocabulary
vectors = OpenAIEmbeddings(**common, check_embedding_ctx_length=False)
cat, market, kittens = vectors.embed_documents(texts)
query = vectors.embed_query(texts[0])
assert len(cat) == len(query) and math.dist(cat, query) < 1e-5
assert math.dist(cat, kittens) < math.dist(cat, market)
numbers = OpenAIEmbeddings(**common, check_embedding_ctx_length=False, model_kwargs={"encoding_format": "float"})
assert math.dist(numbers.embed_query(texts[0]), query) < 1e-5
short = OpenAIEmbeddings(**common, check_embedding_ctx_length=False, dimensions=64).embed_query(texts[0])
assert len(short) == 64 and math.isclose(math.hypot(*short), 1, abs_tol=1e-4)
