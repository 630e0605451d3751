"""Starting, stopping and losing ranks."""
import os
import signal
import socket
import sys
import tempfile
import time
import unittest

import grpc

from harness import SOURCE, WAIT_S, Cell, Coordinator, Rank, Served, control, expected, main, vllm, wait_for

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from ports import free_port  # noqa: E402

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE


class Start(unittest.TestCase):
    def coordinator(self, *args, **kw):
        c = Coordinator(*args, **kw)
        self.addCleanup(c.close)
        return c

    def cell(self, c, **kw):
        cell = Cell(c.line("control"), **kw)
        self.addCleanup(cell.close)
        return cell

    def test_model_without_a_tokenizer_is_served_with_one_warning(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("config.json", "model.safetensors"):
                os.symlink(os.path.join(SOURCE, "models", "demo", name), os.path.join(folder, name))
            c = self.coordinator("--model", folder)
            self.cell(c).attach().ready()
            c.line("ready")
        told = [line for line in c.text().splitlines() if "tokenizer.json" in line]
        self.assertEqual(len(told), 1, told)
        self.assertRegex(told[0], " W coordinator .* no stop strings, no structured output and no GetTokenizer: .*/tokenizer.json: No such file or directory$")

    def test_port_opens_only_when_every_rank_is_ready(self):
        port = free_port()
        c = self.coordinator(port=str(port))
        cell = self.cell(c).attach()

        def open_():
            with socket.socket() as s:
                return s.connect_ex(("127.0.0.1", port)) == 0
        for r in cell.ranks[:3]:
            r.send(progress=control.Progress(done_bytes=5, total_bytes=10))
            r.send(ready=control.Ready())
        time.sleep(0.3)
        self.assertFalse(open_())
        cell.ready()  # a second ready changes nothing
        self.assertEqual(c.line("ready"), f"127.0.0.1:{port}")
        self.assertTrue(open_())
        wait_for(lambda: "progress 0 5 10" in c.lines, "the progress of rank 0")
        wait_for(lambda: len(cell.seen("welcome")) == 4, "the welcomes")
        for r in cell.ranks:  # above every epoch that a rank has seen
            self.assertEqual([m.epoch for k, m in r.seen if k == "welcome"], [5])

    def test_port_in_use_is_said_at_once(self):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            s.listen()
            port = s.getsockname()[1]
            c = self.coordinator(port=str(port))
            self.assertEqual(c.wait(), 1)
            self.assertIn(f"127.0.0.1:{port}: Address already in use", c.line("failed"))
        c = self.coordinator("--http-port", str(port), port=str(port))  # which is free, and only once
        self.assertEqual(c.wait(), 1)
        self.assertIn(f"127.0.0.1:{port}: Address already in use, by another program or as another port of this one", c.line("failed"))

    def test_address_of_no_machine_or_another_is_said_with_what_would_do(self):
        for host in ("192.0.2.1", "nosuch.invalid"):
            c = self.coordinator("--host", host)
            self.assertEqual(c.wait(), 1)
            self.assertRegex(c.line("failed"), f"cannot listen on {host}:0: .*; expected an address of this machine, by an interface that is up, or 0.0.0.0 for all of them$")

    def test_hellos_that_disagree_are_refused_by_name(self):
        c = self.coordinator()
        cell = self.cell(c)
        # Streams of two connections arrive in any order, and the first hello is what the others are held against: two
        # ranks 0, of which one is refused, show that it has come.
        twins = [Rank(cell, 0), Rank(cell, 0)]
        wait_for(lambda: any(t.end is not None for t in twins), "the refusal of one rank 0")
        double, first = sorted(twins, key=lambda t: t.end is None)
        self.assertIn("rank 0", double.end[1])
        self.assertIn("is here already", double.end[1])
        double.cut()
        cases = [(dict(model_fingerprint=78), "another model"), (dict(arithmetic="other"), "arithmetic"),
                 (dict(n_ranks=5, n_prefill=3), "n_ranks"), (dict(vocab_size=999), "vocab_size"),
                 (dict(max_context=9), "max_context"), (dict(page_tokens=32), "page_tokens"),
                 (dict(n_prefill=1, n_decode=3), "n_prefill"), (dict(protocol=2), "protocol 2")]
        for fields, words in cases:
            r = Rank(cell, 1, **fields)
            wait_for(lambda: r.end is not None, "the refusal")
            self.assertIn(words, r.end[1])
            self.assertIn("rank 1", r.end[1])
            r.cut()
        self.assertIsNone(first.end)
        cell.ranks = [first] + [Rank(cell, i) for i in (1, 2, 3)]
        cell.ready()
        c.line("ready")  # the right ranks still make a cell

    def test_strangers_at_the_control_port_harm_nobody(self):
        c = self.coordinator()
        cell = self.cell(c)
        with grpc.insecure_channel(cell.address) as channel:
            with self.assertRaises(grpc.RpcError) as e:
                channel.unary_unary("/vllm.grpc.engine.VllmEngine/HealthCheck")(b"", timeout=WAIT_S)
            self.assertEqual(e.exception.code(), grpc.StatusCode.UNIMPLEMENTED)
            for data in (b"", b"\xff" * 40, control.FromWorker(ready=control.Ready()).SerializeToString()):
                with self.assertRaises(grpc.RpcError) as e:
                    list(channel.stream_stream("/baton.control.v1.Control/Attach")(iter([data]), timeout=WAIT_S))
                self.assertIn(e.exception.code(), (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION))
            list(channel.stream_stream("/baton.control.v1.Control/Attach")(iter([]), timeout=WAIT_S))  # says nothing, leaves
        huge = Rank(cell, 7, n_ranks=4000000000, n_prefill=0, n_decode=0)
        wait_for(lambda: huge.end is not None, "the refusal")
        self.assertIn("at most 65536", huge.end[1])
        huge.cut()
        cell.attach().ready()
        c.line("ready")

    def test_rank_that_never_attaches_is_named(self):
        c = self.coordinator("--attach-s", "8")    # so long two of them may take
        cell = self.cell(c)
        cell.ranks = [Rank(cell, 0), Rank(cell, 2)]
        self.assertEqual(c.wait(), 1)
        self.assertIn("ranks 1, 3 of 4 have not attached", c.line("failed"))
        wait_for(lambda: len(cell.seen("shutdown")) == 2, "the shutdowns")

    def test_rank_that_never_loads_is_named(self):
        c = self.coordinator("--load-s", "8")
        cell = self.cell(c).attach()
        cell.ranks[0].send(ready=control.Ready())
        self.assertEqual(c.wait(), 1)
        self.assertIn("ranks 1, 2, 3 of 4 are not ready", c.line("failed"))

    def test_rank_lost_while_loading(self):
        c = self.coordinator()
        cell = self.cell(c).attach()
        wait_for(lambda: len(cell.seen("welcome")) == 4, "the welcomes")
        cell.ranks[1].send(leaving=control.Leaving(reason="the file model.safetensors is truncated"))
        cell.ranks[1].leave()
        self.assertEqual(c.wait(), 1)
        self.assertIn("prefill rank 1 (pid 1001 on testhost) was lost while the cell was starting: the file "
                      "model.safetensors is truncated", c.line("failed"))

    def test_stopped_while_loading(self):
        c = self.coordinator()
        cell = self.cell(c).attach()
        wait_for(lambda: len(cell.seen("welcome")) == 4, "the welcomes")
        c.process.send_signal(signal.SIGINT)
        self.assertEqual(c.wait(), 0)
        cell.wait_shutdown()

    def test_cell_that_is_loaded_when_it_stops_does_not_serve(self):
        c = self.coordinator()
        cell = self.cell(c).attach()
        cell.leave_on_shutdown = False
        wait_for(lambda: len(cell.seen("welcome")) == 4, "the welcomes")
        c.process.send_signal(signal.SIGINT)
        cell.wait_shutdown()
        cell.ready()    # the shutdown and this have crossed
        for r in cell.ranks:
            r.leave()
        self.assertEqual(c.wait(), 0)
        self.assertNotIn("serves", c.text())

    def test_rank_that_comes_while_it_stops_is_told_to_leave(self):
        c = self.coordinator()
        cell = self.cell(c)
        cell.leave_on_shutdown = False
        cell.ranks = [Rank(cell, 0)]
        cell.ranks[0].send(progress=control.Progress(done_bytes=5, total_bytes=10))
        c.line("progress")    # it is here
        c.process.send_signal(signal.SIGINT)
        wait_for(lambda: len(cell.seen("shutdown")) == 1, "the shutdown")
        cell.ranks.append(Rank(cell, 1))
        cell.wait_shutdown({0, 1})
        for r in cell.ranks:
            r.leave()
        self.assertEqual(c.wait(), 0)
        self.assertNotIn(" E ", c.text())

    def test_rank_that_comes_after_a_start_has_failed_is_told_to_leave(self):
        c = self.coordinator()
        cell = self.cell(c)
        cell.leave_on_shutdown = False
        cell.ranks = [Rank(cell, 0), Rank(cell, 1)]
        cell.ranks[0].send(progress=control.Progress(done_bytes=5, total_bytes=10))
        c.line("progress")
        cell.ranks[1].send(leaving=control.Leaving(reason="no memory"))
        cell.ranks[1].leave()
        c.line("failed")
        wait_for(lambda: cell.seen("shutdown"), "the shutdown")
        cell.ranks.append(Rank(cell, 2))
        cell.wait_shutdown({0, 2})
        for _, m in cell.seen("shutdown"):
            self.assertIn("was lost while the cell was starting: no memory", m.reason)
        for r in (cell.ranks[0], cell.ranks[2]):
            r.leave()
        self.assertEqual(c.wait(), 1)


class Stop(Served):
    def test_sigint_ends_everything_cleanly(self):
        self.cell.split_after = 3
        calls = [self.generate(), self.generate(stream=False)]
        next(calls[0])
        wait_for(lambda: len(self.cell.seen("prefill")) == 2, "the prefills")
        self.coordinator.process.send_signal(signal.SIGINT)
        for call in calls:
            code, details, _ = self.error(call)
            self.assertEqual((code, details), (UNAVAILABLE, "the server is shutting down"))
        self.assertEqual(self.coordinator.wait(), 0)
        self.assertNotIn("has not left", self.coordinator.text())
        self.assertNotIn("draining", self.coordinator.lines)
        self.cell.wait_shutdown()

    def test_ranks_that_do_not_leave_are_not_waited_for(self):
        self.cell.leave_on_shutdown = False
        self.coordinator.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.coordinator.wait(), 0)
        self.assertIn("decode rank 3 (pid 1003 on testhost) has not left", self.coordinator.text())

    def lose(self, rank, act):
        self.cell.gate.clear()
        calls = [self.generate(), self.generate(stream=False)]
        wait_for(lambda: len(self.cell.seen("prefill")) == 2, "the prefills")
        act(self.cell.ranks[rank])
        for call in calls:
            code, details, _ = self.error(call)
            self.assertEqual(code, UNAVAILABLE)
            self.assertIn(f"rank {rank} (pid {1000 + rank} on testhost) was lost", details)
        self.assertEqual(self.coordinator.wait(), 1)
        self.assertNotIn("has not left", self.coordinator.text())
        self.assertIn(f"rank {rank} (pid", self.coordinator.line("failed"))
        self.cell.wait_shutdown({0, 1, 2, 3} - {rank})

    def test_lost_decode_rank_ends_the_cell(self):
        self.lose(2, Rank.cut)

    def test_lost_prefill_rank_ends_the_cell(self):
        self.lose(1, Rank.cut)

    def test_rank_that_leaves_unasked_ends_the_cell(self):
        self.lose(3, Rank.leave)

    def test_idle_cell_that_loses_a_rank_ends(self):
        self.cell.ranks[0].cut()
        self.assertEqual(self.coordinator.wait(), 1)
        self.assertIn("prefill rank 0", self.coordinator.line("failed"))

    def test_rank_that_breaks_the_protocol_is_lost(self):
        self.cell.ranks[2].send()  # a message without a body
        self.assertEqual(self.coordinator.wait(), 1)
        self.assertIn("decode rank 2", self.coordinator.line("failed"))

    def test_stranger_at_a_complete_cell_is_refused_and_harms_nobody(self):
        stranger = Rank(self.cell, 1)
        wait_for(lambda: stranger.end is not None, "the refusal")
        self.assertIn("is here already", stranger.end[1])
        self.assertEqual(len(list(self.generate(stream=False))), 1)
        stranger.cut()


