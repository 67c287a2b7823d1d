/*
 * Every function of tent/transfer_engine.h, and the layout of every struct. With
 * "serve" and "use NAME ADDRESS" it is the two halves of a transfer between
 * processes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tideway.h"

#define SIZE(type, n) _Static_assert(sizeof(type) == n, #type)
#define AT(type, field, n) _Static_assert(offsetof(type, field) == n, #type "." #field)

SIZE(tent_request_t, 48);
AT(tent_request_t, opcode, 0);
AT(tent_request_t, source, 8);
AT(tent_request_t, target_id, 16);
AT(tent_request_t, target_offset, 24);
AT(tent_request_t, length, 32);
AT(tent_request_t, priority, 40);
AT(tent_request_t, transport_hint, 44);
SIZE(tent_status_t, 16);
AT(tent_status_t, status, 0);
AT(tent_status_t, transferred_bytes, 8);
SIZE(tent_buffer_info_t, 80);
AT(tent_buffer_info_t, base, 0);
AT(tent_buffer_info_t, length, 8);
AT(tent_buffer_info_t, location, 16);
SIZE(tent_segment_info_t, 16);
AT(tent_segment_info_t, type, 0);
AT(tent_segment_info_t, num_buffers, 4);
AT(tent_segment_info_t, buffers, 8);
SIZE(tent_notifi_record_t, 4360);
AT(tent_notifi_record_t, handle, 0);
AT(tent_notifi_record_t, name, 8);
AT(tent_notifi_record_t, msg, 264);
SIZE(tent_notifi_info, 16);
AT(tent_notifi_info, num_records, 0);
AT(tent_notifi_info, records, 8);
SIZE(tent_memory_options_t, 344);
AT(tent_memory_options_t, location, 0);
AT(tent_memory_options_t, permission, 64);
AT(tent_memory_options_t, transport_type, 68);
AT(tent_memory_options_t, shm_path, 72);
AT(tent_memory_options_t, shm_offset, 328);
AT(tent_memory_options_t, internal, 336);
SIZE(tent_nic_load_stat_t, 80);
AT(tent_nic_load_stat_t, device_name, 0);
AT(tent_nic_load_stat_t, inflight_bytes, 64);
AT(tent_nic_load_stat_t, ewma_bandwidth_bps, 72);
SIZE(tent_batch_id_t, 8);
SIZE(tent_segment_id_t, 8);

#define CHECK(ok) \
    do { \
        if (!(ok)) { \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #ok, tideway_last_error()); \
            exit(1); \
        } \
    } while (0)

enum { N = 4 << 20, TASKS = 64 };

/* poll waits for the end of a batch and returns how it is said to have ended. */
static int poll_batch(tent_engine_t e, tent_batch_id_t b)
{
    tent_status_t s;
    do {
        CHECK(tent_overall_status(e, b, &s) == 0);
        usleep(50);
    } while (s.status == STATUS_PENDING || s.status == STATUS_WAITING);
    return s.status;
}

static tent_engine_t make(const char *host)
{
    tent_set_config("rpc_server_hostname", host);
    tent_set_config("log_level", "error");
    tent_set_config("transports/tcp/max_concurrent_tasks", "16"); /* means nothing here */
    tent_engine_t e = tent_create_engine();
    CHECK(e && tent_available(e) == 1);
    return e;
}

