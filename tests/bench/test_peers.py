#!/usr/bin/env python3
"""bench/peers without the engines: the converter, the comparison and the report.

    test_peers.py --source DIR --synth PROGRAM [--converter CACHE]

The engines themselves are no part of this: compiling llama.cpp takes longer than all other tests.  --converter is a test of its own: it
needs the gguf package, which pip installs below CACHE where Python has none.  Exit code 77: skipped, with the reason."""
import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError as e:
    print(f"skipped: {e}")
    sys.exit(77)

TINY = ["--like", "v2-lite", "--layers", "3", "--vocab", "96", "--hidden", "64", "--heads", "2", "--dense-dim", "80", "--expert-dim", "32",
        "--experts", "8", "--top-k", "2", "--kv-lora-rank", "32", "--qk-nope-dim", "16", "--qk-rope-dim", "8", "--v-dim", "24"]


def equal_engines_pass_and_others_do_not(compare):
    rng = np.random.default_rng(1)
    exact = rng.normal(size=(20, 50)).astype(np.float32)

    def near(size, seed):
        return exact + size * np.random.default_rng(seed).normal(size=exact.shape).astype(np.float32)

    bf16 = near(0.01, 2)
    figures, wrong = compare(exact, bf16, {"a": near(0.01, 3), "b": near(0.01, 4), "yardstick": bf16})
    assert not wrong and len(figures["pairs"]) == 3, (figures, wrong)
    assert abs(figures["bf16_error"] - 0.01) < 0.002, figures
    rerouted = near(0.01, 3)
    rerouted[::5] += 1  # some rows saw another expert
    assert not compare(exact, bf16, {"a": rerouted, "b": near(0.01, 4)})[1]
    for name, bad in (("permuted", np.roll(exact, 1, axis=0)), ("too far", near(0.03, 5)), ("scaled", exact * 1.05)):
        wrong = compare(exact, bf16, {"a": near(0.01, 3), "b": bad})[1]
        assert any("b" in w for w in wrong), f"{name} passes"
    holed = near(0.01, 3)
    holed[3, 4] = np.nan
    assert compare(exact, bf16, {"a": near(0.01, 6), "b": holed})[1], "NaN passes"
    assert compare(exact, exact, {"a": bf16, "b": bf16})[1], "an error of 0 is a yardstick"
    assert compare(exact, near(0.5, 2), {"a": near(0.5, 3), "b": near(0.5, 4)})[1], "an error as large as the logits is a yardstick"
    try:
        compare(exact, bf16[:5], {"a": bf16})
        raise AssertionError("logits of another shape are compared")
    except ValueError:
        pass


def report_takes_medians_against_the_roof_around_each_run():
    import bench_engine
    import peers
    import report
    work = bench_engine.Work(json.load(open(os.path.join(ARGS.folder, "config.json"))))
    roofs, point = {"read_gbs": 10.0, "gflops": 1000.0}, "batch 8, ctx 1k"
    least, bound = report.least_seconds(work, point, roofs)
    assert bound == "memory" and least > 0
    rows = [{"engine": e, "point": point, "seconds": least * t, "roofs": roofs, "others_cores": o} for e, t, o in
            (("baton", 1.25, 0.0), ("baton", 2.0, 0.2), ("baton", 1.0, 0.1), ("llama", 2.5, 0.0), ("llama", 4.0, 0.9))]
    found = report.summarise(work, rows)
    assert abs(found[point]["baton"]["share"] - 0.8) < 1e-9 and found[point]["baton"]["runs"] == 3, found
    lines = report.table(found, "amx")
    assert lines[-1].endswith("| 2.00x |") and "| llama | " in lines[3], lines
    assert report.plot(found).count("<rect") == 3
    named = report.versions([{"engine": "baton", "version": v} for v in ("commit a", "commit a", "commit b")])
    assert named == {"baton": "baton: commit a and commit b"}, named
    assert set(report.TARGETS) == set(peers.POINTS) == {p for g in peers.TOGETHER for p in g}


def parts_of_a_step_wait_for_each_other():
    import bench_engine
    work = bench_engine.Work(json.load(open(os.path.join(ARGS.folder, "config.json"))))
    for batch, context in ((1, 16), (32, 1024)):
        whole, parts = work.decode(batch, context), work.decode_parts(batch, context)
        in_12_bits = work.attention - work.heads + work.dense + work.shared + work.head + work.chosen(batch) * work.n_moe * work.experts * work.expert
        assert abs(sum(size for _, size in parts) - whole[1] + in_12_bits / 2) < 1e-9 * whole[1], parts
        assert abs(sum(ops for ops, _ in parts) - whole[0] - batch * context * work.absorbed) < 1e-9 * whole[0], parts
        assert all(ops > 0 and size > 0 for ops, size in parts), parts
    least, *_, most = sorted(ops / size for ops, size in parts)  # between these some parts are bound by memory, others by operations
    for gflops, mixed in ((least / 2, False), ((least * most) ** 0.5, True), (most * 2, False)):
        roofs = {"read_gbs": 1.0, "gflops": gflops}
        together, _ = bench_engine.shortest(tuple(map(sum, zip(*parts))), roofs, "")
        assert (bench_engine.in_turn(parts, roofs) > (1 + 1e-9) * together) == mixed, gflops


