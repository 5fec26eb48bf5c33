#!/bin/sh
# try_wheel.sh PYTHON DIST: install the wheel in a clean environment and use it with no compiler on PATH.
set -eu
python=$1
dist=$(cd "$2" && pwd)
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
"$python" -m venv "$room/venv"
"$room/venv/bin/python" -m pip install -q --only-binary :all: --find-links "$dist" pfkit --pre
cd "$room"
PATH="$room/venv/bin" CC=false python -m pfkit
PATH="$room/venv/bin" CC=false python - <<'PY'
import numpy as np
import pfkit

y = np.cumsum(np.random.default_rng(0).normal(size=50))
for lse in ("int", "fuse"):
    r = pfkit.ParticleFilter(pfkit.LocalLevel(1.0, 1.0), 1000, lse=lse, rng=0).run(y)
    assert np.isfinite(r.log_likelihood), r
    print(lse, r.log_likelihood)
assert abs(pfkit.logsumexp(np.zeros(8)) - np.log(8)) < 1e-15
print("the wheel works without a compiler:", pfkit.__file__)
PY
