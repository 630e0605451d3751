"""Baton as its clients see it: one prefill and one decode rank, driven by `baton bench` over the public protocol."""
import os
import shutil
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

    def prefill(self, ids):
        """Another prompt of the same length: the load generator draws its own."""
        return next(bench_engine.prefill_samples(self.cell, self.folder, len(ids), 1, int(ids[0]) + 1))[0]

    def decode(self, rng, batch, context, steps):
        """The prompts differ.  They are computed first, so that when they come again, from the caches of both ranks, all requests decode
        at once."""
        seed = int(rng.integers(1, 1 << 30))
        bench_engine.compute_prompts(self.cell, self.folder, batch, context, seed)
        return [next(bench_engine.decode_samples(self.cell, self.folder, batch, context, steps + 8, seed))[0]]

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
