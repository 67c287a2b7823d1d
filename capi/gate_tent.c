/*
 * TENT's functions, as gate.c has the classic ones: a forked child is answered
 * here, and so are states, from the table.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "include/tideway.h"
#include "table.h"

#define API __attribute__((visibility("default")))

/*
 * The settings of this thread: pairs of text, each ended by a zero. A key that is
 * empty has a whole document of JSON for its value, one of "!" an error.
 */
struct settings {
    size_t length;
    char text[];
};

static __thread struct settings *mine;
static pthread_key_t at_end;

__attribute__((constructor)) static void watch_threads(void) { pthread_key_create(&at_end, free); }

static void keep(const char *key, const char *value)
{
    size_t k = strlen(key) + 1, v = strlen(value) + 1, old = mine ? mine->length : 0;
    struct settings *s = realloc(mine, sizeof *s + old + k + v);
    if (!s)
        return;
    memcpy(s->text + old, key, k);
    memcpy(s->text + old + k, value, v);
    s->length = old + k + v;
    mine = s;
    pthread_setspecific(at_end, s);
}

API void tent_load_config_from_file(const char *path)
{
    if (tw_forked())
        return;
    char *failure = NULL, *document = twTentFile((char *)path, &failure);
    if (document)
        keep("", document);
    else
        keep("!", failure ? failure : "out of memory");
    free(document);
    free(failure);
}

API void tent_set_config(const char *key, const char *value)
{
    if (!key || !value || !*key || strcmp(key, "!") == 0)
        keep("!", "tent_set_config: a key and a value are needed");
    else
        keep(key, value);
}

API tent_engine_t tent_create_engine(void)
{
    return tw_forked() ? NULL : (tent_engine_t)twTentCreate(mine ? mine->text : NULL, mine ? mine->length : 0);
}

API void tent_destroy_engine(tent_engine_t e)
{
    if (!tw_forked())
        twDestroy((uintptr_t)e);
}

/* any makes the classic numbers TENT's. */
static int any(int result) { return result ? -1 : 0; }

API int tent_available(tent_engine_t e) { return !tw_forked() && twUsable((uintptr_t)e) == 0; }

API int tent_segment_name(tent_engine_t e, char *buf, size_t n) { return tw_forked() ? -1 : twTentName((uintptr_t)e, buf, n); }

API int tent_rpc_server_addr_port(tent_engine_t e, char *buf, size_t n, uint16_t *port)
{
    return tw_forked() ? -1 : twTentAddr((uintptr_t)e, buf, n, port);
}

API int tent_open_segment(tent_engine_t e, tent_segment_id_t *handle, const char *name)
{
    return tw_forked() ? -1 : twTentOpen((uintptr_t)e, handle, (char *)name);
}

API int tent_close_segment(tent_engine_t e, tent_segment_id_t handle) { return tw_forked() ? -1 : twTentClose((uintptr_t)e, handle); }

API int tent_get_segment_info(tent_engine_t e, tent_segment_id_t handle, tent_segment_info_t *info)
{
    return tw_forked() ? -1 : twTentInfo((uintptr_t)e, handle, info);
}

API void tent_free_segment_info(tent_segment_info_t *info)
{
    if (!info)
        return;
    free(info->buffers);
    memset(info, 0, sizeof *info);
}

API int tent_allocate_memory(tent_engine_t e, void **addr, size_t size, const char *location)
{
    return tw_forked() ? -1 : twTentAlloc((uintptr_t)e, addr, size, (char *)location, TRANSPORT_UNSPEC);
}

API int tent_allocate_memory_ex(tent_engine_t e, void **addr, size_t size, tent_memory_options_t *o)
{
    if (tw_forked())
        return -1;
    if (!o)
        return twTentNull("allocate memory", "opts");
    o->location[sizeof o->location - 1] = 0;
    o->shm_path[0] = 0;
    o->shm_offset = 0;
    return twTentAlloc((uintptr_t)e, addr, size, o->location, o->transport_type);
}

API int tent_free_memory(tent_engine_t e, void *addr) { return tw_forked() ? -1 : twTentRelease((uintptr_t)e, addr); }

