"""Looks for a way out of the sandbox; passes only if it finds one."""

import os
import socket


def reached(name, attempt):
    try:
        what = attempt()
    except Exception as error:
        print(f"{name}: denied ({type(error).__name__}: {error})")
        return False
    print(f"{name}: REACHED {what!r}")
    return True


def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.settimeout(2)
        s.connect(address)
        return address


def read(path):
    with open(path, "rb") as f:
        return f.read(16)


def write(path):
    with open(path, "wb") as f:
        f.write(b"x")
    return path


def test_a_way_out():
    found = [
        reached("TCP to the host", lambda: connect(socket.AF_INET, ("127.0.0.1", @PORT@))),
        reached("TCP to the internet", lambda: connect(socket.AF_INET, ("192.0.2.1", 443))),
        reached("name lookup", lambda: socket.getaddrinfo("example.com", 443)),
        reached("the host's marker file", lambda: read("@MARKER@")),
        reached("the host's passwords", lambda: read("/etc/shadow")),
        reached("the host's root directory", lambda: os.listdir("/root")),
        reached("writing to /usr", lambda: write("/usr/underwrite-was-here")),
        reached("writing to /etc", lambda: write("/etc/underwrite-was-here")),
    ]
    assert any(found), "no way out of the sandbox"
