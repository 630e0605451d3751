"""Whether engines compute the same: numbers, no engine.

Rows of logits are compared by rms.  A row whose gate picked another expert under rounding moves by more than all rounding together, so
the median row counts (as in the project's goldens).  The yardstick is one engine's run in float32; the *bf16 error* is how far the
yardstick's own implementation strays from it in bf16."""
import numpy as np

TIMES = 2.0  # a pair of engines may differ by so many bf16 errors


def row_rms(a, b):
    """Median over rows of the rms of a - b; NaN or infinite where either has such a number."""
    if a.shape != b.shape:
        raise ValueError(f"logits of shapes {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return float("nan")
    return float(np.median(np.sqrt(np.mean((a.astype(np.float64) - b) ** 2, axis=-1))))


def compare(exact, bf16, logits):
    """exact: the float32 logits [T, V], bf16: the same implementation's in bf16, logits: {engine: [T, V]}.  Returns the figures and a
    list of what is wrong; empty: all compute the same."""
    error = row_rms(bf16, exact)
    figures = {"bf16_error": error, "logits_rms": float(np.sqrt(np.mean(exact.astype(np.float64) ** 2))),
               "to_float32": {name: row_rms(x, exact) for name, x in logits.items()}, "pairs": {}}
    wrong = []
    if not error > 0:
        wrong.append(f"the bf16 error is {error}: the yardstick is none")
    if not error < 0.1 * figures["logits_rms"]:
        wrong.append(f"the bf16 error is {error:.4g} where logits have {figures['logits_rms']:.4g}: rounding cannot be told from a mistake")
    names = sorted(logits)
    pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1:]]
    for a, b in pairs:
        figures["pairs"][f"{a} - {b}"] = got = row_rms(logits[a], logits[b])
        if not got <= TIMES * error:
            wrong.append(f"{a} and {b} differ by {got:.4g}, more than {TIMES:g} x the bf16 error of {error:.4g}")
    for name, got in figures["to_float32"].items():
        if not got <= TIMES * error:
            wrong.append(f"{name} strays from float32 by {got:.4g}, more than {TIMES:g} x the bf16 error of {error:.4g}")
    return figures, wrong
