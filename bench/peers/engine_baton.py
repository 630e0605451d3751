"""Baton as its clients see it: one prefill and one decode rank, driven by `baton bench` over the public protocol."""
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import bench_engine  # noqa: E402


class Engine:
    name = "baton"

    def __init__(self, model, threads):
        self.build, self.model, self.folder = model["build"], model["folder"], tempfile.mkdtemp()
        self.version = "commit " + bench_engine.commit()
        self.cell = bench_engine.Cell(os.path.join(self.build, "bin"), self.model, threads)

    def _bench(self, rng_seed, requests, prompt, output):
        return self.cell.bench(self.folder, "-c", requests, "-n", requests, "--prompt-tokens", prompt, "--output-tokens", output, "--seed", rng_seed)

    def prefill(self, ids):
        """Another prompt of the same length: the load generator draws its own."""
        request = self._bench(int(ids[0]) + 1, 1, len(ids), 1)["requests"][0]
        return (request["first_ms"] - request["sent_ms"]) / 1e3

    def decode(self, rng, batch, context, steps):
        """The prompts differ.  They are computed first, so that when they come again, from the caches of both ranks, all requests decode
        at once."""
        seed = int(rng.integers(1, 1 << 30))
        self._bench(seed, batch, context, 1)
        while True:
            got = self._bench(seed, batch, context, steps + 8)
            a, b = max(r["first_ms"] for r in got["requests"]), min(r["last_ms"] for r in got["requests"])
            lists = [[t for t, _ in r["messages"] if a <= t <= b] for r in got["requests"]]
            pauses = [(y - x) / 1e3 for t in lists for x, y in zip(t, t[1:])]
            if len(pauses) >= min(steps, 16) * batch:
                return [statistics.median(pauses)]
            steps *= 2  # the first ones ended before the last one had begun

    def close(self):
        self.cell.stop()
        shutil.rmtree(self.folder)


def logits(model, ids):
    """The last quarter of the tokens goes through the decode rank."""
    from safetensors.numpy import load_file, save_file
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = os.path.join(folder, "ids.safetensors"), os.path.join(folder, "logits.safetensors")
        save_file({"x.ids": np.array(ids, np.int32), "x.prompt": np.array([3 * len(ids) // 4], np.int32)}, asked)
        command = [os.path.join(model["build"], "bin", "baton-logits"), "--model", model["folder"], "--ids", asked, "--out", answer, "--kv-bytes", "64M"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}:\n{done.stdout}")
        return load_file(answer)["x.logits"]
