"""--on-death=replace: the coordinator's part, with scripted ranks.  (What real ranks make of it: tests/system/chaos.py.)"""
import signal
import time

import grpc

from harness import WAIT_S, Rank, Served, control, expected, main, wait_for

NOBODY = 4294967295


class Replace(Served):
    ARGS = ("--on-death", "replace")

    def regroups(self, rank, prepare=False):
        return [m for k, m in self.cell.ranks[rank].seen if k == "regroup" and m.prepare == prepare]

    def wait_regroup(self, rank, n=1):
        wait_for(lambda: len(self.regroups(rank)) >= n, f"regroup {n} of rank {rank}")
        return self.regroups(rank)[n - 1]

    def seats(self, m):
        return list(m.prefill.ranks), list(m.decode.ranks)


class Alone(Served):
    CELL, ARGS = {"both": 1}, ("--on-death", "replace")

    def test_a_stranger_that_comes_as_the_last_rank_goes_leaves_no_stream_open(self):
        """A coordinator that was stopped hears of both at once."""
        self.cell.gate.clear()
        call, rank, process = self.generate(), self.cell.ranks[0], self.coordinator.process
        wait_for(lambda: self.cell.seen("prefill"), "the request")
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.1)
        for i in range(20):  # what comes first is acted upon by itself
            rank.send(beat=control.Beat(progress=i + 1))
        time.sleep(0.2)
        rank.cut()
        strangers = [Rank(self.cell, 0) for _ in range(4)]
        self.addCleanup(lambda: [s.cut() for s in strangers])
        time.sleep(0.5)
        process.send_signal(signal.SIGCONT)
        code, details, _ = self.error(call)
        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)
        self.assertIn("no rank is left", details)
        self.assertEqual(self.coordinator.wait(), 1, self.coordinator.text())


class Loss(Replace):
    def test_requests_of_a_lost_decode_rank_go_on_elsewhere(self):
        self.cell.split_after, self.cell.repeats_replayed = 3, True  # clients get each token once all the same
        calls = [self.generate(prompt=[5, 200, 300 + i]) for i in range(4)]
        first = []
        for call in calls:
            had = []
            while len(had) < 3:
                had += next(call).chunk.token_ids
            first.append(had[0])
        wait_for(lambda: len(self.cell.seen("prefill")) == 4, "the prefills")
        lost = sum(r == 2 for r, _ in self.cell.seen("reserve"))
        self.assertEqual(lost, 2)
        self.cell.ranks[2].cut()
        for rank in (0, 1, 3):
            m = self.wait_regroup(rank)
            self.assertEqual(self.seats(m), ([0, 1], [NOBODY, 3]))
            self.assertEqual((m.prefill.epoch, m.decode.epoch, m.epoch), (4, 6, 6))  # 4: as the ranks said, 5: their placements
        wait_for(lambda: sum(r == 3 for r, _ in self.cell.seen("reserve")) == 4, "the new placements")
        again = [m for r, m in self.cell.seen("reserve") if r == 3][2:]
        for m in again:
            self.assertEqual(m.epoch, 6)
            self.assertIn(len(m.replay), (1, 2, 3))  # what came before the stream was cut
        self.cell.split_after = None
        self.cell.more_gate.set()
        for i, call in enumerate(calls):
            messages = list(call)
            self.assertEqual(list(messages[-1].complete.output_ids), expected([5, 200, 300 + i], 20))
            self.assertEqual(messages[-1].complete.output_ids[0], first[i])
        self.all_released()
        self.assertEqual(self.coordinator.process.poll(), None)

    def test_requests_of_a_lost_prefill_rank_are_prefilled_elsewhere(self):
        self.cell.gate.clear()
        calls = [self.generate(prompt=[5, 200, 300 + i]) for i in range(4)]
        wait_for(lambda: len(self.cell.seen("prefill")) == 4, "the prefills")
        self.cell.ranks[0].cut()
        self.assertEqual(self.seats(self.wait_regroup(3)), ([NOBODY, 1], [2, 3]))
        wait_for(lambda: "worn " in self.coordinator.lines, "word that the cell lacks a rank")
        wait_for(lambda: sum(r == 1 for r, _ in self.cell.seen("prefill")) == 4, "the prefills on the other rank")
        self.cell.gate.set()
        for i, call in enumerate(calls):
            self.assertEqual(list(list(call)[-1].complete.output_ids), expected([5, 200, 300 + i], 20))
        self.all_released()

    def test_cell_without_a_role_and_without_spares_ends(self):
        self.cell.ranks[2].cut()
        self.wait_regroup(3)
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: len(self.cell.seen("prefill")) == 2, "the prefill")
        self.cell.ranks[3].cut()
        code, details, _ = self.error(call)
        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)
        self.assertIn("no decode rank is left, and no spare", details)
        self.assertEqual(self.coordinator.wait(), 1)


