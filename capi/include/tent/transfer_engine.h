/*
 * The C interface of TENT, Mooncake's second engine, as served by Tideway: the
 * same names, layouts and return values. Engines are of one kind with those of
 * transfer_engine_c.h, and peers of either.
 *
 * Functions return 0, or -1 and the reason in tideway_last_error (tideway.h).
 * Strings are copied during the call. Null arguments, handles of something
 * destroyed and numbers that never were handles are failures, and so is every
 * call in a forked child.
 */
#ifndef TIDEWAY_TENT_TRANSFER_ENGINE_H
#define TIDEWAY_TENT_TRANSFER_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef void *tent_engine_t;
typedef uint64_t tent_batch_id_t;
typedef uint64_t tent_segment_id_t;

#ifndef LOCAL_SEGMENT_ID
#define LOCAL_SEGMENT_ID (0ull)
#endif

#ifndef OPCODE_READ
#define OPCODE_READ (0)
#define OPCODE_WRITE (1)
#endif

/* Priorities; anything else is refused. */
#define PRIO_HIGH (0)
#define PRIO_MEDIUM (1)
#define PRIO_LOW (2)

/* Transports. Those that this library has are UNSPEC, SHM and TCP. */
#define TRANSPORT_UNSPEC (0)
#define TRANSPORT_RDMA (1)
#define TRANSPORT_MNNVL (2)
#define TRANSPORT_SHM (3)
#define TRANSPORT_NVLINK (4)
#define TRANSPORT_GDS (5)
#define TRANSPORT_IOURING (6)
#define TRANSPORT_TCP (7)
#define TRANSPORT_ASCEND_DIRECT (8)
#define TRANSPORT_SUNRISE_LINK (9)
#define TRANSPORT_TPU (10)
#define TRANSPORT_UB (11)
#define TRANSPORT_MPCOMM (12)

/* Zero the whole of it first: fields may be added at the end. */
struct tent_request {
    int opcode;
    void *source;                /* local memory, whatever the operation */
    tent_segment_id_t target_id; /* from tent_open_segment */
    uint64_t target_offset;      /* the address at the peer */
    uint64_t length;             /* bytes */
    int priority;                /* PRIO_… */
    int transport_hint;          /* TRANSPORT_…, the only one that may be used; UNSPEC: any */
};
typedef struct tent_request tent_request_t;

#ifndef STATUS_WAITING
#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)
#endif

struct tent_status {
    int status;
    uint64_t transferred_bytes; /* of what has completed, else 0 */
};
typedef struct tent_status tent_status_t;

struct tent_buffer_info {
    uint64_t base, length;
    char location[64];
};
typedef struct tent_buffer_info tent_buffer_info_t;

#define TYPE_MEMORY (0)
#define TYPE_FILE (1)

struct tent_segment_info {
    int type;
    int num_buffers;
    struct tent_buffer_info *buffers;
};
typedef struct tent_segment_info tent_segment_info_t;

struct tent_notifi_record {
    tent_segment_id_t handle; /* the sender's, if it is open here, else 0 */
    char name[256];
    char msg[4096];
};
typedef struct tent_notifi_record tent_notifi_record_t;

struct tent_notifi_info {
    int num_records;
    struct tent_notifi_record *records;
};
typedef struct tent_notifi_info tent_notifi_info;

struct tent_nic_load_stat {
    char device_name[64];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps; /* bytes a second, in spite of its name */
};
typedef struct tent_nic_load_stat tent_nic_load_stat_t;

#define PERM_LOCAL_READ_WRITE (0)
#define PERM_GLOBAL_READ_ONLY (1)
#define PERM_GLOBAL_READ_WRITE (2)

struct tent_memory_options {
    char location[64]; /* empty: anywhere */
    int permission;    /* PERM_… */
    int transport_type;
    char shm_path[256];
    size_t shm_offset;
    int internal;
};
typedef struct tent_memory_options tent_memory_options_t;

/*
 * Settings of engines that this thread creates from now on: those of a JSON file,
 * or one. Later ones win. What cannot be read makes tent_create_engine fail.
 */
