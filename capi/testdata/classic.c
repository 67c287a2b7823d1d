/* Every function of transfer_engine_c.h, and the layout of every struct. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tideway.h"

#define SIZE(type, n) _Static_assert(sizeof(type) == n, #type)
#define AT(type, field, n) _Static_assert(offsetof(type, field) == n, #type "." #field)

SIZE(transfer_request_t, 40);
AT(transfer_request_t, opcode, 0);
AT(transfer_request_t, source, 8);
AT(transfer_request_t, target_id, 16);
AT(transfer_request_t, target_offset, 24);
AT(transfer_request_t, length, 32);
SIZE(transfer_status_t, 16);
AT(transfer_status_t, status, 0);
AT(transfer_status_t, transferred_bytes, 8);
SIZE(notify_msg_t, 16);
AT(notify_msg_t, name, 0);
AT(notify_msg_t, msg, 8);
SIZE(buffer_entry_t, 16);
AT(buffer_entry_t, addr, 0);
AT(buffer_entry_t, length, 8);
SIZE(segment_desc_t, 48);
AT(segment_desc_t, type, 0);
AT(segment_desc_t, desc_.rdma.addr, 8);
AT(segment_desc_t, desc_.rdma.size, 16);
AT(segment_desc_t, desc_.rdma.location, 24);
AT(segment_desc_t, desc_.nvmeof.file_path, 8);
AT(segment_desc_t, desc_.nvmeof.subsystem_name, 16);
AT(segment_desc_t, desc_.nvmeof.proto, 24);
AT(segment_desc_t, desc_.nvmeof.ip, 32);
AT(segment_desc_t, desc_.nvmeof.port, 40);
SIZE(nic_load_stat_t, 80);
AT(nic_load_stat_t, device_name, 0);
AT(nic_load_stat_t, inflight_bytes, 64);
AT(nic_load_stat_t, ewma_bandwidth_bps, 72);
SIZE(segment_handle_t, 4);
SIZE(batch_id_t, 8);

#define CHECK(ok) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #ok, tideway_last_error()); \
            exit(1); \
        } \
    } while (0)

enum { N = 4 << 20, TASKS = 64 };

static int finish(transfer_engine_t e, batch_id_t b, size_t tasks)
{
    struct transfer_status s;
    for (size_t i = 0; i < tasks; i++)
        do {
            CHECK(getTransferStatus(e, b, i, &s) == 0);
            if (s.status == STATUS_FAILED)
                return -1;
        } while (s.status != STATUS_COMPLETED);
    return 0;
}

/* moves TASKS pieces of both operations and compares. */
static void transfers(transfer_engine_t a, segment_id_t peer, char *mine, char *theirs)
{
    struct transfer_request r[TASKS];
    for (int op = OPCODE_READ; op <= OPCODE_WRITE; op++) {
        for (int i = 0; i < N; i++) {
            mine[i] = (char)(i * 7 + op);
            theirs[i] = (char)(i * 13 + op);
        }
        batch_id_t b = allocateBatchID(a, TASKS);
        CHECK(b != INVALID_BATCH);
        for (int i = 0; i < TASKS; i++)
            r[i] = (struct transfer_request){op, mine + i * (N / TASKS), peer, (uint64_t)(theirs + i * (N / TASKS)), N / TASKS};
        CHECK(submitTransfer(a, b, r, TASKS / 2) == 0);
        CHECK(submitTransfer(a, b, r + TASKS / 2, TASKS / 2) == 0);
        CHECK(submitTransfer(a, b, r, 1) == 2);
        CHECK(finish(a, b, TASKS) == 0);
        struct transfer_status s;
        CHECK(tideway_batch_status(a, b, &s) == 0 && s.status == STATUS_COMPLETED && s.transferred_bytes == N);
        CHECK(freeBatchID(a, b) == 0);
        CHECK(freeBatchID(a, b) == 1);
        CHECK(getTransferStatus(a, b, 0, &s) == 1);
        CHECK(memcmp(mine, theirs, N) == 0);
        CHECK(mine[3] == (char)(3 * (op == OPCODE_READ ? 13 : 7) + op));
    }
}

