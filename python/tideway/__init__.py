"""Tideway: read and write other processes' memory.

    with tideway.Engine() as engine:
        memory = bytearray(1 << 20)
        with engine.register(memory):
            peer = engine.open("10.0.0.7:15432")
            peer.read(memory, peer.buffers()[0].address)

Anything that has the buffer protocol is memory: bytearray, mmap, array, numpy arrays.
Failures are exceptions of type Error; engines and registrations are context managers;
read_async and write_async are awaited. Calls may come from any thread.
"""

import asyncio
import ctypes
import json
from collections import namedtuple

from . import _library as c

__version__ = c.lib.tideway_version().decode()
__all__ = ["Engine", "Segment", "Registration", "RemoteBuffer", "Notification", "Error", "TransferTimeout"]

READ, WRITE = 0, 1

RemoteBuffer = namedtuple("RemoteBuffer", "name address length location access")
Notification = namedtuple("Notification", "name body")


class Error(Exception):
    """A failure. Reason is its code ("unreachable", "stale", …); peer, segment, transport and
    detail say where and what to do; in_doubt, of a write, that the peer's memory may still
    change; attempts how often it was tried."""

    def __init__(self, text, **fields):
        super().__init__(text)
        self.reason = fields.get("reason", "")
        for name in ("op", "segment", "peer", "transport", "stage", "detail"):
            setattr(self, name, fields.get(name, ""))
        self.retryable = fields.get("retryable", False)
        self.in_doubt = fields.get("in_doubt", False)
        self.attempts = fields.get("attempts", 0)


class TransferTimeout(Error, TimeoutError):
    """A transfer that took longer than the caller gave it; it was withdrawn."""


def _failed():
    return Error(c.last_error())


