"""Routes of models whose prompts become vectors: embeddings, scores, rankings."""
