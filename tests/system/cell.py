"""Starts a cell with baton-run for a test, and speaks the public protocol to it."""
import argparse
import atexit
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import grpc

GONE_S = 60      # 15 are promised of a machine that is not busy with other things
os.environ["no_proxy"] = "127.0.0.1"    # whatever proxies the environment names
START_S = 180    # a busy machine is given time, here and wherever a test waits: a wait ends when what it waits for has come


def end_once(*_):
    """timeout(1) sends its signal twice, to the test and to its group: the second one would end what ends the cell."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def arguments(doc):
    """The parser that every script here begins with."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, end_once)
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--bin", required=True, help="folder of the programs")
    ap.add_argument("--source", required=True, help="the source tree, for models and fixtures")
    return ap


def case_arguments(doc, cases):
    """The parser of a script that is a list of cases: --only NAME runs one."""
    ap = arguments(doc)
    ap.add_argument("--only", choices=[c.__name__ for c in cases])
    return ap


def chosen(a, cases):
    return [c for c in cases if a.only in (None, c.__name__)]


def stubs(source):
    """The vLLM messages and stub, generated from the project's own .proto, or where BATON_STUBS says that they lie."""
    if "BATON_STUBS" not in os.environ:
        sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
        import stubs as generated
        return generated.generate(source, "vllm_engine")[0]
    sys.path.insert(0, os.environ["BATON_STUBS"])
    import vllm_engine_pb2
    import vllm_engine_pb2_grpc
    return vllm_engine_pb2, vllm_engine_pb2_grpc


def passed_on(lines):
    """What a program says; with BATON_TESTS_PASS_ON also on stderr as it comes, or it would be lost with a test that is ended."""
    for line in lines:
        if "BATON_TESTS_PASS_ON" in os.environ:
            print(line, end="", file=sys.stderr, flush=True)
        yield line