static void transfers(tent_engine_t a, tent_segment_id_t peer, char *mine, char *theirs)
{
    tent_request_t r[TASKS];
    tent_status_t list[TASKS], s;
    for (int op = OPCODE_READ; op <= OPCODE_WRITE; op++) {
        for (int i = 0; i < N; i++) {
            mine[i] = (char)(i * 7 + op);
            theirs[i] = (char)(i * 13 + op);
        }
        tent_batch_id_t b = tent_allocate_batch(a, TASKS);
        CHECK(b != 0);
        CHECK(tent_overall_status(a, b, &s) == 0 && s.status == STATUS_COMPLETED && s.transferred_bytes == 0);
        memset(r, 0, sizeof r);
        for (int i = 0; i < TASKS; i++) {
            r[i].opcode = op;
            r[i].source = mine + i * (N / TASKS);
            r[i].target_id = peer;
            r[i].target_offset = (uint64_t)(theirs + i * (N / TASKS));
            r[i].length = N / TASKS;
            r[i].priority = i % 3;
            r[i].transport_hint = peer == LOCAL_SEGMENT_ID || i % 2 ? TRANSPORT_UNSPEC : TRANSPORT_TCP;
        }
        CHECK(tent_submit(a, b, r, TASKS / 2) == 0);
        tideway_options_t o = {sizeof o, 1, 60 * 1000000000ll, "tenant", "weights"};
        CHECK(tideway_tent_submit(a, b, r + TASKS / 2, TASKS / 2, &o) == 0);
        CHECK(tent_submit(a, b, r, 1) == -1);
        CHECK(poll_batch(a, b) == STATUS_COMPLETED);
        CHECK(tent_overall_status(a, b, &s) == 0 && s.transferred_bytes == N);
        size_t count = TASKS / 2;
        CHECK(tent_task_status_list(a, b, list, &count) == 0 && count == TASKS);
        CHECK(list[3].status == STATUS_COMPLETED && list[3].transferred_bytes == N / TASKS);
        CHECK(tent_task_status(a, b, TASKS - 1, &s) == 0 && s.status == STATUS_COMPLETED);
        CHECK(tent_cancel_task(a, b, 0) == 0); /* has ended: nothing to do */
        CHECK(tent_free_batch(a, b) == 0 && tent_free_batch(a, b) == -1);
        CHECK(tent_task_status(a, b, 0, &s) == -1 && tent_overall_status(a, b, &s) == -1);
        CHECK(memcmp(mine, theirs, N) == 0 && mine[3] == (char)(3 * (op == OPCODE_READ ? 13 : 7) + op));
    }
}

static void notifications(tent_engine_t a, tent_engine_t b, tent_segment_id_t peer, char *mine, char *theirs)
{
    tent_notifi_info got = {7, (void *)1};
    CHECK(tent_recv_notifs(b, &got) == 0 && got.num_records == 0 && got.records == NULL);
    tent_free_notifs(&got);
    char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    CHECK(tent_send_notifs(a, peer, "one", longest) == 0);
    CHECK(tent_send_notifs(a, peer, NULL, "x") == -1 && tent_send_notifs(a, peer, "x", NULL) == -1 && tent_send_notifs(a, 77, "x", "y") == -1);
    tent_batch_id_t id = tent_allocate_batch(a, 2);
    tent_request_t r = {OPCODE_WRITE, mine, peer, (uint64_t)theirs, 4096, PRIO_LOW, TRANSPORT_UNSPEC};
    CHECK(tent_submit_notif(a, id, &r, 1, "two", "after bytes") == 0);
    CHECK(tent_submit_notif(a, id, &r, 1, NULL, "x") == -1 && tent_submit_notif(a, id, &r, 0, "x", "y") == -1);
    CHECK(poll_batch(a, id) == STATUS_COMPLETED && tent_free_batch(a, id) == 0);
    CHECK(tent_recv_notifs(b, &got) == 0 && got.num_records == 2);
    CHECK(strcmp(got.records[0].name, "one") == 0 && strlen(got.records[0].msg) == 4095);
    CHECK(strcmp(got.records[1].name, "two") == 0 && strcmp(got.records[1].msg, "after bytes") == 0);
    tent_free_notifs(&got);
    tent_free_notifs(&got);
    tent_free_notifs(NULL);
    CHECK(tent_recv_notifs(b, NULL) == -1);
}

