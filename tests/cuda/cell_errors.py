#!/usr/bin/env python3
"""Starts baton-worker on machines whose GPU cannot be used: each rank that was told to use one ends with exit code 1 and a sentence.

    cell_errors.py WORKER SOURCE TWIN"""
import concurrent.futures
import os
import subprocess
import sys

worker, source, twin = sys.argv[1:4]
demo = os.path.join(os.path.abspath(source), "models", "demo")
BASE = ["--model", demo, "--coordinator", "127.0.0.1:9"]
PAST, TOO_SMALL = ["--kv-bytes", "1K"], "--kv-bytes 1024 does not hold one page"  # what a rank with a device says next


def cases():
    """What, how many ranks, the machine, the arguments, and what must be said."""
    yield "no driver", 2, "driver=0", ["--device", "cuda"], ["finds no GPU to compute on: this machine has no NVIDIA driver"]
    yield "an old driver", 1, "driver=12000", ["--device", "cuda"], ["rank 0 finds no GPU", "too old: it knows CUDA 12.0"]
    yield "another architecture", 1, "major=7 minor=5", ["--device", "cuda:0"], ["rank 0 finds no GPU", "compute capability 7.5: expected 8.0"]
    yield "no such GPU", 1, "devices=2", ["--device", "cuda:2"], ["rank 0 finds no GPU", "GPU 2 is not there: this machine has 2"]
    yield "a full GPU", 1, "mib=72", ["--device", "cuda"], ["rank=0", "each of the 1 ranks on this GPU may use 60 MiB", "would fit", "--max-rows"]
    yield "no room at all", 1, "mib=16", ["--device", "cuda"], ["rank=0", "no --max-rows would fit", "more GPUs"]
    yield "two GPUs", 2, "devices=2", ["--device", "auto", *PAST], ["rank 0 computes on GPU 0, with 0 more", "rank 1 computes on GPU 1, with 0 more", TOO_SMALL]
    yield "an old GPU beside a new one", 2, "devices=2 old=0", ["--device", "auto", *PAST], ["rank 0 computes on GPU 1, with 1 more", "rank 1 computes on GPU 1, with 1 more", TOO_SMALL]
    yield "old GPUs alone", 1, "major=7 minor=5", ["--device", "auto", *PAST], ["rank 0 computes on the CPU: GPU 0 has compute capability 7.5", TOO_SMALL]
    yield "a GPU for no process", 1, "mode=2", ["--device", "cuda"], ["rank 0 finds no GPU", "GPU 0 takes no process", "nvidia-smi -c 0"]
    yield "a GPU for one process", 1, "mode=3 busy_for=0", ["--device", "cuda"], ["GPU 0 takes one process, by its compute mode (exclusive), and has one: expected one rank"]
    yield "a GPU that is taken", 1, "mode=3 busy_for=0", ["--device", "auto", *PAST], ["rank 0 computes on the CPU: not supported by this build or machine: GPU 0 takes one process", TOO_SMALL]
    yield "a GPU that fails", 1, "busy_for=0", ["--device", "auto", *PAST], ["rank 0 computes on the CPU: a device call failed: cudaSetDevice", "busy or unavailable", TOO_SMALL]
    yield "a GPU that others use too", 2, "others=960", ["--device", "cuda"], ["each of the 2 ranks on this GPU may use 27 MiB"]
    yield "no GPU is needed", 1, "driver=0", ["--device", "auto", *PAST], ["ranks compute on the CPU: this machine has no NVIDIA driver", TOO_SMALL]
    yield "none is wanted", 1, "", ["--device", "cpu", *PAST], [TOO_SMALL]


def transports():
    """The same of NCCL between ranks."""
    yield "nccl on the CPU", 2, "", ["--device", "cpu", "--transport", "nccl"], ["--transport nccl: rank 0 computes on the CPU"]
    yield "no NCCL", 2, "devices=2", ["--device", "cuda", "--transport", "nccl", "--nccl-library", "/nowhere.so"], ["--transport nccl: rank 0: the NCCL", "/nowhere.so"]
    yield "no NCCL needed", 2, "devices=2", ["--device", "cuda", "--nccl-library", "/nowhere.so", *PAST], ["MPI, through host memory: rank 0: the NCCL", TOO_SMALL]
    yield "a shared GPU", 2, "", ["--device", "cuda", "--nccl-library", twin, *PAST], ["MPI, through host memory: ranks 0 and 1 share a GPU", TOO_SMALL]
    yield "an instance of a GPU", 2, "devices=2 mig=1", ["--device", "cuda", "--nccl-library", twin, *PAST], \
        ["rank 0 computes on GPU 0, with 1 more", "rank 1 computes on GPU 0, with 1 more", TOO_SMALL]
    yield "no time for NCCL", 2, "devices=2", ["--device", "cuda", "--transport", "nccl", "--nccl-library", twin, "--timeout-s", "3"], ["--transport nccl: rank 0: --timeout-s is 3: with NCCL it has to be 4"]
    yield "GPUs of their own", 2, "devices=2", ["--device", "cuda", "--nccl-library", twin, *PAST], ["between ranks: NCCL, which all 2 of them have", TOO_SMALL]


