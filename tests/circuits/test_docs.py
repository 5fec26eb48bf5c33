"""The blocks of docs/circuits.md run, in order; their assertions are theirs."""

import re
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

PAGE = (Path(__file__).parents[2] / "docs" / "circuits.md").read_text(encoding="utf-8")


def test_blocks_run_in_order(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
    assert len(blocks) == 4 and PAGE.count("```") == 2 * 5  # and one of shell lines
    names: dict = {}
    for number, text in enumerate(blocks):
        exec(compile(text, f"docs/circuits.md, block {number}", "exec"), names)
    first, last = map(float, capsys.readouterr().out.split())
    assert last > first
    assert (names["draws"][:, [0, 4]].numpy() == [2, 0]).all()
    assert names["p"][0, 0].tolist() == [0.0, 0.0, 1.0]
    assert float(names["p"][0, 3, 2]) > 0.8  # x_3 nearly copies x_0
    assert int(names["best"][0, 3]) == 2 and int(names["best"][0, 1]) == 0
    assert float(names["value"].detach()) == pytest.approx(-1.4238240262463953, abs=1e-6)
    assert np.isfinite(names["mean"].numpy()).all()
