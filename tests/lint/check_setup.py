"""scripts/setup, on systems where nothing is missing: content with what is new enough, and naming all that is too old."""
import os
import subprocess
import sys
import tempfile

SETUP = os.path.join(sys.argv[1], "scripts", "setup")
SYSTEMS = (    # CMake, compiler, core of gRPC; what is said of it
    (("3.25.1", "12", "29.0.0"), ()),
    (("4.2.3", "15", "101.0.0"), ()),
    (("3.22.1", "11", "10.0.0"), ("setup: CMake is 3.22.1, expected 3.25 or newer;", "the C compiler is 11, expected 12 or newer;",
                                  "the core of gRPC is 10.0.0, expected 29 or newer;", "Ubuntu 24.04")),
    (("3.25.1", "12", "10.0.0"), ("setup: the core of gRPC is 10.0.0",)),
)


def main():
    with tempfile.TemporaryDirectory() as folder:
        for (cmake, compiler, grpc), words in SYSTEMS:
            for name, says in (("dpkg-query", "installed"), ("cmake", f"cmake version {cmake}"), ("cc", compiler), ("pkg-config", grpc)):
                with open(os.path.join(folder, name), "w") as f:
                    f.write(f"#!/bin/sh\necho '{says}'\n")
                os.chmod(os.path.join(folder, name), 0o755)
            environment = {name: value for name, value in os.environ.items() if name != "CC"}
            done = subprocess.run([SETUP], capture_output=True, text=True, env={**environment, "PATH": f"{folder}:{os.environ['PATH']}"})
            assert done.returncode == (1 if words else 0), f"{cmake} {compiler} {grpc}: exit code {done.returncode}: {done.stderr}"
            for word in words:
                assert word in done.stderr, f'"{word}" is not in: {done.stderr}'
            assert words or not done.stderr, done.stderr
    print(f"{len(SYSTEMS)} systems are told from each other")


main()
