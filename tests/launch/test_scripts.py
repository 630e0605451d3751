"""The scripts for Slurm, with scontrol, squeue and baton that write down what they were called with: test_scripts.py SOURCE_DIR"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

SOURCE = sys.argv[1]
STUBS = {
    "scontrol": "echo 'NodeName=n1 Arch=x86_64 NodeAddr=10.0.0.5 NodeHostName=n1 '",
    "squeue": 'cat "$BATON_DIR/jobs"',
    # Lives until somebody writes how it ends.
    "baton": '''
echo "$* secret=$BATON_SECRET$(cat "$BATON_SECRET_FILE" 2>/dev/null)" >>"$BATON_DIR/calls.$SLURM_JOB_ID"
[ "$1" = coordinator ] || exit "${BATON_CODE:-0}"
trap 'exit 0' USR1
echo "control 10.0.0.5:$SLURM_JOB_ID" >&3
until rm "$BATON_DIR/die.$SLURM_JOB_ID" 2>/dev/null; do [ ! -e "$BATON_DIR/end.$SLURM_JOB_ID" ] || exit 0; sleep 0.02; done
exit 1''',
}


class Job:
    all = []

    def __init__(self, folder, script, number, *args, more=None):
        self.folder, self.number = folder, number
        env = {**os.environ, "PATH": f"{folder}/stubs:{os.environ['PATH']}", "BATON_DIR": folder, "SLURM_JOB_ID": str(number),
               "SLURMD_NODENAME": "n1", "BATON_REQUEUE": "0"}
        for name in ("BATON_BIN", "BATON_SECRET", "BATON_SECRET_FILE", "BATON_CELL", "BATON_CONTROL", "BATON_COORDINATOR"):
            env.pop(name, None)
        env.update(more or {})
        self.process = subprocess.Popen(["bash", os.path.join(SOURCE, "launch/slurm", script), *args], env=env, stderr=subprocess.PIPE, text=True,
                                        start_new_session=True)
        Job.all.append(self)

    def calls(self, n):
        """The first n times that the script has called baton."""
        end = time.monotonic() + 60
        while len(text := read(f"{self.folder}/calls.{self.number}").splitlines()) < n:
            assert time.monotonic() < end, f"job {self.number} calls: {text}"
            time.sleep(0.02)
        return text

    def result(self):
        err = self.process.communicate(timeout=60)[1]
        return self.process.returncode, err


def read(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def write(path, text):
    with open(path, "w") as f:
        f.write(text)


def wait_for(path, text):
    end = time.monotonic() + 60
    while read(path) != text:
        assert time.monotonic() < end, f"{path} has {read(path)!r}, not {text!r}"
        time.sleep(0.02)


def cell_s_place_depends_on_whole_words_alone(folder):
    write(f"{folder}/baton.secret", "from-the-file\n")
    known = "--coordinator 10.0.0.9:7"
    cases = [
        ([], "--control 10.0.0.5:0", ""),
        (["--coordinator-timeout-s", "60"], "--control 10.0.0.5:0", ""),
        (["--control", "10.0.0.6:1"], "", ""),
        (["--cell", "b"], known, "from-the-file"),
        (["--cell=b", "--coordinator-timeout-s", "30"], known, "from-the-file"),
        (["--coordinator-timeout-s=30", "--cell", "b"], known, "from-the-file"),
        (["--cell", "b", "--coordinator=10.0.0.8:5"], "", ""),    # and no address is waited for
        (["--coordinator", "10.0.0.8:5", "--cell", "b"], "", ""),
    ]
    for i, (args, where, secret) in enumerate(cases):
        write(f"{folder}/baton.address", "10.0.0.9:7\n" if where == known else "")
        job = Job(folder, "baton-cell.sbatch", i, *args)
        assert job.result() == (0, ""), job.result()
        want = " ".join(["run --slurm --on-death restart", *filter(None, [where]), *args, f"secret={secret}"])
        assert job.calls(1) == [want], f"{args}: {job.calls(1)}, not {want}"
    write(f"{folder}/baton.address", "10.0.0.9:7\n")
    for more, where in (({"BATON_CELL": "b"}, f" {known}"), ({"BATON_CELL": "b", "BATON_COORDINATOR": "10.0.0.8:5"}, ""),
                        ({"BATON_CONTROL": "10.0.0.6:1"}, "")):
        i += 1
        job = Job(folder, "baton-cell.sbatch", i, more=more)
        assert job.result() == (0, ""), job.result()
        assert job.calls(1)[0].startswith(f"run --slurm --on-death restart{where} secret="), f"{more}: {job.calls(1)}"


def folder_belongs_to_one_coordinator(folder):
    files = {name: f"{folder}/baton.{name}" for name in ("address", "secret", "job")}
    write(f"{folder}/jobs", "7\n71\n")
    first = Job(folder, "baton-coordinator.sbatch", 7, "--model", "m")
    wait_for(files["address"], "10.0.0.5:7\n")
    secret = read(files["secret"]).strip()
    assert len(secret) >= 16 and os.stat(files["secret"]).st_mode & 0o77 == 0
    code, err = Job(folder, "baton-coordinator.sbatch", 8, "--model", "m").result()
    assert code == 1 and f"{folder} is in use by job 7" in err, (code, err)
    os.remove(files["secret"])    # what is started again does without
    os.remove(files["address"])
    write(f"{folder}/die.7", "")
    wait_for(files["address"], "10.0.0.5:7\n")
    assert [re.sub(" secret=.*", "", call) for call in first.calls(2)] == [
        "coordinator --on-death restart --announce-fd 3 --control 10.0.0.5:0 --model m",
        "coordinator --on-death restart --announce-fd 3 --model m --control 10.0.0.5:7"], first.calls(2)
    assert all(call.endswith(f"secret={secret}") for call in first.calls(2)), first.calls(2)
    # A job that has ended without a word leaves the folder to the next one, and takes nothing from it.
    write(f"{folder}/jobs", "71\n8\n")
    second = Job(folder, "baton-coordinator.sbatch", 8, "--model", "m")
    wait_for(files["address"], "10.0.0.5:8\n")
    write(f"{folder}/end.7", "")
    assert first.result()[0] == 0
    assert read(files["job"]) == "8\n" and all(map(read, files.values())), os.listdir(folder)
    write(f"{folder}/end.8", "")
    assert second.result()[0] == 0
    assert not any(map(read, files.values())), os.listdir(folder)


def exit_code_is_baton_s_however_late_it_is_asked(folder):
    write(f"{folder}/late", 'kill() { sleep 0.5; builtin kill "$@"; }')  # baton has ended before the script looks
    late = {"BASH_ENV": f"{folder}/late"}
    for code in (0, 64, 3):
        got = Job(folder, "baton-cell.sbatch", 40 + code, more={**late, "BATON_CODE": str(code)}).result()
        assert got[0] == code and "unbound" not in got[1], got
    write(f"{folder}/jobs", "30\n")
    front = Job(folder, "baton-coordinator.sbatch", 30, more=late)
    wait_for(f"{folder}/baton.address", "10.0.0.5:30\n")
    front.process.send_signal(signal.SIGUSR1)
    got = front.result()
    assert got[0] == 0, got


def main():
    for case in (cell_s_place_depends_on_whole_words_alone, folder_belongs_to_one_coordinator,
                 exit_code_is_baton_s_however_late_it_is_asked):
        with tempfile.TemporaryDirectory(prefix="bt") as folder:
            os.mkdir(f"{folder}/stubs")
            for name, text in STUBS.items():
                write(f"{folder}/stubs/{name}", f"#!/bin/bash\n{text}\n")
                os.chmod(f"{folder}/stubs/{name}", 0o755)
            try:
                case(folder)
            finally:
                for job in Job.all:
                    if job.process.poll() is None:
                        os.killpg(job.process.pid, signal.SIGKILL)
        print(f"ok {case.__name__}", flush=True)


main()
