#!/bin/sh
# install_torch.sh PYTHON: torch for the tests. With an NVIDIA GPU the ordinary build; without one the CPU build, which is
# a tenth of the size. Where no CPU build can be had, the tests that need torch are skipped and say so.
set -u
python=$1
if "$python" -c "import torch" 2>/dev/null; then exit 0; fi
if command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1; then
    "$python" -m pip install -q "torch>=2.9" && exit 0
else
    "$python" -m pip install -q --only-binary :all: ${PFKIT_TORCH_PIP:-} "torch==2.13.0+cpu" && exit 0
    echo "No CPU build of torch found. Set PFKIT_TORCH_PIP='--index-url URL' to PyTorch's CPU wheel index to get one."
fi
echo "Going on without torch: its tests will be skipped."
exit 0