static void segments(tent_engine_t a, tent_segment_id_t peer, const char *name, char *theirs)
{
    tent_segment_id_t again = 0, none = 42;
    tent_segment_info_t info;
    CHECK(tent_get_segment_info(a, peer, &info) == 0 && info.type == TYPE_MEMORY && info.num_buffers == 1);
    CHECK(info.buffers[0].base == (uint64_t)theirs && info.buffers[0].length == N && strcmp(info.buffers[0].location, "*") == 0);
    tent_free_segment_info(&info);
    tent_free_segment_info(&info);
    tent_free_segment_info(NULL);
    CHECK(tent_get_segment_info(a, LOCAL_SEGMENT_ID, &info) == 0);
    tent_free_segment_info(&info);
    CHECK(tent_get_segment_info(a, peer, NULL) == -1 && tent_get_segment_info(a, 99, &info) == -1 && tent_get_segment_info(a, UINT64_MAX, &info) == -1);
    CHECK(tent_open_segment(a, &again, name) == 0 && again == peer);
    CHECK(tent_close_segment(a, again) == 0); /* one holder is left */
    CHECK(tent_get_segment_info(a, peer, &info) == 0);
    tent_free_segment_info(&info);
    CHECK(tent_open_segment(a, &none, "") == 0 && none == LOCAL_SEGMENT_ID);
    CHECK(tent_close_segment(a, LOCAL_SEGMENT_ID) == 0 && tent_close_segment(a, 99) == -1);
    CHECK(tent_open_segment(a, NULL, name) == -1 && tent_open_segment(a, &none, NULL) == -1 && tent_open_segment(a, &none, "127.0.0.1:1") == -1);
}

static void memory(tent_engine_t a)
{
    void *p = NULL, *q = NULL;
    CHECK(tent_allocate_memory(a, &p, 1 << 16, "cpu:0") == 0 && p && ((char *)p)[65535] == 0);
    CHECK(tent_register_memory(a, p, 1 << 16) == 0);
    CHECK(tent_register_memory(a, p, 1 << 16) == -1);
    CHECK(tent_free_memory(a, p) == -1); /* registered */
    CHECK(tent_unregister_memory(a, p, 77) == -1);
    CHECK(tent_unregister_memory(a, p, 0) == 0 && tent_unregister_memory(a, p, 0) == 0);
    CHECK(tent_register_memory_with_perm(a, p, 4096, PERM_GLOBAL_READ_ONLY) == 0 && tent_register_memory_with_perm(a, p, 4096, 3) == -1);
    CHECK(tent_unregister_memory(a, p, 4096) == 0);
    void *list[2] = {p, (char *)p + 8192}, *bad[2] = {p, (char *)p + 4095};
    size_t sizes[2] = {4096, 4096};
    CHECK(tent_register_memory_batch(a, bad, sizes, 2, PERM_GLOBAL_READ_WRITE) == -1);
    CHECK(tent_register_memory_batch(a, list, sizes, 2, PERM_LOCAL_READ_WRITE) == 0);
    CHECK(tent_unregister_memory_batch(a, list, sizes, 2) == 0 && tent_unregister_memory_batch(a, list, NULL, 2) == 0);
    tent_memory_options_t o;
    memset(&o, 0, sizeof o);
    o.permission = PERM_GLOBAL_READ_WRITE;
    memset(o.location, 'c', sizeof o.location); /* not ended by a zero */
    CHECK(tent_register_memory_ex(a, p, 4096, &o) == 0 && tent_unregister_memory(a, p, 0) == 0);
    strcpy(o.location, "cpu:0");
    CHECK(tent_register_memory_batch_ex(a, list, sizes, 2, &o) == 0 && tent_unregister_memory_batch(a, list, NULL, 2) == 0);
    o.transport_type = TRANSPORT_RDMA;
    CHECK(tent_register_memory_ex(a, p, 4096, &o) == -1 && strstr(tideway_last_error(), "transport 1"));
    CHECK(tent_allocate_memory_ex(a, &q, 4096, &o) == -1);
    o.transport_type = TRANSPORT_TCP;
    CHECK(tent_allocate_memory_ex(a, &q, 4096, &o) == 0 && tent_free_memory(a, q) == 0 && tent_free_memory(a, q) == -1);
    CHECK(tent_allocate_memory(a, &q, 4096, "cuda:0") == -1 && tent_allocate_memory(a, &q, 0, "*") == -1 && tent_allocate_memory(a, NULL, 1, "*") == -1);
    CHECK(tent_allocate_memory(a, &q, 1ull << 60, "*") == -1);
    CHECK(tent_register_memory_ex(a, p, 4096, NULL) == -1 && tent_allocate_memory_ex(a, &q, 4096, NULL) == -1);
    CHECK(tent_register_memory_batch(a, NULL, sizes, 2, 2) == -1 && tent_register_memory_batch(a, list, NULL, 2, 2) == -1);
    CHECK(tent_unregister_memory_batch(a, NULL, NULL, 2) == -1);
    CHECK(tent_free_memory(a, p) == 0);
    CHECK(tent_allocate_memory(a, &q, 4096, NULL) == 0); /* left to tent_destroy_engine */
}

