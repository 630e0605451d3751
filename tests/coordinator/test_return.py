"""A cell whose coordinator was lost: what the next one makes of its ranks, which are scripted.  (Real ones: tests/system/reattach.py.)"""
import unittest

import grpc

from harness import WAIT_S, Cell, Coordinator, Rank, control, expected, main, vllm, vllm_grpc, wait_for

NOBODY = 4294967295
OLD = 1 << 32 | 7  # an incarnation of another process


def seats(epoch=9, first=(0, 1), second=(2, 3), gone=(), epochs=(8, 9)):
    return control.Regroup(epoch=epoch, prefill=control.Seats(epoch=epochs[0], ranks=first), decode=control.Seats(epoch=epochs[1], ranks=second),
                           gone=gone)


class Return(unittest.TestCase):
    ARGS = ("--on-death", "replace")

    def setUp(self):
        self.coordinator = Coordinator(*self.ARGS)
        self.addCleanup(self.coordinator.close)
        self.cell = Cell(self.coordinator.line("control"))
        self.cell.ranks = [None] * self.cell.n
        self.addCleanup(lambda: [r.cut() for r in self.cell.ranks if r is not None])

    def back(self, rank, ready=True, cell=None, name="", **hello):
        cell = cell or self.cell
        r = cell.ranks[rank] = Rank(cell, rank, name, **{"epoch": 9, "incarnation": OLD, "prefix_seed": 4711, "seats": seats(), **hello})
        if ready:
            r.send(ready=control.Ready())
        return r

    def got(self, rank, kind, cell=None):
        wait_for(lambda: (cell or self.cell).ranks[rank].count(kind), f"{kind} at rank {rank}")
        return [m for k, m in (cell or self.cell).ranks[rank].seen if k == kind]

    def refused(self, rank):
        wait_for(lambda: rank.end is not None, "the refusal")
        return rank.end

    def generate(self, address=None, name="again", prompt=(5, 200, 300)):
        with grpc.insecure_channel(address or self.coordinator.line("ready")) as channel:
            q = vllm.GenerateRequest(request_id=name, stream=True, tokenized=vllm.TokenizedInput(input_ids=list(prompt)),
                                     sampling_params=vllm.SamplingParams(temperature=0.0, max_tokens=20))
            return list(list(vllm_grpc.VllmEngineStub(channel).Generate(q, timeout=WAIT_S))[-1].complete.output_ids)

    def left(self, regroup):
        return list(regroup.prefill.ranks), list(regroup.decode.ranks)


class Whole(Return):
    def test_cell_goes_on_in_a_higher_incarnation_and_epoch(self):
        for rank in range(3):
            self.back(rank)
        self.back(3, epoch=12)  # it has heard of a placement that the others have not
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))
        welcome, regroup = self.got(0, "welcome")[0], self.got(0, "regroup")[0]
        self.assertEqual((welcome.incarnation >> 32, welcome.prefix_seed), (2, 4711))
        self.assertNotEqual(welcome.incarnation & 0xffffffff, 7)
        self.assertEqual(self.left(regroup), ([0, 1], [2, 3]))
        self.assertTrue(12 < welcome.epoch < regroup.prefill.epoch < regroup.decode.epoch == regroup.epoch)
        for rank in range(4):
            order = [k for k, _ in self.cell.ranks[rank].seen]
            self.assertEqual(order[:2], ["welcome", "regroup"])
        placed = self.cell.seen("reserve")[0][1]
        self.assertEqual(placed.epoch, regroup.epoch)
        self.assertGreater(placed.request, 10 ** 9)  # no number that the lost one has given

    def test_tokens_of_the_lost_coordinators_requests_reach_nobody(self):
        for rank in range(4):
            self.back(rank)
        self.coordinator.line("ready")
        self.cell.gate.clear()
        self.cell.on_prefill = lambda rank, reserve, m: None
        ghost = control.Token(request=1, position=3, epoch=9, id=99, finish=control.LENGTH)
        self.cell.ranks[2].send(tokens=control.Tokens(tokens=[ghost]))
        self.cell.ranks[2].send(released=control.Released(request=1, epoch=9))
        self.cell.ranks[2].send(failed=control.Failed(request=1, epoch=9, code=13, message="of another life"))
        self.cell.on_prefill = None
        self.cell.gate.set()
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))

    def test_fresh_ranks_among_those_that_come_back_are_taken(self):
        """The lost coordinator had welcomed some, and the others were loading still."""
        for rank in range(3):
            self.back(rank, ready=rank != 1)
        self.back(3, incarnation=0, seats=None)
        self.assertEqual(self.got(3, "welcome")[0].incarnation >> 32, 2)
        self.assertEqual(self.cell.ranks[3].count("regroup"), 0)
        self.cell.ranks[1].send(ready=control.Ready())
        self.assertEqual(self.left(self.got(3, "regroup")[0]), ([0, 1], [2, 3]))
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))


