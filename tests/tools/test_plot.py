#!/usr/bin/env python3
"""The files of a profile: plots that are images, JSON and CSV that agree.

    test_plot.py BATON_PROFILE SOURCE_ROOT"""
import csv
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile


def up_to(n_bytes):
    """Of a process before its program: no file may be longer, as on a disk that is nearly full."""
    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))
    return limit


def expect_no_part_of_what_does_not_fit(program, root, plots):
    """One sentence names the first file that cannot be written; what is there is whole."""
    for n_bytes, failed, kept in ((1000, "profile.json", set()), (60000, "bytes.png", {"profile.json", "bytes.svg"})):
        if failed == "bytes.png" and not plots:
            continue
        with tempfile.TemporaryDirectory() as out:
            run = subprocess.run([program, os.path.join(root, "models", "demo"), "--analysis", "--gpu", "H100", "--out", out], capture_output=True,
                                 text=True, timeout=600, preexec_fn=up_to(n_bytes))
            assert run.returncode == 1, run.stderr
            assert run.stderr == f"baton profile: {out}/{failed}: File too large\n", run.stderr
            assert set(os.listdir(out)) == kept, os.listdir(out)


def main():
    program, root = sys.argv[1:]
    with tempfile.TemporaryDirectory() as out:
        run = subprocess.run([program, os.path.join(root, "models", "demo"), "--batch", "1,2", "--context", "1,70",
                              "--seconds", "0.5", "--threads", "2", "--out", out], capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        profile = json.load(open(os.path.join(out, "profile.json"), encoding="utf-8"))
        points = profile["measurement"]["points"]
        rows = list(csv.DictReader(open(os.path.join(out, "profile.csv"), encoding="utf-8")))
        assert len(points) == len(rows) == 2 * 2 * 6, (len(points), len(rows))
        for point, row in zip(points, rows):
            assert (point["variant"], point["batch"], point["context"]) == (row["variant"], int(row["batch"]), int(row["context"]))
            assert point["state"] == row["state"] == "measured", point
            assert 0 < point["fastest_s"] <= point["step_s"] and point["cpu_s"] > 0 and point["roof_s"] > 0, point
            assert abs(point["step_s"] * 1e6 - float(row["step_us"])) < 0.06, (point, row)
            assert point["distance_from_fused"] < 0.02, point
            assert (point["over_fused"] == 1 and point["cpu_over_fused"] == 1) if point["variant"] == "fused" else \
                point["over_fused"] > 0, point
            assert point["over_fused_low"] <= point["over_fused"] <= point["over_fused_high"], point
            for name in ("over_fused", "over_fused_low", "over_fused_high", "cpu_over_fused_high"):
                assert abs(point[name] - float(row[name])) < 0.0006, (point, row)
        expect_no_part_of_what_does_not_fit(program, root, "no plots" not in run.stderr)
        if "no plots" in run.stderr:
            assert "python3-matplotlib" in run.stderr, run.stderr
            print("skipped: no matplotlib here; the tool says so and goes on")
            return 77
        for name in ("time", "bytes", "crossover", "roofline"):
            png = open(os.path.join(out, f"{name}.png"), "rb").read()
            svg = open(os.path.join(out, f"{name}.svg"), encoding="utf-8").read()
            assert png.startswith(b"\x89PNG") and len(png) > 10000, name
            assert "<svg" in svg and svg.rstrip().endswith("</svg>"), name
    print("files agree, plots are there")
    return 0


sys.exit(main())
