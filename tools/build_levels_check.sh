#!/bin/sh
# build_levels_check.sh CC OUT [FLAGS...]: the C core at every SIMD level of CC's target, with tests/cpu/levels_check.c.
set -eu
cc=$1 out=$2
shift 2
cd "$(dirname "$0")/.."
flags="-std=c11 -O2 -ffp-contract=off -fno-math-errno -fno-strict-aliasing -Wall -Wextra -Werror -Ipfkit_ext/cpu"
case "$($cc -dumpmachine)" in
    aarch64*|arm64*) define=-DPF_ARM64=1 levels="PORTABLE: NEON:" ;;
    x86_64*) define=-DPF_X86=1
        levels="PORTABLE: AVX2:-mavx2,-mfma,-mbmi2 \
            AVX512:-mavx2,-mfma,-mbmi2,-mavx512f,-mavx512bw,-mavx512dq,-mavx512vl" ;;
    *) define= levels="PORTABLE:" ;;
esac
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
for level in $levels; do
    name=${level%%:*} extra=$(echo "${level#*:}" | tr , ' ')
    $cc $flags $define -DPF_LEVEL_$name=1 $extra "$@" -c pfkit_ext/cpu/level.c -o "$room/$name.o"
done
$cc $flags $define "$@" tests/cpu/levels_check.c pfkit_ext/cpu/dispatch.c "$room"/*.o -o "$out" -lm
