/*
 * The functions that programs link against. What a task's state is, C answers
 * alone; all else goes on to Go, unless this is a forked child, in which Go's
 * threads do not exist and a call would hang.
 */
#include <pthread.h>
#include <string.h>

#include "_cgo_export.h"
#include "include/tideway.h"
#include "table.h"

#define API __attribute__((visibility("default")))

tw_slot *tw_chunks[TW_CHUNKS];
tw_task *tw_rows[64];

static int forked;

static void in_child(void) { forked = 1; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

static __thread char last_error[1024];

void tw_set_error(const char *text, size_t length)
{
    if (length > sizeof last_error - 1)
        length = sizeof last_error - 1;
    memcpy(last_error, text, length);
    last_error[length] = 0;
}

int tw_forked(void)
{
    static const char why[] = "this process was forked from the one that loaded the library, where the engine runs; "
                              "create engines after fork, in a process that was started by exec";
    if (forked)
        tw_set_error(why, sizeof why - 1);
    return forked;
}

#define TW_VERSION "0.1.0"

/* The classic numbers that C gives by itself. */
enum { INVALID_ARGUMENT = 1 };

tw_slot *tw_find(uint64_t id)
{
    uint64_t number = id & ((1 << TW_SLOT_BITS) - 1);
    tw_slot *chunk = __atomic_load_n(&tw_chunks[number / TW_CHUNK], __ATOMIC_ACQUIRE);
    return chunk && id ? &chunk[number % TW_CHUNK] : NULL;
}

int tw_is(const tw_slot *s, uint64_t id, void *engine)
{
    return __atomic_load_n(&s->id, __ATOMIC_ACQUIRE) == id && __atomic_load_n(&s->engine, __ATOMIC_RELAXED) == (uintptr_t)engine;
}

static int unknown(const char *what)
{
    tw_set_error(what, strlen(what));
    return INVALID_ARGUMENT;
}

API int getTransferStatus(transfer_engine_t e, batch_id_t id, size_t task, struct transfer_status *status)
{
    struct transfer_status now;
    tw_slot *s = tw_find(id);
    if (tw_forked())
        return INVALID_ARGUMENT;
    if (!status)
        return unknown("get transfer status: no place for the status");
    if (!s || !tw_is(s, id, e))
        return unknown("get transfer status: no such batch of this engine; was it freed?");
    tw_wake(s, id, twWake);
    if (task >= __atomic_load_n(&s->count, __ATOMIC_ACQUIRE))
        return unknown("get transfer status: no such task in the batch");
    tw_task *t = &__atomic_load_n(&s->tasks, __ATOMIC_ACQUIRE)[task];
    now.status = (int)__atomic_load_n(&t->state, __ATOMIC_ACQUIRE);
    now.transferred_bytes = __atomic_load_n(&t->bytes, __ATOMIC_ACQUIRE);
    if (now.status != STATUS_COMPLETED)
        now.transferred_bytes = 0;
    if (!tw_is(s, id, e)) /* freed while it was read */
        return unknown("get transfer status: the batch was freed");
    status->status = now.status;
    status->transferred_bytes = now.transferred_bytes;
    return 0;
}

API int tideway_batch_status(transfer_engine_t e, batch_id_t id, struct transfer_status *status)
{
    tw_slot *s = tw_find(id);
    if (tw_forked())
        return INVALID_ARGUMENT;
    if (!status)
        return unknown("batch status: no place for the status");
    if (!s || !tw_is(s, id, e))
        return unknown("batch status: no such batch of this engine; was it freed?");
    tw_wake(s, id, twWake);
    uint64_t ended = __atomic_load_n(&s->ended, __ATOMIC_ACQUIRE);
    uint64_t count = __atomic_load_n(&s->count, __ATOMIC_ACQUIRE);
    uint64_t failed = __atomic_load_n(&s->failed, __ATOMIC_ACQUIRE);
    const tw_task *tasks = __atomic_load_n(&s->tasks, __ATOMIC_ACQUIRE);
    uint64_t bytes = 0;
    for (uint64_t i = 0; i < count; i++)
        if (__atomic_load_n(&tasks[i].state, __ATOMIC_ACQUIRE) == STATUS_COMPLETED)
            bytes += __atomic_load_n(&tasks[i].bytes, __ATOMIC_ACQUIRE);
    if (!tw_is(s, id, e))
        return unknown("batch status: the batch was freed");
    status->status = failed ? STATUS_FAILED : ended == count ? STATUS_COMPLETED : STATUS_WAITING;
    status->transferred_bytes = bytes;
    return 0;
}

static void at_exit(void)
{
    if (!forked)
        twAtExit();
}

void tw_at_exit(void) { atexit(at_exit); }

API const char *tideway_version(void) { return TW_VERSION; }

API const char *tideway_last_error(void) { return last_error; }

API transfer_engine_t createTransferEngine(const char *conn, const char *name, const char *host, uint64_t port, int discover)
{
    (void)host, (void)port;
    return tw_forked() ? NULL : (transfer_engine_t)twCreate((char *)conn, (char *)name, discover);
}

API void destroyTransferEngine(transfer_engine_t e)
{
    if (!tw_forked())
        twDestroy((uintptr_t)e);
}

API int discoverTopology(transfer_engine_t e) { return tw_forked() ? -1 : twUsable((uintptr_t)e); }

API int getLocalIpAndPort(transfer_engine_t e, char *buf, size_t n) { return tw_forked() ? -1 : twAddr((uintptr_t)e, buf, n); }

API transport_t installTransport(transfer_engine_t e, const char *proto, void **args)
{
    return tw_forked() ? NULL : (transport_t)twInstall((uintptr_t)e, (char *)proto, args ? args[0] : NULL);
}

API int uninstallTransport(transfer_engine_t e, const char *proto)
{
    (void)proto;
    return tw_forked() ? -1 : twUsable((uintptr_t)e);
}

API segment_id_t openSegment(transfer_engine_t e, const char *name) { return tw_forked() ? -1 : twOpen((uintptr_t)e, (char *)name, 0); }

API segment_id_t openSegmentNoCache(transfer_engine_t e, const char *name)
{
    return tw_forked() ? -1 : twOpen((uintptr_t)e, (char *)name, 1);
}

API int closeSegment(transfer_engine_t e, segment_id_t id)
{
    (void)id;
    return tw_forked() ? -1 : twUsable((uintptr_t)e);
}

API int warmupEfaSegment(transfer_engine_t e, const char *name) { return tw_forked() ? -1 : twWarm((uintptr_t)e, (char *)name); }

API int removeLocalSegment(transfer_engine_t e, const char *name) { return tw_forked() ? -1 : twForget((uintptr_t)e, (char *)name); }

API int registerLocalMemory(transfer_engine_t e, void *addr, size_t n, const char *location, int remote)
{
    return tw_forked() ? -1 : twRegister((uintptr_t)e, addr, n, (char *)location, remote);
}

API int unregisterLocalMemory(transfer_engine_t e, void *addr) { return tw_forked() ? -1 : twUnregister((uintptr_t)e, addr); }

API int registerLocalMemoryBatch(transfer_engine_t e, buffer_entry_t *list, size_t n, const char *location)
{
    return tw_forked() ? -1 : twRegisterAll((uintptr_t)e, list, n, (char *)location);
}

API int unregisterLocalMemoryBatch(transfer_engine_t e, void **addrs, size_t n)
{
    return tw_forked() ? -1 : twUnregisterAll((uintptr_t)e, addrs, n);
}

API batch_id_t allocateBatchID(transfer_engine_t e, size_t n) { return tw_forked() ? INVALID_BATCH : twAllocate((uintptr_t)e, n); }

API int freeBatchID(transfer_engine_t e, batch_id_t id) { return tw_forked() ? INVALID_ARGUMENT : twFree((uintptr_t)e, id); }

API int submitTransfer(transfer_engine_t e, batch_id_t id, struct transfer_request *entries, size_t n)
{
    return tw_forked() ? INVALID_ARGUMENT : twSubmit((uintptr_t)e, id, entries, n);
}

API int submitTransferWithNotify(transfer_engine_t e, batch_id_t id, struct transfer_request *entries, size_t n, notify_msg_t msg)
{
    return tw_forked() ? INVALID_ARGUMENT : twSubmitNotify((uintptr_t)e, id, entries, n, msg.name, msg.msg);
}

API notify_msg_t *getNotifsFromEngine(transfer_engine_t e, int *size) { return tw_forked() ? NULL : twReceive((uintptr_t)e, size); }

API int freeNotifsMsgBuf(notify_msg_t *list, int size)
{
    for (int i = 0; list && i < size; i++) {
        free(list[i].name);
        free(list[i].msg);
    }
    free(list);
    return 0;
}

API int genNotifyInEngine(transfer_engine_t e, uint64_t id, notify_msg_t msg)
{
    return tw_forked() ? -1 : twNotifyID((uintptr_t)e, id, msg.name, msg.msg);
}

API int syncSegmentCache(transfer_engine_t e) { return tw_forked() ? -1 : twSync((uintptr_t)e); }

API int getNicLoadStats(transfer_engine_t e, nic_load_stat_t *stats, size_t *count)
{
    return tw_forked() ? -1 : twLoads((uintptr_t)e, stats, count);
}

API void enableGracefulShutdown(transfer_engine_t e)
{
    if (!tw_forked())
        twGraceful((uintptr_t)e);
}

API int showLinks(transfer_engine_t e, char *buf, size_t n, int json) { return tw_forked() ? -1 : twLinks((uintptr_t)e, buf, n, json); }

API void tideway_free(void *p) { free(p); }

API int tideway_get_rpc_port(transfer_engine_t e) { return tw_forked() ? -1 : twPort((uintptr_t)e); }

API char *tideway_get_name(transfer_engine_t e) { return tw_forked() ? NULL : twName((uintptr_t)e); }

API int tideway_wait_batch(transfer_engine_t e, batch_id_t id, int64_t timeout)
{
    return tw_forked() ? INVALID_ARGUMENT : twWait((uintptr_t)e, id, timeout);
}

API int tideway_cancel_batch(transfer_engine_t e, batch_id_t id) { return tw_forked() ? INVALID_ARGUMENT : twCancel((uintptr_t)e, id); }

API char *tideway_task_error(transfer_engine_t e, batch_id_t id, size_t task)
{
    return tw_forked() ? NULL : twTaskError((uintptr_t)e, id, task);
}

API char *tideway_segment_buffers(transfer_engine_t e, segment_id_t id) { return tw_forked() ? NULL : twBuffers((uintptr_t)e, id); }

API int tideway_notify(transfer_engine_t e, const char *name, notify_msg_t msg)
{
    return tw_forked() ? -1 : twNotify((uintptr_t)e, (char *)name, msg.name, msg.msg);
}

API int tideway_probe(transfer_engine_t e, const char *name, int64_t *rtt) { return tw_forked() ? -1 : twProbe((uintptr_t)e, (char *)name, rtt); }

API char *tideway_explain(transfer_engine_t e, const struct transfer_request *r)
{
    return tw_forked() ? NULL : twExplain((uintptr_t)e, (struct transfer_request *)r);
}

API char *tideway_inspect(transfer_engine_t e) { return tw_forked() ? NULL : twInspect((uintptr_t)e); }
