#!/usr/bin/env python3
"""Fails when a kernel of the reports spills registers, keeps a stack, or is missing for an architecture, and at a warning.

    check_ptxas.py ARCH,ARCH,.. REPORT...      reports: what nvcc, with ptxas -v, said of one file each

Attention and matrix products may not spill: a spill there means that a tile does not fit."""
import os
import re
import sys

STRICT = ("gemm_kernel", "decode_kernel", "prefill_kernel", "score_kernel", "pick_kernel")
ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
USE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


def main():
    archs, seen, bad, strict = set(sys.argv[1].split(",")), {}, [], 0
    for path in sys.argv[2:]:
        text = open(path, encoding="utf-8").read()
        bad += [f"{path}: {line}" for line in text.splitlines() if re.search(r"\bwarning\b.*:", line)]
        for (name, arch), use in zip(ENTRY.findall(text), USE.findall(text)):
            seen.setdefault((os.path.basename(path), name), set()).add(arch)
            if any(word in name for word in STRICT):
                strict += 1
                if any(int(n) for n in use):
                    bad.append(f"{path}: {name} for {arch}: {use[0]} bytes of stack, spills of {use[1]} and {use[2]}")
        if len(ENTRY.findall(text)) != len(USE.findall(text)) or not ENTRY.search(text):
            bad.append(f"{path}: {len(ENTRY.findall(text))} kernels, {len(USE.findall(text))} accounts of them")
    bad += [f"{file}: {name} is for {sorted(has)} only" for (file, name), has in seen.items() if has != archs]
    bad += [f"no kernel called {word}" for word in STRICT if not any(word in name for _, name in seen)]
    print("\n".join(bad) if bad else f"{len(seen)} kernels for {len(archs)} architectures; {strict} of them held to no spill")
    return 1 if bad else 0


sys.exit(main())
