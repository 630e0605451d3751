#!/usr/bin/env python3
"""Runs every command of docs/cluster.md, in the page's order, in the setting that stands before it.

    manual.py --bin DIR --source DIR --setting local|hosts|slurm

A block is marked by a comment: run (it ends with 0), serve (it says that it serves, and is stopped at the end), drain and cancel (of what
was started before under that name), job (sbatch). A block without a mark must be no command."""
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "support")]
SETTING = sys.argv[sys.argv.index("--setting") + 1] if "--setting" in sys.argv else ""
if SETTING in ("hosts", "local"):
    import hosts as net
    net.enter()
elif SETTING == "slurm":
    import slurm
    slurm.enter()

import cell as cells  # noqa: E402

WAIT_S = 180
MARK = re.compile(r"(?:<!-- (\w+): (\S+)(?: (\S+))? -->\n)?```(\w*)\n(.*?)```", re.S)


def blocks(source):
    with open(os.path.join(source, "docs/cluster.md"), encoding="utf-8") as f:
        text = f.read()
    found = []
    for verb, setting, name, _, body in MARK.findall(text):
        command = re.search(r"^(baton|sbatch|scancel|kill|curl) ", body, re.M)
        assert bool(verb) == bool(command), f"a block without its mark, or a mark without its command:\n{body}"
        if verb:
            found.append((verb, setting, name, body.strip()))
        else:
            found.append(("file", "hosts", "ranks.map", body))
    assert len([b for b in found if b[0] != "file"]) >= 14, "the page has lost its commands"
    return found


class Serving:
    """A command that goes on until it is stopped."""

    def __init__(self, command, env, folder):
        self.lines = []
        self.process = subprocess.Popen(["sh", "-c", f"exec {command}"], env=env, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        threading.Thread(target=lambda: self.lines.extend(self.process.stdout), daemon=True).start()

    def wait_for(self, pattern):
        end = time.monotonic() + WAIT_S
        while not any(re.search(pattern, line) for line in list(self.lines)):
            assert self.process.poll() is None and time.monotonic() < end, f"no \"{pattern}\":\n{''.join(self.lines[-40:])}"
            time.sleep(0.05)

    def stop(self, number=signal.SIGINT):
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        assert code == 0, f"ended with {code}:\n{''.join(self.lines[-40:])}"


class Page:
    def __init__(self, a, env, folder):
        self.a, self.env, self.folder, self.serving, self.jobs = a, env, folder, {}, {}

    def run(self, name, body):
        for line in body.splitlines():
            done = subprocess.run(["sh", "-c", line], env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=WAIT_S)
            assert done.returncode == 0 and done.stdout, f"{line}: exit code {done.returncode}\n{done.stdout}{done.stderr}"

    def serve(self, name, body):
        name = name or (re.search(r"--cell (\S+)", body) or [None, body.split()[1] + body])[1]
        self.serving[name] = s = Serving(body, self.env, self.folder)
        s.wait_for("workers attach" if "baton coordinator" in body else r"(serving \S+ at|cell \S+ serves)")

    def drain(self, name, body):
        if name in self.serving:
            s = self.serving.pop(name)
            self.run(None, f"{body.replace('$RUN', str(s.process.pid))} && echo sent")
            assert s.process.wait(WAIT_S) == 0, "".join(s.lines[-40:])
        else:
            self.run(None, f"{body.replace('$JOB', str(self.jobs[name]))} && echo sent")
            self.ended(name, "COMPLETED")

    def cancel(self, name, body):
        self.run(None, f"{body.replace('$JOB', str(self.jobs[name]))} && echo sent")
        self.ended(name, "CANCELLED", "COMPLETED")

    def file(self, name, body):
        with open(os.path.join(self.folder, name), "w") as f:
            f.write(body)

    def job(self, name, body):
        scripts = os.path.join(self.a.source, "launch/slurm")
        out = self.cluster.run("sh", "-c", body.replace(" baton-", f" {scripts}/baton-").replace("sbatch ", f"sbatch -o {self.folder}/{name}.log ", 1))
        self.jobs[name] = int(out.split()[-1])
        pattern = {"front": "workers attach", "one": "cell one serves", "cell": "serving "}[name]
        end = time.monotonic() + WAIT_S
        while not os.path.exists(f"{self.folder}/{name}.log") or pattern not in open(f"{self.folder}/{name}.log", errors="replace").read():
            assert time.monotonic() < end, f"job {name} does not say \"{pattern}\" ({self.cluster.job_state(self.jobs[name])})"
            time.sleep(0.1)

    def ended(self, name, *states):
        end = time.monotonic() + WAIT_S
        while self.cluster.job_state(self.jobs[name]) not in states:
            assert time.monotonic() < end, f"job {name} is {self.cluster.job_state(self.jobs[name])}"
            time.sleep(0.1)

    def close(self):
        for name in reversed(list(self.serving)):
            self.serving[name].stop()


def main():
    ap = cells.arguments(__doc__)
    ap.add_argument("--setting", required=True, choices=["local", "hosts", "slurm"])
    a = ap.parse_args()
    a.bin, a.source = os.path.abspath(a.bin), os.path.abspath(a.source)
    folder, hosts = tempfile.mkdtemp(prefix="bm"), None
    env = {**os.environ, "MODEL": os.path.join(a.source, "models/demo"), "BATON_SECRET": "the manual's secret word".replace(" ", "-"),
           "PATH": f"{a.bin}:{os.environ['PATH']}:/usr/sbin:/sbin"}
    page = Page(a, env, folder)
    try:
        if a.setting != "slurm":
            hosts = net.Hosts(3 if a.setting == "hosts" else 0, folder)
        if a.setting == "hosts":
            env.update(hosts.environment(), PATH=env["PATH"])
        elif a.setting == "slurm":
            env.pop("BATON_SECRET")
            page.cluster = slurm.Cluster(folder)
            page.cluster.env.update(MODEL=env["MODEL"], PATH=env["PATH"], BATON_BIN=a.bin, BATON_DIR=folder, OMPI_MCA_btl="tcp,self",
                                    OMPI_MCA_orte_keep_fqdn_hostnames="1")
            env.update(page.cluster.env)
        else:
            page.serve("local", "baton run --model $MODEL --prefill 1 --decode 1 --port 8000 --http-port 9000")
        n = 0
        for verb, setting, name, body in blocks(a.source):
            if setting.split("-")[0] != a.setting:
                continue
            print(f"{verb}: {body}", flush=True)
            getattr(page, verb)(name, body)
            n += 1
        assert n > 0
        page.close()
        print(f"{n} blocks of the page work")
    finally:
        for s in page.serving.values():
            if s.process.poll() is None:
                s.process.kill()
        if hosts is not None:
            hosts.close()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


sys.exit(main())