class _Buffer(ctypes.Structure):
    """The interpreter's Py_buffer."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


class _Memory:
    """Holds the memory of an object still, and knows where it is."""

    def __init__(self, obj, writable):
        self._view = _Buffer()
        # PyBUF_SIMPLE is contiguous bytes; 1 asks for memory that can be written.
        ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(obj), ctypes.byref(self._view), int(writable))
        self.address, self.length = self._view.buf or 0, self._view.len

    def release(self):
        view, self._view = self._view, None
        if view is not None:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


class Engine:
    """One engine: its memory that peers can reach, and a way to theirs.

    host is what peers dial; with a metadata store (a URL: etcd://, redis://,
    http://…/metadata), name is what they ask it for.
    """

    def __init__(self, host="127.0.0.1", metadata="P2PHANDSHAKE", name=None):
        self._handle = c.lib.createTransferEngine(metadata.encode(), (name or host).encode(), b"", 0, 1)
        if not self._handle:
            raise _failed()

    def close(self):
        """Ends the engine: what is under way gets a moment, then is cut short."""
        handle, self._handle = self._handle, None
        if handle:
            c.lib.destroyTransferEngine(handle)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    @property
    def name(self):
        """What peers open."""
        found = c.text(c.lib.tideway_get_name(self._handle))
        if found is None:
            raise _failed()
        return found

    def register(self, obj, location="*", remote=True):
        """Makes the memory of obj usable, by peers too if remote, until the registration is closed."""
        return Registration(self, obj, location, remote)

    def open(self, name):
        """The segment of the peer called name: its host:port, or its name in the store."""
        found = c.lib.openSegment(self._handle, name.encode())
        if found < 0:
            raise _failed()
        return Segment(self, name, found)

    def probe(self, name):
        """Seconds of a round trip to the owner of a segment."""
        took = ctypes.c_int64()
        if c.lib.tideway_probe(self._handle, name.encode(), ctypes.byref(took)):
            raise _failed()
        return took.value / 1e9

    def notify(self, segment_name, name, body=""):
        """Sends a message to the owner of a segment: once, or an error."""
        if c.lib.tideway_notify(self._handle, segment_name.encode(), c.Message(name.encode(), body.encode())):
            raise _failed()

    def notifications(self):
        """Takes the messages that have come."""
        return [Notification(n.decode("utf-8", "replace"), b.decode("utf-8", "replace")) for n, b in c.messages(self._handle)]

    def inspect(self):
        """The engine's state at this instant, as data."""
        found = c.text(c.lib.tideway_inspect(self._handle))
        if found is None:
            raise _failed()
        return json.loads(found)


class Registration:
    """Memory that is registered; a context manager."""

    def __init__(self, engine, obj, location, remote):
        self._engine = engine
        self._memory = _Memory(obj, writable=True)
        self.address, self.length = self._memory.address, self._memory.length
        if c.lib.registerLocalMemory(engine._handle, self.address, self.length, location.encode(), int(remote)):
            failed = _failed()
            self._memory.release()
            self._memory = None
            raise failed

    def close(self):
        """Waits for the transfers that use the memory, then lets go of it."""
        if self._memory is None:
            return
        if self._engine._handle and c.lib.unregisterLocalMemory(self._engine._handle, self.address):
            raise _failed()
        self._memory.release()
        self._memory = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Segment:
    """What a peer offers."""

    def __init__(self, engine, name, number):
        self._engine, self.name, self._number = engine, name, number

    def buffers(self):
        """The memory that can be reached by address."""
        found = c.text(c.lib.tideway_segment_buffers(self._engine._handle, self._number))
        if found is None:
            raise _failed()
        return [RemoteBuffer(b["name"], b["addr"], b["length"], b["location"], b["access"]) for b in json.loads(found)]

    def read(self, into, address, timeout=None):
        """Fills the memory of an object from the peer's memory at address. Timeout is in seconds."""
        with _Memory(into, writable=True) as memory:
            self._move(READ, memory, address, timeout)

    def write(self, data, address, timeout=None):
        """Copies the memory of an object to the peer's memory at address."""
        with _Memory(data, writable=False) as memory:
            self._move(WRITE, memory, address, timeout)

    async def read_async(self, into, address, timeout=None):
        await asyncio.to_thread(self.read, into, address, timeout)

    async def write_async(self, data, address, timeout=None):
        await asyncio.to_thread(self.write, data, address, timeout)

    def explain(self, address, length, write=False):
        """How such a request would travel and why, as data. Nothing is moved."""
        request = c.Request(int(write), None, self._number, address, length)
        with _Memory(bytearray(1), writable=True) as memory:  # not touched
            request.source = memory.address
            found = c.text(c.lib.tideway_explain(self._engine._handle, ctypes.byref(request)))
        if found is None:
            raise _failed()
        return json.loads(found)

    def _move(self, opcode, memory, address, timeout):
        lib, engine = c.lib, self._engine._handle
        batch = lib.allocateBatchID(engine, 1)
        if batch == c.INVALID_BATCH:
            raise _failed()
        try:
            request = c.Request(opcode, memory.address, self._number, address, memory.length)
            if lib.submitTransfer(engine, batch, ctypes.byref(request), 1):
                raise _failed()
            late = self._wait(engine, batch, timeout)
            why = c.text(lib.tideway_task_error(engine, batch, 0))
            if why is not None:
                fields = json.loads(why)
                text = fields.pop("text")
                raise TransferTimeout(f"after {timeout} s: {text}", **fields) if late else Error(text, **fields)
        finally:
            lib.freeBatchID(engine, batch)

    @staticmethod
    def _wait(engine, batch, timeout):
        """Waits until the batch is quiet; says whether that took cancelling it."""
        limit = -1 if timeout is None else int(timeout * 1e9)
        try:
            if c.lib.tideway_wait_batch(engine, batch, limit) == 0:
                return False
        except KeyboardInterrupt:
            c.lib.tideway_cancel_batch(engine, batch)
            c.lib.tideway_wait_batch(engine, batch, -1)
            raise
        c.lib.tideway_cancel_batch(engine, batch)
        c.lib.tideway_wait_batch(engine, batch, -1)
        return True
