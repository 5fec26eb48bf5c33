"""The faults of the field, one by one, on pfkit and on three other packages: right, wrong, NaN or crash.

    python -m apps.peers_faults --python particles=PATH --python filterpy=PATH --python stonesoup=PATH

Every peer is optional and runs under a Python of its own, one process a case, so that a crash costs one cell
and particles 0.4 may keep its NumPy 1. To make such a Python:

    python -m venv /tmp/peer-particles && /tmp/peer-particles/bin/pip install particles==0.4
    python -m venv /tmp/peer-filterpy  && /tmp/peer-filterpy/bin/pip install filterpy==2.0.0
    python -m venv /tmp/peer-stonesoup && /tmp/peer-stonesoup/bin/pip install stonesoup==1.9.1

and pass /tmp/peer-particles/bin/python and so on. The workers in apps/peers return plain values; the rules
below decide, the same for every package. An error that says what is wrong with the input counts as right
where the input has no answer. A dash marks what a package leaves to its user.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PEERS = ("pfkit", "particles", "filterpy", "stonesoup")
WORKERS = Path(__file__).resolve().parent / "peers"
ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Case:
    """One fault: what is asked, the rule for a right answer, and where it was reported."""

    name: str
    title: str
    rule: str
    right: Callable[[object], bool]
    source: str
    refusal_is_right: bool = False  # an error raised on purpose is a right answer too


def close(expected, rtol=1e-9, atol=0.0) -> Callable[[object], bool]:
    def check(value) -> bool:
        if isinstance(expected, list):
            return len(value) == len(expected) and all(
                close(e, rtol, atol)(v) for v, e in zip(value, expected, strict=True)
            )
        return math.isclose(value, expected, rel_tol=rtol, abs_tol=atol)

    return check


def weights_of(expected) -> Callable[[object], bool]:
    return lambda value: close(expected)(value["weights"])


def collapse_flagged(value) -> bool:
    return value.get("log_likelihood") == -math.inf


def all_refused(value) -> bool:
    return all(answer == "ValueError" for answer in value.values())


OFFSPRING = close([1.9] * 4 + [0.4] * 6, rtol=0.0, atol=0.06)  # 4000 repeats: 0.06 is over 5 standard errors

CASES = (
    Case(
        "collapse",
        "observation impossible under every particle",
        "log-likelihood -inf, or an error that says so; no NaN",
        collapse_flagged,
        "https://github.com/probcomp/Gen.jl/issues/117",
        refusal_is_right=True,
    ),
    Case(
        "collapse_then_good",
        "the step after an impossible observation",
        "log-likelihood -inf; the next observation weighs the particles as ever",
        lambda v: collapse_flagged(v) and close([1 / 3, 1 / 3, 1 / 3, 0.0])(v["weights"]),
        "https://github.com/AtsushiSakai/PythonRobotics/issues/200",
        refusal_is_right=True,
    ),
    Case(
        "bounded_support",
        "particle 0 impossible, others not",
        "log-likelihood 0.21464939885 (1.31326168751822 - log 3)",
        close(1.31326168751822 - math.log(3.0)),
        "https://github.com/tensorflow/probability",
    ),
    Case(
        "carried_weights",
        "two steps without resampling",
        "log-likelihood -3.140592200721076",
        close(-3.140592200721076),
        "https://github.com/baggepinnen/LowLevelParticleFilters.jl/issues/134",
    ),
    Case(
        "reset_weights",
        "weights after resampling",
        "1/N each",
        close([0.25] * 4),
        "https://github.com/rlabbe/Kalman-and-Bayesian-Filters-in-Python/issues/146",
    ),
    Case(
        "nan_weight",
        "the model returns NaN for one particle",
        "an error, or that particle alone dropped",
        lambda v: v["weights"][2] == 0.0 and close(1.0)(sum(v["weights"])),
        "https://github.com/mrc-ide/dust",
        refusal_is_right=True,
    ),
    Case(
        "outlier",
        "observation 980 standard deviations away",
        "weights finite, sum 1",
        lambda v: close(1.0)(sum(v["weights"])),
        "https://github.com/AtsushiSakai/PythonRobotics/issues/200",
    ),
    Case(
        "far_tail",
        "log-weights -1000, -1001, -1002",
        "weights .66524096 .24472847 .09003057",
        close([0.6652409557748219, 0.24472847105479764, 0.09003057317038046]),
        "https://github.com/Ekumen-OS/beluga/issues/510",
    ),
    Case(
        "ess_log_weights",
        "ESS of log-weights near -800",
        "1.8",
        close(1.8),
        "https://github.com/TuringLang/Turing.jl/pull/355",
    ),
    Case(
        "ess_threshold",
        "ESS = 0.3 N at N = 100, then N = 1000, threshold N/2",
        "resampled both times",
        lambda v: v == [True, True],
        "https://github.com/dstl/Stone-Soup/issues/495",
    ),
    Case(
        "missing",
        "a NaN observation, then 0.3",
        "the first changes nothing",
        weights_of(
            [
                0.013920884609283483,
                0.11368030905265686,
                0.3415145220477219,
                0.3774319178676468,
                0.15345236642269094,
            ]
        ),
        "https://github.com/nchopin/particles/issues/79",
        refusal_is_right=True,
    ),
    Case(
        "zero_noise",
        "process noise exactly 0",
        "weights of the static problem",
        weights_of(
            [
                0.00012250529240258773,
                0.03661283834507115,
                0.5447892122607957,
                0.4035897748736374,
                0.014885669228093135,
            ]
        ),
        "https://github.com/baggepinnen/LowLevelParticleFilters.jl/issues/224",
    ),
    Case(
        "integer_particles",
        "integer particles moved by 0.4",
        "0.4, 1.4, 2.4; log-likelihood -1.1151623702022737",
        lambda v: close([0.4, 1.4, 2.4])(v["particles"]) and close(-1.1151623702022737)(v["log_likelihood"]),
        "https://github.com/dstl/Stone-Soup/issues/195",
    ),
    Case(
        "residual_offspring",
        "residual resampling, mean offspring",
        "N w = 1.9 x 4, 0.4 x 6, each within 0.06",
        OFFSPRING,
        "https://github.com/rlabbe/filterpy/issues/290",
    ),
    Case(
        "systematic_offspring",
        "systematic resampling, mean offspring",
        "N w = 1.9 x 4, 0.4 x 6, each within 0.06",
        OFFSPRING,
        "https://github.com/rlabbe/filterpy/issues/290",
    ),
    Case(
        "last_u",
        "ten weights of 0.1, u = 1 - 2^-53",
        "indices in 0..9",
        lambda v: len(v) == 10 and min(v) >= 0 and max(v) <= 9,
        "https://github.com/rlabbe/Kalman-and-Bayesian-Filters-in-Python/issues/481",
    ),
    Case(
        "u_zero",
        "weights 0, .5, .5, 0 and u = 0",
        "indices 1, 1, 2, 2: no particle of weight zero",
        lambda v: sorted(v) == [1, 1, 2, 2],
        "https://github.com/at-wat/mcl_3dl/issues/232",
    ),
    Case(
        "float32_index",
        "200000 float32 weights, 20 draws",
        "no index beyond 199999",
        lambda v: v <= 199_999,
        "https://github.com/mrc-ide/dust/pull/238",
    ),
    Case(
        "float32_equal",
        "a million equal float32 weights",
        "every particle once",
        lambda v: v == 0,
        "https://github.com/mrc-ide/dust/pull/238",
    ),
    Case(
        "bad_weights",
        "negative, NaN, zero, infinite, empty weights",
        "ValueError for each",
        all_refused,
        "https://github.com/probcomp/Gen.jl/issues/117",
    ),
    Case(
        "global_rng",
        "NumPy's global generator",
        "left alone",
        lambda v: v is True,
        "https://github.com/nchopin/particles/issues/87",
    ),
    Case(
        "inputs_kept",
        "the caller's arrays",
        "not written to",
        lambda v: v is True,
        "https://github.com/nchopin/particles",
    ),
)

# errors that a package raises on purpose; anything else is a crash
DELIBERATE = {"ValueError", "TypeError", "FilterCollapse", "InvalidWeight"}


def has_nan(value) -> bool:
    if isinstance(value, dict):
        return any(map(has_nan, value.values()))
    if isinstance(value, list):
        return any(map(has_nan, value))
    return isinstance(value, float) and math.isnan(value)


def judge(case: Case, answer: dict) -> str:
    """right, wrong, NaN, crash, or - where the package has no such feature."""
    if "absent" in answer:
        return "-"
    if "error" in answer:
        return "right" if case.refusal_is_right and answer["error"] in DELIBERATE else "crash"
    value = answer["value"]
    if has_nan(value):
        return "NaN"
    if case.name == "bad_weights" and not all_refused(value):
        # an IndexError or the like out of the depths is not a refusal
        return "crash" if any(a not in ("accepted", "ValueError") for a in value.values()) else "wrong"
    return "right" if case.right(value) else "wrong"


def ask(python: str, peer: str, argument: str, timeout: float) -> dict:
    """The JSON line of one worker process; its death is a crash."""
    environment = dict(os.environ, PYTHONPATH=str(ROOT)) if peer == "pfkit" else dict(os.environ)
    command = [python, str(WORKERS / f"{peer}_worker.py"), argument]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    except subprocess.TimeoutExpired:
        return {"error": "Timeout", "text": f"no answer in {timeout:g} s"}
    lines = done.stdout.strip().splitlines()
    if not lines:
        return {
            "error": "ProcessDied",
            "text": f"exit status {done.returncode}: {done.stderr.strip()[-200:]}",
        }
    return json.loads(lines[-1])


def shorten(value):
    """A record that any JSON reader takes: long lists cut, infinities and NaN by name."""
    if isinstance(value, dict):
        return {k: shorten(v) for k, v in value.items()}
    if isinstance(value, list):
        cut = [f"... {len(value)} in all"] if len(value) > 12 else []
        return [shorten(v) for v in value[: 6 if cut else 12]] + cut
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m apps.peers_faults",
        description="Known faults on pfkit and other particle filter packages.",
    )
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="NAME=PATH",
        help=f"the Python that has NAME installed, NAME in {', '.join(PEERS[1:])}; repeat for several",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the answers and verdicts as JSON")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds a case may take (default 120)")
    options = parser.parse_args(arguments)
    pythons = {"pfkit": sys.executable}
    for pair in options.python:
        name, _, path = pair.partition("=")
        if name not in PEERS or not path:
            parser.error(f"--python {pair}: expected NAME=PATH with NAME in {', '.join(PEERS)}")
        pythons[name] = path
    versions = {peer: ask(python, peer, "--version", options.timeout) for peer, python in pythons.items()}
    for peer, version in versions.items():
        if "version" not in version:
            parser.error(f"{pythons[peer]} cannot run {peer}: {version.get('text', version)}")

    rows = []
    width = max(len(case.title) for case in CASES)
    heads = [f"{peer} {versions[peer]['version']}" for peer in pythons]
    print(f"{'fault':{width}}  " + "  ".join(f"{h:>16}" for h in heads))
    for case in CASES:
        answers = {peer: ask(python, peer, case.name, options.timeout) for peer, python in pythons.items()}
        verdicts = {peer: judge(case, answer) for peer, answer in answers.items()}
        print(f"{case.title:{width}}  " + "  ".join(f"{verdicts[p]:>16}" for p in pythons), flush=True)
        rows.append(
            {
                "case": case.name,
                "title": case.title,
                "right_is": case.rule,
                "source": case.source,
                "verdicts": verdicts,
                "answers": {peer: shorten(answer) for peer, answer in answers.items()},
            }
        )
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(
            json.dumps({"versions": versions, "cases": rows}, indent=1, allow_nan=False) + "\n"
        )
    return 0 if all(row["verdicts"]["pfkit"] == "right" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
