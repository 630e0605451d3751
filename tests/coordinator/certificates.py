"""A public port that speaks TLS, with certificates by the openssl program."""
import os
import subprocess
import tempfile
import time
import unittest

from harness import Cell, Coordinator


def make(folder):
    """A CA, a server's and a client's certificate of it, a stranger's, and keys with a passphrase."""
    def run(*args):
        subprocess.run(["openssl", *args], cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for ca in ("ca", "other"):
        run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={ca}",
            "-keyout", f"{ca}.key", "-out", f"{ca}.pem")
    with open(os.path.join(folder, "ext"), "w") as f:
        f.write("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name, ca in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}", "-keyout", f"{name}.key",
            "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-CAcreateserial", "-days", "2",
            "-extfile", "ext", "-out", f"{name}.pem")
    run("pkey", "-in", "server.key", "-aes256", "-passout", "pass:word", "-out", "locked.key")
    run("ec", "-in", "server.key", "-aes256", "-passout", "pass:word", "-out", "locked-old.key")


def date(folder, name, start, end):
    """A certificate for the server's key that is valid from start to end, times of time.time()."""
    def text(t):
        return time.strftime("%Y%m%d%H%M%SZ", time.gmtime(t))
    with open(os.path.join(folder, "ca.conf"), "w") as f:
        f.write("[ca]\ndefault_ca=d\n[d]\ndatabase=index\nnew_certs_dir=.\ndefault_md=sha256\nrand_serial=yes\npolicy=p\n[p]\ncommonName=supplied\n")
    open(os.path.join(folder, "index"), "w").close()
    subprocess.run(["openssl", "ca", "-batch", "-config", "ca.conf", "-cert", "ca.pem", "-keyfile", "ca.key", "-in", "server.csr", "-notext",
                    "-extfile", "ext", "-startdate", text(start), "-enddate", text(end), "-out", name], cwd=folder, check=True, capture_output=True)


class TlsCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        try:
            make(cls.folder.name)
        except FileNotFoundError:
            raise unittest.SkipTest("no openssl program to make certificates with") from None

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def serve(self, *args):
        """The address of a coordinator with a cell."""
        c = self.coordinator = Coordinator("--tls-cert", self.path("server.pem"), "--tls-key", self.path("server.key"), *args)
        self.addCleanup(c.close)
        cell = Cell(c.line("control"), prefill=1, decode=1).attach().ready()
        self.addCleanup(cell.close)
        return c.line("ready")
