"""What computing and moving cost on this machine with this model: moves are measured at the start, computing in every step that is mostly prompt.

A preemption weighs the one against the other, and no step computes more of prompts than fits into its time.
"""

from __future__ import annotations

LONGEST_STEP_S = 15.0
"""Of prompts, in one step: liveness hears of the engine between steps and gives it 30 s (`--liveness-timeout`)."""
LEAST_CHUNK = 16
"""Tokens of a prompt that a step may always compute."""
SMOOTHING = 0.2
"""Weight of the newest step in the average."""


class PreemptionCosts:
    """Averages, and the choice that follows. swap_s_per_block: one block one way; compute_s_per_token: in prompt chunks."""

    def __init__(self, swap_s_per_block: float = 0.0, compute_s_per_token: float | None = None) -> None:
        self.swap_s_per_block = swap_s_per_block
        self.compute_s_per_token = compute_s_per_token

    def observe(self, num_tokens: int, num_prompt_tokens: int, seconds: float) -> None:
        """A step has run. Steps that mostly decode say nothing about recomputing, which is done in chunks."""
        if num_prompt_tokens * 2 < num_tokens or num_prompt_tokens < 2:
            return
        latest = seconds / num_tokens
        known = self.compute_s_per_token
        self.compute_s_per_token = latest if known is None else known + SMOOTHING * (latest - known)

    def tokens_of_a_step(self, most: int) -> int:
        """Tokens of prompts for the next step, at most `most`. A small model is never held back: its 512 take 2 s on two CPUs."""
        if not self.compute_s_per_token:
            return most
        return min(most, max(int(LONGEST_STEP_S / self.compute_s_per_token), LEAST_CHUNK))

    def swap_is_cheaper(self, num_tokens: int, num_blocks: int) -> bool:
        """For a sequence with so many computed tokens in so many blocks. That part of them might still be found in the
        prefix cache is not counted: what is preempted for lack of blocks is evicted next."""
        if self.compute_s_per_token is None:
            return True
        return 2 * num_blocks * self.swap_s_per_block < num_tokens * self.compute_s_per_token
