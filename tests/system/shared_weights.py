#!/usr/bin/env python3
"""Ranks of one machine have their packed weights in memory once, read-only, and none is left when they are killed; where those that
decode pack them in 12 bits, for each role once.  With --weights-cache
the next start maps what one has packed, refuses by name what is not its own file, and gives the same logits.

    shared_weights.py --bin DIR --source DIR

The weights lie in a file without a name, whose memory is what fstat says; /proc/PID/maps tells how a rank has mapped it."""
import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import cell as cells  # noqa: E402
import tensors  # noqa: E402

NAME = "/memfd:baton-weights"
HUGE_MIB = 4  # head, slots, and what huge pages round up


def weights_file(pid):
    """What the process has open of that name: path in /proc and inode; None where it has none, or is gone."""
    for path in glob.glob(f"/proc/{pid}/fd/*"):
        with contextlib.suppress(OSError):    # closed since
            if os.readlink(path).startswith(NAME):
                return path, os.stat(path).st_ino
    return None


def store_of(pid):
    """(inode, bytes of memory) of the file that the process has open, and the permissions of its mappings in order of size."""
    found = weights_file(pid)
    assert found is not None, f"process {pid} has no shared weights"
    path, _ = found
    with open(f"/proc/{pid}/maps") as f:
        found = [(int(m[2], 16) - int(m[1], 16), m[3]) for m in re.finditer(rf"(?m)^(\w+)-(\w+) (\S+) .*{NAME}", f.read())]
    return os.stat(path).st_ino, os.stat(path).st_blocks * 512, [mode for _, mode in sorted(found)]


def main():
    a = cells.arguments(__doc__).parse_args()
    in_12_bits = "avx512bw" in open("/proc/cpuinfo").read()
    for shape, n, kernels in (("1+1", 2, "scalar"), ("2+2", 4, "scalar"), ("1+1", 2, "auto")):
        with cells.Cell(a.bin, os.path.join(a.source, "models/demo"), shape, "--kernels", kernels) as cell:
            ranks = cell.ranks()
            assert len(ranks) == n, ranks
            loaded = cell.wait_lines(r"weights ([\d.]+) MiB, of them ([\d.]+) MiB shared", n)
            assert len(loaded) == n, cell.log()
            for weights, shared in loaded:
                assert float(shared) > 0.95 * float(weights), loaded
            stores = [store_of(pid) for pid in ranks.values()]
            assert len({inode for inode, _, _ in stores}) == 1, f"not one file for all ranks: {stores}"
            assert all(modes[-1] == "r--s" for _, _, modes in stores), f"the weights are not mapped for reading only: {stores}"
            mapped, memory = sum(float(shared) for _, shared in loaded), stores[0][1] / 2**20
            print(f"{shape}: {mapped:.1f} MiB of packed weights in {n} ranks, {memory:.1f} MiB of memory")
            least, most = (float(f(shared for _, shared in loaded)) for f in (min, max))
            if kernels == "auto" and in_12_bits:    # the head and the embedding are still everybody's
                assert least < 0.9 * most and memory < mapped - 0.1 * least, f"{loaded} MiB take {memory} MiB"
            else:    # attention and head are everybody's; each group has every expert once
                assert memory < mapped / 2 + HUGE_MIB, f"{shape}: {mapped} MiB in {n} ranks take {memory} MiB"
            pids = list(ranks.values())
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            end = time.monotonic() + 60

            def held():
                """Who has the killed ranks' file open: they themselves while they end; a cell that is started again has another."""
                found = map(weights_file, cells.descendants(cell.process.pid))
                return [f[0] for f in found if f is not None and f[1] == stores[0][0]]
            while held():
                assert time.monotonic() < end, f"killed ranks' weights are still held by {held()}"
                time.sleep(0.02)
            cell.wait_gone()
        assert not [x for x in os.listdir("/dev/shm") if "weights" in x]
    kept_weights(a, in_12_bits)
    progress_is_told_now_and_then(a)


