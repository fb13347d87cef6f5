"""Ends in one way each, or leaves behind what it should not."""
import os
import resource
import signal
import sys
import time


def ignore_signals():
    for s in range(1, signal.NSIG):
        try:
            signal.signal(s, signal.SIG_IGN)
        except (OSError, ValueError):
            pass


def ignoring():
    """Nothing but a kill ends this."""
    ignore_signals()
    os.write(1, b"ignoring\n")
    while True:
        time.sleep(1000)


def by_signal(number):
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.kill(os.getpid(), int(number))
    time.sleep(1000)


def daemon(how):
    """Ends with 7 while three of its descendants go on."""
    ready, tell = os.pipe()
    for _ in range(3):
        child = os.fork()
        if child == 0:
            if how != "child":
                os.setsid()
            if how in ("double", "pipes") and os.fork():
                os._exit(0)
            ignore_signals()
            if how != "pipes":  # or standard output and error stay open
                os.close(1)
                os.close(2)
            else:
                os.write(1, b"daemon\n")
            os.write(tell, b"x")
            while True:
                time.sleep(1000)
        elif how in ("double", "pipes"):
            os.waitpid(child, 0)
    for _ in range(3):
        os.read(ready, 1)
    os._exit(7)


def state(*_):
    """What it was given, byte by byte."""
    def raw(name):
        with open(f"/proc/self/{name}", "rb") as f:
            return f.read().hex()
    descriptors = []
    for fd in range(256):
        try:
            os.fstat(fd)
            descriptors.append(fd)
        except OSError:
            pass
    print(raw("cmdline"), raw("environ"), os.getcwd(), *descriptors)


def empty_directory():
    os.makedirs("made/empty")


def hard_link():
    os.link("README.md", "second")


def hole():
    with open("sparse", "wb") as f:
        f.truncate(1 << 30)


def setuid():
    for name, mode in ("setuid", 0o4755), ("setgid", 0o2755), ("sticky", 0o1644):
        with open(name, "w") as f:
            f.write(name)
        os.chmod(name, mode)
        assert os.stat(name).st_mode & 0o7777 == mode, name


def long_path(length):
    """A file whose path has so many bytes."""
    left = int(length)
    while left > 255:
        name = "d" * min(255, left - 2)
        os.mkdir(name)
        os.chdir(name)
        left -= len(name) + 1
    with open("f" * left, "w"):
        pass


def nothing():
    """Not one file is left."""
    import shutil
    for name in os.listdir("."):
        if os.path.isdir(name) and not os.path.islink(name):
            shutil.rmtree(name)
        else:
            os.remove(name)


def git_metadata():
    os.mkdir(".git")
    with open(".git/config", "w") as f:
        f.write("[core]\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
