"""Files that do not answer: a FUSE file system whose server sleeps, mounted over a file or a folder.

Every call that needs the file (open, stat, read) blocks in the kernel, as it does on a dead network disk or in a
driver that waits for its firmware. Only a fatal signal ends the call.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_MNT_DETACH = 2
_REQUEST = struct.Struct("=IIQQIIII")  # struct fuse_in_header, include/uapi/linux/fuse.h
_ANSWER = struct.Struct("=IiQ")  # struct fuse_out_header
_FORGET, _INTERRUPT = 2, 36  # these have no answer
_REQUEST_MAX = 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def dead(*paths: Path) -> Iterator[None]:
    """Make these existing files and folders block their readers.

    At the end they are as before. A call that blocks in a file then gets its content, late; one in a folder fails.
    """
    with ExitStack() as mounts:
        for path in paths:
            content = path.read_bytes() if path.is_file() else None
            server = _mount(path)
            mounts.callback(_end, path, server, content)
        yield


def _mount(path: Path) -> int:
    server = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={server},rootmode={stat.S_IFMT(path.stat().st_mode):o},user_id=0,group_id=0"
    if _libc.mount(b"dead", os.fsencode(path), b"fuse", 0, options.encode()):
        number = ctypes.get_errno()
        os.close(server)
        raise OSError(number, os.strerror(number), str(path))
    return server


def _end(path: Path, server: int, content: bytes | None) -> None:
    _libc.umount2(os.fsencode(path), _MNT_DETACH)
    if content is None:
        os.close(server)
    else:
        threading.Thread(target=_serve, args=(server, content), name="late-answers", daemon=True).start()


def _serve(server: int, content: bytes) -> None:
    """Answer until the last reader is done; the kernel then ends the connection with ENODEV."""
    try:
        while True:
            request = os.read(server, _REQUEST_MAX)
            _, operation, unique, *_ = _REQUEST.unpack_from(request)
            if operation in (_FORGET, _INTERRUPT):
                continue
            answer = _answer(operation, request[_REQUEST.size :], content)
            error = -errno.ENOSYS if answer is None else 0
            body = answer or b""
            os.write(server, _ANSWER.pack(_ANSWER.size + len(body), error, unique) + body)
    except OSError:
        os.close(server)


def _answer(operation: int, request: bytes, content: bytes) -> bytes | None:
    match operation:
        case 26:  # INIT
            return struct.pack("=IIIIHHIIHHI28x", 7, 31, 0, 0, 1, 1, 4096, 1, 1, 0, 0)
        case 3:  # GETATTR
            attributes = (1, len(content), 1, 0, 0, 0, 0, 0, 0, stat.S_IFREG | 0o644, 1, 0, 0, 0, 4096, 0)
            return struct.pack("=QII", 0, 0, 0) + struct.pack("=QQQQQQIIIIIIIIII", *attributes)
        case 14:  # OPEN, with direct I/O
            return struct.pack("=QII", 0, 1, 0)
        case 15:  # READ
            _, offset, size = struct.unpack_from("=QQI", request)
            return content[offset : offset + size]
        case 18 | 25:  # RELEASE, FLUSH
            return b""
    return None
