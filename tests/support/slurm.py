"""A Slurm cluster of three nodes on this machine: munge, slurmctld and three slurmd on loopback, all in a folder of the test's."""
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo", "squeue")
READY_S = 120


def enter():
    """In a network and process namespace of our own where that is allowed: no port can be taken, and nothing stays behind."""
    missing = [p for p in PROGRAMS if shutil.which(p, path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None]
    if missing:
        print(f"skipped: Slurm is not installed ({', '.join(missing)} missing)")
        sys.exit(77)
    if os.geteuid() != 0:
        print("skipped: slurmd and slurmctld of a test run as root")
        sys.exit(77)
    if os.environ.get("BT_TEST_IN_NAMESPACE"):
        # Slurm asks for addresses of families that some interface beside loopback has.
        for command in ("link set lo up", "link add name b0 type bridge", "addr add 10.77.1.1/24 dev b0", "link set b0 up"):
            subprocess.run(["ip", *command.split()], check=True)
        hosts.own_tmpdir()
        return
    probe = subprocess.run(["unshare", "--net", "--pid", "--fork", "--mount-proc", "ip", "link", "add", "name", "b0", "type", "bridge"], capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"skipped: namespaces are refused here: {probe.stderr.strip()}")
        sys.exit(77)
    os.environ["BT_TEST_IN_NAMESPACE"] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv])


class Cluster:
    NODES = ("node1", "node2", "node3")

    def __init__(self, folder):
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": f"{folder}/slurm.conf", "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin"}
        for d in ("state", "log", *(f"spool/{n}" for n in self.NODES), *(f"tmp/{n}" for n in self.NODES)):
            os.makedirs(f"{folder}/{d}")
        self._write_conf()
        self._munge()
        self.run("slurmctld", "-c")
        for n in self.NODES:
            self.start_node(n)
        self.wait(lambda: self.states() == {"idle"}, "three idle nodes")

    def _write_conf(self):
        d, host = self.folder, socket.gethostname()
        nodes = "\n".join(f"NodeName={n} NodeAddr=127.0.0.1 NodeHostname={host} Port={17001 + i} CPUs=8 RealMemory=4000"
                          for i, n in enumerate(self.NODES))
        with open(f"{d}/slurm.conf", "w") as f:
            f.write(f"""ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={d}/munge.socket
CredType=cred/munge
StateSaveLocation={d}/state
SlurmdSpoolDir={d}/spool/%n
SlurmctldPidFile={d}/slurmctld.pid
SlurmdPidFile={d}/slurmd-%n.pid
SlurmctldLogFile={d}/log/slurmctld.log
SlurmdLogFile={d}/log/slurmd-%n.log
SlurmctldPort=16817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=15
SlurmctldTimeout=30
InactiveLimit=0
KillWait=30
MinJobAge=60
Waittime=0
JobRequeue=1
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
SlurmdParameters=config_overrides
TmpFS={d}/tmp/%n
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:4
""")

    def _munge(self):
        d = self.folder
        with open(f"{d}/munge.key", "wb") as f:
            f.write(os.urandom(128))
        os.chmod(f"{d}/munge.key", 0o400)
        self.run("munged", "--force", "-S", f"{d}/munge.socket", f"--key-file={d}/munge.key", f"--pid-file={d}/munged.pid",
                 f"--log-file={d}/log/munged.log", f"--seed-file={d}/munge.seed")

    def run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, env=self.env)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def wait(self, condition, what, seconds=READY_S):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, f"waited {seconds} s for {what}; {self.text('slurmctld.log')[-2000:]}"
            time.sleep(0.05)

    def states(self):
        """Empty as long as slurmctld does not answer."""
        return set(subprocess.run(["sinfo", "-h", "-o", "%T"], capture_output=True, text=True, env=self.env).stdout.split())

    def start_node(self, name):
        self.run("slurmd", "-N", name)

    def text(self, log):
        with open(f"{self.folder}/log/{log}", errors="replace") as f:
            return f.read()

    def job_state(self, job):
        done = subprocess.run(["scontrol", "show", "job", "-o", str(job)], capture_output=True, text=True, env=self.env)
        return done.stdout.split("JobState=")[1].split()[0] if "JobState=" in done.stdout else "GONE"

    def processes(self, node=None):
        """pid -> command of what jobs have started, on one node or all."""
        found = {}
        for entry in os.listdir("/proc"):
            try:
                with open(f"/proc/{entry}/environ", "rb") as f:
                    env = f.read().split(b"\0")
                with open(f"/proc/{entry}/comm") as f:
                    comm = f.read().strip()
            except OSError:
                continue
            if any(e.startswith(b"SLURM_JOB_ID=") for e in env) and (node is None or f"SLURMD_NODENAME={node}".encode() in env):
                found[int(entry)] = comm
        return found

    def kill_node(self, name):
        """slurmd and everything that jobs run there, at once."""
        with open(f"{self.folder}/slurmd-{name}.pid") as f:
            victims = [int(f.read()), *self.processes(name)]
        while victims:
            for pid in victims:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            victims = list(self.processes(name))    # what had just been started
