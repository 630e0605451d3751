"""Writes GGUF files, and decodes their types of tensors in plain Python: independent of the reader that it tests, and slow."""
import math
import struct

U8, I8, U16, I16, U32, I32, F32_KEY, BOOL, STRING, ARRAY, U64, I64, F64_KEY = range(13)
FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32_KEY: "f", BOOL: "?", U64: "Q", I64: "q", F64_KEY: "d"}
F32, F16, BF16 = 0, 1, 30


def text(s):
    raw = s.encode() if isinstance(s, str) else s
    return struct.pack("<Q", len(raw)) + raw


def value(kind, v):
    if kind == STRING:
        return text(v)
    if kind == ARRAY:
        of, items = v
        return struct.pack("<IQ", of, len(items)) + b"".join(value(of, i) for i in items)
    return struct.pack("<" + FORMATS[kind], v)


class Gguf:
    """keys: {name: (kind, value)}; tensors: {name: (ne, type, bytes)}."""

    def __init__(self, keys, tensors):
        self.keys, self.tensors = dict(keys), dict(tensors)

    def bytes(self, version=3, magic=b"GGUF", n_tensors=None, n_keys=None, more_keys=b"", more_tensors=b"", offset=lambda name, at: at):
        alignment = self.keys.get("general.alignment", (U32, 32))[1]
        out = magic + struct.pack("<IQQ", version, len(self.tensors) if n_tensors is None else n_tensors,
                                  len(self.keys) if n_keys is None else n_keys)
        for name, (kind, v) in self.keys.items():
            out += text(name) + struct.pack("<I", kind) + value(kind, v)
        out += more_keys
        data, at = [], 0
        for name, (ne, kind, raw) in self.tensors.items():
            out += text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne) + struct.pack("<IQ", kind, offset(name, at))
            pad = -len(raw) % alignment
            data += [raw, bytes(pad)]
            at += len(raw) + pad
        out += more_tensors
        return out + bytes(-len(out) % alignment) + b"".join(data)

    def write(self, path, **how):
        with open(path, "wb") as f:
            f.write(self.bytes(**how))
        return path

    def split(self, stem, n):
        """n files, the first without tensors; returns its path."""
        names = list(self.tensors)
        for i in range(n):
            mine = names[(i - 1)::n - 1] if i else []
            keys = {**(self.keys if i == 0 else {}), "split.no": (U16, i), "split.count": (U16, n), "split.tensors.count": (I32, len(names))}
            Gguf(keys, {name: self.tensors[name] for name in mine}).write(f"{stem}-{i + 1:05}-of-{n:05}.gguf")
        return f"{stem}-00001-of-{n:05}.gguf"


# ---- types of tensors


def f32(x):
    """Rounded to binary32."""
    try:
        return struct.unpack("<f", struct.pack("<f", x))[0]
    except OverflowError:
        return math.copysign(math.inf, x)


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def half(raw):
    return struct.unpack("<e", raw)[0]


def mul(*xs):
    y = xs[0]
    for x in xs[1:]:
        y = f32(y * x)
    return y


def nibbles(raw):
    return [b & 15 for b in raw] + [b >> 4 for b in raw]


def fifths(raw, high):
    bits = int.from_bytes(high, "little")
    return [q + 16 * (bits >> i & 1) for i, q in enumerate(nibbles(raw))]


def k_scales(q):
    """Eight scales and eight minima of 6 bits."""
    sc = [q[j] & 63 for j in range(4)] + [(q[j + 4] & 15) + ((q[j - 4] >> 6) << 4) for j in range(4, 8)]
    m = [q[j + 4] & 63 for j in range(4)] + [(q[j + 4] >> 4) + ((q[j] >> 6) << 4) for j in range(4, 8)]
    return sc, m


def q4_k(b, high=None):
    d, dmin, (sc, m), qs = half(b[:2]), half(b[2:4]), k_scales(b[4:16]), b[16 if high is None else 48:]
    out = []
    for g in range(4):
        for part in range(2):
            for i in range(32):
                q = qs[32 * g + i] >> 4 if part else qs[32 * g + i] & 15
                q += 16 * (high[i] >> (2 * g + part) & 1) if high is not None else 0
                out.append(f32(mul(d, sc[2 * g + part], q) - mul(dmin, m[2 * g + part])))
    return out


