"""mooncake.engine as programs written for Mooncake use it."""

import logging
import time
import unittest

import mooncake.engine as module
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode

logging.getLogger("mooncake").setLevel(logging.ERROR)


class Engines(unittest.TestCase):
    def setUp(self):
        self.a, self.b = TransferEngine(), TransferEngine()
        for engine in (self.a, self.b):
            self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.peer = f"127.0.0.1:{self.b.get_rpc_port()}"
        self.x = self.a.allocate_managed_buffer(1 << 20)
        self.y = self.b.allocate_managed_buffer(1 << 20)
        self.assertTrue(self.x and self.y)

    def test_blocking(self):
        self.a.write_bytes_to_buffer(self.x, b"hello", 5)
        self.assertEqual(self.a.transfer_sync_write(self.peer, self.x, self.y, 5), 0)
        self.assertEqual(self.b.read_bytes_from_buffer(self.y, 5), b"hello")
        self.assertEqual(self.a.transfer_sync_read(self.peer, self.x + 100, self.y, 5), 0)
        self.assertEqual(self.a.read_bytes_from_buffer(self.x + 100, 5), b"hello")
        places = [self.x + i for i in range(0, 4096, 64)]
        theirs = [self.y + i for i in range(0, 4096, 64)]
        self.assertEqual(self.a.batch_transfer_sync_write(self.peer, places, theirs, [64] * 64), 0)
        self.assertEqual(self.a.batch_transfer_sync_read(self.peer, places, theirs, [64] * 64), 0)
        self.assertEqual(self.b.read_bytes_from_buffer(self.y, 4096), self.a.read_bytes_from_buffer(self.x, 4096))

    def test_started(self):
        batch = self.a.transfer_submit_write(self.peer, self.x, self.y, 4096)
        self.assertGreater(batch, 0)
        deadline = time.monotonic() + 30
        while (state := self.a.transfer_check_status(batch)) == 0:
            self.assertLess(time.monotonic(), deadline)
        self.assertEqual(state, 1)
        self.assertEqual(self.a.transfer_check_status(batch), -1)  # it was freed
        batches = [self.a.batch_transfer_async_read(self.peer, [self.x], [self.y], [64]) for _ in range(8)]
        batches.append(self.a.batch_transfer_async(self.peer, [self.x], [self.y], [64], TransferOpcode.Write))
        self.assertNotIn(0, batches)
        self.assertEqual(self.a.get_batch_transfer_status(batches), 0)

    def test_messages(self):
        note = TransferNotify("step", "7")
        self.assertEqual(self.a.transfer_sync(self.peer, self.x, self.y, 64, module.Write, note), 0)
        self.assertEqual([(n.name, n.msg) for n in self.b.get_notifies()], [("step", "7")])
        self.assertEqual(self.b.get_notifies(), [])
        self.assertEqual(self.a.send_probe(self.peer), 0)
        self.assertLess(self.a.send_probe("127.0.0.1:1"), 0)

    def test_failures(self):
        self.assertEqual(self.a.transfer_sync_write(self.peer, self.x, 4096, 64), -1)
        self.assertEqual(self.a.transfer_sync_write("127.0.0.1:1", self.x, self.y, 64), -1)
        self.assertEqual(self.a.batch_transfer_sync_write(self.peer, [self.x], [], [64]), -1)
        self.assertEqual(self.a.batch_transfer_async_write("127.0.0.1:1", [self.x], [self.y], [64]), 0)
        self.assertEqual(self.a.register_memory(self.x, 64), -7)
        self.assertEqual(self.a.unregister_memory(self.x + 1), -3)
        self.assertEqual(TransferEngine().initialize("127.0.0.1", "P2PHANDSHAKE", "xgmi", ""), -1)
        self.assertEqual(TransferEngine().initialize("127.0.0.1", "nonsense://x", "tcp", ""), -1)

    def test_memory(self):
        self.assertEqual(self.a.get_first_buffer_address(self.peer), self.y)
        self.assertEqual(self.a.get_first_buffer_address("127.0.0.1:1"), 0)
        self.assertEqual(self.a.free_managed_buffer(self.x, 1 << 20), 0)
        self.assertEqual(self.a.allocate_managed_buffer(1 << 20), self.x)
        self.assertEqual(self.a.allocate_managed_buffer(0), 0)

    def test_attributes(self):
        self.assertEqual((module.Read, module.Write), (0, 1))
        self.assertIs(TransferEngine.TransferOpcode, TransferOpcode)
        for name in ("CUDA", "EFA", "HIP", "MNNVL", "MUSA", "INTRA_NVLINK"):
            self.assertIs(getattr(module, "SUPPORT_" + name), False)
        self.assertEqual(self.a.get_engine().handle, self.a.get_engine_ptr())
        self.assertIn("cpu:0", self.a.get_local_topology())


if __name__ == "__main__":
    unittest.main()
