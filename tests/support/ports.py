"""Ports for programs that must be told theirs before they start."""
import random
import socket


def free_port():
    """A port that the kernel gives to nobody who asks for any: it is still free a moment later."""
    with open("/proc/sys/net/ipv4/ip_local_port_range") as f:
        top = int(f.read().split()[0])
    while True:
        with socket.socket() as s:
            port = random.randrange(max(1024, top - 16384), top)
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return port