class Holes(Return):
    def test_ranks_that_were_lost_before_are_not_waited_for(self):
        now = seats(epoch=11, first=(0, NOBODY), gone=[1])
        self.back(1)  # stopped until now, and cut off: it does not know
        self.back(0, seats=now)
        self.back(2)
        self.back(3)
        self.assertEqual(self.left(self.got(2, "regroup")[0]), ([0, NOBODY], [2, 3]))
        self.assertEqual(list(self.got(2, "regroup")[0].gone), [1])
        code, why = self.refused(self.cell.ranks[1])
        self.assertEqual(code, grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("rank 1 (pid 1001 on testhost) has been removed from its cell", why)
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))

    def test_rank_that_dies_on_its_way_back_is_given_up_at_once(self):
        for rank in (0, 1, 2):
            self.back(rank)
        self.back(3, ready=False)
        self.got(3, "welcome")
        self.cell.ranks[3].cut()
        self.assertEqual(self.left(self.got(0, "regroup")[0]), ([0, 1], [2, NOBODY]))
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))

    def test_half_that_dies_once_all_have_come_is_given_up_too(self):
        """Nobody else can have the other half any more."""
        for rank in range(4):
            self.back(rank, ready=rank in (0, 2))
        self.got(3, "welcome")
        for rank in (1, 3):
            self.cell.ranks[rank].cut()
        self.assertEqual(self.left(self.got(0, "regroup")[0]), ([0, NOBODY], [2, NOBODY]))
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))

    def test_cell_that_dies_on_its_way_back_is_lost(self):
        for rank in range(4):
            self.back(rank, ready=False)
        self.got(3, "welcome")
        for rank in range(4):
            self.cell.ranks[rank].cut()
        self.assertIn("was lost while the cell was starting", self.coordinator.line("failed"))
        self.assertEqual(self.coordinator.wait(), 1)


