"""Builds pfkit_ext: one C source per topic, compiled once for each SIMD level and chosen at import.

Environment: PFKIT_WERROR=1 makes warnings in the C core errors (continuous integration);
PFKIT_SANITIZE=1 builds with AddressSanitizer and UBSan (`make sanitize`);
PFKIT_PORTABLE_U128=1 builds with the 128-bit twin that compilers without __int128 use.
"""

import os
import platform
import runpy
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CPU = Path("pfkit_ext/cpu")
SOURCES = runpy.run_path("pfkit_ext/sources.py")["digest"](Path("pfkit_ext"))
X86 = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma", "-mbmi2"],
    "avx512": ["-mavx2", "-mfma", "-mbmi2", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"],
}
MSVC_X86 = {"portable": [], "avx2": ["/arch:AVX2"], "avx512": ["/arch:AVX512"]}


def machine() -> str:
    """The machine compiled for, which is not always the one compiled on."""
    given = os.environ.get("ARCHFLAGS", "") or os.environ.get("_PYTHON_HOST_PLATFORM", "")
    target = given or sysconfig.get_platform()
    for name, words in {"arm64": ("arm64", "aarch64"), "x86": ("x86_64", "amd64")}.items():
        if any(word in target.lower() for word in words):
            return name
    name = platform.machine().lower()
    return {"x86_64": "x86", "amd64": "x86", "aarch64": "arm64", "arm64": "arm64"}.get(name, "other")


class BuildExt(build_ext):
    def build_extension(self, ext):
        if ext.name != "pfkit_ext._cpu":
            return super().build_extension(ext)
        msvc = self.compiler.compiler_type == "msvc"
        kind = machine()
        levels = {"x86": MSVC_X86 if msvc else X86, "arm64": {"portable": [], "neon": []}}.get(
            kind, {"portable": []}
        )
        define = {"x86": [("PF_X86", "1")], "arm64": [("PF_ARM64", "1")]}.get(kind, [])
        if os.environ.get("PFKIT_PORTABLE_U128"):
            define = define + [("PF_U128_PORTABLE", "1")]
        link = []
        if msvc:
            flags = ["/O2", "/std:c11", "/fp:precise"]
        else:
            flags = ["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-strict-aliasing"]
            if os.environ.get("PFKIT_SANITIZE"):
                sanitize = [
                    "-fsanitize=address,undefined",
                    "-fno-sanitize-recover=undefined",
                    "-fno-omit-frame-pointer",
                ]
                flags += ["-O1", "-g", "-DPF_SANITIZE", *sanitize]
                link += sanitize
        warn = [] if msvc else ["-Wall", "-Wextra"]
        if os.environ.get("PFKIT_WERROR") and not msvc:
            warn.append("-Werror")
        depends = [str(p) for p in sorted(CPU.iterdir())]

        def compile_level(level):
            return self.compiler.compile(
                [str(CPU / "level.c")],
                output_dir=str(Path(self.build_temp) / level),
                macros=[*define, (f"PF_LEVEL_{level.upper()}", "1")],
                extra_postargs=flags
                + warn
                + levels[level]
                + (["-O1"] if level == "portable" and not msvc else []),
                depends=depends,
            )

        # The portable level, the fallback of old processors, takes most of the time: -O1 halves it, and
        # the others are compiled beside it.
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [o for compiled in pool.map(compile_level, levels) for o in compiled]
        objects += self.compiler.compile(
            [str(CPU / "dispatch.c")],
            output_dir=self.build_temp,
            depends=depends,
            macros=define,
            extra_postargs=flags + warn,
        )
        ext.extra_objects = objects
        ext.depends = depends
        ext.define_macros += [*define, ("PF_SOURCES", f'"{SOURCES}"')]
        # the wrapper only checks and calls: optimising it hard takes a minute and gains nothing
        ext.extra_compile_args = flags if msvc else [*flags, "-O1"]
        ext.extra_link_args = link + ([] if sys.platform == "win32" else ["-lm", "-lpthread"])
        super().build_extension(ext)


setup(
    ext_modules=cythonize(
        [
            Extension(
                "pfkit_ext._cpu",
                ["pfkit_ext/_cpu.pyx"],
                include_dirs=[str(CPU)],
                depends=[str(p) for p in Path("pfkit_ext").glob("*.pxi")],
            ),
            Extension("pfkit_ext._cuda", ["pfkit_ext/_cuda.pyx"]),
        ],
        language_level=3,
        compiler_directives={"boundscheck": False, "wraparound": False, "embedsignature": True},
    ),
    cmdclass={"build_ext": BuildExt},
)
