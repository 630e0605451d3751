#!/usr/bin/env python3
"""Fails when a file includes a header of a folder that it may not use.

    check_includes.py SOURCE_ROOT

Project headers are included as "folder/file.h".  MAY is the table of docs/architecture.md, "Folders";
OWNERS says which folders may name a third-party header at all.  The script also fails when the page
and MAY disagree, so that neither can drift."""
import os
import re
import sys

WORK = ["core", "device", "parallel", "attention", "moe", "model"]
MAY = {  # folder: what it may include besides itself; "a/b" is one header without its ending
    "core": [],
    "device": ["core"],
    "parallel": ["core", "device"],
    "attention": ["core", "device", "parallel"],
    "moe": ["core", "device", "parallel"],
    "model": ["core", "device", "parallel", "attention", "moe"],
    "proto": ["core"],
    "worker": WORK + ["proto"],
    "coordinator": ["core", "proto", "model/tokenizer", "model/grammar/grammar", "model/grammar/matcher"],
    "cli": ["core", "proto", "model/tokenizer", "model/safetensors"],
    "tools": ["core", "device", "attention", "moe", "model"],
    "launch": ["core"],
}
OWNERS = {  # third-party headers and the only folders that may name them
    r"<mpi\.h>": ["parallel"],
    r"<nccl\.h>": ["parallel"],
    r"<cuda[_a-z0-9]*\.h>": ["device", "parallel"],
    r"<immintrin\.h>": ["device"],
    r"<arm_neon\.h>": ["device"],
    r"<grpc/.*>": ["proto", "coordinator", "cli"],
    r"<protobuf-c/.*>": ["proto", "coordinator", "cli"],
    r"<openssl/.*>": ["proto", "coordinator"],
    r"<minizip/.*>": ["coordinator"],
    r"<pcre2\.h>": ["model"],
    r"<microhttpd\.h>": ["coordinator"],
    r"<xxhash\.h>": ["parallel", "model", "proto", "worker", "coordinator"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|(<[^>]+>))')
SOURCES = (".c", ".h", ".cu", ".cuh")


def table_of_page(root):
    """folder -> allowed, from the table under '## Folders' of docs/architecture.md."""
    page = open(os.path.join(root, "docs", "architecture.md"), encoding="utf-8").read()
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ([^|]*) \|$", page.split("## Folders", 1)[1], re.M)
    return {folder: sorted(w.strip("`") for w in may.split() if w != "-") for folder, may in rows}


def files(root, folder):
    for where, _, names in os.walk(os.path.join(root, folder)):
        for name in sorted(names):
            if name.endswith(SOURCES):
                yield os.path.join(where, name)


def faults(root):
    page = table_of_page(root)
    for folder, allowed in MAY.items():
        if page.get(folder) != sorted(allowed):
            yield f"docs/architecture.md: {folder} may include {page.get(folder)}, here {sorted(allowed)}"
        for path in files(root, folder):
            for n, line in enumerate(open(path, encoding="utf-8"), 1):
                m = INCLUDE.match(line)
                if not m:
                    continue
                ours, system = m.groups()
                place = f"{os.path.relpath(path, root)}:{n}"
                if ours:
                    top = ours.split("/")[0]
                    header = ours.rsplit(".", 1)[0]
                    known = top in MAY and top != folder
                    if known and top not in allowed and header not in allowed:
                        yield f"{place}: {folder}/ may not include {ours}"
                    if "/" not in ours and not ours.endswith(".pb-c.h"):
                        yield f'{place}: write "folder/{ours}"'
                for pattern, owners in OWNERS.items():
                    if system and re.fullmatch(pattern, system) and folder not in owners:
                        yield f"{place}: {system} belongs to {', '.join(owners)}"


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    seen = sum(1 for folder in MAY for _ in files(root, folder))
    found = list(faults(root))
    print("\n".join(found) if found else f"{seen} files keep to the table")
    return 1 if found or seen == 0 else 0


sys.exit(main())