def run(ranks, machine, arguments, library=twin, each=None, around=(), **more):
    """each: what a rank's shell does first; around: a program that starts mpirun."""
    env = dict(os.environ, BT_FAKE_GPU=machine, BATON_CUDA_LIBRARY=library, **more)
    rank = [worker, "--both", str(ranks), *BASE, *arguments]
    if each:
        rank = ["sh", "-c", each + '; exec "$@"', "sh", *rank]
    done = subprocess.run([*around, "mpirun", "-n", str(ranks), *rank], env=env, capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def visible():
    """A GPU is the same for all ranks of a machine, whatever number each has for it."""
    nccl = ["--device", "cuda", "--nccl-library", twin, *PAST]
    yield "instances of a GPU", ["rank 0 computes on GPU 0, with 0 more", "rank 1 computes on GPU 0, with 0 more", "ranks 0 and 1 share a GPU", TOO_SMALL], \
        *run(2, "devices=2 mig=1", nccl, each="export CUDA_VISIBLE_DEVICES=MIG-$OMPI_COMM_WORLD_RANK")
    yield "a GPU by two numbers", ["ranks 0 and 1 share a GPU", TOO_SMALL], *run(2, "devices=2", nccl, each="export CUDA_VISIBLE_DEVICES=1,1")
    yield "an image's NCCL_HOSTID", ["NCCL_HOSTID=here: it is baton-rank-1 here", TOO_SMALL], \
        *run(2, "", [*nccl, "--transport", "nccl"], each="export NCCL_HOSTID=here")
    yield "two GPUs by one number", ["NCCL, which all 2 of them have", TOO_SMALL], *run(2, "", nccl, each="export CUDA_VISIBLE_DEVICES=$OMPI_COMM_WORLD_RANK")


def small_shm():
    """A container's /dev/shm, where the test may make one."""
    around = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=64m shm /dev/shm && exec "$@"', "sh"]
    if subprocess.run([*around, "true"], capture_output=True).returncode == 0:
        yield "a small /dev/shm", ["NCCL wants about 132 MiB of /dev/shm for the 2 ranks", "--shm-size", TOO_SMALL], \
            *run(2, "", ["--device", "cuda", "--transport", "nccl", "--nccl-library", twin, *PAST], around=around)
    else:
        print("a small /dev/shm: left out, since this user may not mount one")


def main():
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(4) as pool:    # mpirun takes seconds to end, and waits
        started = [(what, wanted, pool.submit(run, *how)) for what, *how, wanted in [*cases(), *transports()]]
    results = [(what, wanted, *done.result()) for what, wanted, done in started]
    results.append(("no library", ["rank 0 finds no GPU", "cannot be opened: /nowhere.so"], *run(1, "", ["--device", "cuda"], "/nowhere.so")))
    results += [*visible(), *small_shm()]
    late = run(1, "", ["--device", "cuda", *PAST], CUDA_MODULE_LOADING="LAZY", CUDA_DEVICE_MAX_CONNECTIONS="1")
    results.append(("an image's settings", ["CUDA_MODULE_LOADING=LAZY: expected EAGER", "CUDA_DEVICE_MAX_CONNECTIONS=1: expected 32", TOO_SMALL], *late))
    unused = run(1, "driver=0", ["--device", "auto", *PAST], CUDA_MODULE_LOADING="LAZY")
    if TOO_SMALL not in unused[1] or "CUDA_MODULE_LOADING" in unused[1]:
        print(f"an image's settings, and no GPU: FAILED: not started, or a warning\n{unused[1]}")
        failed += 1
    for what, wanted, code, log in results:
        missing = [w for w in wanted if w not in log]
        failed += code != 1 or bool(missing)
        print(f"{what}: " + ("ok" if code == 1 and not missing else f"FAILED: exit code {code}, not said: {missing}\n{log}"), flush=True)
    return 1 if failed else 0


sys.exit(main())