static int enter(tent_engine_t e, void **addrs, size_t *sizes, size_t n, const char *location, int permission, int transport)
{
    return tw_forked() ? -1 : twTentRegister((uintptr_t)e, addrs, sizes, n, (char *)location, permission, transport);
}

API int tent_register_memory_with_perm(tent_engine_t e, void *addr, size_t size, int permission)
{
    return enter(e, &addr, &size, 1, NULL, permission, TRANSPORT_UNSPEC);
}

API int tent_register_memory(tent_engine_t e, void *addr, size_t size)
{
    return tent_register_memory_with_perm(e, addr, size, PERM_GLOBAL_READ_WRITE);
}

API int tent_register_memory_batch(tent_engine_t e, void **addrs, size_t *sizes, size_t n, int permission)
{
    return enter(e, addrs, sizes, n, NULL, permission, TRANSPORT_UNSPEC);
}

API int tent_register_memory_batch_ex(tent_engine_t e, void **addrs, size_t *sizes, size_t n, tent_memory_options_t *o)
{
    if (!o)
        return tw_forked() ? -1 : twTentNull("register memory", "opts");
    char location[sizeof o->location + 1] = {0};
    memcpy(location, o->location, sizeof o->location);
    return enter(e, addrs, sizes, n, *location ? location : NULL, o->permission, o->transport_type);
}

API int tent_register_memory_ex(tent_engine_t e, void *addr, size_t size, tent_memory_options_t *o)
{
    return tent_register_memory_batch_ex(e, &addr, &size, 1, o);
}

API int tent_unregister_memory_batch(tent_engine_t e, void **addrs, size_t *sizes, size_t n)
{
    return tw_forked() ? -1 : twTentUnregister((uintptr_t)e, addrs, sizes, n);
}

API int tent_unregister_memory(tent_engine_t e, void *addr, size_t size) { return tent_unregister_memory_batch(e, &addr, &size, 1); }

API tent_batch_id_t tent_allocate_batch(tent_engine_t e, size_t n)
{
    uint64_t id = tw_forked() ? UINT64_MAX : twAllocate((uintptr_t)e, n);
    return id == UINT64_MAX ? 0 : id;
}

API int tent_free_batch(tent_engine_t e, tent_batch_id_t id) { return tw_forked() ? -1 : twTentFree((uintptr_t)e, id); }

API int tent_submit(tent_engine_t e, tent_batch_id_t id, tent_request_t *entries, size_t n)
{
    return tw_forked() ? -1 : twTentSubmit((uintptr_t)e, id, entries, n, NULL, NULL, NULL);
}

API int tent_submit_notif(tent_engine_t e, tent_batch_id_t id, tent_request_t *entries, size_t n, const char *name, const char *message)
{
    if (tw_forked())
        return -1;
    if (!name || !message)
        return twTentNull("submit", "name or message");
    return twTentSubmit((uintptr_t)e, id, entries, n, (char *)name, (char *)message, NULL);
}

API int tideway_tent_submit(tent_engine_t e, tent_batch_id_t id, tent_request_t *entries, size_t n, const tideway_options_t *options)
{
    return tw_forked() ? -1 : twTentSubmit((uintptr_t)e, id, entries, n, NULL, NULL, (tideway_options_t *)options);
}

API int tent_send_notifs(tent_engine_t e, tent_segment_id_t handle, const char *name, const char *message)
{
    return tw_forked() ? -1 : any(twNotifyID((uintptr_t)e, handle, (char *)name, (char *)message));
}

API int tent_recv_notifs(tent_engine_t e, tent_notifi_info *info) { return tw_forked() ? -1 : twTentReceive((uintptr_t)e, info); }

API void tent_free_notifs(tent_notifi_info *info)
{
    if (!info)
        return;
    free(info->records);
    memset(info, 0, sizeof *info);
}

static int wrong(const char *what)
{
    tw_set_error(what, strlen(what));
    return -1;
}

static const char no_batch[] = "batch status: no such batch of this engine; was it freed?";

