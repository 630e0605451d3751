"""scripts/gpu-check on a machine that only seems to have a GPU: cells that run at once share its memory, and NCCL costs the others nothing; a kernel
test's line begins with the first reason of the first test that failed."""
import os
import subprocess
import sys
import tempfile

CHECK = os.path.abspath(os.path.join(sys.argv[1], "scripts", "gpu-check"))
PYTHON = """#!/bin/sh
[ "$1" != -c ] || exec "{python}" "$@"
echo "begin $$ ${{BATON_TRANSPORT:-mpi}} ${{BATON_KV_BYTES:-all}}" >>"{notes}"
sleep 0.3
echo "end $$" >>"{notes}"
[ "${{BATON_TRANSPORT:-mpi}}" = nccl ] || exit 0
echo "$NCCL_DEBUG: no way" >"${{NCCL_DEBUG_FILE%\\%p}}$$"
case $1 in *mtp*) echo "baton-run: first error of a rank: mtp" ;; esac
echo "a last word"
echo ">"
exit 3
"""
KERNEL = """#!/bin/sh
case $1 in
--list) printf 'one\\ntwo\\nthree\\n' ;;
one) echo "on NVIDIA H200"; echo "one ok" ;;
two) echo "tile.c:7 expected 1"; echo "tile.c:8 expected 2"; exit 1 ;;
*) echo "another reason"; exit 1 ;;
esac
"""


def expect_reason(folder):
    os.mkdir(os.path.join(folder, "tests"))
    write_program(os.path.join(folder, "tests", "gpu_test_some"), KERNEL)
    done = subprocess.run([CHECK, folder, "kernels", os.path.join(folder, "kernels"), "gpu_test"], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout.endswith("exit code 1: tile.c:7 expected 1; failed: two three\n"), done


def write_program(path, text):
    with open(path, "w") as f:
        f.write(text)
    os.chmod(path, 0o755)


def expect_shared(notes):
    """Of what began and ended: who was not alone had a bound, and NCCL came last."""
    under_way, at_once, transports = {}, 0, []
    for what, pid, *cell in notes:
        if what == "end":
            del under_way[pid]
            continue
        under_way[pid] = cell[1]
        transports.append(cell[0])
        at_once = max(at_once, len(under_way))
        assert len(under_way) == 1 or "all" not in under_way.values(), f"cells at once may take {[*under_way.values()]} of the GPU"
    assert at_once > 1 and transports == sorted(transports) and transports[-1] == "nccl", (at_once, transports)


def main():
    with tempfile.TemporaryDirectory() as folder:
        notes, out = os.path.join(folder, "notes"), os.path.join(folder, "out")
        write_program(os.path.join(folder, "nvidia-smi"), "#!/bin/sh\necho a GPU\n")
        write_program(os.path.join(folder, "python3"), PYTHON.format(python=sys.executable, notes=notes))
        os.environ["PATH"] = f"{folder}:{os.environ['PATH']}"
        expect_reason(folder)
        done = subprocess.run([CHECK, folder, "cells", out], capture_output=True, text=True, cwd=folder)
        with open(os.path.join(out, "cells.log")) as f:
            log = f.read()
        with open(notes) as f:
            expect_shared([line.split() for line in f])
        lines = [line for line in done.stdout.splitlines() if line.startswith(("ok ", "FAILED "))]
        assert done.returncode == 1 and sorted(os.listdir(out)) == ["cells.log", "cells.txt"], (done, os.listdir(out))
        for line in lines:
            reason = "baton-run: first error of a rank: mtp" if "drafts" in line else "a last word"
            assert line.startswith("FAILED") == ("NCCL" in line) == line.endswith(f"exit code 3: {reason}"), line
        assert log.count("INFO: no way") == sum("NCCL" in line for line in lines) > 0, log
    print(f"{len(lines)} checks of cells, as on a GPU")


main()