class Late(Return):
    ARGS = ("--on-death", "replace", "--rank-timeout-s", "8")

    def test_rank_that_does_not_come_back_is_given_up(self):
        for rank in (0, 1, 2):
            self.back(rank)
        self.assertEqual(self.left(self.got(0, "regroup")[0]), ([0, 1], [2, NOBODY]))
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))
        self.assertIn("decode rank 3 has not come back: the cell goes on without it", self.coordinator.text())
        late = self.back(3)
        self.assertEqual(self.refused(late)[0], grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("rank 3 (pid 1003 on testhost) has been removed from its cell", late.end[1])

    def test_half_of_a_cell_is_not_taken(self):
        """The other half may be somebody else's."""
        self.back(0)
        self.back(2)
        self.assertIn("ranks 1, 3 of 4 have not attached within 8 s", self.coordinator.line("failed"))
        self.assertEqual(self.cell.ranks[0].count("welcome") + self.cell.ranks[2].count("welcome"), 0)
        self.assertEqual(self.coordinator.wait(), 1)


class Stop(Return):
    ARGS = ("--rank-timeout-s", "8")

    def test_without_replace_a_cell_comes_back_whole_or_ends(self):
        for rank in (0, 1, 2):
            self.back(rank)
        self.assertIn("ranks 3 of 4 have not attached within 8 s", self.coordinator.line("failed"))
        self.assertEqual(self.coordinator.wait(), 1)


class Fence(Return):
    def serve(self):
        for rank in range(4):
            self.back(rank)
        address = self.coordinator.line("ready")
        return address, self.got(0, "welcome")[0].incarnation

    def test_coordinator_that_was_replaced_gives_the_cell_up(self):
        _, own = self.serve()
        self.cell.ranks[1].leave_reason = None
        stray = Rank(self.cell, 1, incarnation=own + (1 << 32) + 1, seats=seats())
        self.addCleanup(stray.cut)
        code, why = self.refused(stray)
        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)  # it tries again: the other one may be there then
        self.assertIn("rank 1 on testhost has followed another coordinator", why)
        self.assertIn("has taken cell \"\" from this one", self.coordinator.line("failed"))
        self.assertEqual(self.coordinator.wait(), 1)

    def test_rank_of_another_shape_takes_no_cell_away(self):
        address, own = self.serve()
        for hello, why in ((dict(n_ranks=5, n_prefill=3), "speaks of 2 and 2 seats, its cell has 3 and 2"), (dict(model_fingerprint=5), "another model"),
                           (dict(n_ranks=5, n_prefill=3, seats=seats(first=(0, 1, 4))), "says n_ranks 5, but rank")):
            stray = Rank(self.cell, 1, **{"incarnation": own + (1 << 32) + 1, "seats": seats(), **hello})
            self.addCleanup(stray.cut)
            self.assertIn(why, self.refused(stray)[1])
        self.assertEqual(self.generate(address), expected([5, 200, 300], 20))

    def test_rank_that_this_coordinator_has_lost_is_not_taken_back(self):
        _, own = self.serve()
        self.cell.ranks[3].cut()
        wait_for(lambda: self.cell.ranks[0].count("regroup") == 2, "the regroup")
        late = Rank(self.cell, 3, incarnation=own, seats=seats())
        self.addCleanup(late.cut)
        self.assertEqual(self.refused(late)[0], grpc.StatusCode.FAILED_PRECONDITION)
        self.assertIn("was lost to this coordinator, which goes on without it", late.end[1])

    def test_impossible_incarnations_and_seats_are_refused(self):
        for hello, why in ((dict(incarnation=0xffffffff << 32 | 5), "which none can follow"),
                           (dict(seats=seats(first=(0, 1, 2), second=(3,))), "speaks of 3 and 1 seats"),
                           (dict(seats=seats(first=(0, 9))), "rank 9 of 4 has a seat"),
                           (dict(seats=seats(gone=[2])), "rank 2 says that rank 2 of 4 is gone"),
                           (dict(seats=seats(first=(1, 1))), "rank 1 has two seats"),
                           (dict(seats=None), "does not say who sits where"),
                           (dict(config_hash=1), "has another config.json or params.json (hash 0000000000000001)")):
            rank = self.back(2, **hello)
            self.assertIn(why, self.refused(rank)[1])
        self.serve()


class Cells(Return):
    ARGS = ("--on-death", "restart", "--cell-wait-s", "100")

    def test_all_cells_come_back(self):
        cells = [Cell(self.cell.address) for _ in range(2)]
        for k, cell in enumerate(cells):
            cell.ranks = [None] * cell.n
            self.addCleanup(cell.close)
            for rank in range(4):
                self.back(rank, cell=cell, name="ab"[k], incarnation=(k + 1) << 32 | 9, prefix_seed=k)
        for k, cell in enumerate(cells):
            self.assertEqual(self.got(0, "welcome", cell)[0].incarnation >> 32, k + 2)
            self.got(0, "regroup", cell)
        self.assertEqual(self.generate(), expected([5, 200, 300], 20))

    def test_cell_of_another_model_is_told_so_and_may_try_again(self):
        for rank in range(4):
            self.back(rank, name="a")
        self.got(0, "regroup")
        other = Cell(self.cell.address)
        stranger = Rank(other, 0, "b", incarnation=OLD, seats=seats(), model_fingerprint=5)
        self.addCleanup(stranger.cut)
        code, why = self.refused(stranger)
        self.assertEqual(code, grpc.StatusCode.UNAVAILABLE)
        self.assertIn("has another model", why)


if __name__ == "__main__":
    main()
