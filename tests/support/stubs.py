"""Python modules of the project's .proto files."""
import importlib
import os
import sys
import tempfile

from grpc_tools import protoc


def generate(source, *names):
    """(NAME_pb2, NAME_pb2_grpc) of each proto/NAME.proto."""
    with tempfile.TemporaryDirectory(prefix="baton-stubs-") as folder:
        words = ["", f"-I{os.path.join(source, 'proto')}", f"--python_out={folder}", f"--grpc_python_out={folder}", *(f"{name}.proto" for name in names)]
        assert protoc.main(words) == 0, f"one of {names} does not compile"
        sys.path.insert(0, folder)
        modules = [(importlib.import_module(f"{name}_pb2"), importlib.import_module(f"{name}_pb2_grpc")) for name in names]
        sys.path.remove(folder)
    return modules
