"""Write the README's speed-and-error table from the committed benchmark, so that the two cannot part.

    python -m tools.readme_table            # rewrites the lines between the markers in README.md
    python -m tools.readme_table --check    # exit status 1 if they differ; changes nothing
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from apps.bench_lse import markdown

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULT = ROOT / "benchmarks" / "results" / "bench_lse.json"
BEGIN, END = "<!-- lse table: begin -->\n", "<!-- lse table: end -->\n"


def rendered(text: str, result: dict) -> str:
    """`text` with the lines between the markers replaced by the table of `result`.

    Raises ValueError unless each marker stands in `text` exactly once, in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"the markers {BEGIN.strip()} and {END.strip()} must stand once each, in this order")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    return f"{head}{BEGIN}\n{markdown(result)}\n\n{END}{tail}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.readme_table", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit status 1 if they differ")
    args = parser.parse_args(argv)
    before = README.read_text(encoding="utf-8")
    after = rendered(before, json.loads(RESULT.read_text(encoding="utf-8")))
    if before == after:
        return 0
    if args.check:
        print("README.md differs from the benchmark: run python -m tools.readme_table", file=sys.stderr)
        return 1
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
