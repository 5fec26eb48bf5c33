"""Write the README's tables of speeds from the committed benchmarks, so that they cannot part.

    python -m tools.readme_table            # rewrites the lines between the markers in README.md
    python -m tools.readme_table --check    # exit status 1 if they differ; changes nothing

The numbers are those of benchmarks/results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from apps import bench_filter, bench_lse

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results"
#: What stands between the markers "NAME table: begin" and "NAME table: end", and the result it comes from.
TABLES = {
    "lse": (bench_lse.markdown, RESULTS / "bench_lse.json"),
    "filter": (bench_filter.markdown, RESULTS / "bench_filter.json"),
}


def rendered(text: str, name: str, result: dict) -> str:
    """`text` with the lines between the markers of the table `name` replaced by that of `result`.

    Raises ValueError unless each marker stands in `text` exactly once, in order.
    """
    begin, end = (f"<!-- {name} table: {which} -->\n" for which in ("begin", "end"))
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"the markers {begin.strip()} and {end.strip()} must stand once each, in this order")
    head, rest = text.split(begin)
    tail = rest.split(end)[1]
    return f"{head}{begin}\n{TABLES[name][0](result)}\n\n{end}{tail}"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.readme_table", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare; exit status 1 if they differ")
    args = parser.parse_args(argv)
    before = README.read_text(encoding="utf-8")
    after = before
    for name, (_, path) in TABLES.items():
        after = rendered(after, name, json.loads(path.read_text(encoding="utf-8")))
    if before == after:
        return 0
    if args.check:
        print("README.md differs from the benchmarks: run python -m tools.readme_table", file=sys.stderr)
        return 1
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
