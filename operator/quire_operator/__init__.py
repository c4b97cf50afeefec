"""The controller: reconciles LLMDeployments, serves their metrics to the HPA, rolls revisions."""

__version__ = "0.1.0"