static void notifications(transfer_engine_t a, transfer_engine_t b, segment_id_t peer, char *mine, char *theirs)
{
    int n = -1;
    CHECK(getNotifsFromEngine(b, &n) == NULL && n == 0);
    notify_msg_t m = {"one", "alone"};
    CHECK(genNotifyInEngine(a, (uint64_t)peer, m) == 0);
    CHECK(genNotifyInEngine(a, 77, m) == -200);
    batch_id_t id = allocateBatchID(a, 2);
    struct transfer_request r = {OPCODE_WRITE, mine, peer, (uint64_t)theirs, 4096};
    notify_msg_t after = {"two", "after bytes"};
    CHECK(submitTransferWithNotify(a, id, &r, 1, after) == 0);
    CHECK(tideway_wait_batch(a, id, -1) == 0);
    CHECK(freeBatchID(a, id) == 0);
    notify_msg_t *got = getNotifsFromEngine(b, &n);
    CHECK(got && n == 2);
    CHECK(strcmp(got[0].name, "one") == 0 && strcmp(got[0].msg, "alone") == 0);
    CHECK(strcmp(got[1].name, "two") == 0 && strcmp(got[1].msg, "after bytes") == 0);
    CHECK(freeNotifsMsgBuf(got, n) == 0);
}

static void failures(transfer_engine_t a, segment_id_t peer, char *mine)
{
    struct transfer_status s = {42, 42};
    struct transfer_request r = {OPCODE_READ, mine, peer, 4096, 4096}; /* nothing is registered there */
    batch_id_t b = allocateBatchID(a, 4);
    CHECK(submitTransfer(a, b, &r, 1) == 0);
    CHECK(tideway_wait_batch(a, b, -1) == 0);
    CHECK(getTransferStatus(a, b, 0, &s) == 0 && s.status == STATUS_FAILED && s.transferred_bytes == 0);
    char *why = tideway_task_error(a, b, 0);
    CHECK(why && strstr(why, "\"reason\""));
    tideway_free(why);
    s.status = 42;
    CHECK(getTransferStatus(a, b, 1, &s) == 1 && s.status == 42);
    CHECK(getTransferStatus(a, b, 0, NULL) == 1);
    CHECK(getTransferStatus(a, b + 1, 0, &s) == 1);
    CHECK(getTransferStatus(NULL, b, 0, &s) == 1);
    r.opcode = 9;
    CHECK(submitTransfer(a, b, &r, 1) == 1);
    r.opcode = OPCODE_READ;
    r.target_id = 99;
    CHECK(submitTransfer(a, b, &r, 1) == 1);
    r.target_id = -1;
    CHECK(submitTransfer(a, b, &r, 1) == 1);
    CHECK(submitTransfer(a, b, NULL, 1) == 1);
    CHECK(submitTransfer(a, 12345, &r, 1) == 1);
    CHECK(submitTransfer((transfer_engine_t)0x1234, b, &r, 1) == 1);
    CHECK(freeBatchID(a, b) == 0);
    CHECK(allocateBatchID(NULL, 1) == INVALID_BATCH);
    CHECK(allocateBatchID(a, (size_t)-1) == INVALID_BATCH);
    notify_msg_t none = {NULL, NULL};
    CHECK(genNotifyInEngine(a, (uint64_t)peer, none) == -1);
    CHECK(openSegment(a, NULL) == -1 && openSegment(a, "") == -1 && openSegment(a, "127.0.0.1:1") == -1);
    CHECK(getNotifsFromEngine(a, NULL) == NULL);
    CHECK(createTransferEngine(NULL, "x", "", 0, 0) == NULL);
    CHECK(createTransferEngine("P2PHANDSHAKE", NULL, "", 0, 0) == NULL);
    CHECK(createTransferEngine("nonsense://x", "x", "", 0, 0) == NULL);
}

