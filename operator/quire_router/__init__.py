"""One OpenAI endpoint in front of every LLMDeployment."""
__version__ = "0.1.0"
