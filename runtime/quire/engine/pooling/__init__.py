"""Prompts that become vectors: computed in the same steps as generation, and never decoded."""
