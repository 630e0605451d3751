#!/usr/bin/env python3
"""Cells as Slurm jobs, on a real slurmctld and three slurmd of the test's own (one machine, loopback).

    slurm_jobs.py --bin DIR --source DIR [--only NAME]

one_cell: sbatch to first token; scancel leaves nothing; without the programs a job ends at once. node_killed: a node dies under load; the supervisor starts the cell again and
every stream goes on. node_replaced: with --on-death replace the job survives it too, and goes on without the node. several_cells: a coordinator job and two cell jobs; one is drained under load by scancel, and a new one takes over."""
import os
import re
import shutil
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
import hosts  # noqa: E402
import slurm  # noqa: E402

slurm.enter()

import cell as cells  # noqa: E402
import grpc  # noqa: E402
import load  # noqa: E402

START_S = 180
N_TOKENS = 100    # of a stream: another follows it at once


class Jobs:
    def __init__(self, a, cluster):
        self.a, self.cluster, self.logs = a, cluster, {}
        cluster.env.update(BATON_BIN=a.bin, BATON_DIR=cluster.folder, OMPI_MCA_btl="tcp,self", BATON_REQUEUE="0",
                           OMPI_MCA_orte_keep_fqdn_hostnames="1")

    def submit(self, script, *args, nodes=3):
        log = os.path.join(self.cluster.folder, f"job-{len(self.logs)}.log")
        out = self.cluster.run("sbatch", "-N", str(nodes), "-o", log, os.path.join(self.a.source, "launch/slurm", script), *args)
        job = int(out.split()[-1])
        self.logs[job] = log
        return job

    def log(self, job):
        try:
            with open(self.logs[job], errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    def wait_log(self, job, pattern, seconds=START_S):
        end = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.log(job))
            if found:
                return found
            assert time.monotonic() < end, f"job {job} does not say \"{pattern}\" ({self.cluster.job_state(job)}):\n{self.log(job)[-4000:]}"
            time.sleep(0.05)

    def gone(self, job, seconds=START_S):
        end = time.monotonic() + seconds
        while self.cluster.job_state(job) not in ("CANCELLED", "COMPLETED", "FAILED", "GONE") or self.cluster.processes():
            assert time.monotonic() < end, f"job {job} is {self.cluster.job_state(job)}, left: {self.cluster.processes()}\n{self.log(job)[-3000:]}"
            time.sleep(0.1)


class Streams(threading.Thread):
    """One request after another, each compared with the undisturbed stream."""

    def __init__(self, pb, stub, i, n, want):
        super().__init__(daemon=True)
        self.args, self.want, self.error, self.done, self.tokens = (pb, stub, i, n), want, None, 0, 0
        self.stopped = threading.Event()

    def run(self):
        try:
            while not self.stopped.is_set():
                pb, stub, i, n = self.args
                got = load.ask(pb, stub, i, n, lambda k: setattr(self, "tokens", self.tokens + 1))
                assert got == self.want, f"stream {i} differs from token {[x == y for x, y in zip(got, self.want)].index(False)} on"
                self.done += 1
        except (grpc.RpcError, AssertionError) as e:
            self.error = e


def start_load(pb, stub, n, n_tokens):
    want = load.ask_all(pb, stub, n, n_tokens)
    streams = [Streams(pb, stub, i, n_tokens, want[i]) for i in range(n)]
    for s in streams:
        s.start()
    end = time.monotonic() + START_S
    while any(s.tokens < 3 for s in streams):
        assert time.monotonic() < end and not any(s.error for s in streams), [s.error for s in streams]
        time.sleep(0.01)
    return streams


def end_load(streams, seconds=150):
    for s in streams:
        s.stopped.set()
    for s in streams:
        s.join(seconds)
        assert not s.is_alive() and s.error is None, s.error


def first_stub(jobs, rpc, job):
    address = jobs.wait_log(job, r"serving \S+ at (127\.0\.0\.1:\d+)").group(1)
    return rpc.VllmEngineStub(grpc.insecure_channel(address))


def without_programs(jobs):
    env = dict(jobs.cluster.env)
    jobs.cluster.env.update(BATON_BIN="/nonexistent", BATON_REQUEUE="3")
    for script in ("baton-cell.sbatch", "baton-coordinator.sbatch"):
        job = jobs.submit(script, "--model", "/models/demo", "--port", "0", nodes=1)
        jobs.wait_log(job, "set BATON_BIN")
        jobs.gone(job)
        assert "again" not in jobs.log(job) and jobs.cluster.job_state(job) == "FAILED", jobs.log(job)
    jobs.cluster.env.update(env)


