"""Three hosts on one machine: namespaces with a host name, a network, processes, /dev/shm and TMPDIR of their own, on one bridge.

Everything lies in a network namespace that the test makes for itself (enter() starts the test anew inside it), so that the machine's
own network is not touched and nothing is left behind, whatever happens.  Where namespaces are refused, enter() ends with 77 and the reason.
"""
import os
import re
import signal
import subprocess
import sys
import time

NET = "10.77.0"
INSIDE = "BT_TEST_IN_NAMESPACE"


def own_tmpdir():
    """Of the mount namespace: Open MPI's files of killed jobs go with it, whose pids come again in the next test."""
    run("mount", "-t", "tmpfs", "tmpfs", "/mnt")
    os.environ["TMPDIR"] = "/mnt"


def enter():
    """Continues in a network, mount and process namespace of our own; the caller's processes die with it."""
    if os.environ.get(INSIDE):
        own_tmpdir()
        return
    probe = subprocess.run(["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"skipped: namespaces are refused here: {probe.stderr.strip()}")
        sys.exit(77)
    probe = subprocess.run(["unshare", "--net", "sh", "-c", "ip link add name b0 type bridge && ip link add name v0 type veth peer name w0"],
                           capture_output=True, text=True)
    if probe.returncode != 0:
        print(f"skipped: no bridge or veth here: {probe.stderr.strip()}")
        sys.exit(77)
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", sys.executable, *sys.argv])


def need_survival_of_hosts():
    """For tests of cells that go on without a host: Open MPI 5 ends all ranks when it loses one."""
    said = subprocess.run([os.environ.get("BATON_MPIRUN", "mpirun"), "--version"], capture_output=True, text=True).stdout
    if "(Open MPI) 4." not in said:
        print(f"skipped: only Open MPI 4 survives the loss of a host, not {said.partition(chr(10))[0]}")
        sys.exit(77)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


class Host:
    def __init__(self, name, number, scratch):
        self.name, self.address, self.link = name, f"{NET}.{10 + number}", f"v{number}"
        ready = os.path.join(scratch, f"{name}.ready")
        script = (f"hostname {name}; mount -t tmpfs tmpfs /dev/shm; mount -t tmpfs tmpfs {scratch}/tmp; "
                  "until ip link show eth0 >/dev/null 2>&1; do sleep 0.01; done; "
                  f" ip link set lo up; ip addr add {self.address}/24 dev eth0; ip link set eth0 up; : >{ready}; "
                  "trap '' HUP; while :; do sleep 3600 & wait $!; done")
        self.holder = subprocess.Popen(["unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc",
                                        "sh", "-c", script], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.init = self._child()
        mac = f"02:00:0a:4d:00:{10 + number:02x}"    # the same after a power cut, as a real one's: the others remember it
        run("ip", "link", "add", "name", self.link, "type", "veth", "peer", "name", "eth0", "address", mac, "netns", str(self.init))
        run("ip", "link", "set", self.link, "master", "b0", "up")
        end = time.monotonic() + 60
        while not os.path.exists(ready):
            assert time.monotonic() < end, f"{name} does not come up"
            time.sleep(0.01)

    def _child(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with open(f"/proc/{self.holder.pid}/task/{self.holder.pid}/children") as f:
                children = f.read().split()
            if children:
                return int(children[0])
            time.sleep(0.01)
        raise AssertionError(f"{self.name} has no first process")

    def enter(self):
        return ["nsenter", "-t", str(self.init), "-n", "-u", "-m", "-i", "-p"]

    def shell(self, command):
        return subprocess.run([*self.enter(), "sh", "-c", command], capture_output=True, text=True).stdout

    def processes(self, *names):
        """pid -> name inside the host, of those whose name begins so."""
        found = {}
        for line in self.shell("ps -eo pid=,comm=").splitlines():
            pid, comm = line.split(None, 1)
            if comm.startswith(names):
                found[int(pid)] = comm
        return found

    def nothing_left(self, seconds):
        """Neither processes of a cell nor shared memory, at the latest then."""
        end = time.monotonic() + seconds
        while (left := self.processes("baton", "orted", "prted")) and time.monotonic() < end:
            time.sleep(0.1)
        assert not left, f"left on {self.name}: {left}"
        while self.shell("ls /dev/shm") and time.monotonic() < end:
            time.sleep(0.1)
        assert self.shell("ls /dev/shm") == "", f"left in {self.name}'s /dev/shm: {self.shell('ls /dev/shm')}"

    def cut(self):
        run("ip", "link", "set", self.link, "down")

    def mend(self):
        run("ip", "link", "set", self.link, "up")

    def lose_to(self, other):
        """What goes from here to that host goes to nobody; what comes from it comes."""
        run(*self.enter(), "ip", "neigh", "replace", other.address, "lladdr", "02:00:0a:4d:01:00", "dev", "eth0", "nud", "permanent")

    def slow(self, rate):
        """What comes to the host comes at so many bits a second."""
        run("tc", "qdisc", "replace", "dev", self.link, "root", "tbf", "rate", rate, "burst", "8kb", "latency", "1s")

    def n_waited(self):
        """How often something had to wait since slow()."""
        text = subprocess.run(["tc", "-s", "qdisc", "show", "dev", self.link], capture_output=True, text=True).stdout
        return int(re.search(r"overlimits (\d+)", text).group(1))

    def end_slow(self):
        run("tc", "qdisc", "del", "dev", self.link, "root")

    def power_off(self):
        """Every process of the host dies at once, and so does its link."""
        os.kill(self.init, signal.SIGKILL)
        self.holder.wait()


class Hosts:
    """n1, n2, ... on a bridge; ours is {NET}.1."""

    def __init__(self, n, scratch):
        self.scratch, self.list = scratch, []
        # Where each host has its own TMPDIR: a daemon of Open MPI 5 calls its folder there by its pid, which is the same on n1, n2 and n3.
        os.mkdir(os.path.join(scratch, "tmp"))
        run("ip", "link", "set", "lo", "up")
        # Its own address: else it has that of a host's link, which goes when the host loses power, and the others send to nobody.
        run("ip", "link", "add", "name", "b0", "address", "02:00:0a:4d:00:01", "type", "bridge")
        run("ip", "addr", "add", f"{NET}.1/24", "dev", "b0")
        run("ip", "link", "set", "b0", "up")
        for i in range(1, n + 1):
            self.list.append(Host(f"n{i}", i, scratch))
        self.agent = os.path.join(scratch, "agent")
        self._write_agent()

    def ranks(self, rank_map):
        """Options for a cell of these ranks, with a coordinator that the hosts reach."""
        path = os.path.join(self.scratch, "ranks.map")
        with open(path, "w") as f:
            f.write(rank_map)
        return ["--rank-map", path, "--control", f"{NET}.1:0"]

    def power_on(self, i):
        """After power_off(): the same name and address, nothing else of what it was."""
        old = self.list[i]
        os.remove(os.path.join(self.scratch, f"{old.name}.ready"))
        subprocess.run(["ip", "link", "del", old.link], capture_output=True)
        self.list[i] = Host(old.name, i + 1, self.scratch)
        self._write_agent()

    def _write_agent(self):
        """At once: somebody may be about to read the old one."""
        new = self.agent + ".new"
        with open(new, "w") as f:
            f.write(f"#!/bin/sh\nhost=$1; shift\nexport TMPDIR={self.scratch}/tmp\ncase $host in\n")
            for h in self.list:
                f.write(f"{h.name}|{h.address}) exec {' '.join(h.enter())} sh -c \"$*\" ;;\n")
            f.write("*) echo \"no host $host\" >&2; exit 255 ;;\nesac\n")
        os.chmod(new, 0o755)
        os.replace(new, self.agent)

    def __getitem__(self, i):
        return self.list[i]

    def environment(self):
        """What mpirun needs to use the agent in ssh's place, and the bridge only."""
        return {**os.environ, "OMPI_MCA_plm_rsh_agent": self.agent, "OMPI_MCA_oob_tcp_if_include": f"{NET}.0/24",
                "OMPI_MCA_btl_tcp_if_include": f"{NET}.0/24"}

    def close(self):
        for h in self.list:
            if h.holder.poll() is None:
                h.power_off()
            subprocess.run(["ip", "link", "del", h.link], capture_output=True)
            os.remove(os.path.join(self.scratch, f"{h.name}.ready"))
        os.rmdir(os.path.join(self.scratch, "tmp"))
        run("ip", "link", "del", "b0")