def timing_is_refused_without_agreement():
    import peers
    with tempfile.TemporaryDirectory() as work:
        args = argparse.Namespace(work=work, model=ARGS.folder)

        def refused(part):
            try:
                peers.need_check(args, ["baton", "llama"])
            except SystemExit as e:
                assert part in str(e), e
                return
            raise AssertionError(f"timed, expected a refusal with {part}")

        def say(**more):
            good = {"same": True, "wrong": [], "model": peers.fingerprint(ARGS.folder), "to_float32": {"baton": 1, "llama": 1}}
            with open(os.path.join(work, "check.json"), "w") as f:
                json.dump({**good, **more}, f)

        refused("is missing")
        say(same=False, wrong=["baton and llama differ by 3"])
        refused("differ by 3")
        say(model=[["config.json", 1, 2]])
        refused("another model")
        say(to_float32={"baton": 1})
        refused("knows nothing of llama")
        say()
        peers.need_check(args, ["baton", "llama"])


def converted_tensors_hold_the_checkpoints_bits():
    import gguf
    import to_gguf
    path = os.path.join(ARGS.folder, "model.gguf")
    to_gguf.convert(ARGS.folder, path)
    t, c = to_gguf.Checkpoint(ARGS.folder), json.load(open(os.path.join(ARGS.folder, "config.json")))
    reader = gguf.GGUFReader(path)
    got = {x.name: x for x in reader.tensors}
    assert reader.get_field("deepseek2.attention.q_lora_rank").contents() == 0
    assert reader.get_field("general.architecture").contents() == "deepseek2"

    def bits(name):
        x = got[name]
        assert x.tensor_type == gguf.GGMLQuantizationType.BF16, name
        return x.data.view(np.uint16).reshape([int(n) for n in reversed(x.shape)])

    assert (bits("output.weight") == t["lm_head.weight"]).all()
    assert (bits("blk.1.ffn_down_exps.weight")[5] == t["model.layers.1.mlp.experts.5.down_proj.weight"]).all()
    assert (bits("blk.2.ffn_gate_exps.weight")[7] == t["model.layers.2.mlp.experts.7.gate_proj.weight"]).all()
    dn, dv, rank, n = c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"], c["num_attention_heads"]
    kv_b = t["model.layers.0.self_attn.kv_b_proj.weight"].reshape(n, dn + dv, rank)
    assert (bits("blk.0.attn_k_b.weight") == kv_b[:, :dn].transpose(0, 2, 1)).all()
    assert (bits("blk.0.attn_v_b.weight") == kv_b[:, dn:]).all()
    gate = got["blk.1.ffn_gate_inp.weight"]
    assert gate.tensor_type == gguf.GGMLQuantizationType.F32
    assert (gate.data.reshape(-1) == to_gguf.to_float(t["model.layers.1.mlp.gate.weight"]).reshape(-1)).all()
    # Every tensor of the checkpoint has gone somewhere.
    assert sum(int(np.prod(x.shape)) for x in got.values()) == sum(int(np.prod(shape)) for _, _, shape in t.at.values())
    # And comes back.
    back = os.path.join(ARGS.folder, "back")
    subprocess.run([os.path.join(os.path.dirname(ARGS.synth), "baton-convert"), path, back], check=True, stdout=subprocess.DEVNULL)
    again = to_gguf.Checkpoint(back)
    assert set(again.at) == set(t.at)
    assert all((again[name] == t[name]).all() for name in t.at)
    for key, value in (("model_type", "deepseek_v3"), ("scoring_func", "sigmoid"), ("topk_method", "group_limited_greedy")):
        try:
            to_gguf.check({**c, key: value})
            raise AssertionError(f"{key} {value} is converted")
        except SystemExit as e:
            assert key in str(e) and value in str(e)


def find_gguf(cache):
    """Without its dependencies, of which the writer and the reader need numpy alone."""
    sys.path.append(cache)
    if importlib.util.find_spec("gguf") is None:
        env = os.path.join(cache, "venv")
        made = subprocess.run(f"{sys.executable} -m venv {env} && {env}/bin/pip install -q --no-deps --target {cache} gguf tqdm pyyaml requests", shell=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if made.returncode != 0:
            print(f"skipped: pip cannot install gguf: {made.stdout.strip()[-400:]}")
            sys.exit(77)
        importlib.invalidate_caches()


def main():
    global ARGS
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--source", required=True)
    ap.add_argument("--synth", required=True)
    ap.add_argument("--converter", metavar="CACHE")
    ARGS = ap.parse_args()
    sys.path[:0] = [os.path.join(ARGS.source, "bench", "peers"), os.path.join(ARGS.source, "bench")]
    with tempfile.TemporaryDirectory() as folder:
        ARGS.folder = os.path.join(folder, "model")
        subprocess.run([ARGS.synth, *TINY, ARGS.folder], check=True, stdout=subprocess.DEVNULL)
        if ARGS.converter:
            find_gguf(ARGS.converter)
            converted_tensors_hold_the_checkpoints_bits()
            return
        import compare
        equal_engines_pass_and_others_do_not(compare.compare)
        report_takes_medians_against_the_roof_around_each_run()
        parts_of_a_step_wait_for_each_other()
        timing_is_refused_without_agreement()


if __name__ == "__main__":
    main()
