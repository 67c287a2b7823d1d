"""The C library behind both packages, with the types of its functions.

It is looked for in $TIDEWAY_LIBRARY, beside this file (as in a wheel), and where the
system looks for libraries, in this order.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

INVALID_BATCH = 2**64 - 1

WAITING, PENDING, INVALID, CANCELED, COMPLETED, TIMEOUT, FAILED = range(7)


class Request(ctypes.Structure):
    _fields_ = [
        ("opcode", c_int),
        ("source", c_void_p),
        ("target_id", c_int32),
        ("target_offset", c_uint64),
        ("length", c_uint64),
    ]


class Status(ctypes.Structure):
    _fields_ = [("status", c_int), ("transferred_bytes", c_uint64)]


class Message(ctypes.Structure):
    _fields_ = [("name", c_char_p), ("msg", c_char_p)]


class Entry(ctypes.Structure):
    _fields_ = [("addr", c_void_p), ("length", c_size_t)]


FUNCTIONS = {
    "createTransferEngine": (c_void_p, c_char_p, c_char_p, c_char_p, c_uint64, c_int),
    "destroyTransferEngine": (None, c_void_p),
    "openSegment": (c_int32, c_void_p, c_char_p),
    "openSegmentNoCache": (c_int32, c_void_p, c_char_p),
    "warmupEfaSegment": (c_int, c_void_p, c_char_p),
    "registerLocalMemory": (c_int, c_void_p, c_void_p, c_size_t, c_char_p, c_int),
    "unregisterLocalMemory": (c_int, c_void_p, c_void_p),
    "registerLocalMemoryBatch": (c_int, c_void_p, POINTER(Entry), c_size_t, c_char_p),
    "unregisterLocalMemoryBatch": (c_int, c_void_p, POINTER(c_void_p), c_size_t),
    "allocateBatchID": (c_uint64, c_void_p, c_size_t),
    "freeBatchID": (c_int, c_void_p, c_uint64),
    "submitTransfer": (c_int, c_void_p, c_uint64, POINTER(Request), c_size_t),
    "submitTransferWithNotify": (c_int, c_void_p, c_uint64, POINTER(Request), c_size_t, Message),
    "getTransferStatus": (c_int, c_void_p, c_uint64, c_size_t, POINTER(Status)),
    "getNotifsFromEngine": (POINTER(Message), c_void_p, POINTER(c_int)),
    "freeNotifsMsgBuf": (c_int, POINTER(Message), c_int),
    "showLinks": (c_int, c_void_p, c_char_p, c_size_t, c_int),
    "tideway_version": (c_char_p,),
    "tideway_last_error": (c_char_p,),
    "tideway_free": (None, c_void_p),
    "tideway_get_rpc_port": (c_int, c_void_p),
    "tideway_get_name": (c_void_p, c_void_p),
    "tideway_wait_batch": (c_int, c_void_p, c_uint64, c_int64),
    "tideway_batch_status": (c_int, c_void_p, c_uint64, POINTER(Status)),
    "tideway_cancel_batch": (c_int, c_void_p, c_uint64),
    "tideway_task_error": (c_void_p, c_void_p, c_uint64, c_size_t),
    "tideway_segment_buffers": (c_void_p, c_void_p, c_int32),
    "tideway_notify": (c_int, c_void_p, c_char_p, Message),
    "tideway_probe": (c_int, c_void_p, c_char_p, POINTER(c_int64)),
    "tideway_explain": (c_void_p, c_void_p, POINTER(Request)),
    "tideway_inspect": (c_void_p, c_void_p),
}


def load():
    """Loads the library; OSError says where it was looked for."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libtideway.so")
    wanted = os.environ.get("TIDEWAY_LIBRARY")
    path = wanted or (beside if os.path.exists(beside) else "libtideway.so")
    try:
        lib = ctypes.CDLL(path)
    except OSError as failed:
        raise OSError(
            f"{failed}; the C library is built by `make lib`: set TIDEWAY_LIBRARY to its path, or install a wheel"
        ) from None
    for name, (result, *args) in FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, args
    return lib


lib = load()


def text(pointer):
    """The text that the library returned, which is freed; None for NULL."""
    if not pointer:
        return None
    try:
        return ctypes.string_at(pointer).decode("utf-8", "replace")
    finally:
        lib.tideway_free(pointer)


def last_error():
    return lib.tideway_last_error().decode("utf-8", "replace")


def messages(engine):
    """All messages that the engine has received, as pairs of bytes."""
    count = c_int(0)
    listed = lib.getNotifsFromEngine(engine, byref(count))
    try:
        return [(listed[i].name, listed[i].msg) for i in range(count.value)]
    finally:
        lib.freeNotifsMsgBuf(listed, count.value)
