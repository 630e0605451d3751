"""What goes to many streams of one connection leaves in few packets (coordinator/cork.h), and at once."""
import os
import queue
import socket
import struct
import threading
import time

import grpc

from harness import WAIT_S, Served, control, main, vllm_grpc

STREAMS, STEPS, ROUNDS = 32, 12, 25
DATA_SEGS_IN = 152  # of struct tcp_info


def packets_in(port):
    """Packets with data that this process has received from the port, over all connections to it."""
    n = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            s = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue
        with s:
            try:
                if s.getpeername()[1] == port:
                    n += struct.unpack_from("I", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192), DATA_SEGS_IN)[0]
            except (OSError, IndexError, TypeError):
                pass
    return n


class Packets(Served):
    CELL = dict(both=1, pages=4096)

    def setUp(self):
        super().setUp()
        self.placed = queue.Queue()
        self.cell.on_prefill = lambda rank, reserve, m: self.placed.put((reserve, len(m.prompt)))

    def open(self, stub, n):
        """n streams that each have had their first token, as [(Reserve, length of the prompt)], and the calls."""
        calls = [stub.Generate(self.request(max_tokens=STEPS + 1, ignore_eos=True), timeout=10 * WAIT_S) for _ in range(n)]
        placed = [self.placed.get(timeout=WAIT_S) for _ in range(n)]
        self.step(placed, 0)
        for call in calls:
            self.assertEqual(list(next(call).chunk.token_ids), [100])
        return placed, calls

    def step(self, placed, i):
        """One message of the rank has a token of each stream."""
        last = i == STEPS
        tokens = [control.Token(request=r.request, position=n + i, epoch=r.epoch, id=100 + i, logprob=-1,
                                finish=control.LENGTH if last else control.GOES_ON) for r, n in placed]
        self.cell.ranks[0].send(tokens=control.Tokens(tokens=tokens))
        for r, _ in placed if last else []:
            self.cell.ranks[0].send(released=control.Released(request=r.request, epoch=r.epoch))

    def check_steps(self, address):
        port, times = int(address.rsplit(":", 1)[1]), []
        placed, calls = self.open(self.stub, STREAMS)
        before = packets_in(port)
        for i in range(1, STEPS):
            begin = time.monotonic()
            self.step(placed, i)
            for call in calls:
                self.assertEqual(list(next(call).chunk.token_ids), [100 + i])
            times.append(time.monotonic() - begin)
        n = packets_in(port) - before
        self.assertGreater(n, 0)
        self.assertLess(n, STREAMS * (STEPS - 1) / 4, "messages of one burst had packets of their own")
        self.assertLess(min(times), 0.15, "what is held must leave with the burst, not by TCP's own timer")
        self.step(placed, STEPS)
        for call in calls:
            *_, end = call
            self.assertEqual(end.complete.completion_tokens, STEPS + 1)
        self.all_released()

    def test_a_step_of_many_streams_is_few_packets(self):
        self.check_steps(self.address)

    def test_connections_come_and_go(self):
        """Whose sockets' numbers others get: nobody's token is late or lost."""
        errors = []

        def client(k):
            try:
                for i in range(ROUNDS):
                    channel = grpc.insecure_channel(self.address, options=[("grpc.use_local_subchannel_pool", 1)])
                    stub = vllm_grpc.VllmEngineStub(channel)
                    calls = [stub.Generate(self.request(request_id=f"{k}-{i}-{c}", max_tokens=5, ignore_eos=True), timeout=WAIT_S)
                             for c in range(4)]
                    next(calls[0])
                    if i % 2:
                        channel.close()  # in the middle of everything
                        continue
                    for call in calls:
                        *_, last = call
                        assert last.complete.completion_tokens == 5, last
                    channel.close()
            except Exception as e:  # a thread's assertion would be lost
                errors.append(e)

        self.cell.on_prefill = None
        threads = [threading.Thread(target=client, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(10 * WAIT_S)
        self.assertEqual(errors, [])
        self.all_released()


class PacketsIpv6(Packets):
    ARGS = ("--host", "::1")

    def setUp(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as e:
            self.skipTest(f"no IPv6 here: {e}")
        super().setUp()

    test_connections_come_and_go = None


if __name__ == "__main__":
    main()
