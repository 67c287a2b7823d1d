/*
 * The C interface of Mooncake's transfer engine, as served by Tideway: the
 * same names, layouts and return values, so that a program built for the one
 * links against the other. What it lacks is in tideway.h.
 *
 * Strings are copied during the call. A function that fails returns what its
 * comment says; tideway_last_error (tideway.h) has the reason in words. Null
 * arguments, handles of something destroyed and numbers that never were handles
 * are failures as well, and so is every call in a forked child.
 */
#ifndef TIDEWAY_TRANSFER_ENGINE_C_H
#define TIDEWAY_TRANSFER_ENGINE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An engine, and a transport of it; NULL is none. */
typedef void *transfer_engine_t;
typedef void *transport_t;

typedef int32_t segment_handle_t;
typedef int32_t segment_id_t;
typedef uint64_t batch_id_t;

#define LOCAL_SEGMENT (0)
#define INVALID_BATCH UINT64_MAX

/* Operations: remote into local memory, local into remote memory. */
#define OPCODE_READ (0)
#define OPCODE_WRITE (1)

struct transfer_request {
    int opcode;
    void *source;           /* local memory, whatever the operation */
    segment_id_t target_id; /* from openSegment */
    uint64_t target_offset; /* the address at the peer */
    uint64_t length;        /* bytes */
};
typedef struct transfer_request transfer_request_t;

#define STATUS_WAITING (0)
#define STATUS_PENDING (1)
#define STATUS_INVALID (2)
#define STATUS_CANCELED (3)
#define STATUS_COMPLETED (4)
#define STATUS_TIMEOUT (5)
#define STATUS_FAILED (6)

struct transfer_status {
    int status;
    uint64_t transferred_bytes; /* all of the request's once it is completed, else 0 */
};
typedef struct transfer_status transfer_status_t;

struct notify_msg {
    char *name;
    char *msg;
};
typedef struct notify_msg notify_msg_t;

struct buffer_entry {
    void *addr;
    size_t length;
};
typedef struct buffer_entry buffer_entry_t;

#define NIC_LOAD_DEVICE_NAME_LEN (64)

struct nic_load_stat {
    char device_name[NIC_LOAD_DEVICE_NAME_LEN];
    uint64_t inflight_bytes;
    double ewma_bandwidth_bps;
};
typedef struct nic_load_stat nic_load_stat_t;

/* Declared for programs that name it; no function uses it. */
struct segment_desc {
    int type;
    union {
        struct {
            void *addr;
            uint64_t size;
            const char *location;
        } rdma;
        struct {
            const char *file_path;
            const char *subsystem_name;
            const char *proto;
            const char *ip;
            uint64_t port;
        } nvmeof;
    } desc_;
};
typedef struct segment_desc segment_desc_t;

/*
 * createTransferEngine starts an engine that finds its peers through
 * metadata_conn: "P2PHANDSHAKE", "etcd://host:port", "redis://host:port" or
 * "http://host:port/metadata". Peer to peer its name is the host of
 * local_server_name and a port of its own choice; with a store it is
 * local_server_name. ip_or_host_name and rpc_port are not looked at, as in the
 * original. With auto_discover its transports are installed. NULL when it cannot
 * start.
 */
transfer_engine_t createTransferEngine(const char *metadata_conn, const char *local_server_name,
                                       const char *ip_or_host_name, uint64_t rpc_port, int auto_discover);

/* destroyTransferEngine ends the engine: transfers end, then memory is let go. */
void destroyTransferEngine(transfer_engine_t engine);

/* discoverTopology looks for the devices of this host. 0, or negative. */
int discoverTopology(transfer_engine_t engine);

/* getLocalIpAndPort writes "host:port", IPv6 in brackets, cut at len - 1 bytes. 0, or negative. */
int getLocalIpAndPort(transfer_engine_t engine, char *buf_out, size_t buf_len);

/* installTransport makes a transport ("tcp") usable. args and args[0] may be NULL. NULL: there is none of that name. */
transport_t installTransport(transfer_engine_t engine, const char *proto, void **args);

/* uninstallTransport does nothing, as in the original. 0, or negative. */
int uninstallTransport(transfer_engine_t engine, const char *proto);