void tent_load_config_from_file(const char *path);
void tent_set_config(const char *key, const char *value);

/* tent_create_engine returns an engine, or NULL. */
tent_engine_t tent_create_engine(void);

/* tent_destroy_engine ends what is under way, after two seconds by force. */
void tent_destroy_engine(tent_engine_t engine);

/* tent_available returns 1 for an engine that lives, else 0. */
int tent_available(tent_engine_t engine);

int tent_segment_name(tent_engine_t engine, char *buf, size_t buf_len);
int tent_rpc_server_addr_port(tent_engine_t engine, char *addr_buf, size_t buf_len, uint16_t *port);

/* An empty name, or the engine's own, is LOCAL_SEGMENT_ID. Each open has its close. */
int tent_open_segment(tent_engine_t engine, tent_segment_id_t *handle, const char *segment_name);
int tent_close_segment(tent_engine_t engine, tent_segment_id_t handle);

int tent_get_segment_info(tent_engine_t engine, tent_segment_id_t handle, tent_segment_info_t *info);
void tent_free_segment_info(tent_segment_info_t *info);

/* Memory that is allocated is not yet registered, and can be freed when it is not. */
int tent_allocate_memory(tent_engine_t engine, void **addr, size_t size, const char *location);
int tent_allocate_memory_ex(tent_engine_t engine, void **addr, size_t size, tent_memory_options_t *opts);
int tent_free_memory(tent_engine_t engine, void *addr);

/* Without a permission it is PERM_GLOBAL_READ_WRITE. A list is registered as a whole, or not. */
int tent_register_memory(tent_engine_t engine, void *addr, size_t size);
int tent_register_memory_with_perm(tent_engine_t engine, void *addr, size_t size, int permission);
int tent_register_memory_ex(tent_engine_t engine, void *addr, size_t size, tent_memory_options_t *opts);
int tent_register_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count, int permission);
int tent_register_memory_batch_ex(tent_engine_t engine, void **addrs, size_t *sizes, size_t count, tent_memory_options_t *opts);

/* Waits until nobody uses the memory. What is not registered is no failure. sizes may be NULL. */
int tent_unregister_memory(tent_engine_t engine, void *addr, size_t size);
int tent_unregister_memory_batch(tent_engine_t engine, void **addrs, size_t *sizes, size_t count);

/* tent_allocate_batch returns a batch for so many tasks, or 0. */
tent_batch_id_t tent_allocate_batch(tent_engine_t engine, size_t batch_size);

/* A batch with tasks under way takes no more, and is freed when they have ended. */
int tent_free_batch(tent_engine_t engine, tent_batch_id_t batch_id);

/* Requests become the batch's next tasks in their order: all of them, or none. */
int tent_submit(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count);

/* The message goes to the first request's peer once all of the batch has completed. */
int tent_submit_notif(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count, const char *name, const char *message);

int tent_send_notifs(tent_engine_t engine, tent_segment_id_t handle, const char *name, const char *message);

/* Takes all messages that are there; none is no failure. Text that is too long is cut. */
int tent_recv_notifs(tent_engine_t engine, tent_notifi_info *info);
void tent_free_notifs(tent_notifi_info *info);

/* States, read without waiting: PENDING until a task has ended. */
int tent_task_status(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id, tent_status_t *status);

/* count: places at statuses, then tasks in the batch. */
int tent_task_status_list(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *statuses, size_t *count);

/* COMPLETED if all tasks are, PENDING while one is; then the worst of FAILED, TIMEOUT, CANCELED. */
int tent_overall_status(tent_engine_t engine, tent_batch_id_t batch_id, tent_status_t *status);

/* Asks that a task ends; it may still complete. Look at its state before its memory is used. */
int tent_cancel_task(tent_engine_t engine, tent_batch_id_t batch_id, size_t task_id);

/* count: places at stats, then records that there are. */
int tent_get_nic_load_stats(tent_engine_t engine, tent_nic_load_stat_t *stats, size_t *count);

#ifdef __cplusplus
}
#endif

#endif
