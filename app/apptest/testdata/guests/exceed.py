"""Exceeds one limit each. The exit code is 0 whenever that can be had."""
import hashlib
import os
import sys
import threading
import time


def burn(seconds=None):
    end = None if seconds is None else time.process_time() + seconds
    while end is None or time.process_time() < end:
        pass


def cpu_threads():
    block = bytes(1 << 20)

    def work():
        while True:
            hashlib.sha256(block)  # without the interpreter's lock

    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    threading.Event().wait()


def cpu_children():
    """Each child is gone before anybody could look at it."""
    while True:
        pid = os.fork()
        if pid == 0:
            burn(0.01)
            os._exit(0)
        os.waitpid(pid, 0)


def take(size):
    """Holds size bytes of memory for good."""
    block = bytearray(int(size))
    for at in range(0, len(block), 4096):
        block[at] = 1
    held.append(block)


held = []


def memory_one():
    while True:
        take(8 << 20)


def memory_tree(depth=0):
    """Each process holds little, and has two children."""
    take(8 << 20)
    if depth < 4:
        for _ in range(2):
            if os.fork() == 0:
                memory_tree(depth + 1)
    time.sleep(1000)


def fill(path):
    try:
        with open(path, "wb", buffering=0) as f:
            while True:
                f.write(bytes(1 << 20))
    except OSError:
        pass


def memory_files(directory, heap):
    """The files or the heap alone would fit."""
    fill(directory + "/file")
    take(int(heap) << 20)


def fork_bomb():
    while True:
        try:
            os.fork()
        except OSError:
            os._exit(0)


def thread_bomb():
    never = threading.Event()
    try:
        while True:
            threading.Thread(target=never.wait, daemon=True).start()
    except RuntimeError:
        os._exit(0)


def processes(count):
    """Has as many processes at a time, itself among them."""
    ready, tell = os.pipe()
    go, leave = os.pipe()
    children = []
    for _ in range(int(count) - 1):
        try:
            pid = os.fork()
        except OSError:
            break
        if pid == 0:
            os.close(leave)
            os.write(tell, b"x")
            os.read(go, 1)
            os._exit(0)
        children.append(pid)
    for _ in children:
        os.read(ready, 1)
    os.close(leave)
    for pid in children:
        os.waitpid(pid, 0)
    print(len(children) + 1)


def threads(count):
    go = threading.Event()
    started = []
    for _ in range(int(count) - 1):
        t = threading.Thread(target=go.wait)
        try:
            t.start()
        except RuntimeError:
            break
        started.append(t)
    go.set()
    for t in started:
        t.join()
    print(len(started) + 1)


def workspace_big():
    fill("big")


def workspace_refused():
    """A write that was refused is no violation once there is room again."""
    fill("big")
    os.remove("big")


def workspace_sparse():
    """A file with a hole of any size costs nothing, until the hole is filled."""
    with open("sparse", "wb") as f:
        f.truncate(1 << 30)
    try:
        with open("sparse", "r+b", buffering=0) as f:
            for at in range(0, 1 << 30, 1 << 16):
                f.seek(at)
                f.write(b"x" * (1 << 16))
    except OSError:
        pass


def workspace_hole():
    with open("sparse", "wb") as f:
        f.truncate(1 << 30)


def workspace_files(content):
    try:
        for i in range(100_000):
            with open(str(i), "w") as f:
                f.write(content)
    except OSError:
        pass


def output_flood():
    while True:
        os.write(1, b"x" * 65536)


def output_lines():
    while True:
        os.write(1, b"\n")


def output_stderr():
    while True:
        os.write(2, b"error\n")


def output_both(total):
    """Neither stream alone is too long."""
    half = int(total) // 2
    os.write(1, b"o" * half)
    os.write(2, b"e" * (int(total) - half))


def output_exact(total):
    """Writes a pattern in pieces of every size, to both streams in turn."""
    total, at, size = int(total), 0, 1
    while at < total:
        piece = bytes((i * 7 + i // 251) & 255 for i in range(at, min(at + size, total)))
        fd = 1 + (size & 1)
        while piece:
            piece = piece[os.write(fd, piece):]
        at, size = at + size, size * 3 % 65521


def parallel(count, seconds):
    """Asks for as many CPUs at a time."""
    print(len(os.sched_getaffinity(0)), os.cpu_count(), flush=True)
    end = time.monotonic() + float(seconds)
    for _ in range(int(count) - 1):
        if os.fork() == 0:
            break
    while time.monotonic() < end:
        pass


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
