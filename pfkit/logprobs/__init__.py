"""Log-probabilities of tokens, from logits or from a model's last layer. Needs torch."""

from .linear import linear_cross_entropy, linear_log_probs
from .token import token_log_probs

__all__ = ["linear_cross_entropy", "linear_log_probs", "token_log_probs"]