def kill(process):
    """The process, unless it has ended, and all below it."""
    if process.poll() is None:
        for pid in [*descendants(process.pid), process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Cell:
    """baton-run as a process of its own; `with Cell(...) as cell:` ends it.  ranks: "2+3", "both4", or "hosts" where `more` says which.
    hosts: those of tests/support/hosts.py, in whose namespace every process is the test's."""

    def __init__(self, bin_dir, model, ranks, *more, hosts=None):
        if ranks == "hosts":
            flags = []
        else:
            flags = ["--both", ranks[4:]] if ranks.startswith("both") else ["--prefill", ranks.split("+")[0], "--decode", ranks.split("+")[1]]
        self.command = [os.path.join(bin_dir, "baton-run"), "--model", model, *flags, "--port", "0", *more]
        self.lines, self.address, self.http, self.scratch, self.hosts = [], None, None, set(), hosts
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                                        env=hosts.environment() if hosts else None)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        atexit.register(kill, self.process)    # what a failed test leaves would take the cores from those after it

    def _read(self):
        for line in passed_on(self.process.stdout):
            self.lines.append(line.rstrip("\n"))
            page = re.search(r"status page on http://(127\.0\.0\.1:\d+)", line)
            self.http = page.group(1) if page else self.http
            found = re.search(r"(?:ready|listening|serving) .*?(127\.0\.0\.1:\d+)", line)
            if found and self.address is None:
                self.address = found.group(1)

    def wait_ready(self):
        end = time.monotonic() + START_S
        while self.address is None:
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("the cell did not start:\n" + self.log())
            time.sleep(0.02)
        self.note_scratch()
        return self

    def wait_line(self, text, seconds=START_S, after=0):
        """Until one of the lines from number `after` on has the text; returns the number of the next one."""
        end, at = time.monotonic() + seconds, after
        while True:
            n = len(self.lines)
            for i in range(at, n):
                if text in self.lines[i]:
                    return i + 1
            at = n
            assert self.process.poll() is None and time.monotonic() < end, f"no line with \"{text}\" within {seconds} s:\n{self.log()}"
            time.sleep(0.001)

    def note_scratch(self):
        self.scratch |= scratch(descendants(self.process.pid))

    def processes(self):
        """Those of the cell."""
        return [int(e) for e in os.listdir("/proc") if e.isdigit()] if self.hosts else descendants(self.process.pid)

    def wait_nothing_left(self, pids=(), seconds=GONE_S):
        """Until neither its private folders nor these processes are there any more."""
        wait_nothing_left(self.scratch, pids, seconds, self.log)

    def wait_lines(self, pattern, n, seconds=START_S):
        """What the pattern finds in the lines, once it has been found n times; a rank's line may come after the cell serves."""
        end = time.monotonic() + seconds
        while len(found := re.findall(pattern, "\n".join(self.lines))) < n:
            assert time.monotonic() < end, f"{len(found)} of {n} times \"{pattern}\":\n{self.log()}"
            time.sleep(0.02)
        return found

    def log(self):
        return "\n".join(self.lines[-60:])

    def ranks(self, among=None):
        """pid of each worker process, by rank; of a cell beside another one among these processes."""
        return ranks_among(among or self.processes())

    def stop(self, timeout=120):
        """SIGTERM; returns baton-run's exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.wait_gone(timeout)

    def wait_gone(self, timeout=120):
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            kill(self.process)
            raise AssertionError(f"still running after {timeout} s:\n" + self.log())
        self.reader.join(60)
        return code

    def __enter__(self):
        return self.wait_ready()

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.log(), file=sys.stderr)
        if kind is KeyboardInterrupt:    # the test's limit has passed, and what hangs might not drain
            kill(self.process)
        if self.process.poll() is None:
            self.stop()

    def channel(self):
        return grpc.insecure_channel(self.address)


def page(http, path):
    """What the coordinator answers there, as text."""
    with urllib.request.urlopen(f"http://{http}{path}", timeout=60) as f:
        return f.read().decode()


def status(http):
    return json.loads(page(http, "/status.json"))


def name_of(pid):
    """None: it has ended.  A name of the kernel's has 15 characters at most."""
    try:
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()
    except OSError:
        return None


def process_named(cell, *names):
    """Its pid."""
    return next(p for p in descendants(cell.process.pid) if name_of(p) in [n[:15] for n in names])


def environment_of(pid):
    """What it was started with; empty: it has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)
    except OSError:
        return {}


def stat_of(pid):
    """What /proc/PID/stat has behind the name: state, parent and so on; empty: it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()
    except OSError:
        return []


def state_of(pid):
    return (stat_of(pid) or [None])[0]


def descendants(pid):
    """All processes below pid, nearest first."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := stat_of(entry)):
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        below = parents.get(todo.pop(0), [])
        found += below
        todo += below
    return found


def ranks_among(pids):
    """pid of each worker among these processes, by rank; not of its child, which it has while MPI starts."""
    found = {pid: environment_of(pid).get(b"OMPI_COMM_WORLD_RANK") for pid in pids if name_of(pid) == "baton-worker"}
    return {int(rank): pid for pid, rank in found.items() if rank and (fields := stat_of(pid)) and int(fields[1]) not in found}


def wait_nothing_left(folders, pids, seconds=GONE_S, log=str):
    """Until none of the folders is there, and none of the processes runs."""
    end = time.monotonic() + seconds
    while left := [f for f in folders if os.path.exists(f)] + [p for p in pids if state_of(p) not in (None, "Z")]:
        assert time.monotonic() < end, f"left after {seconds} s: {left}\n{log()}"
        time.sleep(0.05)


def scratch(pids):
    """The private folders that baton-launch gave these processes; they must go with the cell."""
    found = set()
    for pid in pids:
        env = environment_of(pid)
        for name in (b"OMPI_MCA_orte_tmpdir_base", b"OMPI_MCA_btl_vader_backing_directory"):
            if name in env:
                found.add(env[name].decode())
    return found
