"""Random regular expressions and all short texts, against Python's re:  regex_oracle.py REGEX_JUDGE

What re refuses must be refused; of what it takes only BEYOND may be."""
import itertools
import random
import re
import subprocess
import sys
import warnings

ALPHABET = "ab-"
TEXTS = ["".join(t) for n in range(6) for t in itertools.product(ALPHABET, repeat=n)] + ["\u00e9", "a\u00e9b", "b1", " ", "{", "a{1", "a]", ".", "..", "a.b", "(", "((a"]
ATOMS = ["a", "b", "a", "b", "-", "ab", "ba", ".", "[ab]", "[^a]", "[a-b]", "[b-]", "[^-]", r"\-", r"\.", r"\(", r"\x61", r"\u0062", r"\w", r"\d", r"\S", r"[^\s\d]", "{", "]",
         "\u00e9", "[a\u00e9]", "{1"]
QUANTIFIERS = ["*", "+", "?", "*?", "+?", "??", "{2}", "{0}", "{1,}", "{,2}", "{1,3}", "{0,2}?", "{2,4}", "{,}", "{2,1}"]
N_REGEXES = 3000
BEYOND = ["anchor", "a group with ^", "a possessive quantifier", "a look-ahead", "no text at all"]  # of what re takes and this reader refuses


def regex(rng, depth):
    """An expression, of which few are wrong."""
    kind = rng.random()
    if depth == 0 or kind < 0.25:
        return rng.choice(ATOMS)
    if kind < 0.45:
        return regex(rng, depth - 1) + rng.choice(QUANTIFIERS)
    if kind < 0.6:
        return rng.choice(["(", "(?:", "(?P<n%d>" % rng.randrange(10**9)]) + regex(rng, depth - 1) + ")" + rng.choice(["", *QUANTIFIERS])
    if kind < 0.75:
        return regex(rng, depth - 1) + "|" + rng.choice(["", regex(rng, depth - 1)])
    if kind < 0.8:
        return "(" + rng.choice(["^", ""]) + regex(rng, depth - 1) + rng.choice(["$", ""]) + "|" + regex(rng, depth - 1) + ")"
    if kind < 0.83:
        return rng.choice(["(?=", "(?!"]) + rng.choice(["", "", "^"]) + regex(rng, depth - 1) + rng.choice(["", "$"]) + ")" + regex(rng, depth - 1)
    if kind < 0.88:
        return rng.choice(["^", r"\A", ""]) + regex(rng, depth - 1) + rng.choice(["$", r"\Z", ""])
    return "".join(regex(rng, depth - 1) for _ in range(rng.randint(2, 3)))


def looking_ahead(rng):
    """An expression with look-aheads, mostly where they are taken."""
    heads = "".join(f"{rng.choice(['(?=', '(?!'])}{rng.choice(['^', '', ''])}{regex(rng, 2)}{rng.choice(['$', '', ''])})" for _ in range(rng.randint(1, 3)))
    return rng.choice(["^", r"\A", "^", ""]) + heads + regex(rng, 3) + rng.choice(["$", "", "", "|^b", "|-"])


def compiled(text):
    try:
        return re.compile(text, re.ASCII)
    except re.error:
        return None


def main():
    warnings.simplefilter("ignore")  # of re: [[ and the like
    rng = random.Random(1)
    cases = [(kind, r, compiled(r)) for r in [regex(rng, rng.randint(1, 5)) for _ in range(N_REGEXES)] + [looking_ahead(rng) for _ in range(N_REGEXES // 3)] for kind in "ws"]
    lines = "".join(f"{kind}\t{r}\t{text}\n" for kind, r, _ in cases for text in TEXTS)
    out = subprocess.run([sys.argv[1]], input=lines.encode(), stdout=subprocess.PIPE, check=True).stdout.decode().splitlines()
    assert len(out) == len(cases) * len(TEXTS), len(out)
    faults = refused = matched = 0
    for i, (kind, r, oracle) in enumerate(cases):
        found = out[i * len(TEXTS):(i + 1) * len(TEXTS)]
        if found[0] not in "01":
            refused += oracle is not None
            if oracle is not None and not any(part in found[0] for part in BEYOND):
                faults += 1
                print(f"{kind} {r}: refused: {found[0]}")
            continue
        want = [str(int(oracle is not None and (oracle.fullmatch if kind == "w" else oracle.search)(text) is not None)) for text in TEXTS]
        matched += want.count("1")
        if oracle is None or want != found:
            faults += 1
            print(f"{kind} {r}: {[t for t, w, f in zip(TEXTS, want, found) if w != f][:5]}" + ("" if oracle else ": re refuses it"))
    print(f"{len(cases)} expressions, {refused} refused beyond re, {matched} matches, {faults} faults")
    return faults > 0 or matched < 10000 or refused > len(cases) // 3


if __name__ == "__main__":
    sys.exit(main())