static void memory(transfer_engine_t a)
{
    char *p = malloc(1 << 16);
    CHECK(registerLocalMemory(a, p, 1 << 16, "cpu:0", 1) == 0);
    CHECK(registerLocalMemory(a, p, 1 << 16, "cpu:0", 1) == -7);
    CHECK(registerLocalMemory(a, p + 100, 10, "*", 0) == -7);
    CHECK(registerLocalMemory(a, p, 0, "*", 0) == -1);
    CHECK(registerLocalMemory(a, NULL, 10, "*", 0) == -1);
    CHECK(unregisterLocalMemory(a, p + 1) == -3);
    CHECK(unregisterLocalMemory(a, p) == 0);
    CHECK(unregisterLocalMemory(a, p) == -3);
    buffer_entry_t list[2] = {{p, 4096}, {p + 8192, 4096}}, bad[2] = {{p, 4096}, {p + 4095, 4096}};
    void *addrs[2] = {p, p + 8192};
    CHECK(registerLocalMemoryBatch(a, bad, 2, "*") == -7);
    CHECK(registerLocalMemoryBatch(a, list, 2, "*") == 0);
    CHECK(unregisterLocalMemoryBatch(a, addrs, 2) == 0);
    CHECK(unregisterLocalMemoryBatch(a, addrs, 2) == -3);
    CHECK(registerLocalMemoryBatch(a, NULL, 2, "*") == -1);
    free(p);
}

static void surroundings(transfer_engine_t a, const char *peer)
{
    char text[4096], tiny[4];
    CHECK(discoverTopology(a) == 0);
    CHECK(getLocalIpAndPort(a, text, sizeof text) == 0 && strncmp(text, "127.0.0.1:", 10) == 0);
    CHECK(getLocalIpAndPort(a, tiny, sizeof tiny) == 0 && strcmp(tiny, "127") == 0);
    CHECK(getLocalIpAndPort(a, NULL, 0) == -1);
    CHECK(installTransport(a, "tcp", NULL) != NULL);
    void *args[2] = {"{\"cpu:0\": [[], []]}", NULL}, *broken[2] = {"{", NULL};
    CHECK(installTransport(a, "tcp", args) != NULL);
    CHECK(installTransport(a, "tcp", broken) == NULL);
    CHECK(installTransport(a, "warp", NULL) == NULL && installTransport(a, NULL, NULL) == NULL);
    CHECK(uninstallTransport(a, "tcp") == 0);
    CHECK(warmupEfaSegment(a, peer) == 0 && warmupEfaSegment(a, NULL) == 0);
    CHECK(openSegmentNoCache(a, peer) == openSegment(a, peer));
    CHECK(closeSegment(a, 1) == 0);
    CHECK(syncSegmentCache(a) == 0);
    nic_load_stat_t loads[8];
    size_t count = 8;
    CHECK(getNicLoadStats(a, loads, &count) == 0);
    CHECK(getNicLoadStats(a, NULL, &count) == -1 && getNicLoadStats(a, loads, NULL) == -1);
    CHECK(showLinks(a, text, sizeof text, 0) == 0 && showLinks(a, text, sizeof text, 1) == 0 && text[0] == '{');
    CHECK(showLinks(a, NULL, 0, 1) == -1);
    CHECK(tideway_get_rpc_port(a) >= 15000 && tideway_get_rpc_port(a) <= 17000);
    char *s = tideway_inspect(a);
    CHECK(s && s[0] == '{');
    tideway_free(s);
    CHECK(strlen(tideway_version()) > 0);
    int64_t ns = 0;
    CHECK(tideway_probe(a, peer, &ns) == 0 && ns > 0);
    CHECK(removeLocalSegment(a, "nobody") == -1);
}

