"""Log-probabilities of tokens from logits. Needs torch."""

from .token import token_log_probs

__all__ = ["token_log_probs"]