/* openSegment returns the id of the peer's segment, or -1. One's own name is LOCAL_SEGMENT. */
segment_id_t openSegment(transfer_engine_t engine, const char *segment_name);

/* openSegmentNoCache is openSegment with what the peer offers asked for anew. */
segment_id_t openSegmentNoCache(transfer_engine_t engine, const char *segment_name);

/* closeSegment does nothing: an id is good until the engine ends. 0, or negative. */
int closeSegment(transfer_engine_t engine, segment_id_t segment_id);

/* warmupEfaSegment connects to the segment's owner ahead of the first transfer. 0, or negative. */
int warmupEfaSegment(transfer_engine_t engine, const char *segment_name);

/* removeLocalSegment forgets what is known of a segment. 0, or -1. */
int removeLocalSegment(transfer_engine_t engine, const char *segment_name);

/*
 * registerLocalMemory makes memory usable by requests and, if remote_accessible
 * is not 0, by peers. location is "*", "cpu:0", "cuda:0" and so on. 0, or
 * negative: -1 for a length of 0 or no address, -7 if it overlaps registered
 * memory.
 */
int registerLocalMemory(transfer_engine_t engine, void *addr, size_t length, const char *location,
                        int remote_accessible);

/* unregisterLocalMemory waits for the transfers that use the memory. 0, or negative. */
int unregisterLocalMemory(transfer_engine_t engine, void *addr);

/* registerLocalMemoryBatch registers all, for peers too, or none. 0, or negative. */
int registerLocalMemoryBatch(transfer_engine_t engine, buffer_entry_t *buffer_list, size_t buffer_len,
                             const char *location);

/* unregisterLocalMemoryBatch unregisters what it can. 0, or the first failure. */
int unregisterLocalMemoryBatch(transfer_engine_t engine, void **addr_list, size_t addr_len);

/* allocateBatchID makes a batch of up to batch_size requests, or INVALID_BATCH. */
batch_id_t allocateBatchID(transfer_engine_t engine, size_t batch_size);

/*
 * submitTransfer starts the requests as the batch's next tasks. 0, or a positive
 * code: 1 invalid, 2 too many for the batch; the batch is as before then.
 */
int submitTransfer(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries, size_t count);

/* submitTransferWithNotify also sends a message to the first request's peer once all of the batch has completed. */
int submitTransferWithNotify(transfer_engine_t engine, batch_id_t batch_id, struct transfer_request *entries,
                             size_t count, notify_msg_t notify_msg);

/* getTransferStatus writes the state of one task. 0, or a positive code, with *status untouched. */
int getTransferStatus(transfer_engine_t engine, batch_id_t batch_id, size_t task_id, struct transfer_status *status);

/* freeBatchID ends the use of a batch. 0; 4 while a task is under way; or another positive code. */
int freeBatchID(transfer_engine_t engine, batch_id_t batch_id);

/* getNotifsFromEngine takes all messages received: *size of them, to be freed by freeNotifsMsgBuf; NULL for none. */
notify_msg_t *getNotifsFromEngine(transfer_engine_t engine, int *size);
int freeNotifsMsgBuf(notify_msg_t *msg, int size);

/* genNotifyInEngine sends a message to the segment's owner. 0, or negative. */
int genNotifyInEngine(transfer_engine_t engine, uint64_t target_id, notify_msg_t notify_msg);

/* syncSegmentCache asks the owners of all open segments what they offer now. 0. */
int syncSegmentCache(transfer_engine_t engine);

/* getNicLoadStats writes up to *count records and sets *count to how many there are. 0, or -1. */
int getNicLoadStats(transfer_engine_t engine, nic_load_stat_t *stats, size_t *count);

/* enableGracefulShutdown ends the process's engines in order at exit, SIGTERM and SIGINT. */
void enableGracefulShutdown(transfer_engine_t engine);

/* showLinks writes the network interfaces, as text or JSON, cut at buf_len - 1 bytes. 0, or -1. */
int showLinks(transfer_engine_t engine, char *buf_out, size_t buf_len, int as_json);

#ifdef __cplusplus
}
#endif

#endif
