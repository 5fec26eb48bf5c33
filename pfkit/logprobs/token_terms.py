"""What is asked of the logits of a call: the options of :func:`pfkit.token_log_probs`, checked."""

from __future__ import annotations

from typing import NamedTuple


class Terms(NamedTuple):
    """In the order of the operator's schema: ``Terms(*options)`` and ``op(logits, tokens, *terms)``."""

    temperature: float  # divides the logits
    entropy: bool  # whether the rows' entropy is wanted
    lse: bool  # whether their log-sum-exp is
    ignore: int | None  # the id that is passed over
    kernel: str  # of the log-sum-exp
