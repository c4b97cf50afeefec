"""What goes out: `shapes` reads a job into steps and writes OpenAI's answers, `streaming` sends events, `logprobs` writes log probabilities."""