static void failures(tent_engine_t a, tent_segment_id_t peer, char *mine)
{
    tent_status_t s = {42, 42};
    tent_request_t r = {OPCODE_READ, mine, peer, 4096, 4096, 0, 0}; /* nothing is registered there */
    tent_batch_id_t b = tent_allocate_batch(a, 4);
    CHECK(tent_submit(a, b, &r, 1) == 0 && poll_batch(a, b) == STATUS_FAILED);
    CHECK(tent_task_status(a, b, 0, &s) == 0 && s.status == STATUS_FAILED && s.transferred_bytes == 0);
    CHECK(tent_task_status(a, b, 1, &s) == -1 && tent_task_status(a, b, 0, NULL) == -1 && tent_overall_status(a, b, NULL) == -1);
    CHECK(tent_task_status(a, b + 1, 0, &s) == -1 && tent_task_status(NULL, b, 0, &s) == -1 && tent_task_status(a, 0, 0, &s) == -1);
    size_t count = 4;
    CHECK(tent_task_status_list(a, b, NULL, &count) == -1 && tent_task_status_list(a, b, &s, NULL) == -1);
    count = 0;
    CHECK(tent_task_status_list(a, b, NULL, &count) == 0 && count == 1);
    r.priority = 3;
    CHECK(tent_submit(a, b, &r, 1) == -1 && strstr(tideway_last_error(), "priority 3"));
    r.priority = 0;
    r.transport_hint = TRANSPORT_RDMA;
    CHECK(tent_submit(a, b, &r, 1) == -1);
    r.transport_hint = 99;
    CHECK(tent_submit(a, b, &r, 1) == -1);
    r.transport_hint = 0;
    r.opcode = 9;
    CHECK(tent_submit(a, b, &r, 1) == -1);
    r.opcode = OPCODE_READ;
    r.target_id = 1ull << 32 | peer;
    CHECK(tent_submit(a, b, &r, 1) == -1);
    r.target_id = peer;
    tideway_options_t o = {1, 0, 0, NULL, NULL};
    CHECK(tideway_tent_submit(a, b, &r, 1, &o) == -1);
    o = (tideway_options_t){sizeof o, 2, 0, NULL, NULL};
    CHECK(tideway_tent_submit(a, b, &r, 1, &o) == -1);
    o = (tideway_options_t){sizeof o, 0, -1, NULL, NULL};
    CHECK(tideway_tent_submit(a, b, &r, 1, &o) == -1);
    CHECK(tent_submit(a, b, NULL, 1) == -1 && tent_submit(a, 12345, &r, 1) == -1 && tent_submit((tent_engine_t)0x1234, b, &r, 1) == -1);
    CHECK(tent_cancel_task(a, b, 1) == -1 && tent_cancel_task(a, b, SIZE_MAX) == -1 && tent_cancel_task(NULL, b, 0) == -1);
    CHECK(tent_free_batch(a, b) == 0);
    CHECK(tent_allocate_batch(NULL, 1) == 0 && tent_allocate_batch(a, SIZE_MAX) == 0);
    char text[8];
    uint16_t port = 0;
    CHECK(tent_segment_name(a, NULL, 0) == -1 && tent_rpc_server_addr_port(a, text, sizeof text, NULL) == -1);
    CHECK(tent_rpc_server_addr_port(a, text, sizeof text, &port) == 0 && strcmp(text, "127.0.0") == 0 && port > 0);
    tent_nic_load_stat_t loads[8];
    count = 8;
    CHECK(tent_get_nic_load_stats(a, loads, &count) == 0 && tent_get_nic_load_stats(a, loads, NULL) == -1);
    count = 1;
    CHECK(tent_get_nic_load_stats(a, NULL, &count) == -1);
    count = 0;
    CHECK(tent_get_nic_load_stats(a, NULL, &count) == 0);
    CHECK(tent_available(NULL) == 0 && tent_available((tent_engine_t)0x10101010) == 0);
}

