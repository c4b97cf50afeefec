"""The paged KV cache's bookkeeping: which block belongs to whom, and which can be found again. No torch, no tensors."""
