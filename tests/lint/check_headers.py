#!/usr/bin/env python3
"""Fails when a header does not compile alone, as C11 or as C++ (a .cu file includes it as C++).

    check_headers.py COMPILER "INCLUDE_DIR;..." HEADER..."""
import subprocess
import sys

WARN = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-D_GNU_SOURCE", "-DOMPI_SKIP_MPICXX"]


def main():
    compiler, headers = sys.argv[1], sys.argv[3:]
    includes = [flag for folder in sys.argv[2].split(";") for flag in ("-I", folder)]
    bad = 0
    for header in headers:
        for language in (["-x", "c", "-std=c11"], ["-x", "c++", "-std=c++17"]):
            command = [compiler, *WARN, *language, *includes, "-include", header, "/dev/null"]
            run = subprocess.run(command, capture_output=True, text=True)
            if run.returncode != 0:
                bad += 1
                print(f"{header} as {language[1]}:\n{run.stderr}")
    print(f"{len(headers)} headers, {bad} faults")
    return 1 if bad or not headers else 0


sys.exit(main())