/* A batch that is freed, or cancelled, with tasks under way. */
static void early(tent_engine_t a, tent_segment_id_t peer, char *mine, char *theirs)
{
    tent_status_t s;
    for (int round = 0; round < 50; round++) {
        tent_request_t r[8];
        memset(r, 0, sizeof r);
        for (int i = 0; i < 8; i++)
            r[i] = (tent_request_t){OPCODE_READ, mine + i * (N / 8), peer, (uint64_t)theirs + i * (N / 8), N / 8, 0, 0};
        tent_batch_id_t b = tent_allocate_batch(a, 16);
        CHECK(tent_submit(a, b, r, 8) == 0);
        if (round % 2) {
            for (int i = 0; i < 8; i++)
                CHECK(tent_cancel_task(a, b, i) == 0 && tent_cancel_task(a, b, i) == 0);
            int end = poll_batch(a, b);
            CHECK(end == STATUS_CANCELED || end == STATUS_COMPLETED);
            CHECK(tent_free_batch(a, b) == 0);
            continue;
        }
        CHECK(tent_cancel_task(a, b, 3) == 0); /* alone: may complete */
        CHECK(tent_free_batch(a, b) == 0);
        CHECK(tent_submit(a, b, r, 1) == -1);
        while (tent_overall_status(a, b, &s) == 0)
            CHECK(s.status == STATUS_PENDING || s.status == STATUS_COMPLETED || s.status == STATUS_CANCELED);
    }
}

static void configuration(void)
{
    char path[] = "/tmp/tent-XXXXXX", text[64];
    int fd = mkstemp(path);
    const char document[] = "{\"metadata_type\": \"p2p\", \"rpc_server_hostname\": \"127.0.0.1\", \"transports\": {\"tcp\": {\"enable\": true}}, \"log_level\": \"error\"}";
    CHECK(fd >= 0 && write(fd, document, sizeof document - 1) == sizeof document - 1 && close(fd) == 0);
    tent_load_config_from_file(path);
    tent_engine_t e = tent_create_engine();
    CHECK(e && tent_segment_name(e, text, sizeof text) == 0 && strncmp(text, "127.0.0.1:", 10) == 0);
    tent_destroy_engine(e);
    unlink(path);
    tent_load_config_from_file(document); /* as programs for the original do */
    tent_set_config("metadata_type", "punched cards");
    CHECK(!tent_create_engine() && strstr(tideway_last_error(), "punched cards"));
    tent_set_config("metadata_type", "etcd");
    CHECK(!tent_create_engine() && strstr(tideway_last_error(), "metadata_servers"));
    tent_set_config("metadata_type", "p2p");
    tent_set_config("rpc_server_port", "70000");
    CHECK(!tent_create_engine() && strstr(tideway_last_error(), "70000"));
    tent_set_config("rpc_server_port", "0");
    e = tent_create_engine();
    CHECK(e);
    tent_destroy_engine(e);
    tent_destroy_engine(e);
    tent_load_config_from_file("/nowhere/at/all.json");
    CHECK(!tent_create_engine() && strstr(tideway_last_error(), "/nowhere"));
}

/* in_thread has settings of its own. */
static void *in_thread(void *arg)
{
    configuration();
    return arg;
}

