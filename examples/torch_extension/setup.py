"""Builds turnwise_torch: `pip install --no-build-isolation .`, or in place `python setup.py build_ext --inplace`.

With a CUDA build of PyTorch and its compiler (CUDA_HOME) also for CUDA; TURNWISE_TORCH_CUDA=0 leaves that out.
TORCH_CUDA_ARCH_LIST says for which GPUs (those of the machine; 8.0 and 9.0 where there are none).
"""

import os
import pathlib

import torch
from setuptools import setup
from torch.utils.cpp_extension import CUDA_HOME, BuildExtension, CppExtension, CUDAExtension

here = pathlib.Path(__file__).resolve().parent
root = here.parents[1]
with_cuda = torch.version.cuda and CUDA_HOME and os.environ.get("TURNWISE_TORCH_CUDA", "1") != "0"

sources = ["csrc/module.cpp", "csrc/host.cpp"]
flags = {"cxx": ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-fopenmp"]}
if with_cuda:
    if not torch.cuda.is_available():  # PyTorch would ask the GPUs that are there
        os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "8.0;9.0")
    sources.append("csrc/device.cu")
    flags["cxx"].append("-DTURNWISE_TORCH_CUDA")
    # PyTorch turns the toolkit's conversions off for its own sources.
    flags["nvcc"] = ["-std=c++20", "-O3", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_BFLOAT16_CONVERSIONS__"]

setup(
    name="turnwise_torch",
    version="0.1",
    packages=["turnwise_torch"],
    package_dir={"": "src"},  # so that what runs in this folder sees the installed package
    ext_modules=[
        (CUDAExtension if with_cuda else CppExtension)(
            "turnwise_torch._C",
            sources,
            include_dirs=[str(root / "include"), str(root / "cuda"), str(here / "csrc")],
            extra_compile_args=flags,
            extra_link_args=["-fopenmp"],
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
