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


def shown(ms):
    return f"{ms:.1f}" if ms < 100 else f"{ms:.0f}"


def lines_of(header):
    """The cells of the table under a header's start."""
    lines = PAGE[PAGE.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_kept_logits_of_float32_inputs():
    names = ["pfkit default", "pfkit 1.15 GB", "pfkit 2.4 GB", "torch eager", "3 products alone"]
    lines = lines_of("| float32 inputs, (4096, 4096) x 128256")
    for (_, *cells), name in zip(lines, names, strict=True):
        entries = [
            RESULTS["budgets"][f"forward and backward {p} (4096, 4096) x 128256"][name]
            for p in ("tf32", "float32")
        ]
        assert cells[:2] == [shown(entry["ms"]) for entry in entries], name
        assert cells[2] in ("-", f"{entries[0].get('scratch_mb', 0):.0f} MB")


def test_beside_the_helion_kernel():
    head, cells_seen = "", 0
    for first, what, *cells in lines_of("| rows, precision | | torch |"):
        head = first or head
        rows, precision = head.split()
        cell = RESULTS["helion"][f"{what} {precision.lower()} ({rows}, 4096) x 128256"]
        names = ("torch eager", "Helion kernel", "pfkit", "pfkit 9 MB")
        assert cells == [shown(cell[name]["ms"]) for name in names], (head, what)
        cells_seen += 1
    assert cells_seen == len(RESULTS["helion"])
