"""Installs and starts the SMG gateway for gateway.py, and knows what the engine behind it says without one."""
import http.client
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

import load

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from ports import free_port  # noqa: E402

SKIP = 77
INSTALL_S, START_S, REPLY_S = 150, 120, 300


# ---- installing

def installed(folder):
    """(program, version) or None."""
    python = os.path.join(folder, "bin", "python3")
    if not os.path.exists(os.path.join(folder, "bin", "smg")):
        return None
    say = "import importlib.metadata as m; print(m.version('smg'))"
    got = subprocess.run([python, "-c", say], capture_output=True, text=True, timeout=30)
    return (os.path.join(folder, "bin", "smg"), got.stdout.strip()) if got.returncode == 0 else None


def skip(why):
    print(f"skipped: {why}")
    sys.exit(SKIP)


def install(cache, version):
    """(program, version): into a virtual environment of its own, unless that is there from an earlier run and still right."""
    folder = os.path.join(os.path.abspath(cache), "smg-" + version)
    have = installed(folder)
    if have and have[1] == version:
        return have
    command = [os.path.join(folder, "bin", "pip"), "install", "--quiet", "--disable-pip-version-check", "--upgrade",
               "smg" if version == "newest" else f"smg=={version}"]
    try:
        if not have:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True, text=True, timeout=INSTALL_S)
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.CalledProcessError as e:
        if have:
            print(f"pip cannot look for a newer one than {have[1]}", flush=True)
            return have
        skip(f"smg {version} cannot be installed: {(e.stderr or e.stdout).strip()[-500:]}")
    except subprocess.TimeoutExpired:
        skip(f"smg {version} was not installed within {INSTALL_S} s")
    return installed(folder) or skip(f"smg {version} was installed, but there is no program")


# ---- the gateway

class Stream:
    """A streamed answer: iterate over its events; close() leaves in the middle."""

    def __init__(self, connection):
        self.connection, self.reply, self.status, self.done = connection, None, None, False

    def wait(self):
        self.reply = self.connection.getresponse()
        self.status = self.reply.status
        return self

    def rest(self):
        return self.reply.read().decode(errors="replace")

    def __iter__(self):
        return self

    def __next__(self):
        for line in self.reply:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                self.done = True
                break
            return json.loads(line[6:])
        raise StopIteration

    def close(self):
        self.connection.close()
        if self.reply is not None:
            self.reply.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def manual_command(port, worker):
    """What docs/operating.md tells to type, with the ports of this test."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/operating.md"), encoding="utf-8") as f:
        words = next(shlex.split(line) for line in f if line.startswith("smg launch "))
    for flag, value in (("--port", str(port)), ("--worker-urls", f"grpc://{worker}")):
        words[words.index(flag) + 1] = value
    return words[1:]


class Gateway:
    """One smg with its default flags but for ports, and for how soon it looks for its worker and ends."""

    def __init__(self, program, worker):
        self.port, self.log = free_port(), tempfile.TemporaryFile()
        command = [program, *manual_command(self.port, worker), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port()),
                   "--shutdown-grace-period-secs", "1", "--log-level", "warn"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)

    def connection(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=REPLY_S)

    def request(self, path, body):
        c = self.connection()
        c.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"Content-Type": "application/json"})
        return c

    def post(self, path, body):
        """(status, reply)"""
        return self.reply_to(self.request(path, body))

    def get(self, path):
        c = self.connection()
        c.request("GET", path)
        return self.reply_to(c)

    def delete(self, path):
        c = self.connection()
        c.request("DELETE", path)
        return self.reply_to(c)

    def reply_to(self, c):
        try:
            reply = c.getresponse()
            text = reply.read().decode(errors="replace")
        finally:
            c.close()
        try:
            return reply.status, json.loads(text)
        except ValueError:
            return reply.status, text

    def stream(self, path, body, wait=True):
        s = Stream(self.request(path, body))
        return s.wait() if wait else s

    def wait_served(self, body):
        """Until the gateway has found the worker and its tokenizer: only a request tells."""
        end, last = time.monotonic() + START_S, "no connection"
        while time.monotonic() < end:
            assert self.process.poll() is None, f"smg ended with {self.process.returncode}:\n{self.text()}"
            try:
                time.sleep(0.1)
                last = self.post("/v1/chat/completions", body)
                if last[0] == 200:
                    return
            except OSError as e:
                last = repr(e)
        raise AssertionError(f"smg does not serve after {START_S} s: {last}\n{self.text()}")

    def text(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")[-4000:]

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.text(), file=sys.stderr)
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


# ---- the engine behind it

class Engine:
    """The same cell without a gateway: its own protocol, Baton's tokenizer, its metrics."""

    def __init__(self, bin_dir, model, pb, rpc, cell):
        self.program, self.model = os.path.join(bin_dir, "baton-tokenize"), model
        self.client = load.Client(pb, rpc, cell.channel())
        self.cell = cell
        self.logprobs = []

    def tokenize(self, line, *flags):
        out = subprocess.run([self.program, "--model", self.model, *flags], input=json.dumps(line) + "\n", capture_output=True, text=True,
                             check=True, timeout=30)
        return json.loads(out.stdout)

    def encode(self, text):
        return self.tokenize(text)

    def chat_prompt(self, content):
        return f"<｜begin▁of▁sentence｜><｜User｜>{content}<｜Assistant｜>"

    def text(self, prompt, max_tokens):
        """The greedy answer: (text without special tokens, all ids)."""
        [(ids, self.logprobs, _, _)], _, _ = self.client.run("engine", self.encode(prompt), max_tokens, dict(temperature=0.0, logprobs=1))
        return re.sub("<｜[^｜]*｜>", "", self.tokenize(ids, "--decode")), ids
