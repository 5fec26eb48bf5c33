"""How linear cross-entropy is cut into chunks, from shapes and a scratch budget alone. Plain Python: no GPU,
no torch.

The logits of `rows` tokens over `vocabulary` columns are made chunk by chunk: `height` rows times `width`
columns at a time. What that takes, in bytes of scratch:

* the state of the rows: 24 bytes each;
* the chunk itself, `height * width * logit bytes`;
* for the gradient of 16-bit hidden states, their float32 sum over all chunks of the vocabulary, for all rows
  or, where that does not fit, for `block` rows at a time, which makes every logit once more;
* the chunks whose logits are kept from forward to backward: each saves its product in backward.

Chunks of about 32 MiB stay in the second-level cache of a large GPU between the product that writes them and
the kernel that reads them. In backward wider ones are better: each adds once to the sum of the hidden states'
gradient, which is read and written whole for it, so what counts there is the number of columns. Where all
logits are kept, fewer chunks also mean fewer launches; such problems are small. A plan depends on shapes and
the budget, never on data: equal calls cut equally, and backward meets the chunks that forward kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

CHUNK_BYTES = 32 << 20
BACKWARD_BYTES = 56 << 20  # of a chunk in backward where no budget is given, or, if that is more,
BACKWARD_COLUMNS = 3584  # so many columns: the sum's traffic is then a fifth of its product's time
KEPT_BYTES = 256 << 20  # logits that are kept where no budget is given
WIDEST_BYTES = 128 << 20  # beyond this, and so many columns, keeping logits is the better use of memory
ROW_BYTES = 24
STEPS = (256, 64, 8)  # columns; the products' tiles are 64 to 256 wide, vectors 8
COMFORTABLE = 1024  # columns below which the rows are cut first, where they can be


@dataclass(frozen=True)
class Plan:
    """Chunks of `height` x `width` logits in forward, all rows x `width` in backward."""

    rows: int
    vocabulary: int
    height: int
    width: int
    kept: int = 0  # chunks of all rows whose logits stay, the first ones
    block: int = 0  # rows a block in a second sweep, for the gradient of the hidden states; 0: no such sweep
    block_width: int = 0  # columns of its chunks
    memory: int = 0  # the budget, bytes

    def chunks(self) -> list[tuple[int, int]]:
        """(first column, columns) of every chunk."""
        return spans(self.vocabulary, self.width)

    @property
    def kept_columns(self) -> int:
        """Columns of the logits that are kept."""
        return min(self.kept * self.width, self.vocabulary)


def spans(n: int, step: int) -> list[tuple[int, int]]:
    """(first, length) of the pieces of range(n) of `step` each, the last one perhaps shorter."""
    return [(first, min(step, n - first)) for first in range(0, n, step)]


def padded(columns: int) -> int:
    """Columns a row of a chunk takes in memory: rows start on 16-byte boundaries."""
    return -(-columns // 8) * 8


def _width(budget: int, height: int, size: int, vocabulary: int) -> int:
    """The widest chunk of `height` rows within `budget` bytes, in steps as coarse as it allows."""
    fit = budget // max(1, height * size)
    if fit >= padded(vocabulary):
        return vocabulary
    step = next((step for step in STEPS if fit >= step), 8)
    return fit // step * step


def least(rows: int, hidden: int, vocabulary: int, size: int, *, gradient: bool, sums: bool) -> int:
    """The smallest budget a plan can be made for, bytes."""
    chunk = (rows if gradient else min(rows, 256)) * min(padded(vocabulary), 8) * size
    block = min(rows, 128) * (4 * hidden + min(padded(vocabulary), 8) * size) if sums else 0
    return ROW_BYTES * rows + max(chunk, block)


def make(
    rows: int,
    hidden: int,
    vocabulary: int,
    size: int,
    memory: int | None = None,
    *,
    gradient: bool = False,
    sums: bool = False,
) -> Plan:
    """A plan within `memory` bytes of scratch; None keeps small logits only, and takes what full speed needs.

    Parameters
    ----------
    rows, hidden, vocabulary : int
        Of the tokens, the hidden states and the weight.
    size : int
        Bytes of a logit in a chunk.
    memory : int or None
        Budget for forward and backward together: neither holds more than this at a time.
    gradient : bool
        Whether backward will run.
    sums : bool
        Whether backward must sum the gradient of the hidden states beside its result (16-bit inputs).

    Raises
    ------
    ValueError
        If the budget is too small for any plan; the message names the least one.
    """
    if not rows:
        return Plan(0, vocabulary, 0, vocabulary)
    if memory is None:
        memory = ROW_BYTES * rows + CHUNK_BYTES
        if gradient:
            everything = rows * padded(vocabulary) * size
            memory = ROW_BYTES * rows + (4 * rows * hidden if sums else 0)
            chunk = max(BACKWARD_BYTES, rows * BACKWARD_COLUMNS * size)
            if everything <= KEPT_BYTES:
                chunk = WIDEST_BYTES
                memory += everything
            memory += min(chunk, everything)
    elif memory < (needed := least(rows, hidden, vocabulary, size, gradient=gradient, sums=sums)):
        raise ValueError(
            f"memory={memory} bytes is too little for {rows} rows of {vocabulary} logits: "
            f"{needed} bytes are the least"
        )
    free = memory - ROW_BYTES * rows
    if not gradient:
        height, chunk = rows, min(free, CHUNK_BYTES)
        while height >= 256 and _width(chunk, height, size, vocabulary) < min(COMFORTABLE, vocabulary):
            height = -(-height // 2)
        return Plan(rows, vocabulary, height, _width(chunk, height, size, vocabulary), memory=memory)

    total = 4 * rows * hidden if sums else 0
    if sums and free - total < rows * min(64, vocabulary) * size:
        # The sum of all rows does not fit: the gradient of the weight first, then blocks of rows.
        block = rows
        while block > 128 and 2 * 4 * block * hidden > free:
            block = -(-block // 2)
        return Plan(
            rows, vocabulary, rows, _width(min(free, CHUNK_BYTES), rows, size, vocabulary), 0, block,
            _width(min(free - 4 * block * hidden, CHUNK_BYTES), block, size, vocabulary), memory,
        )  # fmt: skip
    everything = rows * padded(vocabulary) * size
    widest = max(WIDEST_BYTES, rows * BACKWARD_COLUMNS * size)
    spare = free - total - everything  # for one chunk, if all logits are kept
    if spare >= rows * min(COMFORTABLE, padded(vocabulary)) * size:
        width = _width(min(spare, widest), rows, size, vocabulary)
        return Plan(rows, vocabulary, rows, width, len(spans(vocabulary, width)), memory=memory)
    width = _width(min(free - total, widest), rows, size, vocabulary)
    kept = (free - total) // (rows * padded(width) * size) - 1
    return Plan(rows, vocabulary, rows, width, min(kept, vocabulary // width), memory=memory)


remembered = lru_cache(maxsize=1024)(make)
