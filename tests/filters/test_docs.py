"""The blocks of docs/filtering.md run, in order; their assertions are theirs."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "filtering.md").read_text(encoding="utf-8")


def test_blocks_run_in_order(capsys):
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) == PAGE.count("```") // 2 == 9
    names: dict = {}
    for number, text in enumerate(blocks):
        exec(compile(text, f"docs/filtering.md, block {number}", "exec"), names)
    assert names["ancestors"].tolist() == [0] * 6 + [1] * 2
    assert "propagate" in capsys.readouterr().out
