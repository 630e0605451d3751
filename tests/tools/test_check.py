"""baton check against nodes that are in order, and against each thing that can be wrong with one."""
import json
import math
import os
import platform
import pty
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

BIN, SOURCE = sys.argv[1], sys.argv[2]
CHECK = os.path.join(BIN, "baton-check")
INSPECT = os.path.join(BIN, "baton-inspect")
MODEL = os.path.join(SOURCE, "models/demo")
WRONGS = {  # host: what the agent does to the answer of a good node
    "good": "cat",
    "far": "{ sleep 2; cat; }",    # whose clock is not wrong because its answer takes a while
    "zero": "{ all=$(cat); printf 'a\\0b\\n%s\\n' \"$all\"; }",
    "model": "sed 's/^model ................/model 0123456789abcdef/'",
    "bits": "sed 's/^arithmetic .*/arithmetic prompt:other,generated:other/'",
    "old": "sed 's/^version .*/version 0.0.9/'",
    "mpi": "sed 's/^mpi .*/mpi mpirun (Open MPI) 3.1.6/'",
    "late": "awk '/^clock / {printf \"clock %.3f\\n\", $2 - 90; next} {print}'",
    "small": "sed 's/^machine [0-9]*/machine 15204352/'",
    "shm": "sed 's/^shm .*/shm 67108863/'",
    "few": "sed '/^core /d; s/^clock /core 7\\ncore 8\\ncore 10\\nclock /'",
    "lib": "sh -c 'echo \"baton-check: error while loading shared libraries: libjansson.so.4: cannot open shared object file\"'",
    "asks": "sh -c 'read password </dev/tty'",
    **{f"slow{i}": "meet" for i in (1, 2)},
    "slow": "{ echo 'ssh: asking for a password'; meet; }",
    "dead": "sh -c 'echo \"ssh: connect to host dead port 22: No route to host\"'",
}
# A slow agent looks for the two others as long as it lives.
MEET = """meet() {
  cd "${0%/*}"; : >slow.$$
  while sleep 0.1; do
    n=0
    for f in slow.*; do kill -0 "${f#slow.}" 2>/dev/null && n=$((n + 1)); done
    [ $n = 3 ] && : >together
  done
}
"""


def check(*args, code=None, env=None):
    done = subprocess.run([CHECK, *([] if "--quick" in args else ["--model", MODEL]), *args], capture_output=True, text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **(env or {})})
    if code is not None:
        assert done.returncode == code, f"{args}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def at_terminal(*argv):
    """What the command writes, and its exit code, where it has a terminal at which nobody types."""
    pid, fd = pty.fork()
    if pid == 0:
        os.execv(argv[0], argv)
    text = b""
    try:
        while got := os.read(fd, 4096):
            text += got
    except OSError:    # its end
        pass
    os.close(fd)
    return text.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def has(text, *parts):
    for part in parts:
        assert part in text, f"\"{part}\" is not in:\n{text}"


def wide_model(folder, vocab):
    """The demo with another vocabulary and 16 wide, of zeros that no disk holds: steps that are large beside the weights."""
    with open(os.path.join(MODEL, "model.safetensors"), "rb") as f:
        head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    config = json.load(open(os.path.join(MODEL, "config.json")))
    sizes = {config["vocab_size"]: vocab, config["hidden_size"]: 16}
    at = 0
    head = {name: t for name, t in head.items() if name != "__metadata__"}
    for name, t in head.items():
        t["shape"] = [sizes.get(n, n) for n in t["shape"]] if ".eh_proj." not in name else [16, 2 * 16]
        n_bytes = math.prod(t["shape"]) * {"BF16": 2, "F32": 4}[t["dtype"]]
        t["data_offsets"] = [at, at + n_bytes]
        at += n_bytes
    os.mkdir(folder)
    json.dump(config | {"vocab_size": vocab, "hidden_size": 16}, open(os.path.join(folder, "config.json"), "w"))
    text = json.dumps(head).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        f.truncate(8 + len(text) + at)
    return folder


def has_agents(agent):
    found = subprocess.run(["pgrep", "-f", f"{agent} slow"], capture_output=True, text=True)
    assert found.returncode in (0, 1), f"pgrep: exit code {found.returncode}: {found.stderr}"
    return found.returncode == 0


def wait_for_agents(agent, there):
    end = time.monotonic() + 60
    while has_agents(agent) != there:
        assert time.monotonic() < end, "no agent was started" if there else "an agent is left"
        time.sleep(0.1)


