/* rate NAME ADDRESS: how many WRITEs of 4 KiB a second go there over tcp in batches of 128. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "tideway.h"

#define CHECK(ok) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #ok, tideway_last_error()); \
            exit(1); \
        } \
    } while (0)

enum { BATCH = 128, SIZE = 4096 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    static char mine[BATCH * SIZE];
    static tent_request_t r[BATCH];
    CHECK(argc == 3);
    transfer_engine_t e = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    CHECK(e && registerLocalMemory(e, mine, sizeof mine, "*", 0) == 0);
    tent_segment_id_t peer;
    CHECK(tent_open_segment(e, &peer, argv[1]) == 0);
    for (int i = 0; i < BATCH; i++)
        r[i] = (tent_request_t){OPCODE_WRITE, mine + i * SIZE, peer, strtoull(argv[2], NULL, 0) + i * SIZE, SIZE, PRIO_HIGH, TRANSPORT_TCP};
    double start = now(), end = start + 0.2;
    long n = 0;
    for (int timed = 0; timed < 2; timed++) /* the first round warms up */
        for (start = now(), end = start + (timed ? 0.7 : 0.2), n = 0; now() < end; n += BATCH) {
            batch_id_t b = allocateBatchID(e, BATCH);
            CHECK(tent_submit(e, b, r, BATCH) == 0 && tideway_wait_batch(e, b, -1) == 0);
            struct transfer_status s;
            CHECK(getTransferStatus(e, b, BATCH - 1, &s) == 0 && s.status == STATUS_COMPLETED && freeBatchID(e, b) == 0);
        }
    printf("%.0f\n", n / (now() - start));
    destroyTransferEngine(e);
    return 0;
}
