"""What bodies share that ask for the answer to a conversation."""

from __future__ import annotations

from quire.server.bodies.conversation import Conversation
from quire.server.bodies.sampling import Sampling


class Chat(Conversation, Sampling):
    """A conversation that is answered."""

    @property
    def truncated(self) -> int | None:
        return self.truncate_prompt_tokens