/* A child must get errors at once, and the parent must not notice. */
static void children(transfer_engine_t a, segment_id_t peer, char *mine)
{
    pid_t child = fork();
    if (child == 0) {
        struct transfer_request r = {OPCODE_READ, mine, peer, 0, 1};
        struct transfer_status s;
        alarm(10);
        int bad = submitTransfer(a, 1, &r, 1) != 1 || getTransferStatus(a, 1, 0, &s) != 1 || openSegment(a, "x") != -1 ||
                  createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 1) != NULL || !strstr(tideway_last_error(), "forked");
        destroyTransferEngine(a);
        _exit(bad);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static void *spin(void *arg)
{
    void **x = arg;
    struct transfer_request r = {OPCODE_READ, (char *)x[2] + (size_t)x[4] * 4096, *(segment_id_t *)x[1], (uint64_t)x[3], 4096};
    for (int i = 0; i < 200; i++) {
        batch_id_t b = allocateBatchID(x[0], 1);
        CHECK(b != INVALID_BATCH && submitTransfer(x[0], b, &r, 1) == 0 && finish(x[0], b, 1) == 0 && freeBatchID(x[0], b) == 0);
    }
    return NULL;
}

static void threads(transfer_engine_t a, segment_id_t peer, char *mine, char *theirs)
{
    pthread_t t[4];
    void *args[4][5];
    for (size_t i = 0; i < 4; i++) {
        void *x[5] = {a, &peer, mine, theirs, (void *)i};
        memcpy(args[i], x, sizeof x);
        CHECK(pthread_create(&t[i], NULL, spin, args[i]) == 0);
    }
    for (int i = 0; i < 4; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
}

int main(void)
{
    struct sigaction before[32], now;
    for (int i = 1; i < 32; i++)
        sigaction(i, NULL, &before[i]);
    transfer_engine_t a = createTransferEngine("P2PHANDSHAKE", "127.0.0.1:9999", "", 0, 1);
    transfer_engine_t b = createTransferEngine("P2PHANDSHAKE", "127.0.0.1", "", 0, 0);
    CHECK(a && b && a != b);
    const int untouched[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD, SIGALRM, SIGQUIT};
    for (size_t i = 0; i < sizeof untouched / sizeof *untouched; i++)
        CHECK(sigaction(untouched[i], NULL, &now) == 0 && now.sa_handler == before[untouched[i]].sa_handler);
    char *mine = malloc(N), *theirs = malloc(N), name[256];
    CHECK(registerLocalMemory(a, mine, N, "*", 0) == 0 && registerLocalMemory(b, theirs, N, "*", 1) == 0);
    CHECK(getLocalIpAndPort(b, name, sizeof name) == 0);
    segment_id_t peer = openSegment(a, name);
    CHECK(peer > 0);
    char *own = tideway_get_name(a);
    CHECK(own && openSegment(a, own) == LOCAL_SEGMENT);
    tideway_free(own);
    transfers(a, peer, mine, theirs);
    char *other = malloc(N);
    CHECK(registerLocalMemory(a, other, N, "cpu:0", 1) == 0);
    transfers(a, LOCAL_SEGMENT, mine, other);
    notifications(a, b, peer, mine, theirs);
    failures(a, peer, mine);
    memory(a);
    surroundings(a, name);
    children(a, peer, mine);
    threads(a, peer, mine, theirs);
    CHECK(removeLocalSegment(a, name) == 0 && removeLocalSegment(a, name) == -1);
    batch_id_t left = allocateBatchID(a, 1);
    CHECK(unregisterLocalMemory(b, theirs) == 0);
    destroyTransferEngine(a);
    destroyTransferEngine(a);
    struct transfer_status s;
    CHECK(getTransferStatus(a, left, 0, &s) == 1 && freeBatchID(a, left) == 1 && openSegment(a, name) == -1);
    destroyTransferEngine(b);
    destroyTransferEngine(NULL);
    free(other);
    free(mine);
    free(theirs);
    puts("ok");
    return 0;
}
