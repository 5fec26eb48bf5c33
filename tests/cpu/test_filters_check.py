"""Random numbers and whole compiled filters have the same bits on aarch64, emulated, as on this machine."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPU = ROOT / "pfkit_ext" / "cpu"
DIGEST = "945598ec38d6e11c"
FLAGS = ["-std=gnu11", "-O1", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing", f"-I{CPU}"]
ARM, X86 = ("aarch64-linux-gnu-gcc", "qemu-aarch64"), ("gcc", None)
LEVELS = {
    ARM: {"neon": [], "portable": []},
    X86: {
        "portable": [],
        "avx2": ["-mavx2", "-mfma", "-mbmi2"],
        "avx512": "-mavx2 -mfma -mbmi2 -mavx512f -mavx512bw -mavx512dq -mavx512vl".split(),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("machine", [ARM, X86], ids=["aarch64", "x86-64"])
def test_digest_is_the_same_everywhere(machine, tmp_path):
    compiler, emulator = machine
    if shutil.which(compiler) is None or (emulator and shutil.which(emulator) is None):
        pytest.skip(f"needs {compiler} and {emulator}")
    target = subprocess.run([compiler, "-dumpmachine"], capture_output=True, text=True).stdout
    if not target.startswith("aarch64" if machine is ARM else "x86_64"):
        pytest.skip(f"{compiler} compiles for {target.strip()}")
    flags = [*FLAGS, "-DPF_ARM64=1" if machine is ARM else "-DPF_X86=1"]
    objects = []
    for level, extra in LEVELS[machine].items():
        objects.append(str(tmp_path / f"{level}.o"))
        define = f"-DPF_LEVEL_{level.upper()}=1"
        subprocess.run(
            [compiler, *flags, *extra, define, "-c", CPU / "level.c", "-o", objects[-1]], check=True
        )
    program = tmp_path / "filters_check"
    sources = [ROOT / "tests" / "cpu" / "filters_check.c", CPU / "dispatch.c"]
    command = [compiler, *flags, *sources, *objects, "-static", "-o", program, "-lm", "-lpthread"]
    subprocess.run(command, check=True)
    run = subprocess.run([emulator, program] if emulator else [program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.split("\n")[:-1]
    assert lines and all(line.split()[1] == DIGEST for line in lines), run.stdout
