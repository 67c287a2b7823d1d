/*
 * The states of all tasks of all batches, where C can read them without
 * entering Go: a poller that spins costs a few loads a turn.
 *
 * Go makes and fills the table and is the only one that writes it; memory that
 * was part of it once stays so for ever, so that a poller with an id that has
 * been freed meanwhile reads a slot or a row that belongs to another batch now,
 * sees that by the id, and touches nothing else.
 */
#ifndef TIDEWAY_TABLE_H
#define TIDEWAY_TABLE_H

#include <stddef.h>
#include <stdint.h>

/* A task: its state (STATUS_…) and the bytes moved. */
typedef struct {
    uint64_t bytes;
    uint32_t state;
    uint32_t unused;
} tw_task;

/* A batch. Its id is 0 while the slot is free. */
typedef struct {
    uint64_t id;
    uint64_t engine;
    uint64_t count;  /* tasks submitted */
    uint64_t ended;  /* of which have ended */
    uint64_t failed; /* of which ended otherwise than completed */
    uint64_t asleep; /* submissions whose ends nobody publishes yet; see tw_wake */
    tw_task *tasks;
} tw_slot;

#define TW_SLOT_BITS 20 /* the low bits of an id are its slot's number */
#define TW_CHUNK 1024   /* slots of one allocation */
#define TW_CHUNKS ((1 << TW_SLOT_BITS) / TW_CHUNK)

extern tw_slot *tw_chunks[TW_CHUNKS];
extern tw_task *tw_rows[64]; /* free rows of 1, 2, 4 … tasks, each naming the next in its first word */

/* The slot that an id would have, NULL for none, and whether it is that batch's of the engine. */
tw_slot *tw_find(uint64_t id);
int tw_is(const tw_slot *s, uint64_t id, void *engine);

/*
 * Has the ends of a batch's tasks published from now on. Whoever looks at states
 * calls it before; who only waits never does, and costs no goroutine.
 */
static inline void tw_wake(tw_slot *s, uint64_t id, void (*publish)(uint64_t))
{
    if (__atomic_load_n(&s->asleep, __ATOMIC_ACQUIRE))
        publish(id);
}

/* The child's flag after fork: Go does not run there. */
int tw_forked(void);

/* The text of tideway_last_error for this thread. */
void tw_set_error(const char *text, size_t length);

/* Has twAtExit called when the process exits. */
void tw_at_exit(void);

#endif