/* state is a task's, as TENT has it. */
static int state(const tw_task *t, uint64_t *bytes)
{
    int s = (int)__atomic_load_n(&t->state, __ATOMIC_ACQUIRE);
    *bytes = s == STATUS_COMPLETED ? __atomic_load_n(&t->bytes, __ATOMIC_ACQUIRE) : 0;
    return s == STATUS_WAITING ? STATUS_PENDING : s;
}

API int tent_task_status(tent_engine_t e, tent_batch_id_t id, size_t task, tent_status_t *status)
{
    tw_slot *s = tw_find(id);
    tent_status_t now;
    if (tw_forked())
        return -1;
    if (!status)
        return wrong("task status: no place for the status");
    if (!s || !tw_is(s, id, e))
        return wrong(no_batch);
    tw_wake(s, id, twWake);
    if (task >= __atomic_load_n(&s->count, __ATOMIC_ACQUIRE))
        return wrong("task status: no such task in the batch");
    now.status = state(&__atomic_load_n(&s->tasks, __ATOMIC_ACQUIRE)[task], &now.transferred_bytes);
    if (!tw_is(s, id, e)) /* freed while it was read */
        return wrong(no_batch);
    status->status = now.status;
    status->transferred_bytes = now.transferred_bytes;
    return 0;
}

API int tent_task_status_list(tent_engine_t e, tent_batch_id_t id, tent_status_t *statuses, size_t *count)
{
    tw_slot *s = tw_find(id);
    if (tw_forked())
        return -1;
    if (!count || (!statuses && *count))
        return wrong("task status list: no place for the statuses or their count");
    if (!s || !tw_is(s, id, e))
        return wrong(no_batch);
    tw_wake(s, id, twWake);
    size_t n = __atomic_load_n(&s->count, __ATOMIC_ACQUIRE);
    const tw_task *tasks = __atomic_load_n(&s->tasks, __ATOMIC_ACQUIRE);
    for (size_t i = 0; i < n && i < *count; i++)
        statuses[i].status = state(&tasks[i], &statuses[i].transferred_bytes);
    if (!tw_is(s, id, e))
        return wrong(no_batch);
    *count = n;
    return 0;
}

/* worse says which of two ends a batch is said to have. */
static int worse(int a, int b)
{
    static const int order[] = {STATUS_FAILED, STATUS_TIMEOUT, STATUS_CANCELED, STATUS_INVALID, STATUS_COMPLETED};
    for (size_t i = 0; i < sizeof order / sizeof *order; i++)
        if (a == order[i] || b == order[i])
            return order[i];
    return STATUS_FAILED;
}

API int tent_overall_status(tent_engine_t e, tent_batch_id_t id, tent_status_t *status)
{
    tw_slot *s = tw_find(id);
    tent_status_t now = {STATUS_COMPLETED, 0};
    if (tw_forked())
        return -1;
    if (!status)
        return wrong("overall status: no place for the status");
    if (!s || !tw_is(s, id, e))
        return wrong(no_batch);
    tw_wake(s, id, twWake);
    size_t n = __atomic_load_n(&s->count, __ATOMIC_ACQUIRE);
    const tw_task *tasks = __atomic_load_n(&s->tasks, __ATOMIC_ACQUIRE);
    int pending = __atomic_load_n(&s->ended, __ATOMIC_ACQUIRE) < n;
    for (size_t i = 0; i < n; i++) {
        uint64_t bytes;
        int one = state(&tasks[i], &bytes);
        now.transferred_bytes += bytes;
        if (one == STATUS_PENDING)
            pending = 1;
        else
            now.status = worse(now.status, one);
    }
    if (!tw_is(s, id, e))
        return wrong(no_batch);
    status->status = pending ? STATUS_PENDING : now.status;
    status->transferred_bytes = now.transferred_bytes;
    return 0;
}

API int tent_cancel_task(tent_engine_t e, tent_batch_id_t id, size_t task) { return tw_forked() ? -1 : twTentCancel((uintptr_t)e, id, task); }

API int tent_get_nic_load_stats(tent_engine_t e, tent_nic_load_stat_t *stats, size_t *count)
{
    return tw_forked() ? -1 : twTentLoads((uintptr_t)e, stats, count);
}
