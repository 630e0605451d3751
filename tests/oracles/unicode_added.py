"""What Hugging Face's `tokenizers` knows of Unicode beyond version 14, PCRE2 10.42's, as a table for the pre-tokenizer.

    python3.11 tests/oracles/unicode_added.py --table model/unicode_added.c --goldens tests/model/unicode_goldens.h

Both files come from the library itself (0.22.2 and 0.23.3 make the same ones): each property is tried on every code point.
What Unicode 14 had comes from unicodedata, hence Python 3.11, Debian 12's.
"""
import argparse, unicodedata
import tokenizers
from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
MAJORS = "L M N P S Z".split()
SCRIPTS = "Arabic Cyrillic Devanagari Greek Han Hangul Hebrew Hiragana Katakana Latin Thai".split()
# the translation refuses these by name: code points left them after Unicode 14, and a class cannot leave one out
SHRUNK = {"Mn", "Cn", "C"}
ALL = [c for c in range(0x110000) if not 0xd800 <= c < 0xe000]
# what the goldens cover: the other planes hold nothing, or private use only
TRIED = [c for c in ALL if c < 0x33480 or 0xe0000 <= c < 0xe0200]
TABLE = """/* Made by tests/oracles/unicode_added.py with tokenizers %(tokenizers)s: do not edit.
 * What its regexes have of Unicode 16 and those of PCRE2 10.42, of Unicode 14, have not; sorted
 * by `first`.  U+1171E went from Mn to Mc; nothing else had another category before. */
#include "model/unicode_added.h"

/* clang-format off */
const bt_unicode_range bt_unicode_added[] = {
%(rows)s
};
/* clang-format on */
const size_t bt_unicode_n_added = sizeof(bt_unicode_added) / sizeof(bt_unicode_added[0]);

/* The steps "Digits" go by the Unicode of the library's Rust: 17. */
const char bt_unicode_digits[] = "[\\\\p{N}%(digits)s]";
"""
GOLDENS = """/* Made by tests/oracles/unicode_added.py with tokenizers %(tokenizers)s: do not edit.
 * How many of the code points below U+33480 and of U+E0000 to U+E01FF each regex takes, and the
 * FNV-1a hash of them in ascending order, each as one 32-bit word.  With a PCRE2 of a Unicode later
 * than 16 some are others: its tables have more then than the library's. */
/* clang-format off */
static const struct {
    const char *regex;
    uint32_t    n;
    uint64_t    hash;
} UNICODE_GOLDENS[] = {
%(rows)s
};
/* clang-format on */
"""


def matches(regex):
    """The code points that the regex takes."""
    rest = set()
    for i in range(0, len(ALL), 1 << 15):
        for piece, _ in pre_tokenizers.Split(Regex(regex), "removed").pre_tokenize_str("".join(map(chr, ALL[i:i + (1 << 15)]))):
            rest.update(map(ord, piece))
    return set(ALL) - rest


def digits():
    step = pre_tokenizers.Digits(individual_digits=True)
    return {c for c in ALL if len(step.pre_tokenize_str("a" + chr(c))) == 2}


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def span(first, last):
    return f"\\\\x{{{first:x}}}" + (f"-\\\\x{{{last:x}}}" if last > first else "")


def wrapped(cells, n):
    return "\n".join("    " + " ".join(cells[i:i + n]) for i in range(0, len(cells), n))


def golden(regex, points):
    value = 0xcbf29ce484222325
    points = sorted(points.intersection(TRIED))
    for c in points:
        value = ((value ^ c) * 0x100000001b3) % (1 << 64)
    return f'{{"{regex}", {len(points)}, UINT64_C(0x{value:016x})}},'


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--table", required=True)
    ap.add_argument("--goldens", required=True)
    a = ap.parse_args()
    assert unicodedata.unidata_version == "14.0.0", f"expected Python with Unicode 14.0.0, found {unicodedata.unidata_version}"
    before = {c: unicodedata.category(chr(c)) for c in ALL}
    new = {c for c in ALL if before[c] == "Cn"}
    rows, goldens = [], []
    for name in CATEGORIES + MAJORS + SCRIPTS + sorted(SHRUNK):
        points = matches(f"\\p{{{name}}}")
        goldens.append(golden(f"\\\\p{{{name}}}", points))
        if name in SCRIPTS:  # unicodedata has none: that nothing moved between them is for the goldens to show
            rows += [(first, last, name) for first, last in ranges(points & new)]
            continue
        old = {c for c in ALL if before[c].startswith(name)}
        assert (not old <= points) == (name in SHRUNK), f"{name}: {[hex(c) for c in old - points][:9]} left it after Unicode 14"
        if name in CATEGORIES or name == "Mn":
            rows += [(first, last, name) for first, last in ranges(points - old)]
    numbers, numeric = matches(r"\p{N}"), digits()
    assert numbers <= numeric
    goldens = goldens[:-len(SHRUNK)] + [golden(r"\\d", matches(r"\d")), golden("Digits", numeric)]
    with open(a.table, "w") as f:
        f.write(TABLE % dict(tokenizers=tokenizers.__version__, digits="".join(span(*r) for r in ranges(numeric - numbers)),
                             rows=wrapped([f'{{0x{first:04x}, 0x{last:04x}, "{name}"}},' for first, last, name in sorted(rows)], 3)))
    with open(a.goldens, "w") as f:
        f.write(GOLDENS % dict(tokenizers=tokenizers.__version__, rows=wrapped(goldens, 2)))
    print(f"{len(rows)} ranges, {len(goldens)} goldens")


if __name__ == "__main__":
    main()
