"""Reads and writes safetensors files with numpy alone (float32, int32, int64)."""
import json
import struct

import numpy as np

DTYPES = {"F32": np.float32, "I32": np.int32, "I64": np.int64}
NAMES = {np.dtype(v): k for k, v in DTYPES.items()}


def read(path):
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], DTYPES[t["dtype"]]).reshape(t["shape"])
            for name, t in header.items()}


def write(path, tensors):
    header, parts, at = {}, [], 0
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = dict(dtype=NAMES[array.dtype], shape=list(array.shape), data_offsets=[at, at + len(raw)])
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(parts))