class Queue(Served):
    CELL, ARGS = dict(pages=8), ("--queue-s", "8", "--queue-tokens", "1000")

    def test_waiting_too_long_and_too_many(self):
        self.cell.gate.clear()
        running = [self.generate(prompt=[700 + i] * 320, max_tokens=100) for i in range(2)]  # 6 of 8 pages each
        wait_for(lambda: len(self.cell.seen("prefill")) == 2, "the prefills")
        late = self.generate(prompt=[500] * 400, max_tokens=100)
        later = self.generate(prompt=[500] * 400, max_tokens=100)
        wait_for(lambda: self.stub.GetLoads(vllm.GetLoadsRequest()).loads[0].num_waiting_reqs == 2, "two waiting")
        code, details, _ = self.error(self.generate(prompt=[500] * 400, max_tokens=100))
        self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertEqual(details, "the queue is full: 800 prompt tokens wait, at most 1000 may (--queue-tokens)")
        for call in (late, later):
            code, details, _ = self.error(call)
            self.assertEqual(code, grpc.StatusCode.RESOURCE_EXHAUSTED)
            self.assertIn("no rank had room", details)
        self.cell.gate.set()
        for i, call in enumerate(running):
            self.assertEqual(list(list(call)[-1].complete.output_ids), expected([700 + i] * 320, 100))
        self.all_released()


