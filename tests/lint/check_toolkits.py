"""CUDA and NCCL as PyPI's packages lay them out are taken whole, also where others are installed that would be found sooner.

    check_toolkits.py CMAKE SOURCE_DIR"""
import os
import subprocess
import sys
import tempfile

FILES = {
    "cu13/bin/nvcc": "#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n",
    "cu13/include/cuda_runtime_api.h": "",
    "cu13/lib/libcudart_static.a": "",
    "nccl/include/nccl.h": "#define NCCL_VERSION_CODE 22703\n",
    "nccl/lib/libnccl.so.2": "",
    # Every package is there, and has nothing to tell: what gRPC needs would take nearly all of the time.
    "pkg-config": "#!/bin/sh\ncase $* in *version*) echo 99 ;; esac\n",
}
FOUND = {"BT_NVCC": "cu13/bin/nvcc", "BT_CUDART_STATIC": "cu13/lib/libcudart_static.a", "BT_CUDART_INCLUDE": "cu13/include",
         "BT_NCCL_INCLUDE": "nccl/include", "BT_NCCL_LIBRARY": "nccl/lib/libnccl.so.2"}


def main():
    cmake, source = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        for name, text in FILES.items():
            path = os.path.join(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as f:
                f.write(text)
            os.chmod(path, 0o755)
        env = {**os.environ, "CUDA_HOME": f"{folder}/cu13", "NCCL_HOME": f"{folder}/nccl", "PKG_CONFIG": f"{folder}/pkg-config"}
        done = subprocess.run([cmake, "-G", "Ninja", "-D", "BUILD_TESTING=OFF", "-S", source, "-B", f"{folder}/build"], capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        with open(f"{folder}/build/CMakeCache.txt") as f:
            cache = dict(line.rstrip("\n").split("=", 1) for line in f if "=" in line)
        for name, path in FOUND.items():
            got = next(value for key, value in cache.items() if key.split(":")[0] == name)
            assert got == f"{folder}/{path}", f"{name} is {got}, expected {folder}/{path}"
    print(f"{len(FOUND)} parts of a toolkit are of one place")


main()
