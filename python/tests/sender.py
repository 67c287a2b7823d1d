"""Writes into the memory of a receiver: sender.py SESSION ADDRESS LENGTH."""

import ctypes
import sys

from mooncake.engine import TransferEngine

session, address, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
engine = TransferEngine()
engine.initialize("localhost", "P2PHANDSHAKE", "tcp", "")
memory = ctypes.create_string_buffer(b"by sea, not by air", length)
source = ctypes.addressof(memory)
assert engine.register_memory(source, length) == 0
for _ in range(10):
    assert engine.transfer_sync_write(session, source, address, length) == 0
assert engine.unregister_memory(source) == 0
print("sent", flush=True)
