/*
 * copy: two engines in two processes, one reads the other's memory.
 *
 *   cc copy.c $(pkg-config --cflags --libs tideway) -o copy
 *   ./copy serve            prints its name and an address, and waits for a message
 *   ./copy read NAME ADDR   reads the text there, and tells the owner
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <tideway.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, tideway_last_error());
    return 1;
}

static int serve(transfer_engine_t engine)
{
    static char text[64] = "tides wait for no one";
    if (registerLocalMemory(engine, text, sizeof text, "cpu:0", 1))
        return failed("register");
    char *name = tideway_get_name(engine);
    printf("%s %llu\n", name, (unsigned long long)(size_t)text);
    fflush(stdout);
    tideway_free(name);
    for (int n = 0;; usleep(1000)) {
        notify_msg_t *got = getNotifsFromEngine(engine, &n);
        if (got) {
            printf("%s: %s\n", got->name, got->msg);
            return freeNotifsMsgBuf(got, n);
        }
    }
}

static int read_text(transfer_engine_t engine, const char *name, uint64_t addr)
{
    static char text[64];
    segment_id_t peer = openSegment(engine, name);
    if (peer < 0)
        return failed("open");
    if (registerLocalMemory(engine, text, sizeof text, "cpu:0", 0))
        return failed("register");
    batch_id_t batch = allocateBatchID(engine, 1);
    struct transfer_request request = {
        .opcode = OPCODE_READ, .source = text, .target_id = peer, .target_offset = addr, .length = sizeof text};
    notify_msg_t done = {"copy", "read"};
    if (submitTransferWithNotify(engine, batch, &request, 1, done))
        return failed("submit");
    struct transfer_status status;
    if (tideway_wait_batch(engine, batch, -1) || getTransferStatus(engine, batch, 0, &status) || freeBatchID(engine, batch))
        return failed("wait");
    printf("%s\n", text);
    return status.status == STATUS_COMPLETED ? 0 : failed("read");
}

int main(int argc, char **argv)
{
    transfer_engine_t engine = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1);
    if (!engine)
        return failed("create");
    int rc = 2;
    if (argc == 2 && strcmp(argv[1], "serve") == 0)
        rc = serve(engine);
    else if (argc == 4 && strcmp(argv[1], "read") == 0)
        rc = read_text(engine, argv[2], strtoull(argv[3], NULL, 10));
    destroyTransferEngine(engine);
    return rc;
}
