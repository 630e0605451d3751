#!/usr/bin/env python3
"""The files of a profile: plots that are images, JSON and CSV that agree.

    test_plot.py BATON_PROFILE SOURCE_ROOT"""
import csv
import json
import os
import subprocess
import sys
import tempfile


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
