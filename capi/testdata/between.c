/* between use NAME ADDRESS: what tent.c's "use" does, by the classic functions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tideway.h"

#define CHECK(ok) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #ok, tideway_last_error()); \
            exit(1); \
        } \
    } while (0)

int main(int argc, char **argv)
{
    static char mine[1 << 20];
    CHECK(argc == 4);
    transfer_engine_t e = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    CHECK(e && registerLocalMemory(e, mine, sizeof mine, "*", 0) == 0);
    segment_id_t peer = openSegment(e, argv[2]);
    CHECK(peer > 0);
    struct transfer_request r = {OPCODE_READ, mine, peer, strtoull(argv[3], NULL, 0), sizeof mine};
    batch_id_t b = allocateBatchID(e, 2);
    CHECK(submitTransfer(e, b, &r, 1) == 0 && tideway_wait_batch(e, b, -1) == 0);
    for (size_t i = 0; i < sizeof mine; i++)
        CHECK(mine[i] == (char)(i * 31));
    mine[0] = 42;
    r.opcode = OPCODE_WRITE;
    notify_msg_t m = {"use", "written"};
    CHECK(submitTransferWithNotify(e, b, &r, 1, m) == 0 && tideway_wait_batch(e, b, -1) == 0 && freeBatchID(e, b) == 0);
    destroyTransferEngine(e);
    puts("moved");
    return 0;
}
