"""OpenAI's endpoints: completions, chat, responses."""