def progress_is_told_now_and_then(a):
    """Ten times a second by each rank, also while it waits for what others pack."""
    read, write = os.pipe()
    model, begin, told, line = os.path.join(a.source, "models/demo"), time.monotonic(), [0] * 8, ""
    with tempfile.TemporaryFile() as log, os.fdopen(read) as announced, contextlib.ExitStack() as ends:
        def start(program, *arguments, **more):
            process = subprocess.Popen([os.path.join(a.bin, program), *arguments], stderr=log, **more)
            ends.callback(process.wait)
            ends.callback(cells.kill, process)
            return process

        coordinator = start("baton-coordinator", "--model", model, "--port", "0", "--announce-fd", str(write), pass_fds=(write,))
        os.close(write)
        limit = threading.Timer(cells.START_S, coordinator.kill)    # with it ends what it announces
        ends.callback(limit.cancel)
        limit.start()
        control = next((line.split()[1] for line in announced if line.startswith("control ")), "nowhere")
        launch = start("baton-launch", "-n", "8", "--", os.path.join(a.bin, "baton-worker"), "--model", model,
                       "--prefill", "4", "--decode", "4", "--coordinator", control, "--orphan-s", "0")
        threading.Thread(target=lambda: (launch.wait(), coordinator.kill()), daemon=True).start()
        for line in announced:
            if line.startswith("progress "):
                told[int(line.split()[1])] += 1
            if line.startswith(("ready ", "failed ")):
                break
        most = 10 * (time.monotonic() - begin) + 2
        assert line.startswith("ready "), f"{line}\n{os.pread(log.fileno(), 1 << 20, 0).decode(errors='replace')[-3000:]}"
        coordinator.terminate()
        launch.wait()
    print(f"progress: told {told} times, at most {most:.0f}")
    assert 0 < min(told) <= max(told) <= most, told


def logits(a, folder, name, *more, ranks=("--prefill", "1", "--decode", "2")):
    """The logits of two short prompts, as bytes, and what the ranks have logged."""
    src, dst = os.path.join(folder, "in.safetensors"), os.path.join(folder, name)
    tensors.write(src, {f"{p}.{k}": np.array(x, np.int32) for p, n in (("a", 70), ("b", 9))
                        for k, x in (("ids", [7 * i % 200 for i in range(n)]), ("prompt", [n - 3]))})
    run = subprocess.run([os.path.join(a.bin, "baton-logits"), "--model", os.path.join(a.source, "models/demo"), "--ids", src, "--out", dst,
                          *ranks, *more], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr[-3000:]
    return {k: v.tobytes() for k, v in tensors.read(dst).items()}, run.stderr


def kept_weights(a, in_12_bits):
    with tempfile.TemporaryDirectory() as folder:
        cache = os.path.join(folder, "cache")
        os.mkdir(cache)
        want, _ = logits(a, folder, "out")
        for start, said in (("first", None), ("second", None), ("cut", "bytes, expected"), ("after", None), ("foreign", "mode 0622")):
            files = [os.path.join(cache, f) for f in os.listdir(cache)]
            before = {f: os.stat(f).st_ino for f in files}
            if start == "cut":
                os.truncate(files[0], os.path.getsize(files[0]) - 1)
            if start == "foreign":
                os.chmod(files[0], 0o622)
            ranks = {"ranks": ("--both", "1")} if start == "first" else {}    # a rank alone keeps them for any cell
            got, log = logits(a, folder, "out", "--weights-cache", cache, **ranks)
            assert got == want, f"{start}: other logits with --weights-cache"
            files = [os.path.join(cache, f) for f in os.listdir(cache)]
            assert len(files) == 1 and files[0].endswith(".packed"), f"{start}: {files}"
            assert said is None or (said in log and files[0] in log), f"{start}: nothing says \"{said}\" of {files[0]}:\n{log[-3000:]}"
            assert said is None or f"{files[0]} is not used: weights are packed again" in log, log[-3000:]
            new = before.get(files[0]) != os.stat(files[0]).st_ino
            lacks = start == "second" and in_12_bits    # what ranks have that only prefill
            assert new == (lacks or start not in ("second", "after")), f"{start}: the file is {'new' if new else 'the old one'}"


if __name__ == "__main__":
    main()
