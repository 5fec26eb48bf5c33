"""The measured table of docs/log-probs.md is the committed benchmark's."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "logprobs_h200.json").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs" / "log-probs.md").read_text(encoding="utf-8")
NAMES = {
    "torch, whole logits": "torch eager",
    "torch.compile": "torch.compile",
    "Liger 0.8.5": "Liger",
    "cut-cross-entropy 25.1.1": "cut-cross-entropy",
    "`linear_cross_entropy`": "pfkit",
}


def test_every_number_of_the_table():
    forward = RESULTS["linear"]["forward bfloat16 (8192, 4096) x 128256"]
    training = RESULTS["training"]["forward and backward bfloat16 (8192, 4096) x 128256"]
    for shown, name in NAMES.items():
        line = next(row for row in PAGE.splitlines() if row.startswith(f"| {shown} |"))
        cells = re.findall(r"\d+\.?\d*", line.split("|", 2)[2])
        measured = [entry[name][key] for entry in (forward, training) for key in ("ms", "scratch_mb")]
        for cell, number in zip(cells, measured, strict=True):
            digits = len(cell.partition(".")[2])
            assert round(number, digits) == float(cell), (shown, cell, number)


def test_budgets():
    training = RESULTS["budgets"]["forward and backward bfloat16 (8192, 4096) x 128256"]
    for name in ("200 MB", "1 GiB", "2.2 GiB"):
        line = next(row for row in PAGE.splitlines() if row.startswith(f"| {name} |"))
        assert float(line.split("|")[3]) == round(training[f"pfkit {name}"]["ms"], 1)