def q6_k(b):
    ql, qh, sc, d = b[:128], b[128:192], struct.unpack("<16b", b[192:208]), half(b[208:])
    out = [0.0] * 256
    for h in range(2):
        for i in range(32):
            lo, hi, hs = ql[64 * h + i], ql[64 * h + 32 + i], qh[32 * h + i]
            for k, q in enumerate([lo & 15 | (hs & 3) << 4, hi & 15 | (hs >> 2 & 3) << 4, lo >> 4 | (hs >> 4 & 3) << 4, hi >> 4 | (hs >> 6) << 4]):
                out[128 * h + 32 * k + i] = mul(d, sc[8 * h + 2 * k + i // 16], q - 32)
    return out


def q2_k(b):
    scales, qs, d, dmin, out = b[:16], b[16:80], half(b[80:82]), half(b[82:]), []
    for h in range(2):
        for shift in range(0, 8, 2):
            for part in range(2):
                s = scales[8 * h + shift + part]
                out += [f32(mul(d, s & 15, q >> shift & 3) - mul(dmin, s >> 4)) for q in qs[32 * h + 16 * part:32 * h + 16 * part + 16]]
    return out


def q3_k(b):
    mask, qs, (a0, a1, t), d = b[:32], b[32:96], struct.unpack("<3I", b[96:108]), half(b[108:])
    low, two = 0x0F0F0F0F, 0x03030303
    words = [a0 & low | (t & two) << 4, a1 & low | (t >> 2 & two) << 4, a0 >> 4 & low | (t >> 4 & two) << 4, a1 >> 4 & low | (t >> 6 & two) << 4]
    scales, out, bit = struct.pack("<4I", *words), [], 1
    for h in range(2):
        for shift in range(0, 8, 2):
            for i in range(32):
                q = (qs[32 * h + i] >> shift & 3) - (0 if mask[i] & bit else 4)
                out.append(mul(d, scales[len(out) // 16] - 32, q))
            bit <<= 1
    return out


NL = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
E2M1 = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12]


def iq4_xs(b):
    d, high, out = half(b[:2]), struct.unpack("<H", b[2:4])[0], []
    for g in range(8):
        scale = ((b[4:8][g >> 1] >> (4 if g & 1 else 0)) & 15) + 16 * (high >> (2 * g) & 3)
        out += [mul(d, scale - 32, NL[q]) for q in nibbles(b[8 + 16 * g:24 + 16 * g])]
    return out


TYPES = {  # number: (weights of a block, bytes, where its fp16 numbers stand, decoder)
    F32: (1, 4, [], lambda b: [struct.unpack("<f", b)[0]]), F16: (1, 2, [0], lambda b: [half(b)]),
    BF16: (1, 2, [], lambda b: [struct.unpack("<f", bytes(2) + b)[0]]),
    8: (32, 34, [0], lambda b: [mul(half(b[:2]), q) for q in struct.unpack("<32b", b[2:])]),
    2: (32, 18, [0], lambda b: [mul(half(b[:2]), q - 8) for q in nibbles(b[2:])]),
    6: (32, 22, [0], lambda b: [mul(half(b[:2]), q - 16) for q in fifths(b[6:], b[2:6])]),
    7: (32, 24, [0, 2], lambda b: [f32(mul(half(b[:2]), q) + half(b[2:4])) for q in fifths(b[8:], b[4:8])]),
    3: (32, 20, [0, 2], lambda b: [f32(mul(half(b[:2]), q) + half(b[2:4])) for q in nibbles(b[4:])]),
    20: (32, 18, [0], lambda b: [mul(half(b[:2]), NL[q]) for q in nibbles(b[2:])]),
    23: (256, 136, [0], iq4_xs),
    39: (32, 17, [], lambda b: [f32(E2M1[q] * 2.0 ** (b[0] - 128)) for q in nibbles(b[1:])]),
    10: (256, 84, [80, 82], q2_k), 11: (256, 110, [108], q3_k), 12: (256, 144, [0, 2], q4_k),
    13: (256, 176, [0, 2], lambda b: q4_k(b, b[16:48])), 14: (256, 210, [208], q6_k)}
EXTREME = [0.0, -0.0, 2.0 ** -24, -2.0 ** -24, 65504.0, -65504.0, 2.0 ** -14, 1.0]


def random_blocks(kind, n_weights, rng):
    weights, size, halves, _ = TYPES[kind]
    if kind == BF16:
        return rng.randbytes(2 * n_weights)
    out = b""
    for i in range(n_weights // weights):
        block = bytearray(rng.randbytes(size))
        if kind == F32:
            block = bytearray(struct.pack("<f", rng.choice([rng.gauss(0, 1), rng.gauss(0, 1e-39), rng.uniform(-3e38, 3e38), 1 + 2.0 ** -8, 1 + 3 * 2.0 ** -8])))
        for at in halves:
            v = EXTREME[i % len(EXTREME)] if i % 3 == 0 else rng.choice([rng.gauss(0, 1), rng.gauss(0, 0.01), rng.uniform(-6e-5, 6e-5)])
            block[at:at + 2] = struct.pack("<e", v)
        out += bytes(block)
    return out


def decode(kind, raw):
    """The bytes of bf16 that they become."""
    if kind == BF16:
        return raw
    _, size, _, decoder = TYPES[kind]
    return struct.pack(f"<{len(raw) // size * TYPES[kind][0]}H", *(bf16(x) for i in range(0, len(raw), size) for x in decoder(raw[i:i + size])))
