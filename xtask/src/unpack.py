"""Unpacks what a CPU build needs from the wheels in argv[1] into argv[2]."""

import glob
import os
import shutil
import sys
import zipfile

wheels, out = sys.argv[1:3]
GPU_ONLY = ("libtorch_cuda", "libtorch_python", "libtorch_nvshmem", "libc10_cuda", "libcaffe2_nvrtc")

with zipfile.ZipFile(glob.glob(os.path.join(wheels, "torch-*.whl"))[0]) as wheel:
    for name in wheel.namelist():
        wanted = name.startswith(("torch/lib/", "torch/include/"))
        if wanted and not os.path.basename(name).startswith(GPU_ONLY):
            wheel.extract(name, out)

for pattern, library in (("nvidia_cuda_runtime-*", "libcudart.so.13"), ("nvidia_cuda_cupti-*", "libcupti.so.13")):
    with zipfile.ZipFile(glob.glob(os.path.join(wheels, pattern))[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("/" + library))
        with wheel.open(name) as source, open(os.path.join(out, "torch/lib", library), "wb") as target:
            shutil.copyfileobj(source, target)
