#!/usr/bin/env python3
"""Starts baton-worker in ways that cannot work: each ends with exit code 1, wrong usage with 64, and a sentence that
says what to do.

    start_errors.py WORKER SOURCE"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile

worker, source = sys.argv[1:3]
demo = os.path.join(os.path.abspath(source), "models", "demo")
NOBODY = "127.0.0.1:9"


def copy_of_demo(folder, leave_out=()):
    """The demo model with links instead of files, some left out."""
    path = tempfile.mkdtemp(dir=folder)
    for name in os.listdir(demo):
        if name not in leave_out:
            os.symlink(os.path.join(demo, name), os.path.join(path, name))
    return path


def other_build(folder):
    """The worker as it would be of other sources."""
    with open(worker, "rb") as f:
        program, n = re.subn(rb" \(sources [0-9a-f]{12}\)", b" (sources 0123456789ab)", f.read())
    assert n > 0, "the worker does not say what it is made of"
    path = os.path.join(folder, "baton-worker")
    with open(path, "wb") as f:
        f.write(program)
    shutil.copymode(worker, path)
    return path


def cases(folder):
    truncated = copy_of_demo(folder, ["model.safetensors"])
    with open(os.path.join(demo, "model.safetensors"), "rb") as f, open(os.path.join(truncated, "model.safetensors"), "wb") as g:
        g.write(f.read(5 << 20))
    both = ["--both", "1", "--model", demo, "--coordinator", NOBODY]
    yield "no arguments", 0, [], ["--model DIR is missing"]
    yield "no coordinator", 0, ["--both", "1", "--model", demo], ["--coordinator HOST:PORT is missing"]
    yield "too few ranks", 1, ["--prefill", "1", "--decode", "1", *both[2:]], ["needs 2 ranks, this job has 1", "mpirun -n 2"]
    yield "too many ranks", 2, both, ["--both 1 needs 1 ranks, this job has 2"]
    yield "no such model", 1, ["--both", "1", "--model", "/nonexistent", "--coordinator", NOBODY], ["/nonexistent/config.json"]
    yield "no weights", 1, ["--both", "1", "--model", copy_of_demo(folder, ["model.safetensors"]), "--coordinator", NOBODY], ["safetensors"]
    yield "truncated weights", 1, ["--both", "1", "--model", truncated, "--coordinator", NOBODY], ["model.safetensors"]
    yield "pool below a page", 1, [*both, "--kv-bytes", "1K"], ["--kv-bytes 1024 does not hold one page", "294912"]
    yield "pool beyond the machine", 1, [*both, "--kv-bytes", "999T"], ["--kv-bytes 1098412116148224 is more than this machine has", "for each of its 1 ranks: "]
    yield "no layer that drafts", 1, ["--both", "1", "--model", os.path.join(source, "tests/models/v2-lite"), "--coordinator", NOBODY, "--mtp", "1"], \
        ["names no layer for multi-token prediction (num_nextn_predict_layers)", "leave --mtp out"]
    yield "no place for packed weights", 1, [*both, "--weights-cache", "/nonexistent"], ["--weights-cache /nonexistent: No such file or directory"]
    yield "a file for packed weights", 1, [*both, "--weights-cache", os.path.join(demo, "config.json")], ["config.json: expected a directory"]
    yield "ranks of two builds", 1, [*both[2:], "--both", "2", ":", "-n", "1", other_build(folder), *both[2:], "--both", "2"], \
        ["rank 1 on ", " (sources 0123456789ab), rank 0 on ", " (1 of 2 ranks differ from rank 0): all ranks of a cell must be of one build"]
    yield "unknown kernels", 0, [*both, "--kernels", "quick"], ['neon or scalar, not "quick"']
    yield "chunk of nothing", 0, [*both, "--chunk", "0"], ["--chunk must be"]
    yield "no use for it", 0, [*both, "--device", "cpu", "--lookahead", "0"], ["--lookahead has no effect with --device cpu: leave it out, since it is for GPUs"]
    yield "unknown flag", 0, [*both, "--colour", "red"], ["--colour"]


def run(ranks, arguments, timeout):
    launcher = ["mpirun", "-n", str(ranks)] if ranks else []  # 0: the options alone are wrong, MPI never starts
    done = subprocess.run([*launcher, worker, *arguments], capture_output=True, text=True, timeout=timeout)
    return done.returncode, done.stdout + done.stderr


def check(what, code, expected, log, wanted):
    missing = [w for w in wanted if w not in log]
    if code == expected and not missing:
        print(f"{what}: ok", flush=True)
        return 0
    print(f"{what}: FAILED: exit code {code}, expected {expected}, not said: {missing}\n{log}", flush=True)
    return 1


def main():
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:    # mpirun takes seconds to end, and waits
            started = [(case, pool.submit(run, *case[1:3], 100)) for case in cases(folder)]
        for (what, ranks, _, wanted), done in started:
            code, log = done.result()
            failed += check(what, code, 1 if ranks else 64, log, wanted)
    done = subprocess.run([worker, "--help"], capture_output=True, text=True, timeout=100)
    failed += done.returncode != 0 or "mpirun -n 4 baton-worker" not in done.stdout
    return 1 if failed else 0


sys.exit(main())
