"""Reaches for what a guest must not have. Exit code 0: it got nothing."""
import errno
import os
import socket
import sys

DENIED = (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT)
GONE = DENIED + (errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.ENODEV, errno.ENXIO)


def refused(what, do, errors=GONE):
    try:
        got = do()
    except OSError as e:
        if e.errno not in errors:
            sys.exit(f"{what}: {e}")
    else:
        sys.exit(f"{what}: {got!r}")


def no_socket(family, kind, protocol=0):
    refused(f"socket {family} {kind}", lambda: socket.socket(family, kind, protocol), DENIED)


def inet():
    no_socket(socket.AF_INET, socket.SOCK_STREAM)
    refused("connect", lambda: socket.create_connection(("192.0.2.1", 80), timeout=5), DENIED)


def inet6():
    no_socket(socket.AF_INET6, socket.SOCK_STREAM)
    refused("connect", lambda: socket.create_connection(("2001:db8::1", 80), timeout=5), DENIED)


def loopback():
    for address in "127.0.0.1", "::1", "localhost":
        refused(address, lambda: socket.create_connection((address, 80), timeout=5), DENIED)
        refused(address, lambda: socket.create_server((address, 0)), DENIED)


def udp():
    no_socket(socket.AF_INET, socket.SOCK_DGRAM)
    no_socket(socket.AF_INET6, socket.SOCK_DGRAM)
    no_socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)


def netlink():
    no_socket(socket.AF_NETLINK, socket.SOCK_RAW)
    no_socket(socket.AF_NETLINK, socket.SOCK_DGRAM)


def packet():
    no_socket(socket.AF_PACKET, socket.SOCK_RAW, 0x0300)
    no_socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0x0300)


def dns():
    try:
        got = socket.getaddrinfo("example.com", 443)
    except OSError:
        return
    sys.exit(repr(got))


def interfaces():
    """No interface is there to be named, but maybe a loopback without a use."""
    names = set(os.listdir("/sys/class/net")) if os.path.isdir("/sys/class/net") else set()
    if names - {"lo"}:
        sys.exit(repr(names))


def unix(*names):
    """Sockets of the host: by path, and by abstract name with @."""
    for name in names:
        for kind in socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET:
            s = socket.socket(socket.AF_UNIX, kind)
            refused(name, lambda: s.connect(name.replace("@", "\0", 1)))
    # Between the guest's own processes they work.
    a, b = socket.socketpair()
    a.send(b"x")
    if b.recv(1) != b"x":
        sys.exit("socketpair")


ROOT = {"bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "sys", "tmp", "usr", "workspace"}
ETC = {"alternatives", "group", "hostname", "hosts", "ld.so.cache", "nsswitch.conf", "passwd"}


def host_reads(secret, *paths):
    """secret without its first letter is in the environment of the gateway."""
    for path in paths + ("/etc/shadow", "/etc/ssh", "/root", "/home", "/var", "/run", "/boot", "/mnt", "/opt", "/srv",
                         "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/proc/kcore", "/proc/1/root/etc/shadow"):
        refused(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
    if set(os.listdir("/")) - ROOT or set(os.listdir("/etc")) - ETC:
        sys.exit(f"{os.listdir('/')} {os.listdir('/etc')}")
    processes = [p for p in os.listdir("/proc") if p.isdigit()]
    if len(processes) > 2:  # the first process of the guest, and this one
        sys.exit(f"processes {processes}")
    for p in processes:
        for name in "environ", "cmdline", "mountinfo", "status":
            try:
                with open(f"/proc/{p}/{name}") as f:
                    text = f.read()
            except OSError:
                continue
            if name != "cmdline" and secret[1:] in text:
                sys.exit(f"{p} {name}")
            if any(path in text for path in paths) and name != "cmdline":
                sys.exit(f"{p} {name} names the host: {text}")


def host_writes(marker, *paths):
    for directory in paths + ("/", "/usr", "/usr/bin", "/usr/lib", "/usr/local", "/etc", "/dev", "/proc", "/sys", "/sys/fs/cgroup",
                              "/var", "/root", "/run"):
        refused(directory, lambda: open(f"{directory}/{marker}", "x"))
        refused(directory, lambda: os.mkdir(f"{directory}/{marker}"))
        refused(directory, lambda: os.symlink("x", f"{directory}/{marker}"))
    for file in os.path.realpath(sys.executable), "/usr/bin/env", "/etc/passwd", "/bin/sh":
        refused(file, lambda: open(file, "r+b"))
        refused(file, lambda: os.truncate(file, 0))
        refused(file, lambda: os.remove(file))
        refused(file, lambda: os.rename(file, file + marker))
        refused(file, lambda: os.chmod(file, 0o777))
    refused("mount", lambda: os.chroot("/tmp"), DENIED)
    refused("owner", lambda: os.chown("README.md", 0, 0), DENIED)
    refused("user", lambda: os.setuid(0), DENIED)
    for directory in "/tmp", "/dev/shm", ".":  # its own
        with open(f"{directory}/{marker}", "x"):
            pass


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