def one_cell(a, pb, rpc, jobs):
    begin = time.monotonic()
    job = jobs.submit("baton-cell.sbatch", "--model", os.path.join(a.source, "models/demo"), "--prefill", "1", "--decode", "2", "--port", "0",
                      "--drain-s", "2")
    stub = first_stub(jobs, rpc, job)
    times = []
    load.ask(pb, stub, 0, 8, lambda k: times.append(time.monotonic() - begin))
    nodes = {node for node in slurm.Cluster.NODES if any(c == "baton-worker" for c in jobs.cluster.processes(node).values())}
    assert nodes == set(slurm.Cluster.NODES), f"ranks on {nodes}"
    jobs.cluster.run("scancel", str(job))
    jobs.gone(job)
    without_programs(jobs)
    print(f"sbatch to first token {times[0]:.1f} s on three nodes; scancel left nothing", flush=True)


def node_killed(a, pb, rpc, jobs):
    job = jobs.submit("baton-cell.sbatch", "--model", os.path.join(a.source, "models/demo"), "--prefill", "1", "--decode", "2", "--port", "0",
                      "--restarts", "20", "--drain-s", "2")
    stub = first_stub(jobs, rpc, job)
    streams = start_load(pb, stub, 3, N_TOKENS)
    begin = time.monotonic()
    jobs.cluster.kill_node("node3")
    jobs.wait_log(job, "starting again")
    jobs.cluster.start_node("node3")
    jobs.wait_log(job, "serving again")
    back = time.monotonic() - begin
    end_load(streams)
    jobs.cluster.run("scancel", str(job))
    jobs.gone(job)
    print(f"node3 killed under load: serving again after {back:.1f} s, every stream exact", flush=True)


def node_replaced(a, pb, rpc, jobs):
    hosts.need_survival_of_hosts()
    job = jobs.submit("baton-cell.sbatch", "--model", os.path.join(a.source, "models/demo"), "--prefill", "1", "--decode", "2", "--spares", "1", "--port", "0",
                      "--on-death", "replace", "--restarts", "20", "--drain-s", "2")
    stub = first_stub(jobs, rpc, job)
    streams = start_load(pb, stub, 3, N_TOKENS)
    jobs.cluster.kill_node("node2")    # of four ranks on three nodes the first has two, the last the spare
    jobs.wait_log(job, "has taken seat")
    jobs.cluster.wait(lambda: "down" in " ".join(jobs.cluster.states()), "a node that is down")
    time.sleep(3)    # and what Slurm does to the job's steps then
    n = [s.done for s in streams]
    end = time.monotonic() + START_S
    while not all(s.done > k for s, k in zip(streams, n)):
        assert time.monotonic() < end and not any(s.error for s in streams), [s.error for s in streams]
        time.sleep(0.05)
    end_load(streams)
    assert jobs.cluster.job_state(job) == "RUNNING" and "starting again" not in jobs.log(job), f"{jobs.cluster.job_state(job)}\n{jobs.log(job)[-3000:]}"
    jobs.cluster.run("scancel", str(job))
    jobs.gone(job)
    jobs.cluster.start_node("node2")
    print("node2 killed under load: a spare has joined, the job and every stream went on after Slurm had given the node up", flush=True)


def several_cells(a, pb, rpc, jobs):
    front = jobs.submit("baton-coordinator.sbatch", "--model", os.path.join(a.source, "models/demo"), "--port", "0", nodes=1)
    model = ("--model", os.path.join(a.source, "models/demo"), "--both", "1")
    one = jobs.submit("baton-cell.sbatch", *model, "--cell", "one", nodes=1)
    address = jobs.wait_log(front, r"ready: \S+ serves \S+ on (127\.0\.0\.1:\d+)").group(1)
    stub = rpc.VllmEngineStub(grpc.insecure_channel(address))
    streams = start_load(pb, stub, 3, N_TOKENS)
    two = jobs.submit("baton-cell.sbatch", *model, "--cell", "two", nodes=1)
    jobs.wait_log(front, 'cell "two" serves')
    jobs.cluster.run("scancel", "--signal=USR1", "--batch", str(one))
    jobs.wait_log(front, 'cell "one" has drained')
    end = time.monotonic() + START_S
    while jobs.cluster.job_state(one) != "COMPLETED":
        assert time.monotonic() < end, f"{jobs.cluster.job_state(one)}\n{jobs.log(one)[-2000:]}"
        time.sleep(0.1)
    n = [s.done for s in streams]
    while not all(s.done > k for s, k in zip(streams, n)):
        assert time.monotonic() < end + START_S and not any(s.error for s in streams), [s.error for s in streams]
        time.sleep(0.05)
    end_load(streams)
    jobs.cluster.run("scancel", "--signal=USR1", "--batch", str(front))
    jobs.gone(front)
    jobs.gone(two)
    print("two cells behind one coordinator: one drained under load, the other went on", flush=True)


CASES = [one_cell, node_killed, node_replaced, several_cells]


def main():
    a = cells.case_arguments(__doc__, CASES).parse_args()
    a.bin, a.source = os.path.abspath(a.bin), os.path.abspath(a.source)
    folder = tempfile.mkdtemp(prefix="bs")
    pb, rpc = cells.stubs(a.source)
    try:
        cluster = slurm.Cluster(folder)
        for case in cells.chosen(a, CASES):
            case(a, pb, rpc, Jobs(a, cluster))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


sys.exit(main())
