/*
 * What Tideway adds to the interfaces of transfer_engine_c.h and of
 * tent/transfer_engine.h: waiting without polling, cancelling, reasons. Engines
 * and batches are the same ones.
 */
#ifndef TIDEWAY_H
#define TIDEWAY_H

#include "tent/transfer_engine.h"
#include "transfer_engine_c.h"

#ifdef __cplusplus
extern "C" {
#endif

/* tideway_version returns the library's version. */
const char *tideway_version(void);

/*
 * tideway_last_error returns why the last call of this thread failed, "" if none
 * has; valid until the thread's next call.
 */
const char *tideway_last_error(void);

/* tideway_free frees what a function below returned. NULL is allowed. */
void tideway_free(void *p);

/* tideway_get_rpc_port returns the port that peers dial, or negative. */
int tideway_get_rpc_port(transfer_engine_t engine);

/* tideway_get_name returns the segment's name as peers open it, to be freed; NULL on failure. */
char *tideway_get_name(transfer_engine_t engine);

/*
 * tideway_wait_batch waits until every task of the batch has ended. 0; 5 when
 * timeout_ns passed first, negative waits for ever; or another positive code.
 */
int tideway_wait_batch(transfer_engine_t engine, batch_id_t batch_id, int64_t timeout_ns);

/*
 * tideway_batch_status sums the batch up: FAILED once a task has failed,
 * COMPLETED when all have completed, else WAITING. 0, or a positive code.
 */
int tideway_batch_status(transfer_engine_t engine, batch_id_t batch_id, struct transfer_status *status);

/* tideway_cancel_batch withdraws the tasks that have not ended; they end CANCELED. 0, or a positive code. */
int tideway_cancel_batch(transfer_engine_t engine, batch_id_t batch_id);

/* tideway_task_error returns why a task failed as a JSON object, to be freed; NULL if it did not. */
char *tideway_task_error(transfer_engine_t engine, batch_id_t batch_id, size_t task_id);

/* tideway_segment_buffers returns what the segment's owner offers as a JSON array, to be freed; NULL on failure. */
char *tideway_segment_buffers(transfer_engine_t engine, segment_id_t segment_id);

/* tideway_notify sends a message to the owner of the segment of that name. 0, or negative. */
int tideway_notify(transfer_engine_t engine, const char *segment_name, notify_msg_t notify_msg);

/* tideway_probe measures a round trip to the segment's owner, in nanoseconds. 0, or negative. */
int tideway_probe(transfer_engine_t engine, const char *segment_name, int64_t *round_trip_ns);

/* tideway_explain returns how a request would travel and why, as JSON, to be freed; NULL on failure. */
char *tideway_explain(transfer_engine_t engine, const struct transfer_request *request);

/* tideway_inspect returns the engine's state as JSON, to be freed; NULL on failure. */
char *tideway_inspect(transfer_engine_t engine);

/* What a request has in Tideway and lacks in TENT's interface. Zero it, and set size. */
struct tideway_options {
    size_t size;         /* sizeof(struct tideway_options) */
    int urgency;         /* 1: before others, 0: as the request's priority says, -1: behind others */
    int64_t timeout_ns;  /* the requests end as TIMEOUT after it; 0: never */
    const char *tenant;  /* for whom, NULL: nobody in particular */
    const char *intent;  /* what for, NULL: nothing in particular */
};
typedef struct tideway_options tideway_options_t;

/* tideway_tent_submit is tent_submit with options, which may be NULL. */
int tideway_tent_submit(tent_engine_t engine, tent_batch_id_t batch_id, tent_request_t *entries, size_t count, const tideway_options_t *options);

#ifdef __cplusplus
}
#endif

#endif