static void children(tent_engine_t a, tent_segment_id_t peer, char *mine)
{
    pid_t child = fork();
    if (child == 0) {
        tent_request_t r = {OPCODE_READ, mine, peer, 0, 1, 0, 0};
        tent_status_t s;
        tent_segment_id_t id;
        alarm(10);
        int bad = tent_submit(a, 1, &r, 1) != -1 || tent_task_status(a, 1, 0, &s) != -1 || tent_open_segment(a, &id, "x") != -1 || tent_available(a) ||
                  tent_create_engine() != NULL || !strstr(tideway_last_error(), "forked");
        tent_destroy_engine(a);
        tent_load_config_from_file("{}");
        _exit(bad);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static int serve(void)
{
    static char theirs[1 << 20];
    tent_engine_t e = make("127.0.0.1");
    char name[128];
    for (size_t i = 0; i < sizeof theirs; i++)
        theirs[i] = (char)(i * 31);
    CHECK(tent_register_memory(e, theirs, sizeof theirs) == 0 && tent_segment_name(e, name, sizeof name) == 0);
    printf("%s %llu\n", name, (unsigned long long)(size_t)theirs);
    fflush(stdout);
    for (;; usleep(1000)) {
        tent_notifi_info got;
        CHECK(tent_recv_notifs(e, &got) == 0);
        if (got.num_records) {
            printf("%s: %s, first byte %d\n", got.records[0].name, got.records[0].msg, theirs[0]);
            tent_free_notifs(&got);
            tent_destroy_engine(e);
            return 0;
        }
    }
}

static int use(const char *name, uint64_t address)
{
    static char mine[1 << 20];
    tent_engine_t e = make("127.0.0.1");
    tent_segment_id_t peer;
    CHECK(tent_open_segment(e, &peer, name) == 0);
    tent_batch_id_t b = tent_allocate_batch(e, 2);
    tent_request_t r = {OPCODE_READ, mine, peer, address, sizeof mine, 0, 0};
    CHECK(tent_submit(e, b, &r, 1) == 0 && poll_batch(e, b) == STATUS_COMPLETED);
    for (size_t i = 0; i < sizeof mine; i++)
        CHECK(mine[i] == (char)(i * 31));
    mine[0] = 42;
    r.opcode = OPCODE_WRITE;
    CHECK(tent_submit_notif(e, b, &r, 1, "use", "written") == 0 && poll_batch(e, b) == STATUS_COMPLETED && tent_free_batch(e, b) == 0);
    tent_destroy_engine(e);
    puts("moved");
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2)
        return serve();
    if (argc == 4)
        return use(argv[2], strtoull(argv[3], NULL, 0));
    tent_engine_t a = make("127.0.0.1"), b = make("127.0.0.1");
    char *mine = malloc(N), *theirs = malloc(N), name[256];
    CHECK(tent_register_memory_with_perm(a, mine, N, PERM_LOCAL_READ_WRITE) == 0 && tent_register_memory(b, theirs, N) == 0);
    CHECK(tent_segment_name(b, name, sizeof name) == 0);
    tent_segment_id_t peer = 0;
    CHECK(tent_open_segment(a, &peer, name) == 0 && peer > 0);
    transfers(a, peer, mine, theirs);
    char *other = malloc(N);
    CHECK(tent_register_memory(a, other, N) == 0);
    transfers(a, LOCAL_SEGMENT_ID, mine, other);
    CHECK(tent_unregister_memory(a, other, N) == 0);
    notifications(a, b, peer, mine, theirs);
    segments(a, peer, name, theirs);
    memory(a);
    failures(a, peer, mine);
    early(a, peer, mine, theirs);
    children(a, peer, mine);
    pthread_t t;
    CHECK(pthread_create(&t, NULL, in_thread, NULL) == 0 && pthread_join(t, NULL) == 0);
    tent_engine_t third = tent_create_engine(); /* this thread's settings are as they were */
    CHECK(third);
    tent_destroy_engine(third);
    CHECK(tent_close_segment(a, peer) == 0 && tent_close_segment(a, peer) == -1);
    tent_batch_id_t left = tent_allocate_batch(a, 1);
    tent_destroy_engine(a);
    tent_destroy_engine(a);
    tent_status_t s;
    CHECK(tent_task_status(a, left, 0, &s) == -1 && tent_free_batch(a, left) == -1 && tent_available(a) == 0);
    tent_destroy_engine(b);
    tent_destroy_engine(NULL);
    free(other);
    free(mine);
    free(theirs);
    puts("ok");
    return 0;
}