class Blame(Replace):
    def test_rank_that_others_wait_for_is_shut_out(self):
        self.cell.ranks[3].send(expired=control.Expired(epoch=3, ranks=[2], what="of an old epoch"))
        self.cell.ranks[3].send(expired=control.Expired(epoch=4, ranks=[2, 0, 77], what="experts of layer 3"))
        wait_for(lambda: self.cell.ranks[2].end is not None, "the end of rank 2's stream")
        self.assertIn("is removed from the cell: ranks of its group that waited for it too long: 1", self.cell.ranks[2].end[1])
        self.assertEqual(self.seats(self.wait_regroup(3)), ([0, 1], [NOBODY, 3]))
        self.assertIn("rank 3 has waited too long: experts of layer 3", self.coordinator.text())
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))

    def test_when_nobody_is_named_the_same_ranks_begin_anew(self):
        self.cell.ranks[3].send(expired=control.Expired(epoch=4, what="something"))
        m = self.wait_regroup(2)
        self.assertEqual((self.seats(m), m.decode.epoch), (([0, 1], [2, 3]), 6))


class Silence(Replace):
    ARGS = ("--on-death", "replace", "--rank-timeout-s", "4")

    def test_silent_rank_with_work_is_shut_out(self):
        self.cell.gate.clear()
        call = self.generate()
        wait_for(lambda: self.cell.seen("prefill"), "the prefill")
        silent = self.cell.seen("prefill")[0][0]
        end = time.monotonic() + WAIT_S
        while self.cell.ranks[silent].end is None and time.monotonic() < end:
            for r in self.cell.ranks:  # they wait, but they beat
                if r.rank != silent:
                    r.send(beat=control.Beat(progress=1))
            time.sleep(0.1)
        self.assertIn("no progress", self.cell.ranks[silent].end[1])
        self.cell.gate.set()
        self.assertEqual(list(list(call)[-1].complete.output_ids), expected([5, 200, 300], 20))


class Spares(Replace):
    def setUp(self):
        """Two of each role and rank 4, which waits."""
        made, Rank.__init__ = Rank.__init__, None
        self.addCleanup(lambda: setattr(Rank, "__init__", made))
        Rank.__init__ = lambda r, cell, rank, name="", **hello: made(r, cell, rank, name, **{"n_ranks": 5, "n_spares": 1, **hello})
        from harness import Cell
        attach = Cell.attach
        self.addCleanup(lambda: setattr(Cell, "attach", attach))

        def attach_all(cell):
            cell.n = 5
            return attach(cell)
        Cell.attach = attach_all
        super().setUp()

    def test_spare_prepares_while_the_others_serve_and_takes_the_seat(self):
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))
        self.assertEqual(self.cell.ranks[4].count("reserve") + self.cell.ranks[4].count("prefill"), 0)
        self.cell.ranks[1].cut()
        wait_for(lambda: self.regroups(4, prepare=True), "the order to prepare")
        self.assertEqual(self.seats(self.regroups(4, prepare=True)[0]), ([0, 4], [2, 3]))
        self.assertNotIn("worn ", self.coordinator.lines)
        self.assertEqual(self.seats(self.wait_regroup(0)), ([0, NOBODY], [2, 3]))
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))
        self.cell.ranks[4].send(ready=control.Ready())
        for rank in (0, 2, 3, 4):
            self.assertEqual(self.seats(self.wait_regroup(rank, 2)), ([0, 4], [2, 3]))
        self.cell.gate.clear()
        calls = [self.generate(prompt=[5, 200, 400 + i]) for i in range(2)]
        wait_for(lambda: self.cell.ranks[4].count("prefill") == 1, "a prefill on the spare")
        self.cell.gate.set()
        for i, call in enumerate(calls):
            self.assertEqual(list(list(call)[-1].complete.output_ids), expected([5, 200, 400 + i], 20))
        self.all_released()

    def test_lost_spare_is_told_to_the_others_whose_groups_do_not_change(self):
        self.cell.ranks[4].cut()
        for rank in range(4):
            m = self.wait_regroup(rank)
            self.assertEqual((self.seats(m), list(m.gone)), (([0, 1], [2, 3]), [4]))
            self.assertEqual((m.prefill.epoch, m.decode.epoch), (m.epoch - 2, m.epoch - 2))    # as launched
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))


class SilentSpare(Spares):
    ARGS = ("--on-death", "replace", "--rank-timeout-s", "4")
    test_spare_prepares_while_the_others_serve_and_takes_the_seat = None
    test_lost_spare_is_told_to_the_others_whose_groups_do_not_change = None

    def test_silent_spare_is_shut_out(self):
        wait_for(lambda: self.cell.ranks[4].end is not None, "the end of the spare's stream")
        self.assertIn("nothing was heard of the spare", self.cell.ranks[4].end[1])
        self.cell.ranks[1].cut()
        self.assertEqual(self.seats(self.wait_regroup(0, 2)), ([0, NOBODY], [2, 3]))
        self.assertEqual(list(list(self.generate())[-1].complete.output_ids), expected([5, 200, 300], 20))


if __name__ == "__main__":
    main()