def main():
    with tempfile.TemporaryDirectory() as folder:
        agent = os.path.join(folder, "agent")
        with open(agent, "w") as f:
            f.write(f"#!/bin/sh\n{MEET}host=$1; shift\ncase $host in\n" +
                    "".join(f"{host}) sh -c \"$*\" | {filter} ;;\n" for host, filter in WRONGS.items()) + "esac\n")
        os.chmod(agent, 0o755)

        out = check(code=0)
        has(out, "localhost    ok", "GB/s from its files", "Open MPI", "remedies     stop, restart, replace", "pause        a killed rank, by estimate: 0.3 s to detect\n")
        assert max(map(len, out[out.index("pause"):].split("\n"))) <= 80, out    # as wide as a terminal
        has(check("--hosts", "good:8,far,localhost,zero", "--agent", agent, code=0), "good         ok", "far          ok", "localhost    ok", "zero         ok")
        for host, words in (("model", "its model is another one (0123456789abcdef) than on localhost"),
                            ("bits", "it computes other bits (prompt:other,generated:other) than localhost"),
                            ("old", "it has Baton 0.0.9, localhost has "), ("mpi", "it has mpirun (Open MPI) 3.1.6, localhost has "),
                            ("shm", "/dev/shm has 63 MiB left, expected at least 64"),
                            ("lib", "it does not answer: baton-check: error while loading shared libraries: libjansson.so.4"),
                            ("dead", "it does not answer: ssh: connect to host dead port 22: No route to host")):
            out = check("--hosts", f"localhost,{host}", "--agent", agent, code=1)
            has(out, f"{host:12} WRONG  {words}", "localhost    ok", "1 found wrong")
        # 15.2 MiB of weights do not fit there, nor half of the experts and the rest; a part of the experts does.
        has(check("--hosts", "small", "--agent", agent, code=1), "small        WRONG  its ranks need 0.01 GiB or more for weights and may take 0.01 GiB, 85 % of the free memory")
        rank_map = os.path.join(folder, "small.map")
        for shares, code in (((1, 1), 1), ((1, 5), 0)):
            with open(rank_map, "w") as f:
                f.write("both small ranks=%d\nboth good ranks=%d\n" % shares)
            out = check("--rank-map", rank_map, "--agent", agent, code=code)
            has(out, "good         ok", "small        WRONG  its ranks need" if code else "small        ok")
        late = re.search(r"late         WRONG  its clock is (-\d+\.\d) s off", check("--hosts", "localhost,late", "--agent", agent, code=1))
        assert late and -90 <= float(late[1]) < -30, late    # it was read a while after the question, more on a busy machine
        has(check("--hosts", "mpi", "--agent", agent, code=0), "replace needs Open MPI 4 or 5 on every node")
        has(check("--hosts", "good", env={"OMPI_MCA_plm_rsh_agent": agent}, code=0), "good         ok")

        # All at once, with a deadline each, and nothing of the agents is left.
        out = check("--hosts", "slow,localhost,slow1,slow2", "--node-timeout-s", "10", "--agent", agent, code=1)
        has(out, "slow         WRONG  it has not answered within 10.0 s: ssh: asking for a password", "slow2        WRONG  it has not", "localhost    ok")
        assert os.path.exists(os.path.join(folder, "together")), "slow nodes are asked one after the other"
        wait_for_agents(agent, False)
        asking = subprocess.Popen([CHECK, "--quick", "--hosts", "slow", "--agent", agent, "--node-timeout-s", "600"], stdout=subprocess.DEVNULL)
        try:
            wait_for_agents(agent, True)
        finally:
            asking.kill()
            asking.wait()
        wait_for_agents(agent, False)

        out, code = at_terminal(CHECK, "--quick", "--hosts", "asks", "--agent", agent, "--node-timeout-s", "60")
        assert code == 1, out
        has(out, "asks         WRONG  it does not answer: ", "/dev/tty: No such device or address")

        rank_map = os.path.join(folder, "ranks.map")
        with open(rank_map, "w") as f:
            f.write("prefill localhost ranks=2\ndecode good ranks=4\n")
        has(check("--rank-map", rank_map, "--agent", agent, "--tokens", "5000", "--prefill-rate", "100", code=0), "good         ok",
            "each of 1 ranks", "50.0 s to replay (--tokens 5000 at --prefill-rate 100)", "one that hangs: 10 s more")
        has(check("--group", "1", "--rank-timeout-s", "7"), "one that hangs: 7 s more")    # nobody waits for it
        # Cores that a rank can be bound to, whatever the one who looks is bound to.
        own = sorted(os.sched_getaffinity(0))[:256]
        for lines, words in (("both few ranks=2 cores=6-9", "few          WRONG  the rank map gives its ranks cores 6,9; they may have 7-8,10\n"),
                             (f"both localhost cores={own[0]},1023", "localhost    WRONG  the rank map gives its ranks cores 1023; they may have "),
                             (f"both localhost cores={','.join(map(str, own))}\nspare few cores=8,10", None)):
            with open(rank_map, "w") as f:
                f.write(lines)
            done = subprocess.run(["taskset", "-c", str(own[0]), CHECK, "--model", MODEL, "--rank-map", rank_map, "--agent", agent], capture_output=True, text=True,
                                  timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            assert done.returncode == (words is not None), done.stdout + done.stderr
            has(done.stdout, words or "localhost    ok     1 cores, ", *([] if words else [" GiB of memory free, model "]))
        with open(rank_map, "w") as f:
            f.write("prefil localhost\n")
        assert check("--rank-map", rank_map, code=64) == f"baton check: {rank_map}:1: \"prefil\" is not a role: expected prefill, decode, both or spare\n"
        has(check("localhost", code=64), "\"localhost\" is not an option")
        has(check("--timeout-s", "3601", code=64), "--timeout-s must be a whole number from 1 to 3600")    # as those of the ranks

        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            has(check("--control", f"127.0.0.1:{port}", code=1), f"the control address 127.0.0.1:{port} cannot be taken: Address already in use")
            out = check("--quick", "--hosts", "localhost,good,lib,dead,slow", "--control", f"127.0.0.1:{port}", "--agent", agent, "--node-timeout-s", "8", code=1)
            has(out, "localhost    ok\n", "good         ok\n", "lib          WRONG  it does not answer: ", "dead         WRONG", "slow         WRONG  it has not answered within 8.0 s")
            assert "GB/s" not in out and "remedies" not in out, out
        has(check("--control", f"127.0.0.1:{port}", code=0), "localhost    ok")
        has(check("--control", "127.0.0.1:0", code=0), "localhost    ok")    # any free one
        has(check("--quick", "--control", f"127.0.0.1:{port}", code=1), f"the control address 127.0.0.1:{port} cannot be reached from here: Connection refused")

        broken = os.path.join(folder, "model")
        os.mkdir(broken)
        done = subprocess.run([CHECK, "--model", broken], capture_output=True, text=True, timeout=300)
        assert done.returncode == 1
        has(done.stdout, "localhost    WRONG  the model: ", "config.json")
        done = subprocess.run([INSPECT, MODEL], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        has(done.stdout, "all (served)                  7,963,696     15.2 MiB", "weights     15.2 MiB, once for all ", "8 ranks     room for ")
        # A step of the default chunk takes 2048 rows of 8 bytes a word on each of several ranks, 512 on one that has both roles.
        free = re.search(r"of memory, ([\d.]+) ([MGT])iB free", done.stdout)
        free = int(float(free[1]) * 1024 ** (" MGT".index(free[2]) + 1))
        done = subprocess.run([INSPECT, wide_model(os.path.join(folder, "wide"), min(free // 8 // 1024, 1 << 24))], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        has(done.stdout, "1 rank      room for ", "8 ranks     none: each needs ")
        # In FP8 an expert's weights have their scales: 663,552 bytes and a float for each 128 of them.
        done = subprocess.run([CHECK, "--node", "--model", os.path.join(SOURCE, "tests/models/v3-fp8")], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        has(done.stdout, "\nneeds 1688096 684288\n")
        # The tensors say so, whatever config.json does; those of layers that are not served count nowhere.
        fp8 = json.load(open(os.path.join(SOURCE, "tests/models/v3-fp8/config.json")))
        for name, change, needs in (("unsaid", {"quantization_config": None}, "1688096 684288"), ("first", {"num_hidden_layers": 1, "num_nextn_predict_layers": 0}, "594848 0")):
            os.mkdir(os.path.join(folder, name))
            json.dump(fp8 | change, open(os.path.join(folder, name, "config.json"), "w"))
            os.symlink(os.path.join(SOURCE, "tests/models/v3-fp8/model.safetensors"), os.path.join(folder, name, "model.safetensors"))
            done = subprocess.run([CHECK, "--node", "--model", os.path.join(folder, name)], capture_output=True, text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            has(done.stdout, f"\nneeds {needs}\n")
        # In 4 bits with a scale of two bytes for 32: nine sixteenths of a byte each.
        done = subprocess.run([CHECK, "--node", "--model", os.path.join(SOURCE, "tests/models/k2-int4")], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
        has(done.stdout, f"\nneeds 1574800 {1105920 * 9 // 16}\n")
        # A config.json that does not fit the tensors: neither check nor inspect may pass it.
        config = json.load(open(os.path.join(MODEL, "config.json")))
        json.dump(config | {"hidden_size": 2 * config["hidden_size"]}, open(os.path.join(broken, "config.json"), "w"))
        os.symlink(os.path.join(MODEL, "model.safetensors"), os.path.join(broken, "model.safetensors"))
        for verb in ([CHECK, "--model", broken], [INSPECT, broken]):
            done = subprocess.run(verb, capture_output=True, text=True, timeout=300)
            assert done.returncode == 1, done.stdout
            has(done.stdout + done.stderr, "tensor model.embed_tokens.weight: expected shape [2048, 512], found [2048, 256]")
        has(check(env={"TMPDIR": "/nowhere"}, code=1), "TMPDIR /nowhere cannot be written: No such file")
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0:
            full = "mount -t tmpfs -o size=1m tmpfs /mnt && TMPDIR=/mnt exec \"$0\" \"$@\""
            done = subprocess.run(["unshare", "--mount", "sh", "-c", full, CHECK, "--model", MODEL], capture_output=True, text=True, timeout=300)
            assert done.returncode == 1, done.stdout + done.stderr
            has(done.stdout, "TMPDIR /mnt has 1 MiB left, expected 16: mpirun has")
        has(check("--kernels", "scalar", "--hosts", "localhost,good", "--agent", agent, code=0), "localhost    ok", "good         ok")
        foreign = "neon" if platform.machine() == "x86_64" else "avx2"
        has(check("--kernels", foreign, "--hosts", "good", "--agent", agent, code=1), f'good         WRONG  the processor: kernels "{foreign}": this CPU has ')
        has(check("--kernels", "fast", code=64), "--kernels must be auto, amx,")
        has(check(env={"BATON_MPIRUN": "/nowhere/mpirun"}, code=1), "no mpirun: ", "/nowhere/mpirun")
        for name, says in (("mpirun", "------\nCould not open the help file"), ("ompi_info", "Open MPI v5.0.10\n")):
            with open(os.path.join(folder, name), "w") as f:
                f.write(f"#!/bin/sh\necho 'ERROR: ld.so: a tracer from LD_PRELOAD cannot be preloaded' >&2\necho '{says}'\n")
            os.chmod(os.path.join(folder, name), 0o755)
        has(check(env={"BATON_MPIRUN": os.path.join(folder, "mpirun")}, code=0), ", mpirun (Open MPI) 5.0.10\n", "restart, replace")
        has(check("--control", "nowhere", code=64), "expected HOST:PORT")

        # Whatever the path of the tree, and whatever a host is called: shells get it as it is, here and there.
        moved = os.path.join(folder, "my tree; touch $(echo ran) 'it'")
        os.mkdir(moved)
        for name in ("baton-check", "baton-launch", "baton-worker"):
            shutil.copy(os.path.join(BIN, name), moved)
        has(subprocess.run([os.path.join(moved, "baton-check"), "--model", MODEL], capture_output=True, text=True, timeout=300).stdout, "localhost    ok")
        done = subprocess.run([os.path.join(moved, "baton-check"), "--quick", "--hosts", "localhost,good,a'b$(touch${IFS}ran)", "--agent", agent], capture_output=True,
                              text=True, timeout=300, cwd=folder)
        has(done.stdout, "localhost    ok\n", "good         ok\n", "WRONG  it does not answer: nothing came")
        assert done.returncode == 1 and not os.path.exists(os.path.join(folder, "ran")), os.listdir(folder)
        has(check("--tokens", "-1", code=64), "--tokens must be a number from 1")
        has(check("--quick", "--group", "2", code=64), "--group has no effect with --quick: leave it out, since only")
        for hosts, host in (("", ""), ("a,,b", ""), ("a,", ""), (":8", ""), ("a,-1", "-1"), ("x" * 300, "x" * 64)):
            has(check("--hosts", hosts, code=64), f'--hosts has "{host}", expected a name')
    print("every wrong node is named with what is wrong")


main()
