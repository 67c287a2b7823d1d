"""Mooncake's transfer engine module, over Tideway's C library.

Names, arguments, defaults and return values are those of the original, so that a
program that was written for it runs unchanged; what a method does beyond them is
said at the method. Failures return what they return there, and are logged with their
reason by the logger "mooncake".
"""

import ctypes
import enum
import json
import logging
import mmap
import os
import threading

from tideway import _library as c

SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_MNNVL = False
SUPPORT_MUSA = False
SUPPORT_INTRA_NVLINK = False

log = logging.getLogger("mooncake")


class TransferOpcode(enum.IntEnum):
    Read = 0
    Write = 1


Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """A message: its name and its text."""

    def __init__(self, name="", msg=""):
        self.name = name
        self.msg = msg

    def __repr__(self):
        return f"TransferNotify(name={self.name!r}, msg={self.msg!r})"


class InnerTransferEngine:
    """The engine inside a TransferEngine, for those who pass it on."""

    def __init__(self, handle):
        self.handle = handle


def _timeout():
    """Seconds that a blocking call may take, besides a nanosecond for each byte."""
    try:
        return max(5, int(os.environ.get("MC_TRANSFER_TIMEOUT", "30")))
    except ValueError:
        return 30


class TransferEngine:
    TransferOpcode = TransferOpcode

    def __init__(self):
        self._engine = None
        self._timeout_ns = _timeout() * 10**9
        self._managed = _Managed(self)

    def __del__(self):
        if getattr(self, "_engine", None):
            c.lib.destroyTransferEngine(self._engine)

    # Start.

    def initialize(self, local_hostname, metadata_server, protocol, device_name):
        kind, found, rest = metadata_server.partition("://")
        if not found:
            kind, rest = "etcd", metadata_server
        return self.initialize_ext(local_hostname, rest, protocol, device_name, kind)

    def initialize_ext(self, local_hostname, metadata_server, protocol, device_name, metadata_type):
        if protocol == "xgmi":
            return self._failed("protocol xgmi is not supported")
        if self._engine:
            return self._failed("the engine is initialized already")
        conn = metadata_server
        if conn != "P2PHANDSHAKE" and "://" not in conn:
            conn = f"{metadata_type}://{conn}"
        engine = c.lib.createTransferEngine(conn.encode(), local_hostname.encode(), b"", 0, 1)
        if not engine:
            return self._failed()
        self._engine = engine
        return 0

    def get_rpc_port(self):
        return c.lib.tideway_get_rpc_port(self._engine)

    def get_engine(self):
        return InnerTransferEngine(self._engine)

    def get_engine_ptr(self):
        return self._engine or 0

    def get_local_topology(self, device_name=None):
        return json.dumps({"cpu:0": [[], []]}, indent="\t")

    # Memory.

    def register_memory(self, buffer_addr, capacity, location="*"):
        return self._checked(c.lib.registerLocalMemory(self._engine, buffer_addr, capacity, location.encode(), 1))

    def unregister_memory(self, buffer_addr):
        return self._checked(c.lib.unregisterLocalMemory(self._engine, buffer_addr))

    def batch_register_memory(self, buffer_addresses, capacities, location="*"):
        if len(buffer_addresses) != len(capacities):
            return self._failed(f"{len(buffer_addresses)} addresses, {len(capacities)} capacities")
        entries = (c.Entry * len(capacities))(*map(c.Entry, buffer_addresses, capacities))
        return self._checked(c.lib.registerLocalMemoryBatch(self._engine, entries, len(entries), location.encode()))

    def batch_unregister_memory(self, buffer_addresses):
        entries = (ctypes.c_void_p * len(buffer_addresses))(*buffer_addresses)
        return self._checked(c.lib.unregisterLocalMemoryBatch(self._engine, entries, len(entries)))

    def allocate_managed_buffer(self, length):
        return self._managed.allocate(length)

    def free_managed_buffer(self, buffer_addr, length):
        self._managed.free(buffer_addr)
        return 0

    def write_bytes_to_buffer(self, dest_address, src_ptr, length):
        ctypes.memmove(dest_address, src_ptr, length)
        return 0

    def read_bytes_from_buffer(self, source_address, length):
        return ctypes.string_at(source_address, length)

    def get_first_buffer_address(self, segment_name):
        segment = c.lib.openSegment(self._engine, segment_name.encode())
        listed = c.text(c.lib.tideway_segment_buffers(self._engine, segment)) if segment >= 0 else None
        return next((b["addr"] for b in json.loads(listed or "[]")), 0)

    # Transfers that block. The interpreter's lock is free meanwhile, and no core is burnt.

    def transfer_sync_write(self, target_hostname, buffer, peer_buffer_address, length, transport_hint=""):
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Write, None, transport_hint)

    def transfer_sync_read(self, target_hostname, buffer, peer_buffer_address, length, transport_hint=""):
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Read, None, transport_hint)

    def transfer_sync(
        self, target_hostname, buffer, peer_buffer_address, length, opcode, notify=None, transport_hint=""
    ):
        return self.batch_transfer_sync(
            target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify, transport_hint
        )

    def batch_transfer_sync_write(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""):
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, Write, None, transport_hint
        )

    def batch_transfer_sync_read(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""):
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, Read, None, transport_hint
        )

    def batch_transfer_sync(
        self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify=None, transport_hint=""
    ):
        batch = self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify)
        return self._finish(batch, self._timeout_ns + sum(lengths)) if batch else -1

    # Transfers that do not.

    def transfer_submit_write(self, target_hostname, buffer, peer_buffer_address, length, transport_hint=""):
        return self._submit(target_hostname, [buffer], [peer_buffer_address], [length], Write, None)

    def batch_transfer_async_write(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""):
        return self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, Write, None)

    def batch_transfer_async_read(self, target_hostname, buffers, peer_buffer_addresses, lengths, transport_hint=""):
        return self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, Read, None)

    def batch_transfer_async(
        self, target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify=None, transport_hint=""
    ):
        return self._submit(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify)

    def transfer_check_status(self, batch_id):
        """1: done, 0: under way, -1: failed, -2: timed out; after 1 and -1 the batch is freed."""
        status = c.Status()
        if c.lib.tideway_batch_status(self._engine, batch_id, ctypes.byref(status)):
            return self._failed()
        if status.status == c.WAITING:
            return 0
        return self._end(batch_id)

    def get_batch_transfer_status(self, batch_ids):
        """Waits for all of the batches and frees them. 0, or -1 if one failed."""
        return min((self._finish(b, self._timeout_ns) for b in list(batch_ids)), default=0)

    # Messages.

    def get_notifies(self):
        return [
            TransferNotify(name.decode("utf-8", "replace"), msg.decode("utf-8", "replace"))
            for name, msg in c.messages(self._engine)
        ]

    def send_probe(self, peer_server_name):
        return self._checked(c.lib.tideway_probe(self._engine, peer_server_name.encode(), None))

    def warmup_efa_segment(self, segment_name):
        return self._checked(c.lib.warmupEfaSegment(self._engine, segment_name.encode()))

    # What these have in common.

    def _submit(self, target, buffers, peers, lengths, opcode, notify):
        """Starts a batch and returns its id, 0 on failure."""
        if not len(buffers) == len(peers) == len(lengths):
            self._failed(f"{len(buffers)} buffers, {len(peers)} peer addresses, {len(lengths)} lengths")
            return 0
        segment = c.lib.openSegment(self._engine, target.encode())
        if segment < 0:
            self._failed()
            return 0
        n = len(buffers)
        requests = (c.Request * n)(
            *(c.Request(int(opcode), b, segment, p, size) for b, p, size in zip(buffers, peers, lengths))
        )
        batch = c.lib.allocateBatchID(self._engine, n)
        if batch == c.INVALID_BATCH:
            self._failed()
            return 0
        if notify is None:
            refused = c.lib.submitTransfer(self._engine, batch, requests, n)
        else:
            message = c.Message(notify.name.encode(), notify.msg.encode())
            refused = c.lib.submitTransferWithNotify(self._engine, batch, requests, n, message)
        if refused:
            self._failed()
            c.lib.freeBatchID(self._engine, batch)
            return 0
        return batch

    def _finish(self, batch, timeout_ns):
        """Waits for a batch, cancels what takes too long, and frees it: no byte moves after it returned."""
        if c.lib.tideway_wait_batch(self._engine, batch, timeout_ns):
            self._failed()
            c.lib.tideway_cancel_batch(self._engine, batch)
            c.lib.tideway_wait_batch(self._engine, batch, -1)
        return min(self._end(batch), 0)

    def _end(self, batch):
        """Frees a batch of which something is known: 1 if all went well, 0 while others are under way, else -1."""
        status = c.Status()
        if c.lib.tideway_batch_status(self._engine, batch, ctypes.byref(status)):
            return self._failed()
        if status.status == c.COMPLETED:
            c.lib.freeBatchID(self._engine, batch)
            return 1
        if c.lib.tideway_wait_batch(self._engine, batch, 0):
            return 0
        self._failed(self._why(batch))
        c.lib.freeBatchID(self._engine, batch)
        return -1

    def _why(self, batch):
        """Why the first task that failed did."""
        task, status = 0, c.Status()
        while c.lib.getTransferStatus(self._engine, batch, task, ctypes.byref(status)) == 0:
            if status.status != c.COMPLETED:
                return json.loads(c.text(c.lib.tideway_task_error(self._engine, batch, task)) or '{"text": "freed"}')["text"]
            task += 1
        return "it has no task that failed"

    def _checked(self, result):
        if result:
            self._failed()
        return result

    def _failed(self, why=None):
        log.warning("%s", why or c.last_error())
        return -1


class _Managed:
    """Memory that is registered for as long as the engine lives and given out in
    powers of two from 8 KiB, each piece its own mapping."""

    def __init__(self, engine):
        self._engine = engine
        self._lock = threading.Lock()
        self._free = {}  # size to addresses
        self._used = {}  # address to size
        self._maps = []  # keeps the memory

    def allocate(self, length):
        """The address of at least length bytes, 0 on failure."""
        if length <= 0:
            return 0
        size = max(8 << 10, 1 << (length - 1).bit_length())
        with self._lock:
            if self._free.get(size):
                addr = self._free[size].pop()
            else:
                addr = self._map(size)
            if addr:
                self._used[addr] = size
            return addr

    def _map(self, size):
        try:
            memory = mmap.mmap(-1, size)
        except OSError as failed:
            log.warning("allocate %d bytes: %s", size, failed)
            return 0
        view = ctypes.c_char.from_buffer(memory)
        addr = ctypes.addressof(view)
        if self._engine.register_memory(addr, size):
            return 0
        self._maps.append((memory, view))
        return addr

    def free(self, addr):
        with self._lock:
            size = self._used.pop(addr, None)
            if size:
                self._free.setdefault(size, []).append(addr)