class Stuck(Served):
    ARGS = ("--rank-timeout-s", "4")

    def test_rank_without_progress_is_lost(self):
        self.cell.gate.clear()
        code, details, _ = self.error(self.generate())
        self.assertEqual(code, UNAVAILABLE)
        self.assertIn("is stuck", details)
        self.assertEqual(self.coordinator.wait(), 1)

    def test_rank_whose_beat_moves_is_not(self):
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        for i in range(60):  # a long prefill
            for r in self.cell.ranks:
                r.send(beat=control.Beat(progress=i + 1))
            time.sleep(0.1)
        self.cell.gate.set()
        self.assertEqual(list(list(call)[-1].complete.output_ids), expected([5, 200, 300], 20))


class Stall(Served):
    ARGS = ("--stall-s", "4")

    def test_request_of_which_nothing_is_heard_fails_alone(self):
        self.cell.on_prefill = lambda rank, reserve, m: None
        call = self.generate()
        for i in range(50):
            for r in self.cell.ranks:
                r.send(beat=control.Beat(progress=i + 1))
            time.sleep(0.1)
        code, details, _ = self.error(call)
        self.assertEqual(code, grpc.StatusCode.DEADLINE_EXCEEDED)
        self.assertIn("in prefill", details)
        self.cell.on_prefill = None
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))
        self.all_released()


class UnreadLog(Served):
    REQUESTS, FULL = 60, 60000  # each has two lines of the log and more; a pipe holds 64 KiB

    def setUp(self):
        self.read_end, self.STDERR = os.pipe()
        self.addCleanup(os.close, self.read_end)
        os.write(self.STDERR, b"." * (self.FULL - 1))
        super().setUp()
        os.close(self.STDERR)

    def test_nobody_reads_the_log(self):
        for _ in range(self.REQUESTS // 20):
            for call in [self.generate(stream=False, max_tokens=2) for _ in range(20)]:
                self.assertEqual(list(next(call).complete.output_ids), expected([5, 200, 300], 2))
        self.assertGreater(len(os.read(self.read_end, 1 << 20)), self.FULL, "the pipe was not full")


if __name__ == "__main__":
    main()
